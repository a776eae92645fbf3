"""A job as Django's own tasks see it: their task, their result, their context, their signals.

Only reads. Models are imported when something is read: modules with tasks are imported before Django is ready.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_naive

from . import compat, conf, logs, options
from .backoff import Backoff
from .context import JobContext
from .exceptions import Interrupt, InvalidPayload, LeaseLost
from .outcomes import Kind, Settled, Succeeded
from .states import State

if TYPE_CHECKING:
    from .models import Job
    from .transitions import Claimed, Inserted, NewJob

logger = logging.getLogger("pgqueue_django.worker")

STATUS = {
    State.SCHEDULED: compat.TaskResultStatus.READY,
    State.QUEUED: compat.TaskResultStatus.READY,
    State.RETRYING: compat.TaskResultStatus.READY,
    State.RUNNING: compat.TaskResultStatus.RUNNING,
    State.SUCCEEDED: compat.TaskResultStatus.SUCCESSFUL,
    State.FAILED: compat.TaskResultStatus.FAILED,
    State.DEAD: compat.TaskResultStatus.FAILED,
    State.CANCELLED: compat.TaskResultStatus.FAILED,
}

# Failures that no exception of the handler stands for.
_CLASSES = {
    Kind.TIMEOUT: "pgqueue_django.exceptions.JobTimeout",
    Kind.LEASE_EXPIRED: "pgqueue_django.exceptions.LeaseLost",
    Kind.WORKER_LOST: "pgqueue_django.exceptions.LeaseLost",
    Kind.TRANSACTION: "django.db.transaction.TransactionManagementError",
}


# Without slots, as its base has them: there super() fails in a subclass before Python 3.14.
@dataclass(frozen=True, kw_only=True)
class PgQueueTask(compat.Task):  # type: ignore[type-arg]  # at run time it takes none
    """Django's task with our options: ``@task(max_attempts=3)`` from Django 6.1 on, and with the backport.

    ``@job_options`` says the same under any version and any backend. ``using`` takes ``max_attempts`` and
    ``idempotency_key``, too.
    """

    max_attempts: int | None = None
    timeout: float | timedelta | None = None  # seconds
    backoff: Backoff | None = None
    atomic: bool = False
    api: bool = False
    label: options.Label | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", options.seconds(self.timeout))
        super().__post_init__()
        options.declared.setdefault(self.module_path, self.queue_name)

    def using(self, *, max_attempts: int | None = None, idempotency_key: str | None = None, **changes: Any) -> Any:
        """As Django's; None leaves an option as it is."""
        own: dict[str, Any] = {"max_attempts": max_attempts, "idempotency_key": idempotency_key}
        return replace(super().using(**changes), **{name: value for name, value in own.items() if value is not None})


def check(task: Any) -> None:
    """Raises InvalidOption for what a task of ours may not ask for, as ``@task`` of our own does."""
    said = options.options_of(task.func)
    options.check_queue_name(task.queue_name)
    options.check_max_attempts(getattr(task, "max_attempts", None))
    options.check_key(getattr(task, "idempotency_key", None))
    options.check_label(getattr(task, "label", None))
    if (backoff := getattr(task, "backoff", None)) is not None:
        options.check_backoff(backoff)
    timeout = getattr(task, "timeout", None)
    options.check_atomic(
        task.func, getattr(task, "atomic", False) or said.atomic, said.timeout if timeout is None else timeout
    )


@dataclass(frozen=True, kw_only=True)
class PgQueueTaskResult(compat.TaskResult):  # type: ignore[type-arg,misc]  # frozen it is, whatever the stubs say
    """Django's result with the job's own ``state``: scheduled, queued, running, retrying, succeeded, failed, dead or
    cancelled."""

    state: State
    # Again, since the base keeps it in a slot, and only there has __init__ a default for it.
    _return_value: Any | None = field(init=False, default=None)

    def refresh(self) -> None:
        self._take(compat.task_backends[self.backend].get_result(self.id))

    async def arefresh(self) -> None:
        self._take(await compat.task_backends[self.backend].aget_result(self.id))

    def _take(self, newer: Any) -> None:
        for name in REFRESHED:
            object.__setattr__(self, name, getattr(newer, name))


