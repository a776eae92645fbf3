"""One claimed job to one outcome.

Owns an attempt: decodes its arguments, calls its handler (in this thread, or on the event loop), and turns
whatever comes back or flies out into a value of ``outcomes``. It never touches the job table, save for
``atomic=True``, whose success commits with the handler's writes. Nothing escapes: every BaseException of a
handler is an outcome.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, reset_queries, transaction

from pgqueue_django import conf, logs, payload, tracing, transitions
from pgqueue_django.backoff import Backoff
from pgqueue_django.context import JobContext, Latch
from pgqueue_django.exceptions import (
    MAX_DELAY,
    Interrupt,
    InvalidPayload,
    JobTimeout,
    LeaseLost,
    PermanentError,
    Retry,
)
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind, Outcome, Released, Retried, Settled, Succeeded
from pgqueue_django.tasks import Task
from pgqueue_django.transitions import Claimed, Settlement
from pgqueue_django.worker import guard
from pgqueue_django.worker.board import Board
from pgqueue_django.worker.connections import drop, drop_changed, is_broken, left_open, watch
from pgqueue_django.worker.guard import Guard

logger = logging.getLogger("pgqueue_django.worker")

MAX_MESSAGE = 2_000  # characters kept of an error's message
MAX_TRACEBACK = 10_000


def lease_clock() -> float:
    """Seconds on a clock that goes on while the machine sleeps: a lease does, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Attempt:
    """A job that this process holds, from its claim until its outcome is in the row.

    Made by the loop; begun by a slot; its lease is moved by the heartbeat; ended by whoever comes first: the
    handler, its deadline, a cancel or a lost lease.
    """

    # What most attempts never change is here, once for all: setting it for each took a third of making one.
    begun_at: float | None = None
    deadline: float | None = None
    ended = False  # its outcome is with the loop; what comes later is void
    ended_at: float | None = None
    committing: Succeeded | None = None  # an atomic success whose COMMIT is about to be sent, or was
    settled_inside = False  # its outcome is in the row already
    counted = False  # such an outcome has been logged and will be in the statistics
    refusals = 0  # how often the database refused its outcome
    refused_at = -1  # and how many flushes it had taken before the last time
    slot: Any = None  # where it runs: how slots.py interrupts it
    gave_way = False  # its handler asked, and was told that its lease had ended
    is_cleaning_up = False  # its coroutine is beyond the handler, and is not to be cancelled any more
    guard: Guard | None = None  # around its handler, while that runs in a thread
    coroutine: asyncio.Task[Outcome] | None = None
    row: Any = None  # of a task of Django's: as it was claimed, for its result
    error: BaseException | None = None  # of such a task: its receivers ask for it
    span: Any = None  # while it runs, where it is traced
    verdict: Settled | Literal["cancelled", "lost", "released"] | None = None  # if it came before the handler's end
    _progress: str | None = None
    _board: Board | None = None
    _place: int | None = None  # there

    def __init__(self, job: Claimed, task: Task[Any, Any], lease_until: float, board: Board | None = None) -> None:
        self.job = job
        self.task = task
        self.lease_until = lease_until  # on lease_clock(), counted from before the claim was sent
        self.claimed_at = time.monotonic()
        self.timeout = task.timeout if task.timeout is not None else conf.current().TIMEOUT
        self.void = Latch()  # cancelled, timed out, or its lease is lost
        self.left = Latch()  # its handler has returned
        self.wrappers: list[Any] = []  # database connections of a coroutine's own thread, once it has started
        if board is not None:
            self._board = board

    def begin(self) -> bool:
        """Start its clock. False: it is cancelled, or its lease may have ended and another worker begun it."""
        if self.void.is_set() or lease_clock() >= self.lease_until:
            return False
        now = time.monotonic()
        deadline = None if self.timeout is None else now + self.timeout
        if self._board is not None:
            self._place = self._board.begin(self.job.pair, deadline)
            if self._place is None:
                return False
        self.begun_at, self.deadline = now, deadline
        return True

    def over(self) -> None:
        """Its handler has ended."""
        if self._board is not None and self._place is not None:
            self._board.over(self._place)

    def forget(self) -> None:
        """Its outcome is in the row, or it is not ours any more."""
        if self._board is not None and self._place is not None:
            self._board.end(self._place)
            self._place = None

    def end_span(self, outcome: Outcome | None = None) -> None:
        """Once: by who runs the handler, or without its outcome by who gives it up."""
        if self.span is None:
            return
        span = vars(self).pop("span", None)  # one of two threads gets it
        if span is None:
            return
        told = outcome if self.verdict is None or self.settled_inside else self.verdict
        failure = getattr(outcome, "failure", None) or getattr(told, "failure", None)
        tracing.end(span, str(getattr(told, "state", told)) if told is not None else None, failure)

    def report(self, progress: str) -> None:
        self._progress = progress

    def take_progress(self) -> str | None:
        """The newest progress, once."""
        progress, self._progress = self._progress, None
        return progress

    def keep_progress(self, progress: str) -> None:
        """Give back what could not be sent, unless the handler has reported since."""
        if self._progress is None:
            self._progress = progress

    def context(self) -> JobContext:
        return JobContext(
            job_id=self.job.id,
            attempt=self.job.attempt,
            max_attempts=self.job.max_attempts,
            deadline=self.deadline,
            cancelled=self.void,
            gives_way=self.gives_way,
            report=self.report,
        )

    def gives_way(self) -> bool:
        """Whether another worker may have its job by now; the handler that asks is to stop, and has not succeeded."""
        self.gave_way = self.gave_way or lease_clock() >= self.lease_until
        return self.gave_way

    def settlement(self, outcome: Settled) -> Settlement:
        if self.begun_at is None:
            return Settlement(self.job, outcome)
        waited = self.begun_at - self.claimed_at
        ran = (self.ended_at or time.monotonic()) - self.begun_at
        return Settlement(self.job, outcome, self.job.pickup_seconds + waited, ran)


