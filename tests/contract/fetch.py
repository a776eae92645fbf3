"""``python -m tests.contract.fetch``: Django's own tests of its tasks, out of the sdist of the Django that is here.

For Django 5.2, which has none, those of 6.0: what they test is there the backport's.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[2]
VERSION = django.__version__ if django.VERSION >= (6, 0) else "6.0.*"
HOME = ROOT / ".contract" / VERSION.replace("*", "x")
"""Holds a package ``tasks``, as Django's tests call it."""


def fetch() -> Path:
    """Return its folder; from the package index if it is not there yet."""
    if not (HOME / "tasks" / "test_tasks.py").exists():
        with tempfile.TemporaryDirectory() as folder:
            # Another Django than this Python's: nothing of it is installed.
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django"]
            command += ["--ignore-requires-python", "--dest", folder, f"django=={VERSION}"]
            subprocess.run(command, check=True)
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as sdist:
                for member in sdist.getmembers():
                    _, _, inside = member.name.partition("/tests/")
                    if inside.startswith("tasks/") and member.isfile():
                        member.name = inside
                        sdist.extract(member, HOME, filter="data")
    return HOME


if __name__ == "__main__":
    print(fetch())
