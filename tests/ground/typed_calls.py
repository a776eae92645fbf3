"""Read by mypy and pyright, never run: what a caller may write, and what is an error in the editor.

An ignore that a checker finds unused fails ``make lint``, so each of them is a promise that the line is wrong.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import pgqueue_django
from pgqueue_django import (
    Backoff,
    Call,
    Enqueued,
    Interrupt,
    InvalidOption,
    InvalidPayload,
    InvalidSchedule,
    JobCancelled,
    JobContext,
    JobTimeout,
    LeaseLost,
    NoResult,
    PermanentError,
    PgQueueError,
    Retry,
    Task,
    TaskNotFound,
    aenqueue_many,
    enqueue,
    enqueue_many,
    job_options,
    periodic,
    task,
    task_by_name,
)

NOW = datetime.now(UTC)


# -- tasks, in each way to make one ----------------------------------------------------------------------------


@task(
    queue_name="billing",
    priority=10,
    max_attempts=5,
    timeout=timedelta(seconds=30),
    backoff=Backoff(base=1, factor=2, cap=600),
    atomic=True,
    api=True,
    label=len,
)
def charge(invoice_id: int, amount_cents: int = 0) -> dict[str, int]:
    return {}


@task
def tidy(*paths: str, dry: bool = False) -> None: ...


@task
async def remind(invoice_id: int) -> str:
    return ""


@task(timeout=30)
async def fetch(url: str) -> list[str]:
    return []


@task(takes_context=True)
def export(context: JobContext, report_id: int) -> int:
    assert_type(context.job_id, int)
    assert_type(context.attempt, int)
    assert_type(context.max_attempts, int)
    assert_type(context.deadline, float | None)
    assert_type(context.remaining, float | None)
    assert_type(context.cancelled, bool)
    context.progress(0.5, "half of it")
    context.progress("half")  # type: ignore[arg-type]
    context.job_id.nothing  # type: ignore[attr-defined]
    return report_id


@task(takes_context=True, timeout=60, api=True, label="a file")
async def crawl(context: JobContext, url: str) -> float:
    return 0.5


@periodic("0 3 * * *", tz="Europe/Warsaw", name="nightly", args=[7], kwargs={}, missed="none", overlap="skip")
@task(queue_name="reports")
def report(shop_id: int) -> None: ...


def late(order_id: int) -> bool:
    return True


# For Django's own tasks: it marks the function and leaves its type alone.
marked = job_options(max_attempts=3, timeout=30, backoff=Backoff(), atomic=True, api=True)(late)
elsewhere = task_by_name("shop.tasks.charge")
made = task(late)
made_with_options = task(priority=1)(late)


def what_they_are() -> None:
    # A type checker names no parameters here: the calls below show that it knows them.
    billing: Task[..., dict[str, int]] = charge
    wider: Task[..., object] = charge  # what it returns may be taken for more than it is
    later: list[Task[..., Any]] = [charge, tidy, remind, fetch, export, crawl, report, elsewhere, made]
    wrong: Task[..., str] = charge  # type: ignore[assignment]
    print(billing, wider, later, wrong)
    charge.priority = 3  # type: ignore[misc]


# -- calls -----------------------------------------------------------------------------------------------------


async def right_calls() -> None:
    assert_type(charge.enqueue(7, amount_cents=1), Enqueued)
    assert_type(await charge.aenqueue(7), Enqueued)
    assert_type(charge.call(7), Call)
    assert_type(enqueue(charge, 7, 1), Enqueued)
    tidy.enqueue()
    tidy.enqueue("a", "b", dry=True)
    remind.enqueue(7)
    await remind.aenqueue(invoice_id=7)
    fetch.enqueue("https://example.com/")
    export.enqueue(7)
    export.enqueue(report_id=7)
    enqueue(export, 7)
    crawl.enqueue("https://example.com/")
    report.enqueue(7)
    made.enqueue(7)
    made_with_options.enqueue(order_id=7)
    # Only the worker that has the code knows what these take.
    elsewhere.enqueue()
    elsewhere.using(priority=5).enqueue(7, anything="goes")


async def right_calls_in_coroutines() -> None:
    assert_type(await charge.aenqueue(7, amount_cents=1), Enqueued)
    assert_type(await aenqueue_many([charge.call(7), remind.call(7)]), list[Enqueued])


async def wrong_calls() -> None:
    await aenqueue_many([charge])  # type: ignore[list-item]
    charge.enqueue()  # type: ignore[call-arg]
    charge.enqueue("7")  # type: ignore[arg-type]
    charge.enqueue(7, 1, 2)  # type: ignore[call-arg]
    charge.enqueue(7, amount=1)  # type: ignore[call-arg]
    charge.enqueue(7, priority=1)  # type: ignore[call-arg]
    charge.using(priority=3).enqueue("7")  # type: ignore[arg-type]
    await charge.aenqueue("7")  # type: ignore[arg-type]
    charge.call("7")  # type: ignore[arg-type]
    enqueue(charge, "7")  # type: ignore[arg-type]
    enqueue(charge)  # type: ignore[call-arg]
    enqueue(late, 7)  # type: ignore[arg-type]
    tidy.enqueue(7)  # type: ignore[arg-type]
    remind.enqueue("7")  # type: ignore[arg-type]
    fetch.enqueue(7)  # type: ignore[arg-type]
    export.enqueue("7")  # type: ignore[arg-type]
    export.enqueue(JobContext, 7)  # type: ignore[call-arg, arg-type]
    crawl.enqueue(7)  # type: ignore[arg-type]
    report.enqueue("7")  # type: ignore[arg-type]
    made.enqueue("7")  # type: ignore[arg-type]
    made_with_options.enqueue("7")  # type: ignore[arg-type]
    charge(7)  # type: ignore[operator]


# -- options ---------------------------------------------------------------------------------------------------


def right_options() -> None:
    charge.using(
        queue_name="q", priority=3, run_after=NOW, idempotency_key="k", max_attempts=1, database="default"
    ).enqueue(7)
    charge.using(label="invoice 7").enqueue(7)
    charge.using(run_after=timedelta(minutes=1)).using(idempotency_key=None).enqueue(7)
    task(max_attempts=None, timeout=None)(late)
    assert_type(marked(7), bool)


def wrong_options() -> None:
    charge.using(timeout=3)  # type: ignore[call-arg]
    charge.using(run_after=60)  # type: ignore[arg-type]
    charge.using(priority="high")  # type: ignore[arg-type]
    charge.using("queue")  # type: ignore[call-arg]
    task(queue="billing")  # type: ignore[call-overload]
    task(timeout="30")  # type: ignore[call-overload]
    task(api="yes")  # type: ignore[call-overload]
    task(label=3)  # type: ignore[call-overload]
    charge.using(label=str)  # type: ignore[arg-type]
    task(takes_context=True)(late)  # type: ignore[arg-type]
    job_options(queue_name="billing")  # type: ignore[call-arg]
    job_options(timeout="30")  # type: ignore[arg-type]
    job_options(api="yes")  # type: ignore[arg-type]
    marked("7")  # type: ignore[arg-type]
    task("name")  # type: ignore[call-overload]
    task_by_name(late)  # type: ignore[arg-type]
    Backoff(base="2")  # type: ignore[arg-type]
    Backoff(limit=2)  # type: ignore[call-arg]
    Backoff().cap = 3  # type: ignore[misc]
    periodic("@daily")(late)  # type: ignore[arg-type]
    periodic("@daily", zone="UTC")  # type: ignore[call-arg]
    periodic(5)  # type: ignore[arg-type]


# -- bulks and results -----------------------------------------------------------------------------------------


async def right_results(enqueued: Enqueued) -> None:
    assert_type(enqueue_many([charge.call(7), tidy.call("a")]), list[Enqueued])
    assert_type(enqueue_many(made.call(i) for i in range(3)), list[Enqueued])
    assert_type(enqueued.id, int)
    assert_type(enqueued.created, bool)
    assert_type(charge.result(enqueued), dict[str, int])
    assert_type(charge.using(database="other").result(enqueued.id), dict[str, int])
    assert_type(await charge.aresult(enqueued), dict[str, int])
    assert_type(remind.result(7), str)
    assert_type(fetch.result(7), list[str])
    assert_type(export.result(7), int)
    assert_type(crawl.result(7), float)
    assert_type(made.result(7), bool)
    assert_type(made_with_options.result(7), bool)
    assert_type(elsewhere.result(7), Any)
    try:
        charge.result(7)
    except NoResult as error:
        assert_type(error.state, str | None)


async def wrong_results(enqueued: Enqueued) -> None:
    enqueue_many([charge])  # type: ignore[list-item]
    enqueue_many(charge.call(7))  # type: ignore[arg-type]
    enqueued.id = 7  # type: ignore[misc]
    charge.result("7")  # type: ignore[arg-type]
    text: str = charge.result(7)  # type: ignore[assignment]
    number: int = remind.result(7)  # type: ignore[assignment]
    more: int = await remind.aresult(7)  # type: ignore[assignment]
    print(text, number, more)


# -- exceptions ------------------------------------------------------------------------------------------------


def right_exceptions() -> None:
    errors: list[Exception] = [
        Retry(),
        Retry("later", delay=3),
        Retry(delay=timedelta(minutes=1)),
        PermanentError("no"),
    ]
    ours: list[PgQueueError] = [Retry(), PermanentError()]
    values: list[ValueError] = [InvalidOption(), InvalidPayload(), InvalidSchedule("no line")]
    lookups: list[LookupError] = [TaskNotFound(), NoResult("no job", state=None)]
    interrupts: list[Interrupt] = [JobCancelled(), LeaseLost(), JobTimeout()]
    assert_type(Retry().delay, float | None)
    print(errors, ours, values, lookups, interrupts)


def wrong_exceptions() -> None:
    Retry("later", 3)  # type: ignore[call-arg]
    Retry(delay="3")  # type: ignore[arg-type]
    # "except Exception" in a handler is not to swallow it.
    swallowed: Exception = JobCancelled()  # type: ignore[assignment]
    pgqueue_django.Tasks  # type: ignore[attr-defined]
    print(swallowed)
