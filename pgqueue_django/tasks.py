"""Tasks: functions that may run later, and the ways to enqueue a job of one.

Everything that can be wrong with a call is said here, before any SQL: a call that does not fit the function, an
argument that is no JSON, an option out of its range. What passes is one INSERT (``transitions.enqueue``).
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import connections, router
from django.utils.module_loading import import_string

from . import conf, options, payload, transitions
from .backoff import Backoff
from .context import JobContext
from .exceptions import InvalidOption, NoResult, TaskNotFound
from .models import Job
from .states import State
from .transitions import Enqueued, NewJob

logger = logging.getLogger("pgqueue_django")

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_PATH = re.compile(r"(?:[^\W\d]\w*\.)+[^\W\d]\w*")

MAX_LABEL = 200
"""Characters of a label that are kept."""

_known: dict[str, Task[Any, Any]] = {}
_unknown_until: dict[str, float] = {}
_UNKNOWN_SECONDS = 30.0  # an import that failed is not tried again for each job


class Options(TypedDict, total=False):
    """What ``Task.using`` takes."""

    queue_name: str
    priority: int
    run_after: datetime | timedelta | None
    idempotency_key: str | None
    max_attempts: int
    label: str
    database: str


@dataclass(frozen=True)
class Task(Generic[P, R_co]):
    """A function that may run later, with the options of its jobs. Made by ``@task``; never changed.

    ``P`` is what callers pass, without the context; ``R_co`` what the function returns, of a coroutine in the end.
    ``func`` and ``signature`` are None when the code is elsewhere (``task_by_name``).
    """

    path: str
    func: Callable[..., Any] | None = field(default=None, repr=False)
    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None  # None: the setting
    timeout: float | None = None  # seconds; None: the setting
    backoff: Backoff = Backoff()  # noqa: RUF009 (frozen)
    atomic: bool = False
    takes_context: bool = False
    api: bool = False
    run_after: datetime | timedelta | None = None
    idempotency_key: str | None = None
    label: options.Label | None = None
    """A short text for people, or what makes one of the arguments of each call."""
    database: str | None = None
    signature: payload.Signature | None = field(default=None, repr=False, compare=False)
    origin: Any = field(default=None, repr=False, compare=False)
    """The task of Django's own framework that this one stands for, else None."""

    def __post_init__(self) -> None:
        if len(self.path) > 255 or not _PATH.fullmatch(self.path):
            raise InvalidOption(f"{self.path[:300]!r} is no import path of a task (module.function, ≤ 255 characters).")
        options.check_queue_name(self.queue_name)
        options.check_priority(self.priority)
        options.check_max_attempts(self.max_attempts)
        options.check_backoff(self.backoff)
        options.check_run_after(self.run_after)
        options.check_key(self.idempotency_key)
        options.check_label(self.label)
        if self.database is not None and self.database not in connections:
            raise InvalidOption(f"database={self.database!r}: not in DATABASES ({', '.join(connections)}).")

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.func)

    @property
    def using_database(self) -> str:
        """The alias that this task's jobs go to: never a replica, which would show a job as missing."""
        return self.database or router.db_for_write(Job)

    def using(self, **changes: Unpack[Options]) -> Task[P, R_co]:
        """The same task with other options for its next jobs.

        ``run_after`` is an aware datetime, or a timedelta from the moment of the INSERT on the database's
        clock. Raises TypeError for an unknown option, InvalidOption for a value out of its range.
        """
        if unknown := sorted(set(changes) - Options.__annotations__.keys()):
            raise TypeError(
                f"using() got {', '.join(unknown)}; it takes {', '.join(Options.__annotations__)} "
                "(timeout, backoff and atomic belong to @task)."
            )
        return replace(self, **changes)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a job of this call, in the transaction that is open on its database.

        Raises TypeError when the function does not take this call, InvalidPayload when an argument cannot be
        stored as JSON.
        """
        return transitions.enqueue(self.using_database, self.new_job(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """``enqueue`` for coroutines, on the connection that the surrounding synchronous code has."""
        enqueued: Enqueued = await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)
        return enqueued

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """This call, checked and encoded, for ``enqueue_many``. Raises as ``enqueue`` does."""
        return Call(self.using_database, self.new_job(args, kwargs))

    def result(self, job: Enqueued | int) -> R_co:
        """What the handler of this job, or of the one with this id, has returned, as JSON keeps it: tuples are lists.

        Reads the row once and waits for nothing. Raises NoResult when the job has not succeeded, is another task's,
        or does not exist (any more): finished jobs are kept for a time only.
        """
        id = job.id if isinstance(job, Enqueued) else job
        row: Any = Job.objects.using(self.using_database).filter(pk=id).values_list("task", "state", "result").first()
        if row is None:
            raise NoResult(f"There is no job {id}.", state=None)
        task, state, result = row
        if task != self.path:
            raise NoResult(f"Job {id} is one of {task}, not of {self.path}.", state=None)
        if state != State.SUCCEEDED:
            raise NoResult(f"Job {id} is {state}.", state=state)
        value: R_co = result
        return value

    async def aresult(self, job: Enqueued | int) -> R_co:
        """``result`` for coroutines, on the connection that the surrounding synchronous code has."""
        value: R_co = await sync_to_async(self.result, thread_sensitive=True)(job)
        return value

    def new_job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """This call, checked and encoded, as a row to be. Raises as ``enqueue`` does."""
        settings = conf.current()
        if self.signature is None:
            args_json, kwargs_json = payload.untyped(args, kwargs, limit=settings.MAX_PAYLOAD_BYTES)
        else:
            if self.path not in _known:
                self._check_importable()
            args_json, kwargs_json = self.signature.encode(args, kwargs, limit=settings.MAX_PAYLOAD_BYTES)
        return NewJob(
            task=self.path,
            args=args_json,
            kwargs=kwargs_json,
            queue_name=self.queue_name,
            priority=self.priority,
            # In UTC: PostgreSQL takes no offset of 16 hours and more, and Python does.
            run_after=self.run_after.astimezone(UTC) if isinstance(self.run_after, datetime) else self.run_after,
            max_attempts=self.max_attempts or settings.MAX_ATTEMPTS,
            backoff=self.backoff.text,
            idempotency_key=self.idempotency_key,
            label="" if self.label is None else self._label(args, kwargs),
        )

    def _label(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """At most ``MAX_LABEL`` characters; none where none can be made of these arguments, as the log says."""
        try:
            text = self.label if isinstance(self.label, str) else self.label(*args, **kwargs)  # type: ignore[misc]
            return payload.storable_text(str(text)[:MAX_LABEL])[:MAX_LABEL]
        except Exception as error:  # the job matters, its label does not
            # Without the error's text, which may hold an argument.
            logger.warning("%s: no label could be made: %s", self.path, type(error).__name__)
            return ""

    def _check_importable(self) -> None:
        """A task that no worker can import is told to who enqueues it, not to the log of a worker."""
        found = resolve(self.path)
        if found.func is not self.func:
            raise TaskNotFound(f"{self.path} is another task; give the function a name of its own in its module.")


@dataclass(frozen=True)
class Call:
    """One call of a task, ready to be enqueued."""

    database: str
    job: NewJob


class _Decorator(Protocol):
    """``@task(...)``. The result of a coroutine function is what it returns in the end, as with the bare ``@task``."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> Task[P, R]: ...


