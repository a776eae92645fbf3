"""The loop: claim, hand out, settle, drain. One thread, one connection, one inbox.

Everything that happens reaches it as an event in ``inbox``: a handler ended, a notification came, a lease is
lost, a signal says stop. Each turn takes what is there, writes all outcomes in one statement, claims what there
is room for, and sleeps until the next thing that it knows of. While one flush is in flight the next one gathers
by itself; an idle worker settles at once.

Keeps: an attempt is in ``held`` from its claim until its outcome is in the row or its lease is lost; only what
is in ``held`` gets heartbeats. The process never ends because the database is away.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from pgqueue_django import conf, logs, payload, queues, stats, transitions, wakeups
from pgqueue_django.exceptions import JobCancelled, JobTimeout, LeaseLost, TaskNotFound
from pgqueue_django.models import MAX_WORKER_TASKS, Job
from pgqueue_django.outcomes import Outcome, Released, Retried, Settled, Succeeded
from pgqueue_django.states import State
from pgqueue_django.tasks import Task, declared_tasks, resolve
from pgqueue_django.transitions import Claimed, Fenced, Settlement
from pgqueue_django.worker import executor
from pgqueue_django.worker.announcer import Announcer
from pgqueue_django.worker.board import Board
from pgqueue_django.worker.chores import Chores
from pgqueue_django.worker.connections import (
    Backoff,
    Grumbler,
    drop,
    first_line,
    is_broken,
    is_undefined,
    may_pass,
    own_connection,
    waits_for_server,
)
from pgqueue_django.worker.executor import Attempt, lease_clock
from pgqueue_django.worker.heartbeat import Heartbeat
from pgqueue_django.worker.listener import Listener
from pgqueue_django.worker.memory import resident_bytes
from pgqueue_django.worker.probe import LIVE_SECONDS, Health
from pgqueue_django.worker.slots import TRIES, Slots
from pgqueue_django.worker.supply import Caps, Prefetch, Supply

logger = logging.getLogger("pgqueue_django.worker")

CLEAN, NO_DATABASE, NOT_MIGRATED, RELEASED, WORN_OUT = 0, 4, 5, 7, 8  # exit codes

_REFUSALS = 3  # of an outcome that may pass the next time
_BUSY_SECONDS = 0.05  # until a row that someone holds is tried again
_UNBEGUN_SECONDS = 0.2  # after this a job that has not begun is given back
_SLOW_CLAIM_SECONDS, _SLOW_JOB_SECONDS = 0.01, 0.0001  # a claim that took longer, and longer for each job, is slow
_DISOWN_SECONDS = 1.0  # between two looks for jobs that a lost reply has left with us
_JOIN_SECONDS = 1.0  # for the other threads to end
_LOOKED_SECONDS = 30.0  # beyond the poll interval; longer without an answer and it is not ready
_LOOK_SECONDS = 0.25  # how often deadlines are looked at
_LAMENT_SECONDS = 30.0  # from one warning about slow receivers to the next


# What an attempt runs whose task cannot be imported here: nothing; it is given back.
_UNKNOWN: Task[Any, Any] = Task("pgqueue_django.unknown")


_EVENTS: dict[State, logs.Event] = {
    State.SUCCEEDED: "job.succeeded",
    State.RETRYING: "job.retrying",
    State.FAILED: "job.failed",
    State.DEAD: "job.dead",
}


@dataclass(frozen=True)
class Options:
    """How one worker works. Lengths are seconds."""

    using: str
    name: str = ""
    queues: Sequence[str] = ()  # in this order, strictly; none: all, in turn
    caps: Mapping[str, int] = field(default_factory=dict)  # of these queues no more at a time
    excluded: Sequence[str] = ()
    concurrency: int = field(default_factory=lambda: conf.current().CONCURRENCY)
    lease: float = field(default_factory=lambda: conf.current().LEASE)
    poll_interval: float = field(default_factory=lambda: conf.current().POLL_INTERVAL)
    shutdown_timeout: float = field(default_factory=lambda: conf.current().SHUTDOWN_TIMEOUT)
    listen: bool = field(default_factory=lambda: conf.current().LISTEN)
    drain: bool = False  # end when nothing is due
    max_jobs: int | None = None  # end after so many jobs
    max_time: float | None = None  # end after so long
    max_memory: int | None = None  # end when the process has more bytes of its own in memory
    db_wait: float | None = None  # end if the database is not there so long after the start

    @property
    def heartbeat(self) -> float:
        return min(conf.current().heartbeat, self.lease / 3)


@dataclass(frozen=True)
class _Ended:
    attempt: Attempt
    outcome: Outcome


@dataclass(frozen=True)
class _Lost:
    attempt: Attempt
    state: State | None


@dataclass(frozen=True)
class _Deaf:
    attempt: Attempt


@dataclass(frozen=True)
class _Woken:
    hint: str | None  # None: something may have been missed


@dataclass(frozen=True)
class _Stop:
    signal: int


@dataclass(frozen=True)
class _Quiet:
    pass


@dataclass(frozen=True)
class _Report:
    pass


_Event = _Ended | _Lost | _Deaf | _Woken | _Stop | _Quiet | _Report


class Loop:
    """One worker. ``run`` returns the exit code; ``stop`` may be called from any thread and signal handler."""

    def __init__(
        self,
        options: Options,
        board: Board | None = None,
        ended: Callable[[Settlement], None] | None = None,
    ) -> None:
        """``board``: of a process that has a supervisor. ``ended``: called with each outcome that is in its row."""
        self.options = options
        self._board = board
        self._count = ended
        self.name = payload.storable_text(options.name) or f"{socket.gethostname()}:{os.getpid()}"
        # Random: a worker that comes back under the same name must not take the rows of the one before for its own.
        self.worker_id = f"{self.name[:100]}:{secrets.token_hex(4)}"
        if board is not None:
            board.sign(self.worker_id)
        self._version = _version()
        self.held: dict[int, Attempt] = {}
        self.counts: dict[State, int] = {}
        self.inbox: queue.SimpleQueue[_Event] = queue.SimpleQueue()

        self._using = options.using
        self._outcomes: list[tuple[Attempt, Settled]] = []
        self._releases: list[tuple[Claimed, bool]] = []  # with: the task is unknown here
        self._samples: list[stats.Sample] = []  # of attempts that settled inside their own transaction
        self._in_doubt: tuple[str, int] | None = None  # a flush without a reply: its transaction, and its samples
        self._flushes = 0  # that the database took
        self._not_before = 0.0  # for writes to busy rows
        self._slots = Slots(
            options.concurrency, self._using, self._attempt_ended, lambda attempt: self.inbox.put(_Deaf(attempt))
        )
        self._announcer = Announcer(self._using)
        self._prefetch = Prefetch(options.concurrency)
        self._caps = Caps(options.caps)
        self._supply = Supply(options.queues, options.excluded, options.poll_interval)

        self._trouble = Backoff()
        self._down_until = 0.0
        self._disown_at: float | None = None
        self._disown_until = 0.0
        self._grumbler = Grumbler("database")

        self._signals: list[int] = []
        self._stop_at: float | None = None  # give back what still runs at this moment
        self._left = options.max_jobs
        self._busy_since: float | None = None  # in this turn; None: asleep
        self._wrapper: BaseDatabaseWrapper | None = None
        self._looked_at: float | None = None  # for jobs, with an answer
        self._began_at = time.monotonic()
        self._is_quiet = False
        self._is_in_doubt = False  # no lease could be renewed for as long as one lasts
        self._is_retiring = False
        self._gave_up = False
        self._worn_out = False  # a handler that nothing stops has one of its places
        self._next_look = 0.0
        self._hear_until: float | None = None  # all is done, but for receivers of task_finished
        self._next_lament = 0.0  # over slow ones
        self._exit_code = CLEAN

        self._heartbeat = Heartbeat(
            self._using,
            interval=options.heartbeat,
            lease_seconds=options.lease,
            held=lambda: list(self.held.values()),
            lost=lambda attempt, state: self.inbox.put(_Lost(attempt, state)),
            recovered=lambda: self.inbox.put(_Woken(None)),
            row=self._worker_row,
        )
        self._chores = Chores(
            self._using,
            worker_id=self.worker_id,
            interval=conf.current().CHORE_INTERVAL,
            adopt_at_once=max(100, 4 * options.concurrency),
            queues=options.queues,
            excluded=options.excluded,
            promoted=lambda: self.inbox.put(_Woken(None)),
        )
        self._listener = (
            Listener(self._using, named=conf.current().LISTEN_DATABASE, heard=self._heard, notify=self._chores.notify)
            if options.listen
            else None
        )

    def stop(self, signal: int) -> None:
        """Once: finish what runs. Twice: end at once."""
        self.inbox.put(_Stop(signal))

    def quiet(self) -> None:
        """From any thread and signal handler: claim nothing more, and stay."""
        self.inbox.put(_Quiet())

    def report(self) -> None:
        """From any thread and signal handler: log what it is doing."""
        self.inbox.put(_Report())

    def health(self) -> Health:
        """From any thread. Ready: the last look for jobs had its answer, or all slots are taken."""
        now = time.monotonic()
        busy_since, looked_at = self._busy_since, self._looked_at
        is_busy = self._slots.load >= self.options.concurrency
        looked = None if looked_at is None else round(now - looked_at, 3)
        ready = (
            not (self._is_ending or self._is_quiet or self._is_in_doubt or self._trouble.failing)
            and looked is not None
            and (is_busy or looked < self.options.poll_interval + _LOOKED_SECONDS)
        )
        facts = {
            "worker": self.worker_id,
            "turn_seconds": 0.0 if busy_since is None else round(now - busy_since, 3),
            "looked_seconds": looked,
            "held": len(self.held),
        }
        return Health(not self.is_stuck, ready, facts)

    @property
    def busy_slots(self) -> int:
        """From any thread."""
        return self._slots.busy

    def due(self, most: int) -> int:
        """How many jobs this worker could run now, counted up to ``most``; on the caller's own connection."""
        count = 0
        for jobs in (Job.objects.using(self._using).filter(state=State.QUEUED), Job.objects.using(self._using).due()):
            count += self._supply.of_mine(jobs)[: most - count].count() if count < most else 0
        return count

    def run(self) -> int:
        self._began_at = time.monotonic()
        with own_connection(self._using, "loop", reads_much=True) as self._wrapper:
            for thread in (self._heartbeat, self._chores, self._listener):
                if thread is not None:
                    thread.start()
            try:
                while not self._is_done():
                    self._turn()
            finally:
                self._end()
        return self._exit_code

    def _turn(self) -> None:
        self._take_events()
        self._look_at_clocks()
        for step in (self._write, self._claim):
            if time.monotonic() >= self._down_until:
                self._with_database(step)

    # Events ----------------------------------------------------------------------------------------------------

    def _attempt_ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """From the slot's thread."""
        attempt.ended_at = attempt.ended_at or time.monotonic()
        attempt.over()
        self.inbox.put(_Ended(attempt, outcome))

    def _heard(self, hint: str | None) -> None:
        """From the listener's thread. What concerns another thread goes there directly."""
        if hint == wakeups.CANCELLED:
            self._heartbeat.nudge()
        elif hint == wakeups.DUE:
            self._chores.nudge()
        elif hint is None or self._supply.takes(hint):
            self.inbox.put(_Woken(hint))

    @property
    def is_stuck(self) -> bool:
        """Whether it has been in one turn for longer than can be, and does not wait for the database.

        A database that does not answer is no reason to replace this process.
        """
        busy_since = self._busy_since
        if busy_since is None or time.monotonic() < busy_since + LIVE_SECONDS:
            return False
        return self._wrapper is None or not waits_for_server(self._wrapper)

    def _take_events(self) -> None:
        try:
            seconds, self._busy_since = self._sleep_seconds(), None
            try:
                event = self.inbox.get(timeout=seconds)
            finally:
                self._busy_since = time.monotonic()
            while True:
                self._take(event)
                event = self.inbox.get_nowait()
        except queue.Empty:
            pass

    def _take(self, event: _Event) -> None:
        match event:
            case _Ended(attempt, outcome):
                self._take_outcome(attempt, outcome)
            case _Lost(attempt, state):
                self._take_loss(attempt, state)
            case _Deaf(attempt):
                self._take_deaf(attempt)
            case _Woken(hint):
                self._supply.woken(hint, others=self._heartbeat.others, busy=self._slots.load > 0)
            case _Stop(signal):
                self._take_stop(signal)
            case _Quiet():
                self._take_quiet()
            case _Report():
                logger.info("%s", self._describe(), extra=logs.event("worker.status", held=len(self.held)))

    def _take_outcome(self, attempt: Attempt, outcome: Outcome) -> None:
        self._prefetch.ended(attempt)
        self._leaves(attempt)
        if attempt.settled_inside and not isinstance(outcome, Released):
            # It is in the row, whatever the loop thought of it meanwhile.
            self._forget(attempt)
            self._count_settled_inside(attempt, outcome)
        elif attempt.ended:
            # Its deadline, a cancel or a lost lease came first; that was logged.
            if not self._holds(attempt):
                attempt.forget()  # it may have begun at that very moment
        elif isinstance(outcome, Released):
            self._releases.append((attempt.job, outcome.unknown))
        else:
            self._outcomes.append((attempt, outcome))
        attempt.ended = True

    def _leaves(self, attempt: Attempt) -> None:
        """The slots are done with it, or will not begin it."""
        if self._caps.gave(attempt.job.queue_name):
            self._supply.next_claim_at = 0.0

    def _count_settled_inside(self, attempt: Attempt, outcome: Settled) -> None:
        """Once, whether the handler's thread or the fence tells it first."""
        if not attempt.counted:
            attempt.counted = True
            settlement = attempt.settlement(outcome)
            self._samples.append(settlement.sample())
            self._announce(attempt, settlement)

    def _forget(self, attempt: Attempt) -> None:
        attempt.forget()
        if self._holds(attempt):
            del self.held[attempt.job.id]

    def _holds(self, attempt: Attempt) -> bool:
        # The same job may be held again, by a later claim.
        return self.held.get(attempt.job.id) is attempt

    def _take_loss(self, attempt: Attempt, state: State | None) -> None:
        if attempt.ended or attempt.settled_inside or not self._holds(attempt):
            return  # its outcome is on its way, and the fence will judge that
        if attempt.committing is not None and state == State.SUCCEEDED:
            return  # by its own COMMIT, just now
        attempt.ended = True
        attempt.verdict = "cancelled" if state == State.CANCELLED else "lost"
        self._forget(attempt)
        what = "was cancelled" if state == State.CANCELLED else f"lost its lease (the job is {state or 'gone'} now)"
        logger.warning(
            "%s #%d %s while it ran; its outcome is void",
            *(attempt.job.task, attempt.job.id, what),
            extra=logs.event("job.cancelled" if state == State.CANCELLED else "job.lost", attempt.job),
        )
        self._slots.interrupt(attempt, JobCancelled if state == State.CANCELLED else LeaseLost)

    def _take_deaf(self, attempt: Attempt) -> None:
        """Only the end of the process stops it. The others finish, nothing new is begun."""
        if attempt.left.is_set() or self._worn_out:
            return
        self._worn_out = True
        logger.error(
            "%s #%d goes on although it was interrupted %d times: this process finishes what else it runs and ends, "
            "with exit code %d, to be replaced",
            *(attempt.job.task, attempt.job.id, TRIES, WORN_OUT),
            extra=logs.event("worker.worn_out", attempt.job),
        )
        self._exit_code = self._exit_code or WORN_OUT
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self.options.shutdown_timeout
        self._give_back_unbegun()

    def _take_stop(self, signal: int) -> None:
        self._signals.append(signal)
        if len(self._signals) == 1:
            logger.info(
                "stopping: %d jobs may finish, for %g s",
                *(len(self.held), self.options.shutdown_timeout),
                extra=logs.event("worker.stopping", held=len(self.held)),
            )
            self._stop_at = time.monotonic() + self.options.shutdown_timeout
            self._give_back_unbegun()
        else:
            self._stop_at = time.monotonic()

    def _take_quiet(self) -> None:
        if not self._is_quiet:
            self._is_quiet = True
            logger.info(
                "quiet: %d jobs may finish, nothing more is claimed",
                len(self.held),
                extra=logs.event("worker.quiet", held=len(self.held)),
            )
            self._give_back_unbegun()

    def _describe(self) -> str:
        done = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items())) or "none yet"
        what = "stopping" if self._is_ending else "quiet" if self._is_quiet else "working"
        return (
            f"worker {self.worker_id}: {what}, {len(self.held)} jobs held, {self._slots.waiting} of them wait for one "
            f"of {self.options.concurrency} slots, {len(self._outcomes)} outcomes to write, "
            f"{self._announcer.waiting} to tell receivers of, "
            f"database {'away' if self._trouble.failing else 'there'}, ended: {done}"
        )

    # Clocks ----------------------------------------------------------------------------------------------------

    def _sleep_seconds(self) -> float:
        now = time.monotonic()
        moments = [now + _LOOK_SECONDS] if self.held else [now + self.options.poll_interval]
        if self._outcomes or self._releases or (self._samples and self._in_doubt is None):
            moments.append(max(self._not_before, self._down_until))
        if self._in_doubt is not None:
            moments.append(max(now + _LOOK_SECONDS, self._down_until))
        if self._announcer.is_behind or self._hear_until is not None:
            moments.append(now + _BUSY_SECONDS)
        if self._may_claim() and self._room() > 0:
            moments.append(max(self._supply.next_claim_at, self._down_until))
        if self._disown_at is not None:
            moments.append(max(self._disown_at, self._down_until))
        if (oldest := self._slots.oldest_wait()) is not None:
            moments.append(oldest + _UNBEGUN_SECONDS)
        if self._stop_at is not None:
            moments.append(self._stop_at if now < self._stop_at else now + _BUSY_SECONDS)
        return max(0.0, min(moments) - now)

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS / 2
            for attempt in list(self.held.values()):
                over = attempt.deadline is not None and now >= attempt.deadline
                if over and not attempt.ended and not attempt.settled_inside:
                    attempt.ended = True
                    attempt.ended_at = now
                    attempt.verdict = outcome = executor.timed_out(attempt)
                    self._outcomes.append((attempt, outcome))
                    self._slots.interrupt(attempt, JobTimeout)
            self._look_at_heartbeats()
            self._slots.look_at_event_loop()
            self._look_at_receivers(now)
            self._look_at_limits(now)
        oldest = self._slots.oldest_wait()
        if oldest is not None and now - oldest >= _UNBEGUN_SECONDS:
            self._prefetch.overshot()
            self._give_back_unbegun()
        if self._stop_at is not None and now >= self._stop_at:
            self._give_back_all()

    def _look_at_heartbeats(self) -> None:
        """While none come through nothing is begun, and handlers that ask are told: others may have their jobs."""
        if self._heartbeat.is_in_time:
            self._is_in_doubt = False
        elif not self._is_in_doubt:
            self._is_in_doubt = True
            logger.warning(
                "no heartbeat has come through for %g s: nothing is begun, %d jobs held",
                *(self.options.lease, len(self.held)),
                extra=logs.event("worker.doubtful", held=len(self.held)),
            )
            # It may have been this process or its machine that stood still.
            self._heartbeat.nudge()
            self._give_back_unbegun()

    def _look_at_receivers(self, now: float) -> None:
        if self._announcer.is_behind and now >= self._next_lament:
            self._next_lament = now + _LAMENT_SECONDS
            logger.warning(
                "%d outcomes wait for receivers of task_finished: nothing is claimed until they have caught up",
                self._announcer.waiting,
                extra=logs.event("worker.trouble"),
            )

    def _look_at_limits(self, now: float) -> None:
        options = self.options
        if self._is_ending:
            return
        if options.max_time is not None and now >= self._began_at + options.max_time:
            why = f"it has run for {options.max_time:g} s"
        elif options.max_memory is not None and (bytes := resident_bytes()) > options.max_memory:
            why = f"it has {bytes / 1e6:.0f} MB in memory"
        else:
            return
        logger.info(
            "ending after %d more jobs: %s",
            len(self.held),
            why,
            extra=logs.event("worker.retiring", held=len(self.held)),
        )
        self._is_retiring = True
        self._give_back_unbegun()

    def _give_back_unbegun(self) -> None:
        for attempt in self._slots.take_back():
            attempt.ended = True
            self._leaves(attempt)
            self._releases.append((attempt.job, False))

    def _give_back_all(self) -> None:
        """The time to finish is over: what still runs is interrupted and goes back, uncharged."""
        self._give_back_unbegun()
        for attempt in self.held.values():
            if not attempt.ended and not attempt.settled_inside:
                attempt.ended = True
                attempt.verdict = "released"
                self._releases.append((attempt.job, False))
                self._slots.interrupt(attempt, LeaseLost)
                self._exit_code = self._exit_code or RELEASED

    # The database ----------------------------------------------------------------------------------------------

    def _with_database(self, act: Callable[[], None]) -> None:
        """Run one of our steps; if the database fails it, throw the connection away and come back later."""
        try:
            if self._disown_at is not None and time.monotonic() >= self._disown_at:
                self._disown()
            act()
        except (DatabaseError, InterfaceError) as error:
            self._grumbler.failed(error)
            # A reply may be lost: a claim whose COMMIT was carried out has taken jobs that we never saw.
            self._disown_at = time.monotonic()
            self._disown_until = self._disown_at + self.options.lease
            self._down_until = self._disown_at + self._trouble.failed()
            drop(self._using)
            if self._looked_at is None:
                self._judge_start(error)
        else:
            if self._trouble.failing:
                self._trouble.worked()
                self._grumbler.worked()
                self._supply.woken(None)

    def _judge_start(self, error: Exception) -> None:
        """Whether this worker can ever work."""
        wait = self.options.db_wait
        if is_undefined(error):
            self._exit_code = NOT_MIGRATED
            logger.error(
                "the tables are not as this version needs them: run manage.py migrate (%s)",
                first_line(error),
                extra=logs.event("worker.unfit", exit_code=NOT_MIGRATED),
            )
        elif wait is not None and time.monotonic() >= self._began_at + wait:
            self._exit_code = NO_DATABASE
            logger.error(
                "no database within %g s: %s",
                wait,
                first_line(error),
                extra=logs.event("worker.unfit", exit_code=NO_DATABASE),
            )
        else:
            return
        self._gave_up = True

    def _disown(self) -> None:
        """Give back what a lost reply has left with us; again each second until the leases of then have ended.

        The COMMIT may still be on its way in the server, and somebody may hold one of the rows.
        """
        keep = [attempt.job.pair for attempt in self.held.values()]
        try:
            while transitions.disown(self._using, self.worker_id, keep=keep, by=self.worker_id):
                pass
        except (DatabaseError, InterfaceError) as error:
            if is_broken(error):
                raise
            if not may_pass(error):
                # Somebody's trigger refuses one of them: the leases will end them, and there is other work to do.
                logger.error(
                    "jobs that this worker does not hold cannot be given back: %s",
                    first_line(error),
                    extra=logs.event("worker.trouble"),
                )
                self._disown_until = 0.0
        again_at = time.monotonic() + _DISOWN_SECONDS
        self._disown_at = again_at if again_at < self._disown_until else None

    def _write(self) -> None:
        if time.monotonic() < self._not_before:
            return
        self._resolve_doubt()
        while self._outcomes or (self._samples and self._in_doubt is None):
            batch, self._outcomes = self._outcomes[: transitions.BATCH], self._outcomes[transitions.BATCH :]
            try:
                busy = self._settle(batch)
            except BaseException:
                # Not taken, or nobody knows: they go over the next connection. Not those that were settled one by one.
                self._outcomes = [pair for pair in batch if self._holds(pair[0])] + self._outcomes
                raise
            if busy:
                self._outcomes = busy + self._outcomes
                self._not_before = time.monotonic() + _BUSY_SECONDS
                break
        if self._releases:
            self._release()

    def _resolve_doubt(self) -> None:
        """Samples whose flush got no reply are counted or not: they have no fence to tell. Until then they wait."""
        if self._in_doubt is None:
            return
        transaction_id, count = self._in_doubt
        committed = transitions.has_committed(self._using, transaction_id)
        if committed is not None:
            self._in_doubt = None
        if committed:
            del self._samples[:count]

    def _settle(self, batch: list[tuple[Attempt, Settled]]) -> list[tuple[Attempt, Settled]]:
        """Write these outcomes; return those whose rows were busy."""
        settlements = [attempt.settlement(outcome) for attempt, outcome in batch]
        samples = list(self._samples) if self._in_doubt is None else []
        receipts: list[str] = []
        try:
            fenced = transitions.settle(
                self._using, settlements, worker_id=self.worker_id, already=samples, receipt=receipts.append
            )
        except (DatabaseError, InterfaceError) as error:
            if samples and receipts:
                self._in_doubt = receipts[0], len(samples)
            if is_broken(error) or not batch:
                raise
            return self._settle_each(batch) if len(batch) > 1 else self._settle_refused(*batch[0], error)
        self._flushes += 1
        del self._samples[: len(samples)]
        newest = transitions.newest_of_each(settlements)
        for (attempt, _), settlement in zip(batch, settlements, strict=True):
            if newest[attempt.job.id] is settlement:
                self._settled(attempt, settlement, fenced)
            else:
                self._settled(attempt, settlement, Fenced(frozenset(), frozenset(), {attempt.job.id: State.RUNNING}))
        return [
            (attempt, outcome) for attempt, outcome in batch if attempt.job.id in fenced.busy and self._holds(attempt)
        ]

    def _settle_each(self, batch: list[tuple[Attempt, Settled]]) -> list[tuple[Attempt, Settled]]:
        """One of them is refused: each for itself, so that it takes nobody along."""
        before = self._flushes
        waiting, busy = deque(batch), list[tuple[Attempt, Settled]]()
        while waiting:
            busy += self._settle([waiting.popleft()])
            if len(busy) == _REFUSALS and self._flushes == before:
                break  # it is all of them: somebody has locked the table, and each would wait for that
        return [*waiting, *busy]

    def _settle_refused(self, attempt: Attempt, outcome: Settled, error: Exception) -> list[tuple[Attempt, Settled]]:
        """An outcome that the database refuses becomes a failed attempt that says so; or else the lease ends it."""
        if may_pass(error) and attempt.refusals < _REFUSALS:
            # What can be settled meanwhile shows that it is this one, and not a table that somebody has locked.
            if attempt.refused_at != self._flushes:
                attempt.refusals += 1
                attempt.refused_at = self._flushes
            return [(attempt, outcome)]
        replacement = executor.unrecordable(attempt, error)
        settlement = attempt.settlement(replacement)
        try:
            fenced = transitions.settle(self._using, [settlement], worker_id=self.worker_id)
        except (DatabaseError, InterfaceError) as second:
            if is_broken(second):
                raise
            self._forget(attempt)
            # The first line alone: in the others PostgreSQL shows the row, and so the payload.
            logger.error(
                "%s #%d: neither its outcome nor the refusal of it can be recorded; its lease will end it: %s",
                *(attempt.job.task, attempt.job.id, first_line(second)),
                extra=logs.event("job.refused", attempt.job),
            )
            return []
        self._settled(attempt, settlement, fenced)
        return [(attempt, outcome)] if attempt.job.id in fenced.busy else []

    def _settled(self, attempt: Attempt, settlement: Settlement, fenced: Fenced) -> None:
        id = attempt.job.id
        if id in fenced.busy:
            return
        self._forget(attempt)
        if attempt.settled_inside:
            return  # at the very end of its time; its success was logged
        if isinstance(settlement.outcome, Retried) and settlement.outcome.delay < conf.current().CHORE_INTERVAL:
            self._chores.nudge()  # it may not be listening
        if id in fenced.moved or (fenced.gone.get(id) == settlement.outcome.state and self._is_newest(attempt)):
            # Gone in the very state that we meant to write: the reply to our first try was lost.
            self._announce(attempt, settlement)
        elif attempt.committing and fenced.gone.get(id) == State.SUCCEEDED and self._is_newest(attempt):
            # The handler saw its COMMIT fail: it was carried out, and the reply was lost.
            self._count_settled_inside(attempt, attempt.committing)
        else:
            state = fenced.gone.get(id)
            logger.warning(
                "%s #%d: outcome %s dropped, the job is %s now",
                *(settlement.job.task, id, settlement.outcome.state, state or "gone"),
                extra=logs.event("job.dropped", attempt.job),
            )

    def _is_newest(self, attempt: Attempt) -> bool:
        """Whether nobody has claimed its job since."""
        job = attempt.job
        return Job.objects.using(self._using).filter(pk=job.id, fencing_token=job.fencing_token).exists()

    def _release(self) -> None:
        batch, self._releases = self._releases[: transitions.BATCH], self._releases[transitions.BATCH :]
        try:
            busy = self._give_back(batch)
        except BaseException:
            self._releases = batch + self._releases
            raise
        if busy:
            self._releases = busy + self._releases
            self._not_before = time.monotonic() + _BUSY_SECONDS

    def _give_back(self, batch: list[tuple[Claimed, bool]]) -> list[tuple[Claimed, bool]]:
        """Release these jobs; return those whose rows were busy."""
        unknown = {job.id for job, is_unknown in batch if is_unknown}
        busy: Collection[int] = ()
        refused = set[int]()
        try:
            busy = transitions.release(self._using, [job.pair for job, _ in batch], unknown=unknown).busy
        except (DatabaseError, InterfaceError) as error:
            if is_broken(error):
                raise
            if may_pass(error):
                return batch
            if len(batch) > 1:
                return [pair for one in batch for pair in self._give_back([one])]
            ((job, _),) = batch
            if self._is_ending:
                self._exit_code = self._exit_code or RELEASED
            refused.add(job.id)
            logger.error(
                "%s #%d cannot be given back; its lease will end it: %s",
                *(job.task, job.id, first_line(error)),
                extra=logs.event("job.refused", job),
            )
        for job, _ in batch:
            if job.id in busy:
                continue
            if self._left is not None:
                self._left += 1
            if job.id in self.held and self.held[job.id].job is job:
                if job.id in refused:
                    del self.held[job.id]  # it stays on the board: if it had begun, it is charged
                else:
                    self._forget(self.held[job.id])
        return [(job, is_unknown) for job, is_unknown in batch if job.id in busy]

    # Claim and hand out ----------------------------------------------------------------------------------------

    def _may_claim(self) -> bool:
        if self._is_ending or self._is_quiet or (self._looked_at is not None and not self._heartbeat.is_in_time):
            return False
        return self._left is None or self._left > 0

    @property
    def _is_ending(self) -> bool:
        return bool(self._signals) or self._worn_out or self._is_retiring

    def _room(self) -> int:
        """How many more jobs may be claimed: free slots, and what these will finish in a moment."""
        if self._announcer.is_behind:
            return 0
        load = self._slots.load
        ahead = self._prefetch.ahead(busy=load >= self.options.concurrency)
        room = self.options.concurrency + ahead - load
        if self._left is not None:
            room = min(room, self._left)
        # Not one by one while others wait for a slot: half of what may be ahead is one claim's worth.
        return room if room > ahead // 2 or not self._slots.waiting else 0

    def _claim(self) -> None:
        if not self._may_claim() or time.monotonic() < self._supply.next_claim_at or self._room() <= 0:
            return
        if self._supply.pauses_are_stale:
            self._supply.take_pauses(queues.paused(self._using))
        if self._supply.stale:
            self._supply.refresh(transitions.ready_queues(self._using))
        full, found = False, 0
        for name in self._supply.in_turn():
            room = self._room()
            free = max(0, min(room, self.options.concurrency - self._slots.load))
            if capped := (most := self._caps.room(name, room)) < room:
                room, free = most, min(free, most)
            claimed = self._claim_from(name, free, room - free) if room > 0 else 0
            found += claimed
            if claimed < free:
                self._supply.ran_dry(name)
                continue
            if capped:
                continue  # on to queues that may have more; this one's turn is when one of its own has ended
            full = True
            if claimed < room:
                # Nothing more, or a last attempt, for which a slot must be free.
                self._prefetch.fell_short()
            # Not on to the next queue with a slot that has come free meanwhile: this one comes first.
            break
        self._supply.claimed(full=full, some=found > 0)
        if self._looked_at is None and self._board is not None:
            self._board.ready()
        self._looked_at = time.monotonic()

    def _claim_from(self, queue_name: str, slots: int, prefetch: int) -> int:
        after = self._supply.resume(queue_name)
        sent_at = lease_clock()
        began = time.monotonic()
        claimed = transitions.claim(
            self._using,
            queue_name=queue_name,
            slots=slots,
            prefetch=prefetch,
            worker_id=self.worker_id,
            lease_seconds=self.options.lease,
            after=after,
        )
        full = len(claimed) == slots + prefetch
        slow = time.monotonic() - began > max(_SLOW_CLAIM_SECONDS, _SLOW_JOB_SECONDS * len(claimed))
        self._supply.walked(queue_name, claimed[-1].place if full else None, resumed=after is not None, slow=slow)
        if after is not None and not full:
            # What has other priorities, or has come back before that place, is found from the head.
            free = max(0, slots - len(claimed))
            self._take_on(claimed, sent_at)
            return len(claimed) + self._claim_from(queue_name, free, slots + prefetch - len(claimed) - free)
        self._take_on(claimed, sent_at)
        return len(claimed)

    def _take_on(self, claimed: Sequence[Claimed], sent_at: float) -> None:
        tasks = [self._resolve(job.task) for job in claimed]
        rows = self._rows(claimed, tasks)  # if that fails, they are given back as those of a lost reply are
        if self._left is not None:
            self._left -= len(claimed)
        attempts = []
        for job, task in zip(claimed, tasks, strict=True):
            if before := self.held.get(job.id):
                # Cancelled or reaped and sent back, faster than a heartbeat could tell.
                self._take_loss(before, State.RUNNING)
            self.held[job.id] = attempt = Attempt(job, task or _UNKNOWN, sent_at + self.options.lease, self._board)
            if task is not None:
                attempt.row = rows.get(job.id)
                attempts.append(attempt)
                self._caps.took(job.queue_name)
            else:
                attempt.ended = True
                self._releases.append((job, True))
        self._prefetch.claimed(attempts, strangers=len(claimed) - len(attempts))
        self._slots.offer(attempts)

    def _rows(self, claimed: Sequence[Claimed], tasks: Sequence[Task[Any, Any] | None]) -> Mapping[int, Job]:
        """Of the tasks of Django's among them the whole rows: their receivers and contexts are told everything.

        Here in one query, not by each handler, whose connection may have to be opened for it.
        """
        ids = [job.id for job, task in zip(claimed, tasks, strict=True) if task is not None and task.origin is not None]
        try:
            return Job.objects.using(self._using).in_bulk(ids) if ids else {}
        except Exception as error:
            if is_broken(error):
                raise
            # What somebody wrote into one of them cannot be read: each handler reads its own, and that one fails alone.
            return {}

    def _resolve(self, path: str) -> Task[Any, Any] | None:
        """None in a rolling deploy: some other worker knows the task, or soon will."""
        try:
            return resolve(path)
        except TaskNotFound as error:
            if self._supply.first_time(path):
                logger.warning(
                    "task %s is not known here, its jobs go back uncharged: %s",
                    *(path, error),
                    extra=logs.event("job.unknown", task=path),
                )
            return None

    # The end ---------------------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        if self._gave_up:
            return True
        if self.held or self._outcomes or self._releases or self._samples:
            # Whatever happens to the database: after a second signal, and a moment after the time to finish.
            return self._stop_at is not None and time.monotonic() > self._stop_at + (
                1.0 if len(self._signals) < 2 else 0.5
            )
        if self._is_over():
            return self._have_receivers_heard()
        self._hear_until = None
        return False

    def _is_over(self) -> bool:
        if self._is_ending:
            return True
        if self._left is not None and self._left <= 0:
            return True
        return self.options.drain and self._supply.dry and not self._is_anything_due()

    def _have_receivers_heard(self) -> bool:
        """Of every outcome; or they have had as long for it as handlers have at a stop, since nothing ends them."""
        if not self._announcer.waiting:
            return True
        now = time.monotonic()
        if self._hear_until is None:
            self._hear_until = now + self.options.shutdown_timeout
        return now > (self._hear_until if self._stop_at is None else self._stop_at)

    def _is_anything_due(self) -> bool:
        """Whether a job that this worker takes could run now: ready, or due and about to be promoted."""
        try:
            ready = Job.objects.using(self._using).filter(state=State.QUEUED)
            due = Job.objects.using(self._using).due()
            # In this order: one that is promoted between the two is seen by the first.
            return any(self._supply.of_mine(jobs).exists() for jobs in (due, ready))
        except (DatabaseError, InterfaceError):
            drop(self._using)
            return True

    def _end(self) -> None:
        if self.held:
            self._exit_code = self._exit_code or RELEASED
            logger.warning(
                "%d jobs could not be given back; their leases will end them",
                len(self.held),
                extra=logs.event("worker.trouble", held=len(self.held)),
            )
        if self._announcer.waiting:
            logger.warning(
                "%d outcomes are in their rows, and their receivers of task_finished were not told",
                self._announcer.waiting,
                extra=logs.event("worker.trouble"),
            )
        self._slots.close()
        announcer = self._announcer if self._announcer.is_alive() else None
        of_loop = (self._heartbeat, self._chores, self._listener, announcer)
        threads = [thread for thread in of_loop if thread is not None]
        for thread in threads:
            thread.stop()
        if len(self._signals) < 2 and not self._trouble.failing:
            # Their sessions end with them; and a heartbeat on its way would put the worker's row back.
            until = time.monotonic() + _JOIN_SECONDS
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
        try:
            if not self._trouble.failing:
                with connections[self._using].cursor() as cursor:
                    cursor.execute("DELETE FROM pgqueue_worker WHERE id = %s", [self.worker_id])
        except (DatabaseError, InterfaceError):
            pass
        if len(self._signals) > 1:
            self._exit_code = 128 + self._signals[-1]
        done = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items())) or "no jobs"
        counts = {str(state): count for state, count in self.counts.items()}
        logger.info("ended: %s", done, extra=logs.event("worker.stopped", exit_code=self._exit_code, counts=counts))

    @property
    def has_deaf_handlers(self) -> bool:
        """Whether handlers still run after the end: only the end of the process stops them."""
        return self._slots.load > 0

    def _worker_row(self) -> list[object]:
        options = self.options
        return [
            *(self.worker_id, self.name[:100], socket.gethostname(), os.getpid()),
            *(json.dumps(list(options.queues)), options.concurrency, options.lease),
            *(self._version, json.dumps(declared_tasks()[:MAX_WORKER_TASKS])),
        ]

    def _announce(self, attempt: Attempt, settlement: Settlement) -> None:
        """Its outcome is in the row."""
        self._log(settlement)
        if self._count is not None:
            self._count(settlement)
        self._announcer.announce(attempt, settlement.outcome)

    def _log(self, settlement: Settlement) -> None:
        """One line per outcome. Payloads are never logged."""
        job, outcome = settlement.job, settlement.outcome
        self.counts[outcome.state] = self.counts.get(outcome.state, 0) + 1
        level = logging.INFO if isinstance(outcome, Succeeded) else logging.WARNING
        if not logger.isEnabledFor(level):
            return
        parts = [f"{job.task} #{job.id} {outcome.state}", f"attempt {job.attempt}/{job.max_attempts}"]
        facts: dict[str, object] = {"max_attempts": job.max_attempts}
        if settlement.run_seconds is not None:
            facts["run_seconds"] = round(settlement.run_seconds, 6)
            parts.append(f"ran {settlement.run_seconds:.3f} s")
        if settlement.pickup_seconds is not None:
            facts["pickup_seconds"] = round(settlement.pickup_seconds, 6)
            parts.append(f"picked up after {settlement.pickup_seconds:.3f} s")
        if not isinstance(outcome, Succeeded):
            first_line = outcome.failure.message.split("\n", 1)[0]
            facts |= {"kind": str(outcome.failure.kind), "error_type": outcome.failure.error_type}
            parts.append(f"{outcome.failure.kind}: {outcome.failure.error_type}: {first_line}"[:300])
        logger.log(level, ", ".join(parts), extra=logs.event(_EVENTS[outcome.state], job, **facts))


def _version() -> str:
    try:
        return version("pgqueue-django")
    except PackageNotFoundError:  # run from a checkout
        return ""


__all__ = ["CLEAN", "RELEASED", "Loop", "Options"]
