"""A project that uses the kit, its tests run as its owner would: Django's runner, pytest, parallel, a kept database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from psycopg import IsolationLevel
from verbs import rows

pytestmark = pytest.mark.timeout(300)  # several runs of a whole project's tests, each

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parent / "kit_project"
NAME = f"test_kit_{os.getpid()}"
COPIES = [
    NAME,
    f"{NAME}_jobs",
    *(f"{NAME}_{number}" for number in range(1, 3)),
    *(f"{NAME}_gw{number}" for number in range(2)),
]


@pytest.fixture
def environment(db: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The package on the path as if it were installed: with the entry points that pyproject.toml names."""
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    site = tmp_path / "site"
    installed = site / "pgqueue_django-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pgqueue-django\nVersion: 0\n")
    lines = [
        line
        for group, points in entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    parameters = connections["default"].get_connection_params()
    words = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    database: dict[str, Any] = {word: str(parameters[name]) for name, word in words.items() if parameters.get(name)}
    database |= {"ENGINE": "django.db.backends.postgresql", "TEST": {"NAME": NAME}}
    without = ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    yield {
        **{name: value for name, value in os.environ.items() if name not in without},
        "KIT_DATABASE": json.dumps(database),
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with rows.connect() as session:
        for name in COPIES:
            session.execute(psycopg.sql.SQL("DROP DATABASE IF EXISTS {}").format(psycopg.sql.Identifier(name)))


def call(environment: dict[str, str], *command: str, directory: Path = PROJECT) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def databases() -> set[str]:
    with rows.connect() as session:
        return {name for (name,) in session.execute("SELECT datname FROM pg_database")} & set(COPIES)


def test_djangos_runner_in_parallel_with_a_kept_database(environment: dict[str, str]) -> None:
    for _ in range(2):
        said = call(environment, "manage.py", "test", "--parallel", "2", "--keepdb", "--shuffle")
        assert "Ran 18 tests" in said
        assert databases() == {NAME, f"{NAME}_1", f"{NAME}_2"}


def test_jobs_in_a_database_of_their_own(environment: dict[str, str]) -> None:
    said = call({**environment, "KIT_JOBS": f"{NAME}_jobs"}, "manage.py", "test", "--shuffle")
    assert "Ran 18 tests" in said


def test_another_isolation_level(environment: dict[str, str]) -> None:
    database = json.loads(environment["KIT_DATABASE"]) | {"OPTIONS": {"isolation_level": IsolationLevel.SERIALIZABLE}}
    said = call({**environment, "KIT_DATABASE": json.dumps(database)}, "manage.py", "test", "--shuffle")
    assert "Ran 18 tests" in said


def test_pytest_with_xdist(environment: dict[str, str]) -> None:
    pytest.importorskip("xdist")
    said = call(environment, "-m", "pytest", "-q", "-n", "2")
    assert re.search(r"\b33 passed", said), said


def test_pytest_with_a_kept_database_and_without_migrations(environment: dict[str, str]) -> None:
    for options in (["--reuse-db"], ["--reuse-db"], ["--create-db", "--no-migrations"]):
        said = call(environment, "-m", "pytest", "-q", *options)
        assert re.search(r"\b33 passed", said), said


def test_the_plugin_costs_nothing_where_it_is_not_used(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'pgqueue_django.pytest_plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.startswith('pgqueue_django')}\n"
        "    assert ours == {'pgqueue_django', 'pgqueue_django.pytest_plugin'}\n"
        "    assert not [name for name in sys.modules if name.partition('.')[0] in ('django', 'psycopg')]\n"
    )
    for plugins in (["-p", "no:django"], []):
        said = call(environment, "-m", "pytest", "-q", *plugins, "-k", "test_it", "test_it.py", directory=tmp_path)
        assert "1 passed" in said
    # pytest-django imports Django, and still there are no settings.


def test_the_fixtures_are_found(environment: dict[str, str]) -> None:
    said = call(environment, "-m", "pytest", "--fixtures")
    assert "pgqueue --" in said
    assert "pgqueue_worker --" in said
