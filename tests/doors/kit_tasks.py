"""Tasks for test_testing.py, each with one manner."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, close_old_connections, connection, connections, transaction
from django.utils import translation

from pgqueue_django import Backoff, Interrupt, JobContext, PermanentError, Retry, enqueue_many, task, transitions
from pgqueue_django.testing import run_jobs

LATER = Backoff(base=600, factor=1, cap=600)


@dataclass(frozen=True)
class Amount:
    cents: int


@task(queue_name="billing", priority=10, max_attempts=3)
def charge(invoice_id: int, amount_cents: int = 0) -> dict[str, int]:
    return {"invoice": invoice_id, "cents": amount_cents}


@task
def refund(amount: Amount, **why: str) -> int:
    return amount.cents


@task
def note(name: str) -> int:
    return Group.objects.create(name=name).pk


@task
async def note_async(name: str) -> int:
    await Group.objects.acreate(name=name)
    return await Group.objects.acount()


@task(takes_context=True, max_attempts=3, backoff=LATER)
def fails_until(context: JobContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(max_attempts=3, takes_context=True)
def asks_for_more_time(context: JobContext) -> None:
    if context.attempt == 1:
        raise Retry("not yet", delay=3600)


@task
def gives_up() -> None:
    raise PermanentError("no use")


@task
def exits() -> None:
    raise SystemExit(3)


@task
def is_stopped() -> None:
    raise KeyboardInterrupt


@task
def returns_a_set() -> set[int]:
    return {1}


@task(atomic=True, timeout=60, max_attempts=1)
def note_atomically(name: str, error: str = "") -> str:
    Group.objects.create(name=name)
    if error:
        raise ValueError(error)
    return name


@task(max_attempts=1)
def note_and_fail(name: str) -> None:
    Group.objects.create(name=name)
    raise ValueError("after it was written")


@task(max_attempts=1)
def note_twice(name: str) -> None:
    Group.objects.create(name=name)
    Group.objects.create(name=name)


@task(max_attempts=1)
def note_twice_and_go_on(name: str) -> str:
    Group.objects.create(name=name)
    with suppress(IntegrityError):
        Group.objects.create(name=name)
    return "went on"


@task(max_attempts=1)
def send_nonsense_and_go_on(name: str) -> str:
    Group.objects.create(name=name)
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")
    return "went on"


@task(max_attempts=1)
def fail_in_a_block_without_a_savepoint(name: str) -> str:
    with suppress(ZeroDivisionError), transaction.atomic(savepoint=False):
        Group.objects.create(name=name)
        raise ZeroDivisionError
    return "went on"


@task(max_attempts=1)
def leave_a_block_open(name: str) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name=name)


@task(max_attempts=1, atomic=True, timeout=60)
def leave_a_block_open_in_an_atomic_one(name: str) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name=name)


@task(atomic=True, timeout=60)
def leave_a_block_open_in_a_hook(name: str) -> None:
    Group.objects.create(name=name)
    transaction.on_commit(lambda: transaction.atomic().__enter__())


@task
def close_connections(name: str) -> int:
    connection.close()
    close_old_connections()
    connections.close_all()
    return Group.objects.filter(name=name).count()


@task
def note_durably(name: str) -> None:
    with transaction.atomic(durable=True):
        Group.objects.create(name=name)


@task
def hook_at_once(name: str) -> bool:
    transaction.on_commit(lambda: Group.objects.create(name=name) and None)
    return Group.objects.filter(name=name).exists()


@task(max_attempts=1)
def lock_without_a_block(name: str) -> None:
    Group.objects.select_for_update().get(name=name)


@task(max_attempts=1)
def switch_autocommit_off(name: str) -> None:
    Group.objects.create(name=f"{name} before")
    transaction.set_autocommit(False)
    Group.objects.create(name=name)


@task
def commit_by_hand(name: str) -> None:
    transaction.set_autocommit(False)
    for number in range(2):
        Group.objects.create(name=f"{name} {number}")
        transaction.commit()
    Group.objects.create(name=f"{name} rolled back")
    transaction.rollback()
    transaction.set_autocommit(True)


@task
def roll_back_and_commit(name: str) -> int:
    with suppress(ZeroDivisionError), transaction.atomic():
        Group.objects.create(name=f"{name} rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        Group.objects.create(name=name)
        with suppress(IntegrityError), transaction.atomic():
            Group.objects.create(name=name)
    return sum(1 for _ in Group.objects.iterator(chunk_size=1))


@task(max_attempts=1)
def break_it_behind_django(name: str) -> None:
    Group.objects.create(name=name)
    with suppress(psycopg.Error):
        connection.connection.execute("SELECT no_such_column")


@task
def hook(name: str, error: str = "") -> None:
    def after() -> None:
        if error:
            raise ValueError(error)
        note.enqueue(f"{name} by a hook")

    with transaction.atomic():
        Group.objects.create(name=name)
        transaction.on_commit(after)


@task
def chain(left: int) -> None:
    if left:
        chain.enqueue(left - 1)


@task
def fan_out(names: list[str]) -> int:
    enqueue_many([note.call(name) for name in names])
    return Group.objects.filter(name__in=names).count()


@task
def run_others() -> list[str]:
    note.enqueue("by another")
    return [ran.state for ran in run_jobs()]


@task
def for_ever() -> None:
    for_ever.enqueue()


@task(takes_context=True)
def report(context: JobContext) -> None:
    context.progress(0.5, "half")


@task(takes_context=True)
def cancel_itself(context: JobContext) -> None:
    transitions.cancel("default", [context.job_id])


@task(takes_context=True, timeout=0.01, max_attempts=1)
def take_too_long(context: JobContext) -> None:
    while (context.remaining or 0) > 0:
        time.sleep(0.001)


@task
def language() -> str:
    return translation.get_language()


@task
def every_hour(name: str) -> None:
    """Again an hour later, in its own manner."""
    Group.objects.create(name=f"{name} {Group.objects.count()}")
    every_hour.using(run_after=timedelta(hours=1)).enqueue(name)


@task
def tick() -> None: ...


@task
def wait_deaf_at(gate: str) -> None:
    """Nothing but the gate ends it. Says that it has begun."""
    Path(f"{gate}.began").touch()
    until = time.monotonic() + 60
    while not Path(gate).exists() and time.monotonic() < until:
        with suppress(Interrupt):
            time.sleep(0.002)
