"""The worker's own database connections.

Each thread of the machine has one, made from the project's settings for the jobs' database and put in
``connections[alias]`` of that thread, so that the verbs find it. None comes from Django's pool (a pool that the
handlers have emptied must not stop a heartbeat), all use READ COMMITTED and autocommit whatever the project
sets, and a peer that went silent is noticed by TCP within half a minute.

Handlers have the project's own connections; what an attempt may leave behind on them is looked at here too.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from psycopg import Error as PsycopgError
from psycopg import pq
from psycopg.sql import Composable

from pgqueue_django import logs

logger = logging.getLogger("pgqueue_django.worker")

READ_ONLY = "25006"  # cannot execute ... in a read-only transaction

_SOCKET = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}

# Ask the server to end what this process cannot: it may freeze, or its host may vanish, before a COMMIT, and its locks
# would stay until the server's own TCP limits (two hours by default), with everybody else's chores or statistics behind
# them. lock_timeout: all that ours ever wait for is another worker's short statement.
# Only in a session of our own: a pooler's go on to others. A pooler tells its clients a number of its own as the
# backend's, so the session that runs this is ours if it is the one that libpq was told of.
_SESSION = """
    SELECT set_config(name, value, false)
    FROM (VALUES ('idle_in_transaction_session_timeout', '5s'), ('lock_timeout', '2s'),
                 ('default_transaction_isolation', 'read committed'), ('tcp_keepalives_idle', '10'),
                 ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')) AS limits (name, value)
    WHERE pg_backend_pid() = {pid};
"""


# libpq reads into 16 kB, and never makes that smaller again once a value was longer. Between two reads other threads
# run: beside a handler that computes, a claim of 450 jobs of 2 KiB took 67 reads and 33 ms, this way 4 and 14.
_READ_MUCH = "SELECT repeat(' ', 1000000);"


@contextmanager
def own_connection(
    using: str, role: str, *, silence: float = 20.0, reads_much: bool = False
) -> Iterator[BaseDatabaseWrapper]:
    """Give this thread a connection of its own in ``connections[using]``, and back what it had there.

    Connects at its first use, and again after ``drop``. ``silence``: seconds after which TCP gives up a peer
    that does not acknowledge what was sent. ``reads_much``: large answers are read in large pieces, for 2 MB of memory.
    """
    before = connections[using]
    connections[using] = wrapper = _own(using, role, silence, reads_much)
    try:
        yield wrapper
    finally:
        drop(using)
        connections[using] = before


def _own(using: str, role: str, silence: float, reads_much: bool) -> BaseDatabaseWrapper:
    wrapper = connections.create_connection(using)
    options = {key: value for key, value in wrapper.settings_dict["OPTIONS"].items() if key != "pool"}
    wrapper.settings_dict = {
        **wrapper.settings_dict,
        "AUTOCOMMIT": True,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
        "OPTIONS": {
            **_SOCKET,
            "tcp_user_timeout": int(1000 * silence),  # milliseconds
            **options,
            "isolation_level": IsolationLevel.READ_COMMITTED,
            "prepare_threshold": None,  # behind a pooler the next transaction is in another session
            "application_name": f"pgqueue {role}",
        },
    }
    # Under DEBUG Django keeps the last 9,000 statements of a connection, until a request ends; ours never ends.
    wrapper.queries_log = deque(maxlen=0)
    _begin_with(wrapper, _SESSION + (_READ_MUCH if reads_much else ""))
    connect = wrapper.connect

    def connect_and_say() -> None:
        wrapper.is_connecting = True  # type: ignore[attr-defined]
        try:
            connect()
        finally:
            wrapper.is_connecting = False  # type: ignore[attr-defined]

    wrapper.connect = connect_and_say  # type: ignore[method-assign]
    return wrapper


def waits_for_server(wrapper: BaseDatabaseWrapper) -> bool:
    """From any thread: whether one of our own connections is being made, or waits for the answer to a statement.

    To connect takes ``connect_timeout`` for each address of each host, and as long as the name servers take.
    """
    if getattr(wrapper, "is_connecting", False):
        return True
    connection = wrapper.connection
    return connection is not None and connection.info.transaction_status == pq.TransactionStatus.ACTIVE


def _begin_with(wrapper: BaseDatabaseWrapper, statements: str) -> None:
    initialise = wrapper.init_connection_state

    def initialise_and_begin() -> None:
        initialise()
        with wrapper.connection.cursor() as cursor:
            cursor.execute(statements.format(pid=wrapper.connection.info.backend_pid))
        wrapper.connection.commit()

    wrapper.init_connection_state = initialise_and_begin  # type: ignore[method-assign]


def is_broken(error: BaseException) -> bool:
    """Whether the connection or the server, not the statement, is what failed: a later one may do better.

    A server that has become read-only was failed over, and its replacement is behind the same name.
    """
    if (code := _sqlstate(error)) is None:
        return isinstance(error, OperationalError | InterfaceError)
    return code == READ_ONLY or code.startswith(("08", "25P03", "53", "57P", "58", "XX"))


def is_undefined(error: BaseException) -> bool:
    """Whether a table or a column is missing: the migrations of another version, or none."""
    return _sqlstate(error) in ("42P01", "42703")


def may_pass(error: BaseException) -> bool:
    """Whether the same statement may do better in a moment: a deadlock, a lock or a statement that took too long."""
    return (_sqlstate(error) or "").startswith(("40", "55", "57014"))


def _sqlstate(error: BaseException) -> str | None:
    code: str | None = getattr(error.__cause__ or error, "sqlstate", None)
    return code


def drop(using: str) -> None:
    """Throw this thread's connection away; the next use opens a new one. Never raises."""
    wrapper = connections[using]
    # A connection in the middle of an atomic block refuses close(); what is thrown away has no block to end.
    wrapper.in_atomic_block = False
    wrapper.savepoint_ids = []
    wrapper.run_on_commit = []
    wrapper.needs_rollback = False
    wrapper.closed_in_transaction = False
    try:
        if wrapper.connection is not None:
            # Itself first: Django's close() would hand it back to its pool, for others to use.
            wrapper.connection.close()
        wrapper.close()
    except (DatabaseError, InterfaceError, PsycopgError):
        wrapper.connection = None


def left_open() -> str | None:
    """What an attempt left behind on this thread's connections: an open transaction is thrown away and named.

    Otherwise the next attempts on this thread would succeed with nothing of theirs ever committed.
    """
    found = None
    for wrapper in connections.all(initialized_only=True):
        if wrapper.connection is None:
            continue
        if left := fault(wrapper):
            found = f"{left} on database {wrapper.alias!r}"
            drop(wrapper.alias)
    return found


def fault(wrapper: BaseDatabaseWrapper) -> str | None:
    """What keeps a connection from being as it is between two attempts; None: nothing."""
    if wrapper.in_atomic_block:
        return "an atomic block"
    if wrapper.needs_rollback:
        return "a transaction that needs a rollback"
    if not wrapper.autocommit and wrapper.settings_dict["AUTOCOMMIT"]:
        return "autocommit switched off"
    if wrapper.vendor == "postgresql" and wrapper.settings_dict["AUTOCOMMIT"]:
        if not (wrapper.connection.closed or wrapper.connection.autocommit):
            return "autocommit switched off"
        status = wrapper.connection.info.transaction_status
        if status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN):
            return "a transaction"
    return None