REFRESHED = frozenset(one.name for one in fields(PgQueueTaskResult)) - {"task", "id", "args", "kwargs", "backend"}


@dataclass(frozen=True, kw_only=True)
class PgQueueTaskContext(compat.TaskContext):  # type: ignore[type-arg,misc]
    """Django's context with ours: ``context.job.cancelled``, ``context.job.progress(0.5)``."""

    job: JobContext


def database_of(backend: compat.BaseTaskBackend) -> str:
    """The alias of the jobs of this backend: never a replica, which would show a job as missing."""
    from .models import Job

    return str(backend.options.get("database") or router.db_for_write(Job))


def read(using: str, ids: Sequence[int]) -> dict[int, Job]:
    """These rows, by id, from the database that is written to."""
    from .models import Job

    return Job.objects.using(using).in_bulk(ids)


def holder(using: str, new: NewJob) -> Job | None:
    """The row that has the key of this one."""
    from .models import Job

    return Job.objects.using(using).filter(task=new.task, idempotency_key=new.idempotency_key).first()


def of_row(job: Job, alias: str) -> PgQueueTaskResult:
    """The result that this row is, of the backend ``alias``. Raises TaskNotFound where its code is not."""
    state = State(job.state)
    errors = [_error(entry) for entry in job.history]
    if state == State.CANCELLED:
        errors.append(_task_error("pgqueue_django.exceptions.JobCancelled", "The job was cancelled.\n"))
    result = PgQueueTaskResult(
        task=_task_of(job, alias),
        id=str(job.pk),
        status=STATUS[state],
        enqueued_at=job.enqueued_at,
        started_at=job.first_started_at or job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=_last_attempt(job),
        args=job.args,
        kwargs=job.kwargs,
        backend=alias,
        errors=errors,
        worker_ids=_worker_ids(job),
        state=state,
    )
    if state == State.SUCCEEDED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def _worker_ids(job: Job) -> list[str]:
    is_last_word = job.state in (State.RUNNING, State.SUCCEEDED)
    return [*(job.past_worker_ids or ()), *([job.worker_id] if is_last_word and job.worker_id else ())]


def _last_attempt(job: Job) -> datetime | None:
    if job.started_at is not None or not job.history:
        return job.started_at or job.first_started_at
    # It was claimed since, and given back.
    moment = parse_datetime(job.history[-1]["started_at"] or "")
    return make_naive(moment) if moment is not None and is_naive(job.enqueued_at) else moment


def _task_of(job: Job, alias: str) -> Any:
    """Not with ``using``: that would refuse a queue that is in QUEUES no more."""
    from .tasks import resolve

    ours = resolve(job.task)
    task = ours.origin if isinstance(ours.origin, compat.Task) else ours
    kind: type[Any] = type(task) if task is ours.origin else PgQueueTask
    values = {one.name: getattr(task, one.name, one.default) for one in fields(kind)}
    values |= {"backend": alias, "queue_name": job.queue_name, "priority": job.priority, "run_after": _asked(job)}
    if issubclass(kind, PgQueueTask):
        values["idempotency_key"] = job.idempotency_key
        if job.max_attempts != (ours.max_attempts or conf.current().MAX_ATTEMPTS):
            values["max_attempts"] = job.max_attempts
    return _made(kind, values)


