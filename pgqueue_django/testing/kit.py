"""The test kit: jobs inside a project's tests, by the real verbs on the test's own connection.

``run_jobs`` stands for a worker: it claims, runs and settles in this thread and in the transaction of a plain
``TestCase``, whose rows nobody else can see. It closes no connection, and whatever a handler does to the transaction,
the test can go on with it. ``worker`` is a real one, in a thread, for tests that commit.

Nothing behaves differently because this module exists: what a test needs is done to its connections and to the verbs
for as long as a ``with`` lasts.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, overload
from unittest import mock

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver
from django.utils.module_loading import autodiscover_modules
from psycopg import pq

from pgqueue_django import payload, transitions
from pgqueue_django.exceptions import Retry, TaskNotFound
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Failure, Kind, Settled, Succeeded
from pgqueue_django.queues import paused
from pgqueue_django.schedules import declare, fire
from pgqueue_django.states import FINISHED, State
from pgqueue_django.tasks import Task, resolve
from pgqueue_django.transitions import Claimed, Enqueued
from pgqueue_django.worker import executor
from pgqueue_django.worker.announcer import stand_in
from pgqueue_django.worker.connections import drop, fault
from pgqueue_django.worker.executor import Attempt, lease_clock
from pgqueue_django.worker.loop import Loop, Options

MOST = 500
"""Attempts that one ``run_jobs`` makes if it is given no limit: a job that enqueues itself would go on for ever."""

_WORKER = "run_jobs"
_LEASE_SECONDS = 24 * 3600.0  # nobody renews it, and somebody may sit in a debugger
_LISTED = 20  # jobs in a message
_SAME = timedelta(seconds=1)  # two moments that a test and its code have computed one after the other
_POLL_SECONDS = 0.01
_END_SECONDS = 5.0  # beyond the shutdown timeout


class TooManyJobs(AssertionError):
    """``run_jobs`` has made ``MOST`` attempts, and there is still something to run."""


def _database() -> str:
    return router.db_for_write(Job)


# --------------------------------------------------------------------------------------------------------------
# Running jobs on the test's connection
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """One attempt that was made, and what became of its job."""

    id: int
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    attempt: int  # from 1
    state: State  # of the job, after it
    result: Any = None  # what the handler returned, as JSON gives it back
    error: BaseException | None = field(default=None, compare=False)  # what it raised

    def __str__(self) -> str:
        error = "" if self.error is None else f" ({type(self.error).__name__}: {self.error})"
        return f"{_call(self.task, self.args, self.kwargs)} #{self.id}, attempt {self.attempt}: {self.state}{error}"


def run_jobs(
    *,
    queues: Collection[str] = (),
    limit: int | None = None,
    retries: bool = False,
    schedules: bool = True,
    raise_errors: bool = False,
    using: str | None = None,
) -> list[Ran]:
    """Run what is due, and what that enqueues, until nothing is due; the attempts, in their order.

    In the order in which a worker takes them: by priority, then by ``run_after``; nothing of a paused queue. Leases
    that have ended and schedules whose tick has come are seen to first. What is due later stays: see ``travel``.

    ``queues``: only these, the first one first. ``limit``: so many attempts at the most; without it, more than ``MOST``
    are a ``TooManyJobs``. ``retries``: a job whose attempt failed is tried again at once, not after its backoff.
    ``schedules=False`` fires none. ``raise_errors``: once an attempt that failed is recorded, raise what its handler
    raised; not a ``Retry`` while attempts are left. ``using``: the jobs' database.
    """
    ran: list[Ran] = []
    _Run(using or _database(), queues, limit, retries, schedules, raise_errors).into(ran)
    return ran


@dataclass(frozen=True)
class _Run:
    using: str
    queues: Collection[str]
    limit: int | None
    retries: bool
    schedules: bool
    raise_errors: bool

    def into(self, ran: list[Ran]) -> None:
        """Adds each attempt as it is made: those before an error are there, too."""
        if self.limit is not None and self.limit < 1:
            return
        end = len(ran) + (self.limit or MOST)
        with _without_hooks_of_ours(self.using), _not_eager():
            while True:
                before = len(ran)
                self._make_ready()
                without = paused(self.using)
                while held := self._claim(without):
                    if len(ran) >= end:
                        transitions.release(self.using, [held.pair])
                        raise TooManyJobs(_too_many(ran[-MOST:], held))
                    ran.append(one := _attempt(self.using, held))
                    is_retry = isinstance(one.error, Retry) and one.state == State.RETRYING
                    if self.raise_errors and one.error is not None and not is_retry:
                        one.error.add_note(f"This is what run_jobs(raise_errors=True) met: {one}")
                        raise one.error
                    if self.limit is not None and len(ran) == end:
                        return
                if len(ran) == before:
                    return

    def _make_ready(self) -> None:
        while transitions.reap(self.using, by=_WORKER) == transitions.BATCH:
            pass
        while self.schedules and fire(self.using).more:
            pass
        while transitions.promote(self.using) == transitions.BATCH:
            pass
        if self.retries:
            retrying = Job.objects.using(self.using).filter(state=State.RETRYING).order_by("run_after", "id")
            if self.queues:
                retrying = retrying.filter(queue_name__in=self.queues)
            transitions.run_now(self.using, retrying.values_list("id", flat=True)[: transitions.BATCH])

    def _claim(self, without: Collection[str]) -> Claimed | None:
        for name in self.queues or transitions.ready_queues(self.using):
            if name not in without and (
                claimed := transitions.claim(
                    self.using, queue_name=name, slots=1, worker_id=_WORKER, lease_seconds=_LEASE_SECONDS
                )
            ):
                return claimed[0]
        return None


def _too_many(ran: Sequence[Ran], waiting: Claimed) -> str:
    often = ", ".join(f"{count} of {task}" for task, count in Counter(one.task for one in ran).most_common(3))
    return (
        f"run_jobs() has made {len(ran)} attempts ({often}), and {waiting.task} #{waiting.id} is still to run: "
        "does a job enqueue itself for ever? Give a limit= to make so many attempts and stop."
    )


def _attempt(using: str, held: Claimed) -> Ran:
    """Run one job and record its outcome."""
    try:
        task = resolve(held.task)
    except TaskNotFound as error:
        # As a worker would: another one may know it.
        transitions.release(using, [held.pair], unknown=[held.id])
        return _ran(held, State.SCHEDULED, error=error)
    attempt = Attempt(held, task, lease_clock() + _LEASE_SECONDS)
    if task.origin is not None:
        attempt.row = _row(using, held)
    with _as_in_a_worker() as around:
        outcome, raised = executor.run_inside(attempt, using)
    if around.fault and isinstance(outcome, Succeeded) and not attempt.settled_inside:
        raised = TransactionManagementError(around.fault)
        outcome = executor.again(attempt, Failure(Kind.TRANSACTION, "TransactionLeftOpen", around.fault))
    if progress := attempt.take_progress():
        transitions.heartbeat(using, [held.pair], lease_seconds=_LEASE_SECONDS, progress={held.id: progress})
    ran = _settle(using, attempt, outcome, raised)
    if task.origin is not None and ran.state == outcome.state and ran.state in FINISHED:
        from pgqueue_django import results  # which needs the framework

        results.finished(_row(using, held), held, outcome, task.origin, using, raised or stand_in(outcome))
    return ran


def _row(using: str, held: Claimed) -> Job:
    return Job.objects.using(using).get(pk=held.id)


def _settle(using: str, attempt: Attempt, outcome: Settled, raised: BaseException | None) -> Ran:
    held, settlement = attempt.job, attempt.settlement(outcome)
    state = outcome.state
    if attempt.settled_inside:
        transitions.settle(using, [], worker_id=_WORKER, already=[settlement.sample()])
    else:
        fenced = transitions.settle(using, [settlement], worker_id=_WORKER)
        if held.id in fenced.busy:
            state = State.RUNNING  # somebody's session has the row; the lease will end it
        elif held.id in fenced.gone:
            state = fenced.gone[held.id] or State.CANCELLED  # by the handler, or what that has called
    result = None
    if isinstance(outcome, Succeeded) and state == State.SUCCEEDED:
        ((result,), _) = payload.load(f"[{outcome.result}]", "{}")
    return _ran(held, state, result=result, error=raised)


def _ran(held: Claimed, state: State, *, result: Any = None, error: BaseException | None = None) -> Ran:
    args, kwargs = payload.load(held.args, held.kwargs)
    return Ran(held.id, held.task, args, kwargs, held.queue_name, held.attempt, state, result, error)


# -- in a transaction that is not the handler's ----------------------------------------------------------------


@dataclass
class _Around:
    fault: str | None = None  # what the handler left behind


@contextmanager
def _as_in_a_worker() -> Iterator[_Around]:
    """A handler in this thread finds its connections as between two requests; and leaves them so, whatever it does."""
    around = _Around()
    disguised = [_Disguised(wrapper) for wrapper in connections.all(initialized_only=True) if wrapper.in_atomic_block]
    try:
        yield around
    finally:
        # Those that still are belong to a handler that runs jobs itself.
        others = [wrapper for wrapper in connections.all(initialized_only=True) if "_commit" not in vars(wrapper)]
        left = [one.end() for one in disguised]
        for wrapper in others:
            if wrapper.connection is not None and (found := fault(wrapper)):
                left.append(f"{found} on database {wrapper.alias!r}")
                drop(wrapper.alias)
        if what := " and ".join(filter(None, left)):
            around.fault = f"The handler left {what} open. Its writes there are rolled back."


class _Disguised:
    """A connection that is in a transaction of the test's, for code that expects to be in none.

    Django is told so. Where it would begin, commit or roll back, that is done to a savepoint; and so is each statement
    outside of ``atomic()``, which in autocommit is a transaction, too. To close it does nothing: in a worker the next
    statement would connect again, here the test's rows would be gone.
    """

    _OUTSIDE: Mapping[str, Any] = {
        "in_atomic_block": False,
        "autocommit": True,
        "commit_on_exit": True,
        "needs_rollback": False,
        "rollback_exc": None,
        "run_commit_hooks_on_set_autocommit_on": False,
    }
    _LISTS = ("savepoint_ids", "atomic_blocks", "run_on_commit")

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self.wrapper: Any = wrapper
        state = vars(wrapper)
        outside = {**self._OUTSIDE, **{name: [] for name in self._LISTS}}
        self._before = {name: state[name] for name in outside if name in state}
        self._methods = {
            "close": lambda: None,
            "_set_autocommit": self._set_autocommit,
            "_commit": self._commit_block,
            "_rollback": lambda: self._rollback(_BLOCK),
        }
        self._begin(_ATTEMPT)
        state.update({name: outside[name] for name in self._before} | self._methods)
        wrapper.execute_wrappers.append(self._execute)

    def end(self) -> str | None:
        """Give it back as it was; what the handler left open, if it did."""
        wrapper = self.wrapper
        left = "an atomic block" if wrapper.in_atomic_block else None if wrapper.autocommit else "a transaction"
        wrapper.execute_wrappers.remove(self._execute)
        for name in self._methods:
            delattr(wrapper, name)
        vars(wrapper).update(self._before)
        if left:
            self._rollback(_BLOCK)
        if _is_failed(wrapper):
            # By something that did not go through Django's cursors.
            left = left or "a failed transaction"
            self._rollback(_ATTEMPT)
        else:
            self._commit(_ATTEMPT)
        return left and f"{left} on database {wrapper.alias!r}"

    def _execute(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if isinstance(sql, str) and sql.startswith("SET TRANSACTION ISOLATION LEVEL"):
            return None  # it is the test's
        if self.wrapper.in_atomic_block or not self.wrapper.autocommit:
            return execute(sql, params, many, context)
        self._begin(_STATEMENT)
        try:
            answer = execute(sql, params, many, context)
        except BaseException:
            self._rollback(_STATEMENT)
            self._commit(_STATEMENT)
            raise
        self._commit(_STATEMENT)
        return answer

    def _set_autocommit(self, on: bool) -> None:
        if on and not self.wrapper.autocommit:
            self._commit(_BLOCK)
        elif self.wrapper.autocommit and not on:
            self._begin(_BLOCK)

    def _commit_block(self) -> None:
        self._commit(_BLOCK)
        self._begin(_BLOCK)  # without autocommit there always is a transaction

    def _begin(self, name: str) -> None:
        self._send(self.wrapper.ops.savepoint_create_sql(name))

    def _commit(self, name: str) -> None:
        self._send(self.wrapper.ops.savepoint_commit_sql(name))

    def _rollback(self, name: str) -> None:
        self._send(self.wrapper.ops.savepoint_rollback_sql(name))

    def _send(self, sql: str) -> None:
        with self.wrapper.wrap_database_errors:
            self.wrapper.connection.cursor().execute(sql)


# Savepoints of ours: around an attempt, a block of its handler's, a statement outside of one.
_ATTEMPT, _BLOCK, _STATEMENT = "pgqueue_attempt", "pgqueue_block", "pgqueue_statement"


def _is_failed(wrapper: Any) -> bool:
    if wrapper.vendor != "postgresql":
        return False
    return bool(wrapper.connection.info.transaction_status == pq.TransactionStatus.INERROR)


@contextmanager
def _without_hooks_of_ours(using: str) -> Iterator[None]:
    """The wake-ups of the verbs that stand for a worker are for nobody, and no test's to count."""
    wrapper = connections[using]
    before = len(wrapper.run_on_commit)
    try:
        yield
    finally:
        if wrapper.in_atomic_block:
            del wrapper.run_on_commit[before:]