def run(attempt: Attempt, using: str, wrappers: list[Any]) -> Outcome:
    """Run a plain handler in this thread, each like a request of its own.

    ``wrappers``: this thread's connection objects (see ``prepare_thread``); kept up to date.
    """
    if not attempt.begin():
        return Released()
    try:
        # An empty context: no language, no time zone, no variable of the attempt before.
        outcome = contextvars.Context().run(_run, attempt, using, wrappers)
    except BaseException as error:  # of what surrounds the handler: a slot must not be lost for it
        throw_connections_away()
        outcome = ended_with(attempt, error)
    attempt.end_span(outcome)
    return outcome


def _run(attempt: Attempt, using: str, wrappers: list[Any]) -> Outcome:
    logs.current_job.set(attempt.job)
    attempt.span = tracing.begin(attempt.job)
    if _are_used(wrappers):
        _between_attempts()
    outcome: Outcome
    try:
        try:
            args, kwargs = _arguments(attempt)
        except InvalidPayload as error:
            return Failed(_failure(Kind.PAYLOAD, error))
        try:
            if attempt.task.origin is not None:
                # Before a transaction of the attempt begins, so that what receivers do there does not spoil it.
                args = _guarded(attempt, _introduced_alone, (attempt, args, using), {})
            if attempt.task.atomic:
                outcome = _call_atomically(attempt, args, kwargs, using)
            else:
                outcome = _succeeded(attempt, _guarded(attempt, _handler(attempt), args, kwargs))
        except BaseException as error:  # SystemExit of a handler, too, is an outcome
            outcome = ended_with(attempt, error)
            if is_broken(error):
                # Django keeps a session that works, even on a node that was failed over and takes no writes.
                throw_connections_away()
        # Once: asking three times was a fifth of an attempt that uses none. A handler may have made new ones.
        wrappers[:] = connections.all(initialized_only=True)
        if _are_used(wrappers) and (left := left_open()):
            outcome = _transaction_left(attempt, outcome, left)
        return outcome
    finally:
        if _are_used(wrappers):
            drop_changed(wrappers)
            _between_attempts()


def _are_used(wrappers: Sequence[Any]) -> bool:
    for wrapper in wrappers:  # noqa: SIM110 - any() takes three times as long
        if wrapper.connection is not None:
            return True
    return False


async def run_async(attempt: Attempt, using: str) -> Outcome:
    """Run an async handler on this event loop; its synchronous parts get a thread and connections of its own."""
    if not attempt.begin():
        return Released()
    logs.current_job.set(attempt.job)
    attempt.span = tracing.begin(attempt.job)
    try:
        outcome = await _run_async(attempt, using)
    except BaseException as error:  # cancelled while its connections were being closed
        attempt.end_span(ended_with(attempt, error))
        raise
    attempt.end_span(outcome)
    return outcome


