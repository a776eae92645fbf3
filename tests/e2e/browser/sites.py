"""One site: a database of its own, the web server before it, workers behind it; all of them real processes.

The tests' own process asks the database by psycopg alone: Playwright runs an event loop in this thread, where Django's
models would refuse to work. What needs them is in ``orders/scenes.py``, a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from verbs.rows import wait_for

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent

# Another Django than this process has: E2E_PYTHON=.tox/py311-dj52/bin/python.
PYTHON = str(ROOT / (os.environ.get("E2E_PYTHON") or sys.executable))

SERVERS = {
    "asgi": ["uvicorn", "orders.asgi:application", "--log-level", "warning", "--port", "{port}"],
    "wsgi": ["django", "runserver", "--noreload", "--insecure", "--skip-checks", "127.0.0.1:{port}"],
}


class Site:
    """As a context manager all its processes are ended, and its database is left to whoever made it."""

    def __init__(self, folder: Path, database: str, interface: str, **settings: Any) -> None:
        self.database = database
        self.interface = interface
        self.folder = folder
        self.told: dict[str, Any] = {}
        """What its scenes have said: ids of jobs by state, mostly."""
        self.people: dict[str, str] = {}
        """Session keys by user name."""
        self._settings = settings
        self._children: list[subprocess.Popen[bytes]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(15)
            child.kill()
            child.wait()

    def open(self) -> Self:
        """Start the web server, and wait until it answers."""
        server = self._start("web", *(word.format(port=self.port) for word in SERVERS[self.interface]))

        def answers() -> bool:
            assert server.poll() is None, self.log("web")
            try:
                urlopen(f"{self.url}/pgqueue/livez", timeout=5).close()
            except HTTPError:
                return True
            except OSError:
                return False
            return True

        wait_for(answers, 60)
        return self

    def work(self, *options: str, name: str = "anvil") -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it has registered itself."""
        child = self._start(name, "django", "pgqueue_worker", "--name", name, "--shutdown-timeout", "2", *options)

        def registered() -> bool:
            assert child.poll() is None, self.log(name)
            return bool(self.rows("SELECT 1 FROM pgqueue_worker WHERE name = %s", name))

        wait_for(registered, 60)
        return child

    def play(self, *scenes: str) -> dict[str, Any]:
        """What the scenes of ``orders/scenes.py`` print, one after another."""
        done = self.run("orders.scenes", *scenes)
        told: dict[str, Any] = json.loads(done.splitlines()[-1])
        self.people |= told.pop("people", {})
        return told

    def run(self, *module: str) -> str:
        """What ``python -m module …`` prints to its end."""
        done = subprocess.run(
            [PYTHON, "-m", *module], cwd=ROOT, env=self._environment(), capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.database, autocommit=True, row_factory=dict_row) as session:
            cursor = session.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def job(self, pk: int) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM pgqueue_job WHERE id = %s", pk)
        return row

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [PYTHON, "-m", *command],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._children.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": self.database,
            "DJANGO_SETTINGS_MODULE": "orders.settings",
            "E2E_SETTINGS": json.dumps(self._settings),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        }


@contextlib.contextmanager
def new_database(server: str, *, template: str | None = None) -> Iterator[str]:
    """Connection string of a new database, a copy of ``template`` if there is one; dropped afterwards."""
    name = f"e2e_{secrets.token_hex(4)}"
    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template:
        create += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with psycopg.connect(make_conninfo(server, dbname="postgres"), autocommit=True) as session:
        session.execute(create)
    try:
        yield make_conninfo(server, dbname=name)
    finally:
        # A session of its own: tests of a lost server end those that are open.
        with psycopg.connect(make_conninfo(server, dbname="postgres"), autocommit=True) as session:
            session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