# --------------------------------------------------------------------------------------------------------------
# At once
# --------------------------------------------------------------------------------------------------------------

_here = threading.local()


@contextmanager
def _not_eager() -> Iterator[None]:
    before, _here.is_running = getattr(_here, "is_running", False), True
    try:
        yield
    finally:
        _here.is_running = before


@contextmanager
def eager(*, queues: Collection[str] = (), retries: bool = False, raise_errors: bool = False) -> Iterator[list[Ran]]:
    """As if ``run_jobs`` stood behind every enqueue, in whatever thread; yields the attempts so far.

    So jobs run before ``enqueue`` returns, after the INSERT, in the caller's transaction. A worker runs them after its
    commit: here a handler sees what the caller has written so far, and nothing of what comes after. Those that handlers
    enqueue run after the handler, never inside of it. With ``raise_errors`` it is ``enqueue`` that raises what a
    handler raised. Schedules do not fire.
    """
    ran: list[Ran] = []

    def at_once(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def enqueue(using: str, *args: Any, **kwargs: Any) -> Any:
            answer = verb(using, *args, **kwargs)
            if not getattr(_here, "is_running", False):
                _Run(using, queues, None, retries, False, raise_errors).into(ran)
            return answer

        return enqueue

    with (
        mock.patch.object(transitions, "enqueue", at_once(transitions.enqueue)),
        mock.patch.object(transitions, "insert", at_once(transitions.insert)),  # by Django's own tasks
        mock.patch.object(transitions, "enqueue_many", at_once(transitions.enqueue_many)),
    ):
        yield ran


# --------------------------------------------------------------------------------------------------------------
# What was enqueued
# --------------------------------------------------------------------------------------------------------------


class Captured(Sequence[Job]):
    """The jobs that were made in a ``with``, in the order of their ids: as they are, and after it as they were."""

    def __init__(self, using: str) -> None:
        self._using = using
        with connections[using].cursor() as cursor:
            # The sequence and not max(id): another session may commit a lower id later.
            cursor.execute("SELECT pg_get_serial_sequence('pgqueue_job', 'id')")
            (sequence,) = cursor.fetchone()
            cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}")
            (self._after,) = cursor.fetchone()
        self._jobs: list[Job] | None = None

    def end(self) -> None:
        self._jobs = self._now()

    def _now(self) -> list[Job]:
        if self._jobs is not None:
            return self._jobs
        return list(Job.objects.using(self._using).filter(pk__gt=self._after).order_by("pk"))

    def of(self, task: Any) -> list[Job]:
        """Those of one task."""
        return [job for job in self if job.task == _path(task)]

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def __iter__(self) -> Iterator[Job]:
        return iter(self._now())

    def __repr__(self) -> str:
        return f"[{'; '.join(map(_describe, self))}]"