def _asked(job: Job) -> datetime | None:
    """The ``run_after`` that it was enqueued with, unless something has moved it since."""
    is_moved = job.past_worker_ids is not None or job.parked_at is not None
    return None if is_moved or job.run_after <= job.enqueued_at else job.run_after


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def of_inserted(task: Any, inserted: Inserted, new: NewJob, alias: str) -> PgQueueTaskResult:
    """The result of a job of this very moment, as reading it would give."""
    is_ahead = inserted.run_after > inserted.enqueued_at
    if task.run_after is not None or task.backend != alias:
        values = {one.name: getattr(task, one.name) for one in fields(task)}
        values |= {"run_after": inserted.run_after if is_ahead else None, "backend": alias}
        task = _made(type(task), values)
    state = State.SCHEDULED if is_ahead else State.QUEUED
    return PgQueueTaskResult(
        task=task,
        id=str(inserted.id),
        status=STATUS[state],
        enqueued_at=inserted.enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=json.loads(new.args),
        kwargs=json.loads(new.kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
        state=state,
    )


def _error(entry: Mapping[str, Any]) -> compat.TaskError:
    path = entry["error_type"]
    if "." not in path:
        path = _CLASSES.get(entry["kind"]) or f"builtins.{path}"
    return _task_error(path, entry["traceback"] or f"{entry['message']}\n")


def _task_error(path: str, traceback: str) -> compat.TaskError:
    return compat.TaskError(exception_class_path=path, traceback=traceback)


# -- a worker's -------------------------------------------------------------------------------------------------


def started(row: Job | None, using: str, job: Claimed, origin: Any) -> PgQueueTaskResult:
    """Tell the receivers of ``task_started`` of an attempt that begins; ``row`` as it was claimed.

    What a receiver raises is logged. Raises LeaseLost when the row was somebody else's already.
    """
    if row is None or row.fencing_token != job.fencing_token or row.lease_expires_at is None:
        raise LeaseLost("The job was cancelled or given to another worker before its handler was called.")
    alias, sender = backend_of(origin, using)
    result = of_row(row, alias)
    try:
        compat.task_started.send_robust(sender, task_result=result)
    except Interrupt:
        raise
    except BaseException as error:  # a receiver that exits: the outcome is the handler's
        logger.error(
            "%s #%d: a receiver of task_started raised %s",
            *(job.task, job.id, type(error).__name__),
            extra=logs.event("job.warning", job),
        )
    return result


def finished(row: Job | None, job: Claimed, outcome: Settled, origin: Any, using: str, error: BaseException) -> None:
    """Tell the receivers of ``task_finished`` of an outcome that is in the row. What they raise is logged."""
    if row is None or row.fencing_token != job.fencing_token or row.state != outcome.state:
        return  # pruned, or sent back by a person: there is no result to show any more
    alias, sender = backend_of(origin, using)
    result = of_row(row, alias)
    if isinstance(outcome, Succeeded):
        compat.task_finished.send_robust(sender, task_result=result)
        return
    frames = error.__traceback__
    try:
        raise error
    except BaseException:  # in here, so that receivers find it in sys.exc_info()
        compat.task_finished.send_robust(sender, task_result=result)
    finally:
        # Without the frame of this call, which would keep both alive. An error may refuse to be assigned to.
        BaseException.with_traceback(error, frames)


def backend_of(origin: Any, using: str) -> tuple[str, type[compat.BaseTaskBackend]]:
    """Alias and class of the backend that stands for the jobs of this database: the task's own, or another one."""
    for alias in (origin.backend, *compat.task_backends.settings):
        try:
            backend = compat.task_backends[alias]
            if getattr(backend, "database", None) == using:
                return alias, type(backend)
        except ImproperlyConfigured:
            continue  # `manage.py check` says it; this job is another backend's
    return origin.backend, type(compat.task_backends[origin.backend])


def plain(value: Any) -> Any:
    """As that framework writes arguments and results: keys become texts, bytes as well.

    Raises TypeError, and InvalidPayload where two keys would become one.
    """
    return json.loads(json.dumps(compat.normalize_json(value)), object_pairs_hook=_mapping)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise InvalidPayload("Two keys of a mapping are the same once they are texts, as JSON has them.")
    return made
