"""A limit on how long a request waits for databases: every connection of its thread ends when the time is over.

A server that is frozen, or that a firewall has cut off, still holds the socket: who waits on it waits for ever. So
within ``limit`` each PostgreSQL connection of this thread, whether it is there already or made on the way, is known by
a second handle of its socket, and one thread for the whole process shuts those down whose time is over. What waited
then fails with an OperationalError, and the connection is thrown away. Nothing is sent for it: a request costs two
system calls more.

A connection that has yet to be made has two seconds for each address of its server (libpq takes no less), and one from
Django's pool is waited for as long: the pool's own ``timeout`` would be half a minute. What a middleware reads before
the view, or what a statement goes on to do on the server, is not limited here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .worker.connections import drop

SECONDS = 4.5
CONNECT_SECONDS = 2
"""For one attempt to connect; none is begun when less than that is left."""
LOCK_SECONDS = 2


class _Limit:
    """The connections of one thread, until ``ends_at`` (time.monotonic())."""

    def __init__(self) -> None:
        self.ends_at = time.monotonic() + SECONDS
        self.is_over = False
        self._lock = threading.Lock()
        self._wires: list[socket.socket] = []
        self._wrappers: list[tuple[BaseDatabaseWrapper, Any]] = []  # and a ``connect`` that it had of its own

    def hold(self, wrapper: BaseDatabaseWrapper) -> None:
        connect, own = wrapper.connect, vars(wrapper).get("connect")

        def connect_in_time() -> None:
            if self.is_over or time.monotonic() > self.ends_at - CONNECT_SECONDS:
                raise InterfaceError("the time for this request is over")
            with _hurried(wrapper, self):
                connect()
            self.watch(wrapper.connection)

        wrapper.connect = connect_in_time  # type: ignore[method-assign]
        self._wrappers.append((wrapper, own))
        if wrapper.connection is not None:
            self.watch(wrapper.connection)

    def watch(self, connection: Any) -> None:
        """``connection`` is psycopg's."""
        if connection.closed:  # Django finds that out by itself
            return
        with self._lock:
            # A second handle of the same socket; its family does not matter for a shutdown.
            wire = socket.fromfd(connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
            self._wires.append(wire)
            if self.is_over:
                _shut(wire)

    def cut(self) -> None:
        """From the watching thread: let go whoever waits."""
        with self._lock:
            self.is_over = True
            for wire in self._wires:
                _shut(wire)

    def release(self) -> None:
        with self._lock:
            wires, self._wires = self._wires, []
        for wire in wires:
            wire.close()
        for wrapper, own in self._wrappers:
            del wrapper.connect
            if own is not None:
                wrapper.connect = own  # type: ignore[method-assign]
            if self.is_over and wrapper.connection is not None:
                # It may look as if it were alive, and the next request of this thread would ask it.
                drop(wrapper.alias)


def _shut(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _hurried(wrapper: BaseDatabaseWrapper, limit: _Limit) -> Iterator[None]:
    """What ``wrapper`` connects in here it does in ``CONNECT_SECONDS``, also from a pool."""
    settings = wrapper.settings_dict
    # Before the settings are others: it may be made here, and is the whole process's.
    pool: Any = getattr(wrapper, "pool", None)
    wrapper.settings_dict = {**settings, "OPTIONS": {**settings["OPTIONS"], "connect_timeout": CONNECT_SECONDS}}
    if pool is not None:
        wrapper._connection_pools = {wrapper.alias: _Hurried(pool, limit)}  # type: ignore[attr-defined]
    try:
        yield
    finally:
        wrapper.settings_dict = settings
        if pool is not None:
            del wrapper._connection_pools  # type: ignore[attr-defined]


class _Hurried:
    """A pool that Django asks for a connection without saying how long it would wait."""

    def __init__(self, pool: Any, limit: _Limit) -> None:
        self._pool = pool
        self._limit = limit

    def open(self) -> None:
        self._pool.open()

    def getconn(self) -> Any:
        # With CONN_HEALTH_CHECKS the pool asks a connection whether it is alive before it gives it away: on this
        # thread, with no end, and nobody else knows the connection yet.
        check = getattr(self._pool, "_check", None)
        if check is not None and not isinstance(check, _Check):
            self._pool._check = _Check(check)
        _getting.limit = self._limit
        try:
            return self._pool.getconn(timeout=CONNECT_SECONDS)
        finally:
            del _getting.limit


_getting = threading.local()
"""Has the ``limit`` of a thread that is waiting for its pool."""


class _Check:
    """A pool's own check of a connection, which is then within the limit of the thread that makes it, if it has one."""

    def __init__(self, check: Callable[[Any], None]) -> None:
        self._check = check

    def __call__(self, connection: Any) -> None:
        limit: _Limit | None = getattr(_getting, "limit", None)
        if limit is not None:
            limit.watch(connection)
        self._check(connection)


@contextlib.contextmanager
def patient(using: str) -> Iterator[None]:
    """A transaction that waits ``LOCK_SECONDS`` for what others hold, and then fails, on the server as well.

    READ COMMITTED, whatever the project sets: above it, who has waited fails by what the other did.
    """
    is_ours = connections[using].get_autocommit()
    with transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            if is_ours:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_SECONDS}s"])
        yield


_running: dict[_Limit, None] = {}
"""In the order in which their time is over: all have the same length."""
_changed = threading.Condition()
_watcher: threading.Thread | None = None


def _look() -> None:
    while True:
        with _changed:
            while not _running:
                _changed.wait()
            first = next(iter(_running))
            if (left := first.ends_at - time.monotonic()) > 0:
                _changed.wait(left)
                continue
            del _running[first]
        first.cut()


def _after_fork() -> None:
    # Of a forking server's child: its parent's requests and the thread that looks are not there.
    global _changed, _watcher
    _running.clear()
    _changed, _watcher = threading.Condition(), None


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def limit() -> Iterator[None]:
    """Within it, this thread waits for its databases ``SECONDS`` at the most, all of them together.

    Raises InterfaceError where no thread can be started that would look after it.
    """
    global _watcher
    one = _Limit()
    with _changed:
        if _watcher is None:
            watcher = threading.Thread(target=_look, name="pgqueue-deadline", daemon=True)
            try:
                watcher.start()
            except RuntimeError as error:  # no thread can be had just now: the next request tries again
                raise InterfaceError(str(error)) from error
            _watcher = watcher
        if not _running:
            _changed.notify()
        _running[one] = None
    try:
        for alias in connections:
            if connections[alias].vendor == "postgresql":
                one.hold(connections[alias])
        yield
    finally:
        with _changed:
            _running.pop(one, None)
        one.release()