async def _run_async(attempt: Attempt, using: str) -> Outcome:
    try:
        args, kwargs = _arguments(attempt)
    except InvalidPayload as error:
        return Failed(_failure(Kind.PAYLOAD, error))
    outcome: Outcome
    async with ThreadSensitiveContext() as own_thread:
        # The executor that asgiref would make, and one that tells whose statements are to be cancelled.
        SyncToAsync.context_to_thread_executor[own_thread] = ThreadPoolExecutor(
            max_workers=1, initializer=prepare_thread, initargs=(attempt.wrappers,)
        )
        try:
            if attempt.task.origin is not None:
                args = await sync_to_async(_introduced_alone)(attempt, args, using)
            outcome = _succeeded(attempt, _unless_it_gave_way(attempt, await _handler(attempt)(*args, **kwargs)))
        except BaseException as error:
            outcome = ended_with(attempt, error)
        attempt.is_cleaning_up = True
        if attempt.wrappers:
            left = await sync_to_async(_close_connections)()
            if left:
                outcome = _transaction_left(attempt, outcome, left)
        else:
            # Never used: asgiref would start a thread to wait for its end.
            del SyncToAsync.context_to_thread_executor[own_thread]
    return outcome


def _close_connections() -> str | None:
    left = left_open()
    drop_changed(connections.all(initialized_only=True))  # closing gives it back to a pool, if there is one
    connections.close_all()
    return left


def run_inside(attempt: Attempt, using: str) -> tuple[Settled, BaseException | None]:
    """Run a handler, plain or async, in this thread and on its connections, which the caller looks after: for tests.

    Nothing interrupts it; one that took longer than its timeout has timed out when it returns. Also returns what was
    raised. What ends more than an attempt goes through: KeyboardInterrupt, and what test runners stop a test with.
    """
    handler = _handler(attempt)
    if attempt.task.is_async:
        # Its synchronous parts come back to this thread, and so to its connections.
        handler = async_to_sync(handler)

    def in_time(*args: Any, **kwargs: Any) -> Any:
        result = handler(*args, **kwargs)
        if attempt.deadline is not None and time.monotonic() > attempt.deadline:
            raise JobTimeout(f"The attempt ran longer than its timeout of {attempt.timeout:g} s.")
        return result

    attempt.task = replace(attempt.task, func=in_time)
    attempt.begin()
    return contextvars.Context().run(_run_inside, attempt, using)


def _run_inside(attempt: Attempt, using: str) -> tuple[Settled, BaseException | None]:
    logs.current_job.set(attempt.job)
    attempt.span = tracing.begin(attempt.job)
    outcome: Settled | None = None
    try:
        outcome, error = _handled_inside(attempt, using)
    finally:
        attempt.end_span(outcome)
    return outcome, error


def _handled_inside(attempt: Attempt, using: str) -> tuple[Settled, BaseException | None]:
    try:
        args, kwargs = _arguments(attempt)
    except InvalidPayload as error:
        return Failed(_failure(Kind.PAYLOAD, error)), error
    try:
        if attempt.task.origin is not None:
            args = _guarded(attempt, _introduced, (attempt, args, using), {})
        if attempt.task.atomic:
            return _call_atomically(attempt, args, kwargs, using), None
        return _succeeded(attempt, _guarded(attempt, _handler(attempt), args, kwargs)), None
    except (Exception, SystemExit, Interrupt, asyncio.CancelledError) as error:
        return ended_with(attempt, error), error


def _between_attempts() -> None:
    close_old_connections()
    reset_queries()


def _arguments(attempt: Attempt) -> tuple[list[Any], dict[str, Any]]:
    job, signature = attempt.job, attempt.task.signature
    if signature is None:
        args, kwargs = payload.load(job.args, job.kwargs)
    else:
        args, kwargs = signature.decode(job.args, job.kwargs)
    # Of a task of Django's it is another context, and made later: see _introduced.
    has_ours = attempt.task.takes_context and attempt.task.origin is None
    return ([attempt.context(), *args] if has_ours else args), kwargs


