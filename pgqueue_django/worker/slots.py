"""The places where handlers run: threads for plain ones, one event loop for async ones.

Owns the attempts that wait for a place and the rule that at most ``size`` run at the same time, threads and
coroutines together. One lock guards both, so an attempt is begun or taken back, never both. The loop offers
attempts and hears of their ends through ``ended``; nothing here knows the database.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from psycopg import pq

from pgqueue_django import logs
from pgqueue_django.exceptions import Interrupt
from pgqueue_django.outcomes import Outcome
from pgqueue_django.worker import executor
from pgqueue_django.worker.executor import Attempt

logger = logging.getLogger("pgqueue_django.worker")

_CANCEL_SECONDS = 2.0  # for the server to confirm that it cancels a statement
_LOOK_SECONDS = 0.0005  # how long a thread looks on before it takes work beside others who get on
_CLEAN_UP_SECONDS = 2.0  # for a handler to end after it was interrupted, before it is interrupted again
TRIES = 3  # and then nothing stops it
_TURN_SECONDS = 1.0  # without a turn of the event loop, until whoever keeps it is named


class _Slot:
    """One thread. ``broken``: it was interrupted, and is thrown away after its attempt."""

    def __init__(self) -> None:
        self.wrappers: list[Any] = []
        self.broken = False
        self.is_new = True


class Slots:
    """``size`` places; threads are started as they are needed, the event loop with the first async attempt."""

    def __init__(
        self, size: int, using: str, ended: Callable[[Attempt, Outcome], None], deaf: Callable[[Attempt], None]
    ) -> None:
        self.size = size
        self._using = using
        self._ended = ended
        self._deaf = deaf
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[Attempt] = deque()  # for a place
        self._placed: deque[Attempt] = deque()  # plain, with a place: the next thread begins it
        self._beginning: deque[Attempt] = deque()  # async, with a place: the event loop begins it
        self._busy = 0  # places taken
        self._threads = 0
        self._idle = 0  # threads that wait and that nobody has woken yet
        self._ends = 0  # plain attempts that have ended
        self._ends_at_call = 0  # and as a thread was called for the last time
        self._coming = 0  # threads that were woken or started, or have just ended an attempt, and will look here
        self._closed = False
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._has_turned = True  # the event loop, since it was looked at
        self._looked_at = 0.0
        self._still = 0.0  # seconds without a turn that the process was awake for
        self._told: set[str] = set()
        self._interrupted: set[Attempt] = set()  # and still running

    @property
    def load(self) -> int:
        """Attempts that run or wait here."""
        with self._lock:
            return self._busy + len(self._waiting)

    @property
    def busy(self) -> int:
        """Attempts that run."""
        return self._busy

    @property
    def waiting(self) -> int:
        """Attempts that wait for a place."""
        return len(self._waiting)

    def offer(self, attempts: Sequence[Attempt]) -> None:
        """Run these, in their order, as places come free."""
        with self._lock:
            self._waiting.extend(attempts)
            self._give_places()
            coroutines = bool(self._beginning)
        if coroutines:
            self._call_event_loop()

    def take_back(self) -> list[Attempt]:
        """Every attempt that has not begun; none of them will."""
        with self._lock:
            attempts = [*self._placed, *self._beginning, *self._waiting]
            self._busy -= len(self._placed) + len(self._beginning)
            for queue in (self._placed, self._beginning, self._waiting):
                queue.clear()
        return attempts

    def oldest_wait(self) -> float | None:
        """When the attempt that waits longest was claimed (time.monotonic()), None if none waits."""
        with self._lock:
            queues = (self._placed, self._beginning, self._waiting)
            return min((queue[0].claimed_at for queue in queues if queue), default=None)

    def look_at_event_loop(self) -> None:
        """To be called several times a second while attempts run: name a task that keeps the event loop to itself.

        Leases do not suffer from it, but no other async attempt gets on meanwhile, nor hears of its deadline.
        """
        event_loop, now = self._event_loop, time.monotonic()
        awake, self._looked_at = min(now - self._looked_at, _TURN_SECONDS / 2), now
        if event_loop is None or self._closed:
            return
        if self._has_turned:
            self._has_turned, self._still = False, 0.0
            event_loop.call_soon_threadsafe(setattr, self, "_has_turned", True)
            return
        self._still += awake
        if self._still < _TURN_SECONDS or (keeper := asyncio.current_task(event_loop)) is None:
            return
        name = keeper.get_name()
        kind, _, number = name.partition(" #")
        if not number:
            kind = name = f"{getattr(keeper.get_coro(), '__qualname__', name)}, which an async job has started,"
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                "%s has kept the event loop for %.1f s: no other async job gets on before it awaits something",
                *(name, self._still),
                extra=logs.event("job.blocking", task=kind),
            )

    def interrupt(self, attempt: Attempt, why: type[Interrupt]) -> None:
        """Stop a handler whose outcome counts no more, as far as that can be done from outside.

        A coroutine is cancelled; of a thread the statement that it waits for is cancelled on the server, or else
        ``why`` is raised in it; again after a while for what goes on all the same. ``deaf`` hears of an attempt that
        nothing stops: its place is lost to this process.
        """
        with self._lock:
            slot, running = attempt.slot, attempt.slot is not None or attempt.coroutine is not None
            if slot is not None:
                # Under the lock: a slot that has gone on to its next attempt is not touched.
                slot.broken = True
            if running:
                self._interrupted.add(attempt)
        wrappers = attempt.wrappers if slot is None else slot.wrappers
        # Before the handler can know: what it sends then may be its cleaning up.
        active = [wrapper for wrapper in wrappers if _is_active(wrapper)]
        attempt.void.set()
        self._cancel_coroutine(attempt)
        if running:
            # The server's answer is waited for elsewhere: the caller has other jobs to look after.
            _start(self._stop, attempt, why, wrappers, active, name="pgqueue stop")

    def _stop(self, attempt: Attempt, why: type[Interrupt], wrappers: Sequence[Any], active: Sequence[Any]) -> None:
        for tries in count(1):
            for wrapper in active:
                # The server is gone, and perhaps another one has its place: nothing would ever come. Or what was sent
                # to cancel it does not get there: several poolers behind one address do not know each other's clients.
                if tries == TRIES or not _cancel_statement(wrapper):
                    _cut(wrapper)
            # Who has been told otherwise has a moment to end by itself.
            if attempt.guard is not None and (tries > 1 or not (active or attempt.void.is_watched)):
                attempt.guard.interrupt(why)
            if self._closed or attempt.left.wait(_CLEAN_UP_SECONDS):
                return
            if tries == TRIES:
                self._deaf(attempt)
            # It may have been between two statements, or still connecting; or it has caught what was raised.
            active = [wrapper for wrapper in wrappers if _is_active(wrapper)]
            self._cancel_coroutine(attempt)

    def _cancel_coroutine(self, attempt: Attempt) -> None:
        with self._lock:
            coroutine, event_loop = attempt.coroutine, self._event_loop
        # What comes behind the handler gives its thread and connections back: that must not be cancelled.
        if coroutine is not None and event_loop is not None and not attempt.is_cleaning_up:
            event_loop.call_soon_threadsafe(coroutine.cancel)

    def close(self) -> None:
        """Let the idle threads and the event loop end. Handlers that still run are not waited for, their spans end."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._event_loop.stop)
        with self._lock:
            deaf = list(self._interrupted)
        for attempt in deaf:
            attempt.end_span()

    def _give_places(self) -> None:
        """Free places go to those who wait, in their order, and threads are called for them. Under the lock."""
        if self._closed:
            return
        while self._waiting and self._busy < self.size:
            attempt = self._waiting.popleft()
            self._busy += 1
            (self._beginning if attempt.task.is_async else self._placed).append(attempt)
        self._call_thread()

    def _call_thread(self) -> None:
        """See to it that a thread comes for what is placed. Under the lock.

        One at a time, and it calls the next one before it begins its attempt: if its handler waits for something,
        that one is there at once, and if it does not, it can take what the next one would have come for (see
        ``_next_plain``).
        """
        if self._coming or not self._placed or self._closed:
            return
        if self._idle:
            # Counted here and not by the thread as it wakes: until then a second call would count on it again.
            self._idle -= 1
            self._coming += 1
            self._ends_at_call = self._ends
            self._work.notify()
        # If there can be no more, whoever ends next takes what is placed; or it is taken back.
        elif self._threads < self.size and _start(self._run_thread, name="pgqueue slot"):
            self._threads += 1
            self._coming += 1
            self._ends_at_call = self._ends

    # Threads ---------------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        slot = _Slot()
        try:
            executor.prepare_thread(slot.wrappers)
            while (attempt := self._next_plain(slot)) is not None:
                outcome = executor.run(attempt, self._using, slot.wrappers)
                self._end_in_thread(slot, attempt, outcome)
                # Not kept until the next attempt: its arguments and its result may be large.
                del attempt, outcome
                if slot.broken:
                    break
        finally:
            with self._lock:
                self._threads -= 1
                if not slot.broken:
                    self._coming -= 1
                self._give_places()
            executor.throw_connections_away()

    def _next_plain(self, slot: _Slot) -> Attempt | None:
        """The next attempt for this thread, when there is one; None: no more.

        A thread that was called looks on while others end attempts: handlers that never wait are done no sooner by
        two threads than by one, but threads that compete for the interpreter cost a third of a worker's time.
        """
        with self._lock:
            is_called, seen = slot.is_new, self._ends_at_call
            slot.is_new = False
            while not self._closed:
                if self._placed and (not is_called or self._ends == seen):
                    self._coming -= 1
                    attempt = self._placed.popleft()
                    attempt.slot = slot
                    self._call_thread()
                    return attempt
                if self._placed:
                    seen = self._ends
                    # Nobody else is called meanwhile: this one is still coming.
                    self._work.wait(_LOOK_SECONDS)
                    continue
                self._coming -= 1
                self._idle += 1
                self._work.wait()
                is_called, seen = True, self._ends_at_call
            return None

    def _end_in_thread(self, slot: _Slot, attempt: Attempt, outcome: Outcome) -> None:
        try:
            with self._lock:
                attempt.slot = None
                attempt.left.set()
                self._interrupted.discard(attempt)
                self._busy -= 1
                self._ends += 1
                if not slot.broken:
                    self._coming += 1
                self._give_places()
                coroutines = bool(self._beginning)
            if coroutines:
                self._call_event_loop()
        finally:
            # Last, so that the loop finds the place free; but in any case, or nobody would ever hear of it.
            self._ended(attempt, outcome)

    # The event loop --------------------------------------------------------------------------------------------

    def _call_event_loop(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._event_loop is None:
                loop = asyncio.new_event_loop()
                if not _start(self._run_event_loop, loop, name="pgqueue event loop"):
                    return
                self._event_loop = loop
            loop = self._event_loop
        loop.call_soon_threadsafe(self._begin_coroutines, loop)

    def _run_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed:
            self._guard(loop.run_forever)
        # Those that were interrupted have a moment to clean up and to close their connections.
        if left := asyncio.all_tasks(loop):
            self._guard(lambda: loop.run_until_complete(asyncio.wait(left, timeout=_CLEAN_UP_SECONDS)))
        if not asyncio.all_tasks(loop):
            loop.close()

    @staticmethod
    def _guard(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            # asyncio lets SystemExit and KeyboardInterrupt of a task through to whoever runs the loop. A task
            # that a handler has started must not stop the others; who awaits it gets the error, too.
            logger.warning(
                "%s in a task that a handler has started", type(error).__name__, extra=logs.event("worker.trouble")
            )

    def _begin_coroutines(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._beginning or self._closed:
                    return
                attempt = self._beginning.popleft()
                # An empty context, as in executor.run.
                name = f"{attempt.job.task} #{attempt.job.id}"
                coroutine = loop.create_task(
                    executor.run_async(attempt, self._using), name=name, context=contextvars.Context()
                )
                attempt.coroutine = coroutine
            # Not in the coroutine: one that is cancelled before its first step never runs a line of it.
            coroutine.add_done_callback(partial(self._end_coroutine, attempt, loop))

    def _end_coroutine(
        self, attempt: Attempt, loop: asyncio.AbstractEventLoop, coroutine: asyncio.Task[Outcome]
    ) -> None:
        outcome: Outcome
        try:
            outcome = coroutine.result()
        except BaseException as error:  # cancelled before its first step, or while its connections were being closed
            outcome = executor.ended_with(attempt, error)
        try:
            with self._lock:
                self._busy -= 1
                attempt.coroutine = None
                attempt.left.set()
                self._interrupted.discard(attempt)
                self._give_places()
            self._begin_coroutines(loop)
        finally:
            self._ended(attempt, outcome)


def _start(target: Callable[..., None], *args: Any, name: str) -> bool:
    """Start a thread. False: the system has none left; that must cost nobody an outcome."""
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        logger.warning("%s: %s", name, error, extra=logs.event("worker.trouble"))
        return False
    return True


def _is_active(wrapper: Any) -> bool:
    connection = wrapper.connection
    return (
        connection is not None
        and hasattr(connection, "cancel_safe")
        and connection.info.transaction_status == pq.TransactionStatus.ACTIVE
    )


def _cancel_statement(wrapper: Any) -> bool:
    try:
        wrapper.connection.cancel_safe(timeout=_CANCEL_SECONDS)
    except Exception as error:  # closed meanwhile; or the server does not answer
        logger.info("a statement could not be cancelled: %s", error, extra=logs.event("worker.trouble"))
        return False
    return True


def _cut(wrapper: Any) -> None:
    """Shut the connection down under the thread that waits on it; it is thrown away in any case."""
    try:
        with socket.socket(fileno=os.dup(wrapper.connection.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    except Exception as error:  # closed meanwhile
        logger.info("a connection could not be cut: %s", error, extra=logs.event("worker.trouble"))