@contextmanager
def capture_jobs(*, using: str | None = None) -> Iterator[Captured]:
    """The jobs that are made meanwhile, by whatever means and whether or not they run.

    Not those whose idempotency key had a job already, nor those of a transaction that was rolled back.
    """
    captured = Captured(using or _database())
    yield captured
    captured.end()


def assert_enqueued(
    task: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    run_after: datetime | timedelta | None = None,
    count: int | None = None,
    using: str | None = None,
    **columns: Any,
) -> list[Job]:
    """Fail unless there is such a job, or exactly ``count`` of them; returns them. Whether they have run is all one.

    ``task``: of ours or of Django's, or its path; None: any.
    ``args``, with ``kwargs``: the whole call, in whatever manner its arguments were passed. ``kwargs`` alone: these
    arguments, whatever the others are. ``run_after``: to the second; a timedelta counts from when the job was made.
    ``columns``: of the job, ``queue_name="mail"``, ``priority=5``, ``idempotency_key="x"`` or ``state="scheduled"``.
    """
    jobs = Job.objects.using(using or _database()).order_by("pk")
    candidates = jobs.filter(**columns)
    if task is not None:
        candidates = candidates.filter(task=_path(task))
    fits = _fits(task, args, kwargs)
    found = [job for job in candidates if fits(job) and _is_at(job, run_after)]
    if found if count is None else len(found) == count:
        return found
    wanted = "any task" if task is None else _path(task)
    if args is not None:
        wanted = _call(wanted, args, kwargs or {})
    elif kwargs is not None:
        wanted = _call(wanted, [...], kwargs).replace("Ellipsis", "...")
    if run_after is not None:
        columns["run_after"] = run_after
    facts = "".join(f", {name}={value!r}" for name, value in columns.items())
    raise AssertionError(
        f"{count if count is not None else 'one or more'} of {wanted}{facts} should have been enqueued, and "
        f"{len(found) or 'none'} was. {_listed(list(jobs[: _LISTED + 1]))}"
    )


