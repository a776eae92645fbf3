"""pgqueue_django: durable background jobs on the PostgreSQL that a Django project already has.

The public names. They are imported at first use: Django imports this package before models may be imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backoff import Backoff
    from .context import JobContext
    from .exceptions import (
        Interrupt,
        InvalidOption,
        InvalidPayload,
        InvalidSchedule,
        JobCancelled,
        JobTimeout,
        LeaseLost,
        NoResult,
        PermanentError,
        PgQueueError,
        Retry,
        TaskNotFound,
    )
    from .options import job_options
    from .schedules import periodic
    from .tasks import Call, Task, aenqueue_many, enqueue, enqueue_many, task, task_by_name
    from .transitions import Enqueued

__version__ = "0.1.0"

_HOMES = {
    "backoff": ("Backoff",),
    "context": ("JobContext",),
    "exceptions": (
        "InvalidOption",
        "Interrupt",
        "InvalidPayload",
        "InvalidSchedule",
        "JobCancelled",
        "JobTimeout",
        "LeaseLost",
        "NoResult",
        "PermanentError",
        "PgQueueError",
        "Retry",
        "TaskNotFound",
    ),
    "options": ("job_options",),
    "schedules": ("periodic",),
    "tasks": ("Call", "Task", "aenqueue_many", "enqueue", "enqueue_many", "task", "task_by_name"),
    "transitions": ("Enqueued",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Backoff",
    "Call",
    "Enqueued",
    "Interrupt",
    "InvalidOption",
    "InvalidPayload",
    "InvalidSchedule",
    "JobCancelled",
    "JobContext",
    "JobTimeout",
    "LeaseLost",
    "NoResult",
    "PermanentError",
    "PgQueueError",
    "Retry",
    "Task",
    "TaskNotFound",
    "aenqueue_many",
    "enqueue",
    "enqueue_many",
    "job_options",
    "periodic",
    "task",
    "task_by_name",
]


if not TYPE_CHECKING:  # to type checkers it would say that there is any name

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
