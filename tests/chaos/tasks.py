"""The handlers of these tests. Each tells the ledger of its begin and its end, on a connection of its own."""

from __future__ import annotations

import asyncio
import time

from django.db import connections

from pgqueue_django import Backoff, task
from pgqueue_django.context import JobContext
from pgqueue_django.exceptions import Interrupt
from testproject import ledger

# Attempts are spent by our kills alone, and the tests do not wait long for the next one.
MANY = 20
SOON = Backoff(base=0.1, factor=1, cap=0.1)


@task(max_attempts=MANY, backoff=SOON, takes_context=True)
def work(context: JobContext, milliseconds: int) -> None:
    """Takes its time on a thread."""
    with ledger.delivery(context.job_id, context.attempt):
        time.sleep(milliseconds / 1000)


@task(max_attempts=MANY, backoff=SOON, takes_context=True)
def work_deaf(context: JobContext, milliseconds: int) -> None:
    """As ``work``, and goes on when it is interrupted."""
    id = ledger.begin(context.job_id, context.attempt)
    until = time.monotonic() + milliseconds / 1000
    while True:
        try:
            time.sleep(max(0.0, until - time.monotonic()))
            ledger.end(id)
            return
        except Interrupt:
            continue


@task(max_attempts=MANY, backoff=SOON, takes_context=True)
async def work_async(context: JobContext, milliseconds: int) -> None:
    """Takes its time on the event loop."""
    id = await asyncio.to_thread(ledger.begin, context.job_id, context.attempt)
    await asyncio.sleep(milliseconds / 1000)
    await asyncio.to_thread(ledger.end, id)


@task(max_attempts=MANY, backoff=SOON, takes_context=True, atomic=True, timeout=60)
def leave_effect(context: JobContext, milliseconds: int) -> None:
    """Writes a row in the transaction that also records its success."""
    with ledger.delivery(context.job_id, context.attempt):
        with connections["default"].cursor() as cursor:
            cursor.execute("INSERT INTO chaos_effect (job_id) VALUES (%s)", [context.job_id])
        time.sleep(milliseconds / 1000)
