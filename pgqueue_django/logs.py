"""What the worker logs: events with fixed names, and the job that a record was written for.

Every record of ours has an ``event`` of this list and its facts as attributes (``job_id``, ``task``, ``attempt`` ...):
a formatter of the project's own can show them, ``JsonFormatter`` shows them all. Nothing here needs Django, so that
``settings.LOGGING`` may name it.

In ``settings.LOGGING``, for the records that the project's own code writes while it runs a job::

    "filters": {"job": {"()": "pgqueue_django.logs.JobFilter"}},
    "formatters": {"line": {"format": "%(levelname)s %(task)s #%(job_id)s %(message)s"}},
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

Event = Literal[
    "worker.started",
    "worker.status",
    "worker.quiet",
    "worker.doubtful",
    "worker.retiring",
    "worker.worn_out",
    "worker.stopping",
    "worker.stopped",
    "worker.progress",
    "worker.probes",
    "worker.metrics",
    "worker.unfit",
    "worker.trouble",
    "database.failing",
    "database.working",
    "database.silent",
    "job.succeeded",
    "job.retrying",
    "job.failed",
    "job.dead",
    "job.cancelled",
    "job.lost",
    "job.dropped",
    "job.unknown",
    "job.refused",
    "job.warning",
    "job.blocking",
    "schedule.failing",
    "schedule.retired",
    "process.started",
    "process.ended",
    "process.killed",
    "process.failing",
]


class Job(Protocol):
    """What there is to say of a job: its payload is not."""

    @property
    def id(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def queue_name(self) -> str: ...
    @property
    def attempt(self) -> int: ...


current_job: ContextVar[Job | None] = ContextVar("pgqueue_job", default=None)
"""The job that this code runs for: ``id``, ``task``, ``queue_name``, ``attempt``; None outside of handlers."""

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def event(name: Event, job: Job | None = None, **facts: Any) -> dict[str, Any]:
    """The ``extra`` of a record: what happened, to which job, and its facts."""
    return {"event": name, **facts} if job is None else {"event": name, **_facts(job), **facts}


def _facts(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "task": job.task, "queue_name": job.queue_name, "attempt": job.attempt}


class JobFilter(logging.Filter):
    """Gives every record ``job_id``, ``task``, ``queue_name`` and ``attempt``: of its job, else ``default``.

    A thread that a handler starts by itself has no job, unless it is given the handler's context.
    """

    def __init__(self, default: Any = "-") -> None:
        super().__init__()
        self._nothing = dict.fromkeys(("job_id", "task", "queue_name", "attempt"), default)

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_job.get()
        # What the record says itself stands.
        vars(record).update({**(self._nothing if job is None else _facts(job)), **vars(record)})
        return True


class TextFormatter(logging.Formatter):
    """``2026-11-29 12:00:00,000 INFO job.succeeded: shop.tasks.charge #17 succeeded, attempt 1/5``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(event)s: %(message)s", defaults={"event": "log"})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``pid``, ``message``, and the rest of the record.

    ``always``: what every line says besides.
    """

    def __init__(self, **always: Any) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            **self._always,
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
