"""Tasks of Django's own framework for the tests, as ``handlers`` has ours; of Django 6, or of the backport."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from typing import Any

from django.db import IntegrityError

from pgqueue_django import Backoff, PermanentError, Retry, job_options
from tests.machine import handlers

try:
    from django.tasks import TaskContext, task
except ImportError:
    from django_tasks import TaskContext, task

SOON = Backoff(base=0.01, factor=1, cap=0.01)


@task
def give(value: Any) -> Any:
    return value


@task
async def give_async(value: Any) -> Any:
    return value


@task
def give_number(number: int, *, times: int = 1) -> int:
    return number * times


@task(queue_name="slow", priority=5)
def give_slowly(value: Any) -> Any:
    return value


@task
@job_options(max_attempts=2, backoff=SOON)
def fail(message: str) -> None:
    raise ValueError(message)


@task
@job_options(max_attempts=1)
def fail_of_another() -> None:
    def fall(variable: str) -> None:
        raise ValueError(variable)

    def fall_again(variable: str) -> None:
        try:
            fall(variable)
        except ValueError:
            raise LookupError(variable)  # noqa: B904

    errors = []
    for one in (fall, fall_again):
        try:
            one("large")
        except (ValueError, LookupError) as error:
            errors.append(error)
    raise ExceptionGroup("two", errors[:1]) from errors[1]


@task
@job_options(max_attempts=1)
async def fail_async(message: str) -> None:
    raise ValueError(message)


@task
def give_up(message: str) -> None:
    raise PermanentError(message)


@task
@job_options(max_attempts=1)
def leave() -> None:
    sys.exit(3)


@task
@job_options(max_attempts=1)
def interrupt_itself() -> None:
    raise KeyboardInterrupt


@task
@job_options(max_attempts=1)
def give_what_is_no_json() -> Any:
    return datetime.datetime.now


@task
def give_odd() -> Any:
    return {1: (b"x", (1, 2))}


@task(takes_context=True)
@job_options(max_attempts=3, backoff=SOON)
def try_three_times(context: Any) -> list[Any]:
    result = context.task_result
    seen = [context.attempt, result.attempts, len(result.errors), str(result.status), context.job.attempt]
    handlers.note(repr(seen), int(result.id))
    if context.attempt < 3:
        raise Retry("again", delay=0)
    return [context.attempt, isinstance(context, TaskContext)]


@task(takes_context=True)
async def tell_async(context: Any, word: str) -> list[Any]:
    context.job.progress(0.5, word)
    return [context.task_result.id, context.attempt, word]


@task
@job_options(atomic=True, timeout=20)
def write_atomically(event: str) -> str:
    handlers.note(event)
    return event


@task
@job_options(atomic=True, timeout=20, max_attempts=1)
def write_atomically_and_fail(event: str) -> None:
    handlers.note(event)
    raise IntegrityError("no")


@task
@job_options(timeout=0.3, max_attempts=1)
def overrun(gate: str) -> None:
    handlers.wait_at(gate)


@task
@job_options(timeout=0.3, max_attempts=1)
def note_in_time() -> None:
    handlers.note("in time")


@task
@job_options(timeout=20)
def wait(gate: str) -> str:
    handlers.wait_at(gate)
    return "done"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    word: str


@task
@job_options(max_attempts=1)
def fail_frozen() -> None:
    raise FrozenError("no")