def _introduced(attempt: Attempt, args: list[Any], using: str) -> list[Any]:
    """Tell Django's receivers that the attempt begins; return the arguments with its context, if it takes one."""
    from pgqueue_django import results  # which needs the framework

    job, row = attempt.job, attempt.row
    attempt.row = None  # not needed any more, and it may be large
    if row is None:
        row = results.read(using, [job.id]).get(job.id)
    result = results.started(row, using, job, attempt.task.origin)
    if not attempt.task.takes_context:
        return args
    return [results.PgQueueTaskContext(task_result=result, job=attempt.context()), *args]


def _introduced_alone(attempt: Attempt, args: list[Any], using: str) -> list[Any]:
    """The same on a thread whose connections are this attempt's alone."""
    given = _introduced(attempt, args, using)
    if left := left_open():
        logger.error(
            "%s #%d: a receiver of task_started left %s open; its writes there are rolled back",
            *(attempt.job.task, attempt.job.id, left),
            extra=logs.event("job.warning", attempt.job),
        )
    return given


def _handler(attempt: Attempt) -> Any:
    return attempt.task.func


def _guarded(attempt: Attempt, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    own = Guard()

    def handle() -> Any:
        # In here, where an exception may come; whoever interrupts it sets void first and then looks for the guard.
        attempt.guard = own
        if attempt.void.is_set():
            raise LeaseLost("The attempt counted no more before its handler was called.")
        return func(*args, **kwargs)

    return _unless_it_gave_way(attempt, own.call(handle))


def _unless_it_gave_way(attempt: Attempt, result: Any) -> Any:
    if attempt.gave_way:
        raise LeaseLost("No heartbeat came through until the lease ended; the handler was told so, and returned.")
    return result


class _BadResult(Exception):
    """The handler returned; what it returned cannot be stored."""


def _succeeded(attempt: Attempt, result: Any) -> Succeeded:
    if result is None:
        return Succeeded("null")
    try:
        if attempt.task.origin is not None:
            result = _plain(result)
        return Succeeded(payload.dump(result, where="result", limit=conf.current().MAX_PAYLOAD_BYTES))
    except InvalidPayload as error:
        raise _BadResult(str(error)) from error


def _plain(result: Any) -> Any:
    from pgqueue_django import results

    try:
        return results.plain(result)
    except (TypeError, ValueError, RecursionError):
        return result  # to be refused by the payload's own rules, which name the place


def _call_atomically(attempt: Attempt, args: list[Any], kwargs: dict[str, Any], using: str) -> Settled:
    """The handler's writes and the fenced settle in one transaction; a lost lease rolls both back."""
    if not connections[using].get_autocommit():
        # There atomic() does not commit, and everything would be rolled back when the connection is closed.
        raise ImproperlyConfigured(f"atomic=True needs autocommit: database {using!r} has it switched off.")
    outcome: Succeeded | None = None
    try:
        with transaction.atomic(using=using, durable=True):
            # The first hook, so it runs right after the COMMIT, before one of the handler's own can raise.
            transaction.on_commit(partial(setattr, attempt, "settled_inside", True), using=using)
            with connections[using].cursor() as cursor:
                # Above READ COMMITTED every heartbeat of this row would make the settle a serialization failure.
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            outcome = _succeeded(attempt, _guarded(attempt, _handler(attempt), args, kwargs))
            _settle_inside(attempt, outcome, using)
            attempt.committing = outcome
    except BaseException as error:
        if outcome is None or not attempt.settled_inside:
            raise
        # The job is done, and nobody can take that back.
        job = attempt.job
        logger.warning(
            "%s #%d succeeded; then one of its on_commit hooks failed: %s",
            *(job.task, job.id, _text(error)),
            extra=logs.event("job.warning", job),
        )
    assert outcome is not None  # noqa: S101
    return outcome


def _settle_inside(attempt: Attempt, outcome: Succeeded, using: str) -> None:
    settlement = attempt.settlement(outcome)
    while True:
        if attempt.void.is_set():
            raise LeaseLost("The attempt was cancelled, timed out or lost its lease before it could commit.")
        fenced = transitions.settle_inside(using, settlement)
        if fenced.moved:
            return
        if fenced.gone:
            raise LeaseLost("The job was cancelled or given to another worker; this attempt is rolled back.")
        # Busy: a heartbeat has the row for a moment, or a person's session for longer.
        if attempt.void.wait(0.02):
            continue
        if attempt.deadline is not None and time.monotonic() > attempt.deadline:
            raise JobTimeout("Somebody held the job's row until the deadline.")


def ended_with(attempt: Attempt, error: BaseException) -> Settled:
    """What an exception means for the job. Never raises."""
    try:
        outcome = _meaning(attempt, error)
    except BaseException as second:  # an error whose own attributes raise
        message = payload.storable_text(f"An error that cannot be read: {_text(second)}", MAX_MESSAGE)
        outcome = again(attempt, Failure(Kind.ERROR, object.__repr__(type(error))[:200], message))
    if attempt.task.origin is not None and not isinstance(outcome, Retried):
        _clear_frames(error)
        attempt.error = error
    return outcome


def _clear_frames(error: BaseException) -> None:
    """Let go what the handler's variables held, of the errors before it as well: it is kept for its receivers."""
    errors: list[BaseException | None] = [error]
    seen = set[int]()
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        errors += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            errors += one.exceptions


def _meaning(attempt: Attempt, error: BaseException) -> Settled:
    if isinstance(error, PermanentError):
        return Failed(_failure(Kind.PERMANENT, error))
    if isinstance(error, Retry):
        return again(attempt, _failure(Kind.RETRY, error), _asked_delay(error))
    if isinstance(error, _BadResult):
        return again(attempt, _failure(Kind.RESULT, error.__cause__ or error))
    if isinstance(error, JobTimeout):
        return again(attempt, _failure(Kind.TIMEOUT, error))
    if isinstance(error, LeaseLost):
        return again(attempt, _failure(Kind.LEASE_EXPIRED, error))
    return again(attempt, _failure(Kind.ERROR, error))


def _asked_delay(error: Retry) -> float | None:
    """None, for the task's backoff, if a subclass of Retry has made it no number of seconds."""
    delay: object = getattr(error, "delay", None)
    return float(delay) if isinstance(delay, int | float) and 0 <= delay <= MAX_DELAY else None


def again(attempt: Attempt, failure: Failure, delay: float | None = None) -> Settled:
    """A failed attempt that may be tried again: retrying while attempts are left, else dead."""
    job = attempt.job
    if job.attempt >= job.max_attempts:
        return DeadLettered(failure)
    return Retried(failure, Backoff.from_text(job.backoff).delay(job.attempt) if delay is None else delay)


def timed_out(attempt: Attempt) -> Settled:
    """The outcome at the deadline, while the handler may still be running."""
    message = f"The attempt ran longer than its timeout of {attempt.timeout:g} s."
    return again(attempt, Failure(Kind.TIMEOUT, "JobTimeout", message))


def unrecordable(attempt: Attempt, error: BaseException) -> Settled:
    """The outcome of an attempt whose own outcome the database refuses to take."""
    message = payload.storable_text(f"The outcome could not be recorded: {error}", MAX_MESSAGE)
    return again(attempt, Failure(Kind.RESULT, _type_name(error), message))


def _transaction_left(attempt: Attempt, outcome: Outcome, left: str) -> Outcome:
    if isinstance(outcome, Succeeded) and attempt.settled_inside:
        return outcome
    if not isinstance(outcome, Succeeded):
        return outcome  # the handler's own error says more
    message = f"The handler left {left} open. Its writes there are rolled back and the connection is closed."
    return again(attempt, Failure(Kind.TRANSACTION, "TransactionLeftOpen", message))


def _failure(kind: Kind, error: BaseException) -> Failure:
    return Failure(
        kind,
        _type_name(error),
        payload.storable_text(_text(error), MAX_MESSAGE),
        payload.storable_text(_traceback(error), MAX_TRACEBACK),
    )


def _type_name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return payload.storable_text(name, 200)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # a __str__ may raise anything
        return "<an error whose __str__ raises>"


_OURS = frozenset({__file__, guard.__file__})


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    # Without our own frames on top, which say nothing.
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames, limit=-40))
    except BaseException:  # it calls __str__, __repr__ and __notes__ of strangers
        return "".join(traceback.format_tb(frames, limit=-40))


def throw_connections_away() -> None:
    """After an SQL cancel or an injected exception: nobody knows what these connections are in the middle of."""
    for wrapper in connections.all(initialized_only=True):
        drop(wrapper.alias)


def prepare_thread(wrappers: list[Any]) -> None:
    """Collect this thread's connection objects, none of them connected: their statements can then be cancelled.

    And seen: see ``drop_changed``.
    """
    wrappers.extend(connections[alias] for alias in connections)
    for wrapper in wrappers:
        watch(wrapper)
