"""Tasks for the tests of the machine, each with one manner. Imported as ``tests.machine.handlers`` everywhere:
by the tests, and by worker processes started from the root of the checkout.

They meet the tests through two things that work across processes: rows of ``machine_note``, written on the
handler's own connection, and gates, which are paths that a handler waits for.
"""

from __future__ import annotations

import asyncio
import ctypes
import decimal
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.utils import timezone, translation
from psycopg import sql

from pgqueue_django import PermanentError, Retry, task
from pgqueue_django.backoff import Backoff
from pgqueue_django.context import JobContext
from pgqueue_django.exceptions import Interrupt, InvalidPayload, JobTimeout
from pgqueue_django.models import Job

SOON = Backoff(base=0.01, factor=1, cap=0.01)
LATER = Backoff(base=3600, factor=1, cap=3600)  # not in this test


# -- what they tell and what they wait for ---------------------------------------------------------------------


def note(event: str, job_id: int = 0) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO machine_note (job_id, event) VALUES (%s, %s)", [job_id, event])


def wait_at(gate: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not Path(gate).exists():
        assert time.monotonic() < deadline, "nobody opened the gate"
        time.sleep(0.002)


def wait_deaf_at(gate: str) -> None:
    """As ``wait_at``, and nothing but the gate ends it."""
    while True:
        try:
            return wait_at(gate)
        except Interrupt:
            continue


async def await_gate(gate: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not Path(gate).exists():
        assert time.monotonic() < deadline, "nobody opened the gate"
        await asyncio.sleep(0.002)


@task
def write(event: str) -> None:
    note(event)


@task(takes_context=True)
def write_job(context: JobContext, event: str = "ran") -> None:
    note(event, context.job_id)


@task
def do_nothing() -> None:
    pass


@task
async def do_nothing_async() -> None:
    pass


@task
async def enqueue_at_once(count: int) -> list[int]:
    """So many jobs, from as many coroutines."""
    return [one.id for one in await asyncio.gather(*(do_nothing.aenqueue() for _ in range(count)))]


@task(max_attempts=1)
def do_nothing_once() -> None:
    pass


@task(takes_context=True, backoff=SOON)
def write_and_wait(context: JobContext, gate: str) -> int:
    """Its begin, then the gate, then its end."""
    note("begun", context.job_id)
    wait_at(gate)
    note("ended", context.job_id)
    return context.attempt


@task(takes_context=True, backoff=SOON)
def write_and_wait_deaf(context: JobContext, gate: str) -> int:
    note("begun", context.job_id)
    wait_deaf_at(gate)
    note("ended", context.job_id)
    return context.attempt


@task(takes_context=True)
def wait_unwritten(context: JobContext, gate: str) -> int:
    """As write_and_wait, without a word to the database."""
    wait_at(gate)
    return context.attempt


@task
async def await_unwritten(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.05)  # there may be hundreds


@task(takes_context=True)
async def write_and_await(context: JobContext, gate: str) -> int:
    await sync_to_async(note)("begun", context.job_id)
    try:
        await await_gate(gate)
    except asyncio.CancelledError:
        await sync_to_async(note)("cancelled", context.job_id)
        raise
    await sync_to_async(note)("ended", context.job_id)
    return context.attempt


@task
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@task
async def sleep_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


# -- results ---------------------------------------------------------------------------------------------------

UNSTORABLE: dict[str, Any] = {
    "nan": math.nan,
    "infinity inside": {"a": [1, math.inf]},
    "nul": "a\0b",
    "nul in a key": {"a\0b": 1},
    "lone surrogate": "\ud800",
    "set": {1, 2},
    "bytes": b"abc",
    "object": object(),
    "number as a key": {1: "a"},
    "too large": "x" * 300_000,
    "too deep": None,  # made below: a literal cannot be so deep
}
_deep: list[Any] = []
for _ in range(5_000):
    _deep = [_deep]
UNSTORABLE["too deep"] = _deep


class HostileDict(dict[str, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")

    items = keys = values = __iter__  # type: ignore[assignment]


UNSTORABLE["hostile dict"] = HostileDict(a=1)


@task
def give(value: Any) -> Any:
    return value


@task
async def give_async(value: Any) -> Any:
    return value


@task
def give_unstorable(kind: str) -> Any:
    return UNSTORABLE[kind]


@task
async def give_unstorable_async(kind: str) -> Any:
    return UNSTORABLE[kind]


@task
def takes_number(number: int) -> int:
    return number


# -- errors ----------------------------------------------------------------------------------------------------


class Sudden(BaseException):
    """An error that is no Exception."""


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class DeadlyText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class NotesExplode(Exception):
    @property
    def __notes__(self) -> Any:
        raise KeyboardInterrupt


class BareRetry(Retry):
    def __init__(self) -> None:
        """Forgets super().__init__."""


class LateRetry(Retry):
    """Changes its mind to something that is no number."""

    def __init__(self) -> None:
        super().__init__("later")
        self.delay = "tomorrow"  # type: ignore[assignment]


class NanRetry(Retry):
    def __init__(self) -> None:
        super().__init__("later")
        self.delay = math.nan


class Nameless(Exception):
    """Its name cannot be stored, and it has no module."""


Nameless.__qualname__ = "Nul\0Name\udc80"
Nameless.__module__ = None  # type: ignore[assignment]

ERRORS: dict[str, Any] = {
    "exception": ValueError("no such card"),
    "system exit": SystemExit(1),
    "keyboard interrupt": KeyboardInterrupt(),
    "generator exit": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "base exception": Sudden("sudden"),
    "stop iteration": StopIteration(1),
    "memory": MemoryError(),
    "recursion": RecursionError("deep"),
    "nul": ValueError("a\0b"),
    "surrogate": ValueError("a\udc80b"),
    "bytes": ValueError(b"\xff\0"),
    "long": ValueError("x" * 1_000_000),
    "no text": NoText(),
    "deadly text": DeadlyText(),
    "exploding notes": NotesExplode("noted"),
    "nameless": Nameless("who"),
    "group": BaseExceptionGroup("several", [ValueError("one"), SystemExit(2)]),
    "bare retry": BareRetry,
    "late retry": LateRetry,
    "nan retry": NanRetry,
    "permanent": PermanentError("declined for good"),
    "invalid payload": InvalidPayload("mine"),
}


def _raise(kind: str) -> None:
    error = ERRORS[kind]
    raise error() if isinstance(error, type) else error.with_traceback(None)


@task
def fail(kind: str) -> None:
    _raise(kind)


@task
async def fail_async(kind: str) -> None:
    await asyncio.sleep(0)
    _raise(kind)


@task
async def fail_in_child(kind: str) -> None:
    """A coroutine that it started fails: what asyncio lets through, the event loop must survive."""

    async def child() -> None:
        _raise(kind)

    await asyncio.create_task(child())


@task(max_attempts=3, backoff=SOON)
def fail_always() -> None:
    raise ValueError("always")


@task
def fail_with_argument(value: str) -> None:
    raise ValueError("something was wrong with the argument")


@task
def fail_deeply(depth: int) -> None:
    if depth:
        fail_deeply.func(depth - 1)  # type: ignore[misc]
    raise ValueError("at the bottom")


@task
def retry_in(seconds: float) -> None:
    raise Retry("not yet", delay=seconds)


@task
def exit_in_thread() -> None:
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()


# -- transactions ----------------------------------------------------------------------------------------------


def _enter_atomic() -> None:
    transaction.atomic().__enter__()
    note("lost")


def _begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    note("lost")


def _failed_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute("SELECT 1 / 0")
        except Exception:
            return


def _autocommit_off() -> None:
    transaction.set_autocommit(False)
    note("lost")


def _set_rollback() -> None:
    transaction.atomic().__enter__()
    note("lost")
    transaction.set_rollback(True)


def _raw_cursor() -> None:
    connection.ensure_connection()
    connection.connection.autocommit = False
    note("lost")


def _silent_autocommit_off() -> None:
    """Nothing is open yet: the next job's first statement would open it."""
    connection.ensure_connection()
    connection.connection.autocommit = False


_generators = []


def _generator() -> None:
    """The atomic block of a generator that nobody finishes, as of a streaming export."""

    def export() -> Any:
        with transaction.atomic():
            note("lost")
            yield 1
            yield 2

    rows = export()
    next(rows)
    _generators.append(rows)


def _replaced_and_autocommit_off() -> None:
    del connections["default"]
    _autocommit_off()


LEAVES_OPEN = {
    "another connection object, autocommit off": _replaced_and_autocommit_off,
    "atomic entered": _enter_atomic,
    "cursor BEGIN": _begin,
    "failed transaction": _failed_transaction,
    "autocommit off": _autocommit_off,
    "needs rollback": _set_rollback,
    "psycopg autocommit off": _raw_cursor,
    "psycopg autocommit off, unused": _silent_autocommit_off,
    "unfinished generator": _generator,
}


@task
def leave_open(how: str) -> None:
    LEAVES_OPEN[how]()


@task
async def leave_open_async(how: str) -> None:
    await sync_to_async(LEAVES_OPEN[how])()


@task
def leave_open_and_fail(how: str) -> None:
    LEAVES_OPEN[how]()
    raise ValueError("and failed")


def _close_django() -> None:
    connection.close()


def _close_psycopg() -> None:
    connection.ensure_connection()
    connection.connection.close()


def _close_socket() -> None:
    connection.ensure_connection()
    os.close(os.dup(connection.connection.fileno()))
    connection.connection.pgconn.finish()


def _terminate() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    except Exception:
        return


def _close_in_atomic() -> None:
    with transaction.atomic():
        note("lost")
        connection.close()


def _close_all() -> None:
    connections.close_all()


def _forget() -> None:
    del connections["default"]


BREAKS = {
    "closes it": _close_django,
    "closes psycopg's": _close_psycopg,
    "finishes libpq's": _close_socket,
    "has it terminated": _terminate,
    "closes it inside atomic": _close_in_atomic,
    "closes all": _close_all,
    "deletes it": _forget,
}


@task
def break_connection(how: str) -> None:
    BREAKS[how]()


@task
def violate_integrity(caught: bool) -> None:
    note("before")
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO machine_note (id, event) SELECT min(id), 'twice' FROM machine_note")
    except IntegrityError:
        if not caught:
            raise


@task
def deferred_violation() -> None:
    """An error that comes only at COMMIT."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP;"
            "INSERT INTO once VALUES (1), (1)"
        )


@task(atomic=True, timeout=30, takes_context=True)
def write_atomic(context: JobContext, event: str = "written") -> int:
    note(event, context.job_id)
    return context.attempt


@task(atomic=True, timeout=30, takes_context=True, backoff=SOON)
def write_atomic_and_fail(context: JobContext, failures: int) -> None:
    note("written", context.job_id)
    if context.attempt <= failures:
        raise ValueError("rolled back")


@task(atomic=True, timeout=30, takes_context=True, backoff=SOON)
def write_atomic_and_wait(context: JobContext, gate: str) -> None:
    note("written", context.job_id)
    Path(gate + ".begun").touch()
    wait_at(gate)


@task(atomic=True, timeout=30)
def sleep_atomic(seconds: float) -> None:
    note("slept")
    time.sleep(seconds)


@task(atomic=True, timeout=30)
def atomic_with_failing_hook() -> str:
    note("written")

    def hook() -> None:
        raise ValueError("after the commit")

    transaction.on_commit(hook)
    return "done"


@task(atomic=True, timeout=30)
def atomic_that_ends_its_transaction() -> None:
    """COMMIT behind Django's back."""
    note("written")
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


@task(atomic=True, timeout=30)
def atomic_that_needs_rollback() -> None:
    note("lost")
    transaction.set_rollback(True)


@task(atomic=True, timeout=30)
def atomic_that_swallows_an_error() -> None:
    note("lost")
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
    except Exception:
        return


@task
def show_isolation() -> str:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


@task(atomic=True, timeout=30)
def show_isolation_atomic() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


# -- timeouts --------------------------------------------------------------------------------------------------


def sleep_in_sql(seconds: float, mark: str = "") -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_sleep(%s) /* {mark} */", [seconds])


@task
def sleep_in_sql_for(seconds: float) -> None:
    sleep_in_sql(seconds, "for long")


@task(timeout=0.4, takes_context=True)
def overrun_in_sql(context: JobContext) -> None:
    note("begun", context.job_id)
    sleep_in_sql(60, "overrun")


@task(timeout=0.05, backoff=LATER)
def overrun_in_sql_soon() -> None:
    sleep_in_sql(60, "overrun")


@task(timeout=0.4)
def overrun_at(gate: str) -> None:
    """Deaf: nothing stops it but its gate."""
    wait_deaf_at(gate)


@task(timeout=0.4, max_attempts=1)
def overrun_on_the_last_attempt(gate: str) -> None:
    wait_deaf_at(gate)


@task(timeout=0.4, takes_context=True)
async def overrun_async(context: JobContext) -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await sync_to_async(note)("cancelled", context.job_id)
        raise


@task(timeout=0.4)
async def overrun_async_in_sql() -> None:
    await sync_to_async(sleep_in_sql)(60, "async overrun")


@task(timeout=0.4, atomic=True)
def overrun_atomic() -> None:
    note("lost")
    sleep_in_sql(60, "atomic overrun")


@task(timeout=0.4, atomic=True)
def overrun_atomic_at(gate: str) -> None:
    note("lost")
    wait_deaf_at(gate)


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@task(timeout=0.4)
def overrun_in_a_loop() -> None:
    spin(60)


@task(timeout=0.4)
def overrun_although_errors_are_caught() -> None:
    for _ in range(60):
        try:
            spin(1)
        except Exception:
            note("caught")


@task(timeout=0.4)
def overrun_in_finally() -> None:
    try:
        spin(60)
    finally:
        spin(60)


@task(timeout=0.4, takes_context=True)
def overrun_and_clean_up(context: JobContext) -> None:
    try:
        spin(60)
    except JobTimeout:
        note("cleaned up", context.job_id)
        raise


@task(takes_context=True)
def spin_and_tell(context: JobContext) -> None:
    note("begun", context.job_id)
    try:
        spin(60)
    except Interrupt as interrupt:
        note(type(interrupt).__name__, context.job_id)
        raise


@task(timeout=0.4)
def overrun_in_sleep(seconds: float) -> None:
    time.sleep(seconds)


@task(timeout=0.4)
def overrun_in_a_pattern() -> None:
    """Holds the interpreter: no other thread of the process runs meanwhile."""
    re.match(r"(a+)+$", "a" * 40 + "b")


@task(timeout=0.4)
def overrun_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    spin(60)  # whichever thread of the process hears the signal first


@task(timeout=0.4)
def overrun_at_a_socket() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.recv(1)


@task(timeout=0.4)
async def overrun_blocking_the_event_loop() -> None:
    time.sleep(60)


@task(max_attempts=3, backoff=SOON)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=3, backoff=SOON)
def exit_at_once() -> None:
    os._exit(1)


@task(max_attempts=3, backoff=SOON)
def segfault() -> None:
    ctypes.string_at(0)


@task(max_attempts=3, backoff=SOON)
def take_all_memory() -> None:
    """To the last kilobyte, and keep it while the error flies."""
    taken: list[bytes] = []
    for size in (10_000_000, 100_000, 600):
        try:
            while True:
                taken.append(b"x" * size)
        except MemoryError:
            continue
    raise MemoryError(f"nothing left after {len(taken)} pieces")


@task(takes_context=True, backoff=SOON, max_attempts=100)
def sleep_and_tell(context: JobContext, seconds: float) -> None:
    note("begun", context.job_id)
    time.sleep(seconds)
    note("ended", context.job_id)


@task
def leave_orphans(count: int) -> None:
    """Processes whose parent has ended before them."""
    for _ in range(count):
        subprocess.run(["sh", "-c", "sleep 0.2 &"], check=True)


@task(takes_context=True)
def pid(context: JobContext) -> int:
    return os.getpid()


@task(timeout=30)
def just_in_time() -> str:
    return "in time"


# -- context ---------------------------------------------------------------------------------------------------


@task(takes_context=True, timeout=30, max_attempts=4)
def tell_context(context: JobContext, extra: str) -> dict[str, Any]:
    assert context.deadline is not None
    return {
        "job_id": context.job_id,
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "remaining": context.remaining,
        "ahead": context.deadline - time.monotonic(),
        "cancelled": context.cancelled,
        "extra": extra,
    }


@task(takes_context=True)
async def tell_context_async(context: JobContext) -> dict[str, Any]:
    return {"job_id": context.job_id, "deadline": context.deadline, "remaining": context.remaining}


@task(takes_context=True)
def show_progress(context: JobContext, gates: list[str]) -> None:
    for step, gate in enumerate(gates):
        context.progress((step + 1) / 4, f"step {step}")
        wait_at(gate)


@task(takes_context=True)
def show_bad_progress(context: JobContext) -> list[str]:
    told = []
    bad: list[tuple[Any, Any]] = [(2, ""), (-0.1, ""), (math.nan, ""), ("half", ""), (0.5, "a\0b"), (0.5, "x" * 2000)]
    for fraction, message in bad:
        try:
            context.progress(fraction, message)
        except InvalidPayload as error:
            told.append(str(error)[:60])
    return told


@task(takes_context=True)
def wait_until_cancelled(context: JobContext) -> None:
    note("begun", context.job_id)
    deadline = time.monotonic() + 60
    while not context.cancelled:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    note("noticed", context.job_id)


@task(takes_context=True)
async def wait_until_cancelled_async(context: JobContext) -> None:
    await asyncio.to_thread(wait_until_cancelled.func, context)


@task(takes_context=True, atomic=True, timeout=60)
def write_until_cancelled_atomic(context: JobContext) -> None:
    write.func("rolled back")
    wait_until_cancelled.func(context)


@task(takes_context=True)
def clean_up_when_cancelled(context: JobContext) -> None:
    note("begun", context.job_id)
    deadline = time.monotonic() + 60
    while not context.cancelled:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    sleep_in_sql(0.5)
    note("cleaned up", context.job_id)


@task(takes_context=True)
async def clean_up_when_cancelled_async(context: JobContext) -> None:
    await sync_to_async(note)("begun", context.job_id)
    try:
        await asyncio.sleep(60)
    finally:
        await sync_to_async(sleep_in_sql)(0.5)
        await sync_to_async(note)("cleaned up", context.job_id)


# -- isolation -------------------------------------------------------------------------------------------------

_variable: ContextVar[str] = ContextVar("machine_variable", default="unset")


def _set_globals() -> None:
    _variable.set("set")
    translation.activate("de")
    timezone.activate("Asia/Kathmandu")
    decimal.getcontext().prec = 5


@task
def set_globals() -> None:
    _set_globals()


@task
async def set_globals_async() -> None:
    _set_globals()


def _globals() -> dict[str, str]:
    return {
        "variable": _variable.get(),
        "language": translation.get_language() or "",
        "zone": timezone.get_current_timezone_name(),
        "digits": str(decimal.getcontext().prec),
        "thread": threading.current_thread().name,
    }


@task
def tell_globals() -> dict[str, str]:
    return _globals()


@task
async def tell_globals_async() -> dict[str, str]:
    return _globals()


# Statements that change a session for longer than their transaction, and such as do not. ``{}`` is a role.
CHANGES_SESSION: dict[str, Any] = {
    "a setting": "SET statement_timeout = '1min'",
    "a setting, in small letters and after comments": "-- one\n/* and\n another */ set statement_timeout = '1min'",
    "a setting, after another statement": "SELECT 1; SET SESSION statement_timeout = '1min'",
    "a setting, by function": "SELECT set_config('statement_timeout', '1min', false)",
    "a setting, in a block": "DO $$ BEGIN PERFORM set_config('statement_timeout', '1min', false); END $$",
    "a composed statement": sql.SQL("SET {} = '1min'").format(sql.Identifier("statement_timeout")),
    "bytes": b"SET statement_timeout = '1min'",
    "a role": "SET ROLE pg_monitor",
    "a path": "SET search_path TO pg_catalog, public",
    "a zone": "SET TIME ZONE 'Asia/Kathmandu'",
    "isolation": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "undone before": "RESET TimeZone",
    "a temporary table": "CREATE TEMPORARY TABLE left_behind (id int)",
    "a temporary table, from rows": "SELECT 1 AS id INTO TEMP left_behind",
    "a temporary table, by its schema": "CREATE TABLE pg_temp.left_behind (id int)",
    "a lock": "SELECT pg_advisory_lock(4711)",
    "a lock, if it is free": "SELECT pg_try_advisory_lock_shared(4711)",
    "a channel": "LISTEN left_behind",
    "a prepared statement": "PREPARE left_behind AS SELECT 1",
    "a cursor": "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
}
KEEPS_SESSION: dict[str, Any] = {
    "an update": "UPDATE machine_note\nSET event = 'reset' WHERE false",
    "local": "SET LOCAL statement_timeout = '1min'",
    "local, by function": "SELECT set_config('statement_timeout', '1min', true)",
    "transaction": "SET TRANSACTION READ ONLY",
    "constraints": "SET CONSTRAINTS ALL IMMEDIATE",
    "a lock of the transaction": "SELECT pg_advisory_xact_lock(4711)",
    "a table like temporary": "SELECT 'create temp' AS template",
}


def _execute(statement: Any) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def execute(how: str) -> int:
    return _execute({**CHANGES_SESSION, **KEEPS_SESSION}[how])


@task
async def execute_async(how: str) -> int:
    return await sync_to_async(_execute)({**CHANGES_SESSION, **KEEPS_SESSION}[how])


@task
def execute_on_another_object(how: str) -> None:
    connection.close()
    del connections["default"]
    _execute(CHANGES_SESSION[how])


@task
def tell_session() -> dict[str, Any]:
    """All that a session has beyond its transactions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_user::text, current_setting('application_name'), "
            "(SELECT array_agg(name || '=' || setting ORDER BY name) FROM pg_settings "
            " WHERE source = 'session' AND name NOT LIKE 'transaction%'), "
            "(SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid)), "
            "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), "
            "(SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_prepared_statements), "
            "(SELECT count(*) FROM pg_cursors WHERE is_holdable)"
        )
        return {"pid": backend_pid.func(), "session": list(cursor.fetchone())}  # type: ignore[misc]


@task
def count_queries() -> int:
    """How many queries DEBUG has kept of the jobs before this one."""
    kept = len(connection.queries)
    note("one more")
    return kept


@task
async def query_async(gate: str) -> None:
    await sync_to_async(note)("queried")
    await await_gate(gate)


@task
def use_no_connection() -> bool:
    return all(wrapper.connection is None for wrapper in connections.all(initialized_only=True))


@task
def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task(takes_context=True)
def use_orm(context: JobContext) -> None:
    assert Job.objects.filter(pk=context.job_id).exists()
    note("used", context.job_id)


@task(takes_context=True)
async def use_orm_async(context: JobContext) -> None:
    assert await Job.objects.filter(pk=context.job_id).aexists()
    await sync_to_async(note)("used", context.job_id)


@task(takes_context=True)
def use_orm_in_threads(context: JobContext) -> None:
    """In four threads of its own, which give their connections back themselves."""

    def use() -> None:
        assert Job.objects.filter(pk=context.job_id).exists()
        connections.close_all()

    with ThreadPoolExecutor(4) as own:
        for used in [own.submit(use) for _ in range(4)]:
            used.result()
    note("used", context.job_id)


# -- how many at the same time ---------------------------------------------------------------------------------

_count = 0
peak = 0
_count_lock = threading.Lock()


def _enter() -> None:
    global _count, peak
    with _count_lock:
        _count += 1
        peak = max(peak, _count)


def _leave() -> None:
    global _count
    with _count_lock:
        _count -= 1


@task
def count_at_once(seconds: float) -> None:
    _enter()
    time.sleep(seconds)
    _leave()


@task
async def count_at_once_async(seconds: float) -> None:
    _enter()
    await asyncio.sleep(seconds)
    _leave()


order: list[Any] = []


@task
def append(item: Any) -> None:
    order.append(item)


@task
def append_and_wait(item: Any, gate: str) -> None:
    order.append(item)
    wait_at(gate)


# -- leases ----------------------------------------------------------------------------------------------------


@task
async def block_event_loop(seconds: float) -> None:
    time.sleep(seconds)


@task
async def block_event_loop_at(gate: str) -> None:
    wait_at(gate)


@task
async def block_event_loop_in_child(seconds: float) -> None:
    async def careless_child() -> None:
        time.sleep(seconds)

    await asyncio.create_task(careless_child())


@task
def keep_gil_busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


@task(max_attempts=3, backoff=SOON, takes_context=True)
def kill_process(context: JobContext) -> None:
    note("begun", context.job_id)
    os._exit(9)


# -- stopping --------------------------------------------------------------------------------------------------


@task(takes_context=True, max_attempts=1)
def stubborn(context: JobContext, seconds: float) -> None:
    """Hears nothing; on its only attempt."""
    note("begun", context.job_id)
    time.sleep(seconds)


@task(takes_context=True)
async def stubborn_async(context: JobContext, seconds: float) -> None:
    await sync_to_async(note)("begun", context.job_id)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            continue


@task(takes_context=True, max_attempts=1)
async def clean_up_for_long_async(context: JobContext, seconds: float) -> None:
    await sync_to_async(note)("begun", context.job_id)
    try:
        await asyncio.sleep(seconds)
    finally:
        await asyncio.sleep(seconds)


@task
async def leave_thread_behind(seconds: float) -> None:
    """Ends at once; a thread of the event loop's default executor goes on."""
    asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
    await sync_to_async(note)("begun")


@task
def leave_plain_thread_behind(seconds: float) -> None:
    threading.Thread(target=time.sleep, args=[seconds]).start()
    note("begun")


@task(atomic=True, timeout=30)
def atomic_with_slow_hook(gate: str) -> None:
    note("written")
    transaction.on_commit(lambda: wait_at(gate))


# -- what they log ---------------------------------------------------------------------------------------------


def _log_a_line(job_id: int) -> None:
    logging.getLogger("machine_shop").info("%d", job_id)


@task(takes_context=True)
def log_a_line(context: JobContext) -> None:
    _log_a_line(context.job_id)


@task(takes_context=True, atomic=True, timeout=30)
def log_a_line_atomic(context: JobContext) -> None:
    _log_a_line(context.job_id)


@task(takes_context=True)
async def log_a_line_async(context: JobContext) -> None:
    _log_a_line(context.job_id)
    await sync_to_async(_log_a_line)(context.job_id)
    await asyncio.to_thread(_log_a_line, context.job_id)
