"""What a container platform asks a worker: does it live, and is it ready for jobs.

A thread of its own answers, from a file or by HTTP. Where the interpreter runs no threads any more there is no answer,
and that is the right one.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from pgqueue_django import logs

logger = logging.getLogger("pgqueue_django.worker")

LIVE_SECONDS = 30.0
"""A loop that has been in one turn for longer, and does not wait for the database, is stuck."""
_TOUCH_SECONDS = 1.0
_REQUEST_SECONDS = 2.0
_REQUESTS = 16  # at a time; who asks more often has no probe in mind


class Health(NamedTuple):
    """``is_live``: worth keeping. ``is_ready``: would take a job now. ``facts``: why, for people."""

    is_live: bool
    is_ready: bool
    facts: dict[str, Any]


def touch(path: Path, health: Callable[[], Health]) -> None:
    """Keep a file at ``path`` that says ``ready`` or ``not ready``, touched each second while the worker lives.

    Raises OSError if it cannot be written. It is left behind when the process ends: its age says so.
    """
    said = _write(path, health())
    threading.Thread(target=_touch, args=[path, health, said], name="pgqueue probe", daemon=True).start()


def _write(path: Path, found: Health) -> str:
    """In one step: a reader never finds half a word."""
    text = "ready\n" if found.is_ready else "not ready\n"
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)
        with new.open("x") as file:  # never through a link that somebody has put there
            file.write(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return text


def _touch(path: Path, health: Callable[[], Health], said: str) -> None:
    failing = False
    while True:
        time.sleep(_TOUCH_SECONDS)
        found = health()
        if not found.is_live:
            continue
        try:
            if (said == "ready\n") == found.is_ready and path.exists():
                os.utime(path)
            else:
                said = _write(path, found)
            failing = False
        except OSError as error:
            if not failing:
                logger.error("the probe file cannot be written: %s", error, extra=logs.event("worker.trouble"))
            failing = True


def serve(host: str, port: int, health: Callable[[], Health]) -> int:
    """Answer ``GET /live`` and ``GET /ready`` with 200 or 503, and return the port. ``host``: empty for all addresses.

    Raises OSError if the port cannot be had.
    """
    server = _Server(host, port, health)
    threading.Thread(target=server.serve_forever, name="pgqueue probe", daemon=True).start()
    return int(server.server_address[1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, health: Callable[[], Health]) -> None:
        both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        super().__init__((host, port), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.create_server((host, port), family=self.address_family, dualstack_ipv6=both)
        self.server_address = self.socket.getsockname()
        self.health = health
        self._open: dict[Any, None] = {}  # in the order in which they came
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            # Who came first has had its time: the limit of each read alone would let slow ones stay for ever.
            oldest = next(iter(self._open)) if len(self._open) >= _REQUESTS else None
            self._open[request] = None
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is no news."""


class _Request(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        found = self.server.health()
        answers = {"/live": found.is_live, "/ready": found.is_ready}
        good = answers.get(self.path.partition("?")[0])
        status = 404 if good is None else 200 if good else 503
        body = b"" if good is None else json.dumps(found.facts).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "pgqueue"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe asks every few seconds."""
