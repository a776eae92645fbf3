"""Workers to test: a ``Running`` one in a thread of this process, a ``Process`` of its own, and what they left.

Both are made by the fixtures ``worker`` and ``process``, which end them whatever the test did.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from psycopg.conninfo import make_conninfo
from verbs import rows

from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker.loop import Loop, Options

ROOT = Path(__file__).resolve().parents[2]

# Commits for real. Only our tables are emptied afterwards: the shop's take longer than most of these tests.
REAL_DATABASE = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])

# Django's own pool, for a process's handlers.
POOL_OF_ONE = {"DATABASE": {"CONN_MAX_AGE": 0}, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}

wait_for = rows.wait_for
GRACE = rows.GRACE


class Running:
    """A ``Loop`` in a thread. ``exit_code`` is None until it has ended. Polls, since a listener takes long to end."""

    def __init__(self, **options: Any) -> None:
        options = {"using": "default", "listen": False, "poll_interval": 0.1, "shutdown_timeout": 10.0, **options}
        self.loop = Loop(Options(**options))
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.exit_code = self.loop.run()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float = 20.0) -> int:
        """Wait for its end; the exit code."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker did not end"
        if self.error:
            raise self.error
        assert self.exit_code is not None
        return self.exit_code

    def stop(self, timeout: float = 20.0) -> int:
        self.loop.stop(signal.SIGTERM)
        return self.join(timeout)


class Process:
    """``manage.py pgqueue_worker`` in a process of its own, and in a process group of its own; its log in a file.

    ``started_by``: the command before that; or, with one ``{}``, a line for the shell with its command in it.
    """

    def __init__(
        self,
        log_file: Path,
        *arguments: str,
        settings: dict[str, Any],
        environment: dict[str, str],
        started_by: Sequence[str] | str = (),
    ) -> None:
        self.log_file = log_file
        command = [sys.executable, "-m", "testproject.manage", "pgqueue_worker", *arguments]
        if isinstance(started_by, str):
            command = ["sh", "-c", started_by.format(shlex.join(command))]
        else:
            command = [*started_by, *command]
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.machine.settings",
                    "DATABASE_URL": database_url(),
                    "MACHINE_SETTINGS": json.dumps(settings),
                    **environment,
                },
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: signal.Signals) -> float:
        """Send it; the moment (time.monotonic())."""
        self._process.send_signal(number)
        return time.monotonic()

    def signal_group(self, number: signal.Signals) -> None:
        """As Ctrl-C does."""
        os.killpg(self.pid, number)

    def wait(self, timeout: float = 20.0) -> int:
        """Wait for its end; the exit code as a shell shows it."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {timeout} s:\n{self.log}") from None
        return code if code >= 0 else 128 - code

    def stop(self, timeout: float = 20.0) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait_until_ready(self) -> Process:
        """Until it has registered itself: it has announced itself and begun to claim."""

        def ready() -> bool:
            assert self.exit_code is None, f"the worker ended with {self.exit_code}:\n{self.log}"
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pgqueue_worker WHERE pid = %s", [self.pid])
                return bool(cursor.fetchone()[0])

        wait_for(ready, 30)
        return self

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def kill_group(self) -> None:
        """And whoever is left of those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()


def database_url() -> str:
    """The database of this test, in libpq's words."""
    parameters = connections["default"].get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    return make_conninfo(**{name: parameters[name] for name in names if parameters.get(name)})


def lead(monkeypatch: pytest.MonkeyPatch, port: int | str, alias: str = "default", **words: Any) -> None:
    """Let the next connections of an alias go to this port, as the default database otherwise."""
    settings = connections.settings
    if alias not in settings:
        monkeypatch.setitem(settings, alias, {**settings["default"]})
    for word, value in {"HOST": "127.0.0.1", "PORT": port, **words}.items():
        monkeypatch.setitem(settings[alias], word, value)


# -- what they left --------------------------------------------------------------------------------------------


def job(job_id: Any) -> Job:
    """The row now; takes what ``enqueue`` gave, too. Without what a test may have broken, until it is asked for."""
    return Job.objects.defer("args", "kwargs", "backoff").get(pk=getattr(job_id, "id", job_id))


def wait_for_state(job_id: Any, *states: State, timeout: float = 15.0) -> Job:
    wait_for(lambda: job(job_id).state in states, timeout)
    return job(job_id)


def failure(job_id: Any) -> dict[str, Any]:
    """The newest failed attempt in the history."""
    history: list[dict[str, Any]] = job(job_id).history
    assert history, f"no failed attempt; the job is {job(job_id).state}"
    return history[-1]


def attempts() -> dict[tuple[str, int], int]:
    """How many jobs ended in which state after how many attempts."""
    ended: dict[tuple[str, int], int] = {}
    for pair in Job.objects.values_list("state", "attempts"):
        ended[pair] = ended.get(pair, 0) + 1
    return ended


def notes(event: str | None = None) -> list[tuple[int, str]]:
    """What the handlers wrote down, in order: (job or number, event)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job_id, event FROM machine_note WHERE %s::text IS NULL OR event = %s ORDER BY id", [event, event]
        )
        return cursor.fetchall()


def sessions(condition: str = "true", *parameters: object) -> int:
    """How many sessions of this database, other than the asking one, meet a condition on pg_stat_activity."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            f"AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition}",
            parameters or None,
        )
        return int(cursor.fetchone()[0])


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pgqueue ")]


def always(condition: Callable[[], Any], lasting: float) -> None:
    """Polls for so many seconds, and fails as soon as it is not so."""
    deadline = time.monotonic() + lasting
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(0.002)


def seconds(action: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began
