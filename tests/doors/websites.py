"""The project under a web server of its own, ASGI or WSGI, on the database of the test; and workers beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from machine.workers import ROOT, Process, database_url
from verbs.rows import wait_for

from pgqueue_django.conf import RIGHTS

TOKEN = "token-of-the-test"
PREFIX = "/pgqueue/api/v1"
PGQUEUE: dict[str, Any] = {
    "API_AUTH": ["pgqueue_django.access.token", "pgqueue_django.access.session"],
    "API_TOKENS": {"demo": {"sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "rights": RIGHTS}},
}
COMMANDS = {
    "asgi": ["uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--port"],
    "wsgi": ["testproject.manage", "runserver", "--noreload"],
}
_ANSWERED = re.compile(r'"[A-Z]+ [^"]*HTTP/1\.[01]" (\d{3})\b')


@dataclass
class Website:
    interface: str
    port: int
    log: Path
    process: psutil.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answered(self) -> Counter[int]:
        """How often each status, as its own log says."""
        return Counter(int(status) for status in _ANSWERED.findall(self.log.read_text(errors="replace")))


@contextlib.contextmanager
def website(folder: Path, interface: str, **pgqueue: Any) -> Iterator[Website]:
    """``interface``: asgi or wsgi."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    changes = {
        "PGQUEUE": {**PGQUEUE, **pgqueue},
        "APPS": ["tests.doors.opened"],
        "DATABASE": {"CONN_MAX_AGE": 0 if interface == "asgi" else None},
        # Each line of the server's own log is a request, and nothing else is there.
        "LOGGING": {"version": 1, "disable_existing_loggers": False, "loggers": {"pgqueue_django": {"level": "ERROR"}}},
    }
    log = folder / f"{interface}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *COMMANDS[interface], f"{port}"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.machine.settings",
                "DATABASE_URL": database_url(),
                "MACHINE_SETTINGS": json.dumps(changes),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: server.poll() is not None or socket.socket().connect_ex(("127.0.0.1", port)) == 0, 30)
        assert server.poll() is None, log.read_text()
        yield Website(interface, port, log, psutil.Process(server.pid))
    finally:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        server.kill()
        server.wait()


@contextlib.contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[Process]:
    one = Process(
        folder / "worker.log", *arguments, settings={"APPS": ["tests.doors.opened"]}, environment={}
    ).wait_until_ready()
    try:
        yield one
    finally:
        one.kill_group()