# A statement that changes its session for longer than its transaction lasts, or may: nobody sees what DO and CALL
# carry out. In lower case, behind what may stand before it.
_CHANGES = re.compile(
    r"""(?> \s | --[^\n]*\n | /\*.*?\*/ )*+
    (?: set \s+ (?! (?:local|transaction|constraints)\b ) | (?:reset|discard|listen|load|do|call)\b
      | prepare \s+ (?! transaction\b ) | declare\b .* \bwith\s+hold\b
      | create \s+ (?:or\s+replace\s+)? (?:(?:global|local)\s+)? temp(?:orary)?\b )""",
    re.VERBOSE | re.DOTALL,
)
_CHANGES_WITHIN = re.compile(
    r"set_config\s*\((?![^()]*,\s*true\s*\))|advisory_lock|\binto\s+temp(?:orary)?\b|\bpg_temp\b"
)
_WITHIN = ("set_config", "advisory_lock", "into temp", "pg_temp")


def _changes_session(sql: str) -> bool:
    text = sql.lower()
    if any(map(_CHANGES.match, text.split(";"))):
        return True
    # The words first: to look for the pattern takes ten times as long.
    return any(word in text for word in _WITHIN) and _CHANGES_WITHIN.search(text) is not None


class _Watch:
    """Sees each statement of a handler's connection."""

    def __init__(self) -> None:
        self.changed = False

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if not self.changed:
            if isinstance(sql, Composable):
                text = sql.as_string(context["connection"].connection)
            else:
                text = sql.decode(errors="replace") if isinstance(sql, bytes) else sql
            self.changed = not isinstance(text, str) or _changes_session(text)
        return execute(sql, params, many, context)


