"""What is asked of the database for a page that has to answer within two seconds, whatever the database does.

Each question runs in a thread of its own, on a connection of its own that is cut at the deadline. A request's own
connection could wait for ever: a server that is frozen, or that a firewall has cut off, still holds the socket.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.db import InterfaceError, connections, router

from . import snapshot
from .models import Job

# The page has to be on its way within 2 s, so the question ends a little before.
SECONDS = 1.9
SHARED_SECONDS = 1.0
"""How old a reading of the queue may be that one who asks gets from another."""
PING_SECONDS = 0.5
"""And how long ago the database may have answered somebody else."""
_CONNECT_SECONDS = 2  # libpq and psycopg take no less

MAX_THREADS = 8
"""Questions of one process that can be open at the same time; others wait for a place, up to their deadline."""
_places = threading.BoundedSemaphore(MAX_THREADS)

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])


class Unanswered(Exception):
    """The database did not answer in time, or not with what was asked for."""


def of_the_jobs() -> str:
    """The database that the jobs are written to."""
    using: str = router.db_for_write(Job)
    return using


class _Question(Generic[T]):
    """``ask(alias)`` on a thread and a connection of its own; ``cut`` ends both."""

    def __init__(self, ask: Callable[[str], T], database: Callable[[], str]) -> None:
        self._ask = ask
        self._database = database
        self._lock = threading.Lock()
        self._wire: socket.socket | None = None
        self._cut = False
        self.answer: T
        self.failure: str | None = None

    def run(self) -> None:
        try:
            alias = self._database()
            connection = connections.create_connection(alias)
            options = {**connection.settings_dict["OPTIONS"], "connect_timeout": _CONNECT_SECONDS}
            options.pop("pool", None)
            connection.settings_dict = {**connection.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
            connections[alias] = connection
            try:
                connection.ensure_connection()
                # At the end of a transaction whose connection is gone Django makes a new one.
                connection.connect = _refuse  # type: ignore[method-assign]
                with self._lock:
                    if self._cut:
                        return
                    # A second handle of the same socket; its family does not matter for a shutdown.
                    self._wire = socket.fromfd(connection.connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
                self.answer = self._ask(alias)
            finally:
                with self._lock:
                    wire, self._wire = self._wire, None
                if wire is not None:
                    wire.close()
                connection.close()
        except Exception as error:  # whatever it is, the thread that asked has to say it
            # Its text: the error would keep its frames, and they a socket, until the next garbage collection.
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            _places.release()

    def cut(self) -> None:
        """Shut the connection down under the thread that waits on it, so that it ends now."""
        with self._lock:
            self._cut = True
            if self._wire is not None:
                with contextlib.suppress(OSError):
                    self._wire.shutdown(socket.SHUT_RDWR)


def _refuse() -> None:
    raise InterfaceError("this connection was cut off")


def until() -> float:
    """When a page that is asked for now has to be on its way, on ``time.monotonic()``."""
    return time.monotonic() + SECONDS


def answer(ask: Callable[[str], T], until: float, database: Callable[[], str] = of_the_jobs) -> T:
    """What ``ask(alias)`` returns, for the alias ``database()``. Raises Unanswered when it takes longer, or fails."""
    if not _places.acquire(timeout=max(0.0, until - time.monotonic())):
        raise Unanswered(f"{MAX_THREADS} earlier questions are still open")
    question = _Question(ask, database)
    thread = threading.Thread(target=question.run, name="pgqueue-question", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _places.release()
        raise Unanswered(str(error)) from error
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
        question.cut()
        raise Unanswered("no answer in time")
    if question.failure is not None:
        raise Unanswered(question.failure)
    return question.answer


class Shared(Generic[T]):
    """One answer for all who ask within ``seconds`` in this process; who comes while it is being made waits for it."""

    def __init__(
        self,
        ask: Callable[[str], T],
        seconds: float,
        database: Callable[[], str] = of_the_jobs,
        *,
        retry_seconds: float = 0.0,
    ) -> None:
        """``retry_seconds``: after a failure, nobody asks again for so long."""
        self._ask = ask
        self.seconds = seconds
        self._database = database
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._taken: T | None = None
        self._asked_at = 0.0
        self._came_at = 0.0
        self._failed_at = -math.inf

    def reading(self, until: float | None = None) -> T:
        """Raises Unanswered, to all who have waited for the same answer."""
        began = time.monotonic()
        until = began + SECONDS if until is None else until
        if not self._lock.acquire(timeout=max(0.0, until - began)):
            raise Unanswered("no answer in time")
        try:
            asked_at = time.monotonic()
            if self._failed_at > min(began, asked_at - self._retry_seconds):
                raise Unanswered("no answer to somebody who asked before")
            # One that came while this caller waited is his, however long it took.
            if self._taken is None or (self._came_at < began and asked_at > self._asked_at + self.seconds):
                self._taken = None
                try:
                    self._taken = answer(self._ask, until, self._database)
                except Unanswered:
                    self._failed_at = time.monotonic()
                    raise
                self._asked_at, self._came_at = asked_at, time.monotonic()
            return self._taken
        finally:
            self._lock.release()

    def forget(self) -> None:
        """For tests: the next one who asks gets a new one."""
        self._taken, self._failed_at = None, -math.inf


def ping(alias: str) -> float:
    """How long an answer takes, in seconds."""
    began = time.monotonic()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")
    return time.monotonic() - began


class _All:
    """Every database: those whose transactions a view is not in."""

    def __contains__(self, alias: object) -> bool:
        return True


def in_no_transaction(view: V) -> V:
    """Above a view: ATOMIC_REQUESTS would have its request wait for a database before it asks with a deadline."""
    view._non_atomic_requests = _All()  # type: ignore[attr-defined]
    return view


shared = Shared(snapshot.take, SHARED_SECONDS)
pings = Shared(ping, PING_SECONDS)
"""Each is a session of the server's, and anybody may ask."""
