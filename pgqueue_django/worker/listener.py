"""LISTEN: a thread with a plain psycopg connection that tells the loop what it hears.

A hint only. Nothing waits for it: when the connection is lost the worker polls as ever, and this thread tries
to listen again until it can; since it may have missed something meanwhile, it then reports that, too.

It believes no silence: a pooler takes a LISTEN and gives that session to others, and a line may be dead without
anybody saying so. So it has a NOTIFY sent to itself, by another session of the worker, when it begins to listen and
whenever it has heard nothing for a while. If that does not arrive over a new connection either, the worker polls only,
which is said once, and LISTEN is tried again now and then. Through a pooler it is not tried at all unless the settings
ask for that: what it leaves behind there would be others'.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable

import psycopg

from pgqueue_django import logs, wakeups
from pgqueue_django.worker.connections import Backoff, Grumbler, describe, first_line, own_connection

logger = logging.getLogger("pgqueue_django.worker")

_LOOK_UP_SECONDS = 0.5  # how soon it notices that it is to stop
_SILENCE_SECONDS = 15.0  # after which it has a NOTIFY sent to itself
_ARRIVAL_SECONDS = 2.0  # within which that must be there

ADVICE = (
    'Let PGQUEUE["LISTEN_DATABASE"] name an alias of DATABASES that leads directly to the server of the jobs, or '
    "through a pooler in session mode; or set LISTEN to False"
)

Notify = Callable[[str, Callable[[], None]], None]


class _Deaf(Exception):
    """The server is there, and no notifications come over this connection; the text says why."""


class Listener(threading.Thread):
    """Calls ``heard`` with each hint, and with None when it begins to listen; until ``stop``.

    ``named``: where to LISTEN, if that is not ``using``, or to LISTEN through a pooler. ``notify``: has another session
    send a NOTIFY on a channel, and calls back then.
    """

    def __init__(
        self, using: str, *, named: str | None = None, heard: Callable[[str | None], None], notify: Notify
    ) -> None:
        super().__init__(name="pgqueue listener", daemon=True)
        self._using = named or using
        self._is_named = named is not None
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
                    ear = _Ear(connection, self._heard, self._notify, self._works)
                    ear.begin(through_pooler=self._is_named)
                    ear.listen(self._stopping)
            except _Deaf as why:
                if not self._deaf.failing:
                    logger.warning(
                        "polling only: no notifications from database %s: %s",
                        *(where, why),
                        extra=logs.event("database.silent"),
                    )
                self._stopping.wait(self._deaf.failed())
            except (psycopg.Error, OSError) as error:
                self._grumbler.failed(error)
                self._stopping.wait(self._lost.failed())

    def _works(self) -> None:
        if self._deaf.failing:
            logger.warning("notifications arrive again", extra=logs.event("database.working", subject="listener"))
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

    def begin(self, *, through_pooler: bool) -> None:
        """LISTEN. Raises _Deaf, or psycopg's error when the connection is lost."""
        # A pooler tells its clients another number.
        is_own = self._execute("SELECT pg_backend_pid()") == self._connection.info.backend_pid
        if not is_own and not through_pooler:
            raise _Deaf(f"it leads to a pooler. {ADVICE}")
        self._execute(f"LISTEN {self._channel}")
        if is_own:
            self._listen_to_all()

    def listen(self, stopping: threading.Event) -> None:
        """Until ``stopping``. Raises as ``begin`` does."""
        self._ask()
        heard_at = time.monotonic()
        while not stopping.is_set():
            for notice in self._connection.notifies(timeout=_LOOK_UP_SECONDS):
                heard_at = time.monotonic()
                self._hear(notice)
                if stopping.is_set():
                    return
            if self._is_proven and not self._is_listening:
                self._listen_to_all()
            if self._is_overdue():
                if self._is_proven:
                    raise psycopg.OperationalError("the connection is dead: a NOTIFY did not arrive")
                self._execute(f"UNLISTEN {self._channel}")  # if it still is the same session
                raise _Deaf(f"a NOTIFY of its own did not arrive within {_ARRIVAL_SECONDS:g} s. {ADVICE}")
            if not self._is_asked and time.monotonic() > heard_at + _SILENCE_SECONDS:
                self._ask()

    def _listen_to_all(self) -> None:
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

    def _execute(self, statement: str) -> int | None:
        """The backend, if it asks for that."""
        try:
            cursor = self._connection.execute(statement.encode())
            return int(cursor.fetchone()[0]) if cursor.description else None  # type: ignore[index]
        except psycopg.Error as error:
            if self._connection.broken:
                raise
            raise _Deaf(f"the server refuses LISTEN: {first_line(error)}") from error
