"""What pip installs is the package with all that is no code, too."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pgqueue_django

PACKAGE = Path(pgqueue_django.__file__).parent
SAYS = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["pgqueue_django"], USE_I18N=True)
django.setup()
import pgqueue_django
from django.apps import apps
from django.utils import translation
print(pgqueue_django.__file__)
for language in ("de", "pl", "zh-hans"):
    with translation.override(language):
        print(apps.get_app_config("pgqueue_django").verbose_name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in files}
    there = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    assert there == wanted
    assert {Path(name).suffix for name in there} == {".py", ".typed", ".html", ".css", ".js", ".json", ".po", ".mo"}
    assert "pgqueue_django/migrations/0001_initial.py" in there


def test_an_installed_wheel_speaks_its_languages(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )
    where, *names = done.stdout.splitlines()
    assert where.startswith(str(tmp_path)), done.stderr
    assert names == ["Auftragswarteschlange", "Kolejka zadań", "作业队列"]
