"""What a task asks for its jobs: the options, their ranges, and how Django's own tasks name them.

Needs no model and no database: modules with tasks may be imported before Django is ready.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.utils import timezone

from . import conf, payload
from .backoff import Backoff
from .exceptions import InvalidOption, InvalidPayload

F = TypeVar("F", bound=Callable[..., Any])

Label = str | Callable[..., object]
"""A short text for people, or what makes one of a call's arguments."""

MAX_PRIORITY = 100
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")

declared: dict[str, str] = {}
"""The queue of each task whose module this process has imported, by the task's path."""

_ATTRIBUTE = "pgqueue_options"  # of the function: it is there under any backend of django.tasks
MAX_WAIT = timedelta(days=36500)
_MAX_INT = 2**31 - 1  # of the columns attempts and max_attempts


@dataclass(frozen=True)
class JobOptions:
    """What ``@job_options`` says; None: the setting."""

    max_attempts: int | None = None
    timeout: float | None = None  # seconds
    backoff: Backoff | None = None
    atomic: bool = False
    api: bool = False
    label: Label | None = None


def job_options(
    *,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
    backoff: Backoff | None = None,
    atomic: bool = False,
    api: bool = False,
    label: Label | None = None,
) -> Callable[[F], F]:
    """Say below Django's own ``@task`` what it has no words for.

    ::

        @task
        @job_options(max_attempts=3, timeout=30)
        def charge(invoice_id): ...

    They mean what they mean to our own ``@task``. It only marks the function, so that the module can be imported under
    any backend; others do not read it. Raises InvalidOption.
    """
    options = JobOptions(max_attempts, seconds(timeout), backoff, atomic, api, label)
    check_max_attempts(max_attempts)
    check_label(label)
    if backoff is not None:
        check_backoff(backoff)

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidOption("@job_options stands below @task, directly above the function.")
        check_atomic(function, options.atomic, options.timeout)
        setattr(function, _ATTRIBUTE, options)
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> JobOptions:
    """What ``@job_options`` has said of this function."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, JobOptions) else JobOptions()


def seconds(timeout: object) -> float | None:
    """A timeout in seconds. Raises InvalidOption."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidOption(f"timeout={timeout!r}: more than 0 seconds, or None.")
    return value


def check_atomic(function: Callable[..., Any], atomic: bool, timeout: float | None) -> None:
    if atomic and inspect.iscoroutinefunction(function):
        raise InvalidOption(f"{function.__qualname__}: atomic=True is for plain functions; Django has no async one.")
    if atomic and timeout is None and conf.before_checks().TIMEOUT is None:
        raise InvalidOption(f"{function.__qualname__}: atomic=True needs a timeout; it holds a transaction open.")


def check_queue_name(name: object) -> None:
    if not isinstance(name, str) or not QUEUE_NAME.fullmatch(name):
        raise InvalidOption(f"queue_name={name!r}: 1 to 63 letters, digits, '_', '.' or '-'.")


def check_priority(priority: object) -> None:
    if not _is_whole(priority) or abs(priority) > MAX_PRIORITY:  # type: ignore[arg-type]
        raise InvalidOption(
            f"priority={priority!r}: a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, higher first."
        )


def check_max_attempts(count: object) -> None:
    if count is not None and (not _is_whole(count) or not 1 <= count <= _MAX_INT):  # type: ignore[operator]
        raise InvalidOption(f"max_attempts={count!r}: a whole number of at least 1.")


def check_label(label: object) -> None:
    if label is not None and not isinstance(label, str) and not callable(label):
        raise InvalidOption(f"label={label!r:.100}: a text, or a function of the task's arguments that makes one.")


def check_backoff(backoff: object) -> None:
    if not isinstance(backoff, Backoff):
        raise InvalidOption(f"backoff={backoff!r}: pass a Backoff(base=, factor=, cap=).")


def check_run_after(moment: object) -> None:
    if moment is None:
        return
    if isinstance(moment, timedelta):
        if abs(moment) > MAX_WAIT:
            raise InvalidOption(f"run_after={moment!r}: at most {MAX_WAIT.days} days from now.")
    elif isinstance(moment, datetime):
        if timezone.is_naive(moment):
            raise InvalidOption(
                f"run_after={moment!r} has no time zone: use django.utils.timezone.now() or make_aware(), "
                "or pass a timedelta."
            )
        if moment - datetime.now(UTC) > MAX_WAIT:
            raise InvalidOption(f"run_after={moment!r}: at most {MAX_WAIT.days} days from now.")
    else:
        raise InvalidOption(f"run_after={moment!r}: pass an aware datetime or a timedelta.")


def aware(moment: Any) -> Any:
    """Where USE_TZ is off, Django's moments have no time zone: they are those of TIME_ZONE."""
    return timezone.make_aware(moment) if isinstance(moment, datetime) and timezone.is_naive(moment) else moment


def check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 1 <= len(key) <= 200:
        raise InvalidOption(f"idempotency_key={key!r:.300}: a text of 1 to 200 characters, or None for no key.")
    try:
        payload.dump(key, where="idempotency_key", limit=None)
    except InvalidPayload as error:
        raise InvalidOption(str(error)) from error


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