def watch(wrapper: BaseDatabaseWrapper) -> None:
    """See from now on whether statements change its session."""
    hook, connect = _Watch(), wrapper.connect

    def connect_and_begin() -> None:
        connect()
        hook.changed = False  # what Django and the project have set is how a session is to be

    wrapper.execute_wrappers.insert(0, hook)
    wrapper.connect = connect_and_begin  # type: ignore[method-assign]


def drop_changed(wrappers: Sequence[BaseDatabaseWrapper]) -> None:
    """Throw the connections away whose session an attempt has changed: a setting, a role, a temporary table, a lock.

    Not ``DISCARD ALL``: that would undo as well what Django and the project set when they connect.
    """
    for wrapper in wrappers:
        hook = next((hook for hook in wrapper.execute_wrappers if isinstance(hook, _Watch)), None)
        if hook is None:
            watch(wrapper)  # the handler's own object, and nobody has seen what was done with it
        elif not hook.changed:
            continue
        if wrapper.connection is not None:
            drop(wrapper.alias)


class Backoff:
    """Seconds to wait before a connection is tried again: ``first``, then doubled up to ``most``; jittered."""

    def __init__(self, first: float = 0.1, most: float = 2.0) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    def failed(self) -> float:
        wait = min(self._most, self._first * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return wait * (0.5 + random.random() / 2)  # noqa: S311

    def worked(self) -> None:
        self._failures = 0

    @property
    def failing(self) -> bool:
        return self._failures > 0


class Grumbler:
    """Logs the first of a row of equal troubles, then one each half minute with their number."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._count = 0
        self._next = 0.0

    def failed(self, error: BaseException) -> None:
        self._count += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 30
            logger.warning(
                "%s: %s (%d so far); trying again",
                *(self._subject, first_line(error), self._count),
                extra=logs.event("database.failing", subject=self._subject, failures=self._count),
            )

    def worked(self) -> None:
        if self._count:
            logger.warning(
                "%s: works again after %d failures",
                *(self._subject, self._count),
                extra=logs.event("database.working", subject=self._subject, failures=self._count),
            )
        self._count, self._next = 0, 0.0


def first_line(error: BaseException) -> str:
    """What to log of it: in the other lines PostgreSQL may show the row, and so a payload. Never raises."""
    try:
        text = str(error)
    except BaseException:  # a receiver's error may be anything
        text = ""
    return (text.strip().splitlines() or [type(error).__name__])[0]


def describe(wrapper: Any) -> str:
    """Where this connection leads, for the start banner; no password."""
    settings = wrapper.settings_dict
    return f"{settings['HOST'] or 'local'}:{settings['PORT'] or 5432}/{settings['NAME']}"
