"""LISTEN: a thread with a plain psycopg connection that tells the loop what it hears.

A hint only. Nothing waits for it: when the connection is lost the worker polls as ever, and this thread tries
to listen again until it can; since it may have missed something meanwhile, it then reports that, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from pgqueue_django import wakeups
from pgqueue_django.worker.connections import Backoff, Grumbler, own_connection

_LOOK_UP_SECONDS = 0.5  # how soon it notices that it is to stop


class Listener(threading.Thread):
    """Calls ``heard`` with each hint, and with None when it begins to listen; until ``stop``."""

    def __init__(self, using: str, heard: Callable[[str | None], None]) -> None:
        super().__init__(name="pgqueue listener", daemon=True)
        self._using = using
        self._heard = heard
        self._stopping = threading.Event()
        self._grumbler = Grumbler("listener")

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        with own_connection(self._using, "listener") as wrapper:
            params = wrapper.get_connection_params()
        # Not through Django's wrapper, whose cursors and time zones a connection that only listens does not need.
        for name in ("cursor_factory", "context", "isolation_level", "server_side_binding"):
            params.pop(name, None)
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                with psycopg.connect(**{**params, "autocommit": True}) as connection:
                    connection.execute(f"LISTEN {wakeups.CHANNEL}")
                    backoff.worked()
                    self._grumbler.worked()
                    self._heard(None)
                    self._listen(connection)
            except (psycopg.Error, OSError) as error:
                self._grumbler.failed(error)
                self._stopping.wait(backoff.failed())

    def _listen(self, connection: psycopg.Connection) -> None:
        while not self._stopping.is_set():
            for notice in connection.notifies(timeout=_LOOK_UP_SECONDS):
                self._heard(notice.payload)
                if self._stopping.is_set():
                    return
