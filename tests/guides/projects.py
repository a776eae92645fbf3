"""The projects in docs/guides/code, in processes of their own: each has a package called ``shop``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from verbs.rows import wait_for

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "docs" / "guides" / "code"
WORLD = Path(__file__).resolve().parent / "world"
PACKAGES = {
    "celery": "celery",
    "procrastinate": "procrastinate",
    "django-q2": "django_q",
    "django-tasks-db": "django_tasks_db",
}


def missing(guide: str) -> str:
    """Why this machine cannot run the guide's projects; empty: it can."""
    if not find_spec(PACKAGES[guide]):
        return f"{guide} is not installed here: tox -e guides"
    if guide == "django-tasks-db" and not find_spec("django.tasks"):
        return "django.tasks came with Django 6.0: tox -e guides"
    return ""


class Program:
    """A process of a project, in a process group of its own; its output in a file."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], directory: Path, log: Path) -> None:
        self.log_file = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float = 60.0) -> int:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.log[-4000:]}") from None

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """It and all that it has started, with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


class Project:
    """``docs/guides/code/<guide>/<side>`` on a database."""

    def __init__(self, guide: str, side: str, database: str, directory: Path) -> None:
        self.directory = directory
        self._database = database
        self._programs: list[Program] = []
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (CODE / guide / side, WORLD, ROOT))),
            "DJANGO_SETTINGS_MODULE": "quick",
            "DATABASE_URL": database,
            "SCRATCH": str(directory),
        }

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> Program:
        """``python -m …``, running on."""
        command = [sys.executable, "-m", *arguments]
        log = self.directory / f"{len(self._programs)}.log"
        self._programs.append(Program(command, {**self._environment, **(environment or {})}, self.directory, log))
        return self._programs[-1]

    def python(self, *arguments: str, code: int = 0) -> str:
        """``python -m …`` to its end, which must be this exit code; what it printed."""
        program = self.start(*arguments)
        assert program.wait() == code, program.log
        return program.log

    def django(self, *arguments: str, code: int = 0) -> str:
        return self.python("django", *arguments, code=code)

    def execute(self, source: str) -> str:
        """Python after ``django.setup()``."""
        return self.django("shell", "-v", "0", "-c", source)

    def session(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._database, autocommit=True)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.session() as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @property
    def ledger(self) -> list[str]:
        """What reached the partners, in no order, but for the reports: at three o'clock there is one more."""
        rows = self.sql("SELECT what, about FROM ledger WHERE what <> 'report'")
        return sorted(f"{what} {about}" for what, about in rows)

    @property
    def reports(self) -> set[str]:
        return {about for (about,) in self.sql("SELECT about FROM ledger WHERE what = 'report'")}

    def wait_until(self, condition: Callable[[], bool], worker: Program) -> None:
        def met() -> bool:
            assert worker.exit_code is None, f"the worker ended with {worker.exit_code}:\n{worker.log}"
            return condition()

        try:
            wait_for(met, 60)
        except AssertionError as error:
            raise AssertionError(f"{self.ledger} {self.reports}\n{worker.log[-6000:]}") from error

    def close(self) -> None:
        for program in self._programs:
            program.kill()