def assert_not_enqueued(task: Any = None, **wanted: Any) -> None:
    """Fail if there is such a job; without a task, if there is any. Takes what ``assert_enqueued`` does."""
    assert_enqueued(task, count=0, **wanted)


def _path(task: Any) -> str:
    """Of a task of ours, or of Django's, or a path."""
    return task if isinstance(task, str) else task.path if isinstance(task, Task) else task.module_path


def _fits(task: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Callable[[Job], bool]:
    if args is None and kwargs is None:
        return lambda job: True
    is_whole = args is not None
    if not isinstance(task, Task) or (signature := task.signature) is None:
        positional, named = payload.load(*payload.untyped(args or (), kwargs or {}, limit=None))
        if is_whole:
            return lambda job: bool(job.args == positional and job.kwargs == named)
        return lambda job: isinstance(job.kwargs, dict) and _has(job.kwargs, named)
    wanted = signature.by_name(args or (), kwargs or {}, defaults=is_whole)

    def fits(job: Job) -> bool:
        try:
            call = signature.by_name(job.args, job.kwargs, defaults=True)
        except (TypeError, ValueError):  # by plain SQL, or the function has changed
            return False
        return call == wanted if is_whole else _has(call, wanted)

    return fits


def _has(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in given and given[name] == value for name, value in wanted.items())


def _is_at(job: Job, run_after: datetime | timedelta | None) -> bool:
    if run_after is None:
        return True
    wanted = job.enqueued_at + run_after if isinstance(run_after, timedelta) else run_after
    return abs(job.run_after - wanted) < _SAME


def _call(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return f"{task}({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"


def _describe(job: Job) -> str:
    when = f" for {job.run_after:%Y-%m-%d %H:%M:%S%z}" if job.state in (State.SCHEDULED, State.RETRYING) else ""
    return f"{_call(job.task, job.args, job.kwargs)} #{job.pk}, queue {job.queue_name}, {job.state}{when}"


def _listed(jobs: Sequence[Job]) -> str:
    if not jobs:
        return "There are no jobs at all."
    lines = [f"  {_describe(job)}" for job in jobs[:_LISTED]]
    return "\n".join(["There are:", *lines, *(["  ..."] if len(jobs) > _LISTED else [])])


# --------------------------------------------------------------------------------------------------------------
# The clock
# --------------------------------------------------------------------------------------------------------------

_NOW = re.compile(r"\bstatement_timestamp\(\)", re.IGNORECASE)


class Clock:
    """The database's clock as the statements of this process see it: ahead of the real one by what was travelled.

    They are changed on their way: ``statement_timestamp()`` is all that the queue goes by, and what Django's ``Now()``
    is. SQL's ``now()``, the defaults of columns and Python's clock stay as they are.
    """

    def __init__(self) -> None:
        self.ahead = timedelta()

    def forward(self, length: timedelta | None = None, /, **words: float) -> None:
        """Later by a timedelta, or by its words: ``forward(hours=3)``."""
        length = (length or timedelta()) + timedelta(**words)
        if length < timedelta():
            raise ValueError(f"travel goes forward; {length} would be back.")
        self.ahead += length

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        # Chores keep their real pace: one that was done in the future would not be done again after it.
        if self.ahead and isinstance(sql, str) and "pgqueue_chore" not in sql:
            ahead = self.ahead // timedelta(microseconds=1)
            sql = _NOW.sub(f"(statement_timestamp() + interval '{ahead} microseconds')", sql)
        return execute(sql, params, many, context)


_clock = Clock()


@receiver(connection_created)
def _set(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Of all threads: a worker has connections of its own."""
    if connection.vendor == "postgresql" and _clock not in connection.execute_wrappers:
        connection.execute_wrappers.append(_clock)


@contextmanager
def travel(
    length: timedelta | None = None, /, *, to: datetime | None = None, using: str | None = None, **words: float
) -> Iterator[Clock]:
    """Let the database's clock be later: ``with travel(hours=3): run_jobs()``. Nested ones add up.

    What was scheduled or waits for its next attempt is due, leases have ended, schedules have ticks to fire; as after
    so long without any worker: of several ticks of one schedule, as many as its ``missed`` says. Jobs that are enqueued
    meanwhile are enqueued then. The clock that it yields can go on: ``clock.forward(days=1)``, one day after another.
    ``to``: a moment instead of a length.
    """
    database = using or _database()
    autodiscover_modules("tasks")
    declare(database)  # before the journey: their first ticks may be on the way
    for wrapper in connections.all():
        _set(connection=wrapper)
    before = _clock.ahead
    try:
        _clock.forward(length, **words)
        if to is not None:
            _clock.forward(_until(database, to))
        yield _clock
    finally:
        _clock.ahead = before


def _until(using: str, moment: datetime) -> timedelta:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT %s - statement_timestamp()", [moment])
        (length,) = cursor.fetchone()
        assert isinstance(length, timedelta)  # noqa: S101
        return length


# --------------------------------------------------------------------------------------------------------------
# A worker in a thread
# --------------------------------------------------------------------------------------------------------------


class RunningWorker:
    """A real worker in a thread of this process, with connections of its own. See ``worker``."""

    _all: list[RunningWorker] = []  # that run
    _strangers: frozenset[threading.Thread] = frozenset()  # there before the first of them

    def __init__(self, options: Options) -> None:
        if not self._all:
            RunningWorker._strangers = frozenset(threading.enumerate())
        self.loop = Loop(options)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgqueue worker", daemon=True)
        self._all.append(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def wait_for(self, job: Enqueued | Job | int, state: State | str | None = None, *, timeout: float = 10.0) -> Job:
        """Until the job is in ``state`` (None: has succeeded); the job. Fails, too, once it has ended otherwise."""
        wanted = State(state or State.SUCCEEDED)
        id = job if isinstance(job, int) else job.pk if isinstance(job, Job) else job.id
        until = time.monotonic() + timeout
        while True:
            row = Job.objects.using(self.loop.options.using).get(pk=id)
            if row.state == wanted:
                return row
            if row.state in FINISHED or time.monotonic() > until:
                errors = "".join(f"\n  attempt {e['attempt']}: {e['error_type']}: {e['message']}" for e in row.history)
                after = "" if row.state in FINISHED else f" after {timeout:g} s"
                raise AssertionError(f"{row.task} #{id} is {row.state}{after}, not {wanted}{errors}")
            self._pause()

    def wait_until_idle(self, *, timeout: float = 10.0) -> None:
        """Until no job runs, is ready or is due."""
        until = time.monotonic() + timeout
        jobs = Job.objects.using(self.loop.options.using)
        # Due ones first: one that is promoted between the two is seen by the second.
        while left := [*jobs.due()[:_LISTED], *jobs.filter(state__in=(State.QUEUED, State.RUNNING))[:_LISTED]]:
            if time.monotonic() > until:
                raise AssertionError(f"after {timeout:g} s there is still something to run. {_listed(left)}")
            self._pause()

    def _pause(self) -> None:
        if not self._thread.is_alive():
            raise AssertionError("the worker has ended") from self._error
        time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Let what runs finish, for the shutdown timeout, and wait for the end of the worker and its threads."""
        if self not in self._all:
            return
        self.loop.stop(signal.SIGTERM)
        self._thread.join(self.loop.options.shutdown_timeout + _END_SECONDS)
        self._all.remove(self)
        left = [self._thread] if self._thread.is_alive() else []
        if not self._all:
            # Whose a slot's thread is, nobody can see: the last one to leave waits for all of them.
            left = _join(self._strangers, _END_SECONDS)
        if left:
            names = ", ".join(thread.name for thread in left)
            raise AssertionError(f"threads of the worker still run: {names}. What does a handler wait for?")
        if self._error is not None:
            raise self._error


def _join(strangers: Collection[threading.Thread], seconds: float) -> list[threading.Thread]:
    """Wait until the machine's threads have ended; those that have not."""
    until = time.monotonic() + seconds
    while True:
        ours = [one for one in threading.enumerate() if one.name.startswith("pgqueue ") and one not in strangers]
        if not ours or time.monotonic() > until:
            return ours
        ours[0].join(0.1)


@contextmanager
def worker(
    *,
    concurrency: int = 4,
    queues: Sequence[str] = (),
    shutdown_timeout: float = 10.0,
    using: str | None = None,
    **options: Any,
) -> Iterator[RunningWorker]:
    """A real worker beside the test, for tests that commit: ``TransactionTestCase``, ``django_db(transaction=True)``.

    It ends with the ``with``, whatever the test did: what runs may finish for ``shutdown_timeout`` seconds, then its
    threads are joined and its connections are closed; fails if a handler does not let it end. ``options``: more of
    ``pgqueue_django.worker.loop.Options``. Raises AssertionError in a test that is a transaction.
    """
    database = using or _database()
    if connections[database].in_atomic_block:
        raise AssertionError(
            f"The test is in a transaction on database {database!r}, and a worker beside it would see none of its "
            "jobs: use TransactionTestCase or django_db(transaction=True), or run_jobs() in place of a worker."
        )
    autodiscover_modules("tasks")
    # It polls: it finds what a test enqueues within 50 ms, and a listener would take longer to begin and to end.
    settings = {"listen": False, "poll_interval": 0.05, "shutdown_timeout": shutdown_timeout, **options}
    running = RunningWorker(Options(using=database, queues=queues, concurrency=concurrency, **settings))
    try:
        yield running
    finally:
        running.stop()