class _ContextDecorator(Protocol):
    """``@task(takes_context=True, ...)``: callers leave the context out."""

    @overload
    def __call__(self, func: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...


@overload
def task(func: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    timeout: float | timedelta | None = ...,
    backoff: Backoff = ...,
    atomic: bool = ...,
    api: bool = ...,
    label: options.Label | None = ...,
    takes_context: Literal[True],
) -> _ContextDecorator: ...
@overload
def task(
    *,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    timeout: float | timedelta | None = ...,
    backoff: Backoff = ...,
    atomic: bool = ...,
    api: bool = ...,
    label: options.Label | None = ...,
    takes_context: Literal[False] = ...,
) -> _Decorator: ...
def task(
    func: Callable[..., Any] | None = None,
    /,
    *,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
    backoff: Backoff = Backoff(),  # noqa: B008 (frozen)
    atomic: bool = False,
    takes_context: bool = False,
    api: bool = False,
    label: options.Label | None = None,
) -> Any:
    """Make a task of a function of a module: ``@task`` or ``@task(queue_name="billing", ...)``.

    ``timeout`` is the longest an attempt may run, in seconds. ``atomic=True`` runs a plain function and the
    record of its success in one transaction on the jobs' database, and needs a timeout. ``takes_context=True``
    passes a ``JobContext`` as the first argument, which callers leave out. ``api=True``: jobs of it may be enqueued
    over HTTP by those who have the right. ``label`` makes a short text for people of the arguments of each call:
    ``label=lambda invoice_id, **_: f"invoice {invoice_id}"``. Raises InvalidOption.
    """

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise InvalidOption(f"@task takes a function, not {function!r}.")
        if "<locals>" in function.__qualname__ or "." in function.__qualname__:
            raise InvalidOption(f"{function.__qualname__}: a task is a function of a module, so that workers find it.")
        seconds = options.seconds(timeout)
        options.check_atomic(function, atomic, seconds)
        path = f"{function.__module__}.{function.__qualname__}"
        options.declared[path] = queue_name
        return Task(
            path=path,
            func=function,
            queue_name=queue_name,
            priority=priority,
            max_attempts=max_attempts,
            timeout=seconds,
            backoff=backoff,
            atomic=atomic,
            takes_context=takes_context,
            api=api,
            label=label,
            signature=payload.Signature(function, skip_context=takes_context),
        )

    return decorate if func is None else decorate(func)


# By name, without an import: the framework is there only where somebody has imported it.
_DJANGO = {("django.tasks.base", "Task"), ("django_tasks.base", "Task")}


def is_django(found: object) -> bool:
    """Whether this is a task of ``django.tasks``, or of the backport."""
    return any((kind.__module__, kind.__name__) in _DJANGO for kind in type(found).__mro__)


def of_django(task: Any) -> Task[..., Any]:
    """Ours for a task of ``django.tasks``: the same function, with what ``@job_options`` or its own fields say.

    Its arguments are plain JSON, as that framework has it. Raises InvalidOption.
    """
    said = options.options_of(task.func)
    backoff = getattr(task, "backoff", None) or said.backoff
    timeout = getattr(task, "timeout", None)
    return Task(
        path=task.module_path,
        func=task.func,
        queue_name=task.queue_name,
        priority=int(task.priority),
        max_attempts=getattr(task, "max_attempts", None) or said.max_attempts,
        timeout=said.timeout if timeout is None else options.seconds(timeout),
        backoff=Backoff() if backoff is None else backoff,
        atomic=getattr(task, "atomic", False) or said.atomic,
        takes_context=task.takes_context,
        api=getattr(task, "api", False) or said.api,
        label=getattr(task, "label", None) or said.label,
        run_after=options.aware(task.run_after),
        idempotency_key=getattr(task, "idempotency_key", None),
        signature=_plain_signature(task.func, task.takes_context),
        origin=task,
    )


@lru_cache(maxsize=1000)
def _plain_signature(function: Callable[..., Any], takes_context: bool) -> payload.Signature:
    return payload.Signature(function, skip_context=takes_context, plain=True)


def task_by_name(path: str) -> Task[..., Any]:
    """A task whose code is elsewhere: only its import path is known, and nothing is imported.

    Its jobs have the settings' defaults, and their arguments are checked by the worker that has the code.
    Raises InvalidOption when ``path`` is no import path.
    """
    return Task(path)


def enqueue(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
    """The same as ``task.enqueue(*args, **kwargs)``."""
    return task.enqueue(*args, **kwargs)


def enqueue_many(calls: Iterable[Call]) -> list[Enqueued]:
    """Make all these jobs, or none; answers in the order of ``calls``.

    In bounded statements, in the transaction that is open on their database or one of their own. Calls for
    several databases are one transaction on each.
    """
    wanted = list(calls)
    if stray := next((call for call in wanted if not isinstance(call, Call)), None):
        raise TypeError(f"enqueue_many takes calls, as task.call(...) makes them, not {type(stray).__name__}.")
    answers: list[Enqueued | None] = [None] * len(wanted)
    for database in dict.fromkeys(call.database for call in wanted):
        places = [place for place, call in enumerate(wanted) if call.database == database]
        enqueued = transitions.enqueue_many(database, [wanted[place].job for place in places])
        for place, answer in zip(places, enqueued, strict=True):
            answers[place] = answer
    return [answer for answer in answers if answer is not None]


async def aenqueue_many(calls: Iterable[Call]) -> list[Enqueued]:
    """``enqueue_many`` for coroutines, on the connection that ``aenqueue`` uses."""
    enqueued: list[Enqueued] = await sync_to_async(enqueue_many, thread_sensitive=True)(calls)
    return enqueued


def resolve(path: str) -> Task[Any, Any]:
    """The task at this import path. Raises TaskNotFound, and remembers that for half a minute."""
    if found := _known.get(path):
        return found
    if time.monotonic() < _unknown_until.get(path, 0):
        raise TaskNotFound(f"{path}: no such task in this process.")
    try:
        found = import_string(path)
        if is_django(found):
            found = of_django(found)
        if not isinstance(found, Task) or found.path != path:
            raise TaskNotFound(f"{path} is no task: decorate the function of that name in its module with @task.")
    except (Exception, SystemExit) as error:
        # Whatever a module raises at import; a script may exit. Bounded: paths come from rows, which anybody may write.
        if len(_unknown_until) > 10_000:
            _unknown_until.clear()
        _unknown_until[path] = time.monotonic() + _UNKNOWN_SECONDS
        if isinstance(error, TaskNotFound):
            raise
        raise TaskNotFound(f"{path}: {type(error).__name__}: {error}") from error
    _known[path] = found
    return found


def declared_tasks() -> list[str]:
    """Paths of the tasks whose modules this process has imported."""
    return sorted(options.declared)


def places_of(name: str) -> list[tuple[str, int]]:
    """The declared tasks that have a parameter of this name, each with its place among the positional arguments."""
    found = []
    for path in declared_tasks():
        try:
            signature = resolve(path).signature
        except TaskNotFound:
            continue
        if signature is not None and (place := signature.places.get(name)) is not None:
            found.append((path, place))
    return found


def declared_queues() -> set[str]:
    """The queues that these tasks name."""
    return set(options.declared.values())
