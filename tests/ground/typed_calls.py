"""Read by mypy, never run: wrong calls of a task are errors. An ignore that mypy finds unused fails ``make lint``."""

from __future__ import annotations

from typing import assert_type

from pgqueue_django import Enqueued, JobContext, aenqueue_many, enqueue, task


@task(queue_name="billing")
def charge(invoice_id: int, amount_cents: int = 0) -> dict[str, int]:
    return {}


@task
async def remind(invoice_id: int) -> str:
    return ""


@task(takes_context=True)
def export(context: JobContext, report_id: int) -> None: ...


def right_calls() -> None:
    assert_type(charge.enqueue(7, amount_cents=1), Enqueued)
    charge.using(priority=3).enqueue(7)
    remind.enqueue(7)
    export.enqueue(7)
    enqueue(charge, 7)
    charge.call(7)


async def right_calls_in_coroutines() -> None:
    assert_type(await charge.aenqueue(7, amount_cents=1), Enqueued)
    assert_type(await aenqueue_many([charge.call(7), remind.call(7)]), list[Enqueued])


async def wrong_calls_in_coroutines() -> None:
    await charge.aenqueue("7")  # type: ignore[arg-type]
    await aenqueue_many([charge])  # type: ignore[list-item]


def wrong_calls() -> None:
    charge.enqueue()  # type: ignore[call-arg]
    charge.enqueue("7")  # type: ignore[arg-type]
    charge.using(priority=3).enqueue("7")  # type: ignore[arg-type]
    charge.enqueue(7, amount=1)  # type: ignore[call-arg]
    charge.using(timeout=3)  # type: ignore[call-arg]
    remind.enqueue("7")  # type: ignore[arg-type]
    export.enqueue("7")  # type: ignore[arg-type]
    enqueue(charge, "7")  # type: ignore[arg-type]
    charge.call("7")  # type: ignore[arg-type]
