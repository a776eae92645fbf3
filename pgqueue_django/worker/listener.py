"""LISTEN: a thread with a plain psycopg connection that tells the loop what it hears.

A hint only. Nothing waits for it: when the connection is lost the worker polls as ever, and this thread tries
to listen again until it can; since it may have missed something meanwhile, it then reports that, too.

It believes no silence: a pooler takes a LISTEN and gives that session to others, and a line may be dead without
anybody saying so. So it has a NOTIFY sent to itself, by another session of the worker, when it begins to listen and
whenever it has heard nothing for a while. If that does not arrive over a new connection either, the worker polls only,
which is said once, and LISTEN is tried again now and then.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable

import psycopg

from pgqueue_django import wakeups
from pgqueue_django.worker.connections import Backoff, Grumbler, describe, first_line, own_connection

logger = logging.getLogger("pgqueue_django.worker")

_LOOK_UP_SECONDS = 0.5  # how soon it notices that it is to stop
_SILENCE_SECONDS = 15.0  # after which it has a NOTIFY sent to itself
_ARRIVAL_SECONDS = 2.0  # within which that must be there
_CLEAN_UP_TRIES = 20

_ADVICE = (
    'Behind a pooler in transaction mode, let PGQUEUE["LISTEN_DATABASE"] name an alias of DATABASES that leads '
    "directly to the server of the jobs, or set LISTEN to False"
)

Notify = Callable[[str, Callable[[], None]], None]


class _Deaf(Exception):
    """The server is there, and no notifications come over this connection; the text says why."""


class Listener(threading.Thread):
    """Calls ``heard`` with each hint, and with None when it begins to listen; until ``stop``.

    ``using``: where to LISTEN. ``notify``: has another session send a NOTIFY on a channel, and calls back then.
    """

    def __init__(self, using: str, *, heard: Callable[[str | None], None], notify: Notify) -> None:
        super().__init__(name="pgqueue listener", daemon=True)
        self._using = using
        self._heard = heard
        self._notify = notify
        self._stopping = threading.Event()
        self._grumbler = Grumbler("listener")
        self._lost = Backoff()
        self._deaf = Backoff(first=2.0, most=60.0)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        with own_connection(self._using, "listener") as wrapper:
            params = wrapper.get_connection_params()
            where = f"{self._using} ({describe(wrapper)})"
        # Not through Django's wrapper, whose cursors and time zones a connection that only listens does not need.
        for name in ("cursor_factory", "context", "isolation_level", "server_side_binding"):
            params.pop(name, None)
        while not self._stopping.is_set():
            try:
                with psycopg.connect(**{**params, "autocommit": True}) as connection:
                    _Ear(connection, self._heard, self._notify, self._works).listen(self._stopping)
            except _Deaf as why:
                if not self._deaf.failing:
                    logger.warning("polling only: no notifications from database %s: %s", where, why)
                self._stopping.wait(self._deaf.failed())
            except (psycopg.Error, OSError) as error:
                self._grumbler.failed(error)
                self._stopping.wait(self._lost.failed())

    def _works(self) -> None:
        if self._deaf.failing:
            logger.warning("notifications arrive again")
        self._deaf.worked()
        self._lost.worked()
        self._grumbler.worked()


class _Ear:
    """What is heard over one connection."""

    def __init__(
        self,
        connection: psycopg.Connection,
        heard: Callable[[str | None], None],
        notify: Notify,
        works: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._notify = notify
        self._works = works
        self._channel = f"{wakeups.CHANNEL}_{secrets.token_hex(4)}"  # of its own: nobody else is woken
        self._is_listening = False
        self._is_proven = False
        self._is_asked = False
        self._sent_at: float | None = None

    def listen(self, stopping: threading.Event) -> None:
        """Until ``stopping``. Raises _Deaf, or psycopg's error when the connection is lost."""
        # Which session it was: in a pooler's, the next statement may be in another one.
        pid = self._execute(f"SELECT pg_backend_pid(); LISTEN {self._channel}")
        if pid == self._connection.info.backend_pid:
            self._begin()
        self._ask()
        heard_at = time.monotonic()
        while not stopping.is_set():
            for notice in self._connection.notifies(timeout=_LOOK_UP_SECONDS):
                heard_at = time.monotonic()
                self._hear(notice)
                if stopping.is_set():
                    return
            if self._is_proven and not self._is_listening:
                self._begin()
            if self._is_overdue():
                if self._is_proven:
                    raise psycopg.OperationalError("the connection is dead: a NOTIFY did not arrive")
                self._clean_up(pid)
                raise _Deaf(f"a NOTIFY of its own did not arrive within {_ARRIVAL_SECONDS:g} s. {_ADVICE}")
            if not self._is_asked and time.monotonic() > heard_at + _SILENCE_SECONDS:
                self._ask()

    def _begin(self) -> None:
        """LISTEN to what everybody sends: not in a pooler's session before that is known to stay ours.

        It would go to whoever has that session next.
        """
        self._execute(f"LISTEN {wakeups.CHANNEL}")
        self._is_listening = True
        self._heard(None)

    def _hear(self, notice: psycopg.Notify) -> None:
        if notice.channel != self._channel:
            self._heard(notice.payload)
            return
        self._is_asked = False
        if not self._is_proven:
            self._is_proven = True
            self._works()

    def _ask(self) -> None:
        self._is_asked, self._sent_at = True, None
        # Not from this session: a pooler would run both in one, and it would hear itself.
        self._notify(self._channel, self._sent)

    def _sent(self) -> None:
        """From the other session's thread."""
        self._sent_at = time.monotonic()

    def _is_overdue(self) -> bool:
        return self._is_asked and self._sent_at is not None and time.monotonic() > self._sent_at + _ARRIVAL_SECONDS

    def _clean_up(self, pid: int | None) -> None:
        """Let no session of a pooler go on listening. If it is not met, nobody sends on that channel any more."""
        for _ in range(_CLEAN_UP_TRIES):
            if self._execute(f"SELECT pg_backend_pid(); UNLISTEN {self._channel}") == pid:
                return

    def _execute(self, statements: str) -> int | None:
        """The backend, if they ask for it."""
        try:
            cursor = self._connection.execute(statements.encode())
            return int(cursor.fetchone()[0]) if cursor.description else None  # type: ignore[index]
        except psycopg.Error as error:
            if self._connection.broken:
                raise
            raise _Deaf(f"the server refuses LISTEN: {first_line(error)}") from error
