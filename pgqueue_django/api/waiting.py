"""Waiting for jobs to end: one question for all who wait in this process, on a thread and a connection of its own.

Whoever waits is a future of his event loop and holds no connection and no transaction; an idle thread is what Django
gives each request under ASGI. Who goes away is forgotten. Those whose wait is over take turns: a thousand may have
waited for the same job. The thread that asks ends, and its connection with it, when nobody has waited for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, router

from pgqueue_django.answers import Unanswered
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED
from pgqueue_django.worker.connections import Backoff, Grumbler, drop, own_connection

logger = logging.getLogger("pgqueue_django")

MAX_WAITING = 1_000
"""Requests of one process that can wait at the same time; one more is answered at once."""
MAX_SECONDS = 25
MAX_TURNS = 8
"""Of those whose wait is over, so many look at their job at the same time."""
TURN_SECONDS = 4.5
"""So long one waits for his turn at the most."""
POLL_SECONDS = 0.1
_IDLE_SECONDS = 5.0

_Waiter = asyncio.Future[None]


class Waiting:
    """All who wait in this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiters: dict[int, set[_Waiter]] = defaultdict(set)
        self._count = 0
        self._thread: threading.Thread | None = None
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @property
    def count(self) -> int:
        return self._count

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Within it, who has waited looks at his job. Raises Unanswered when those before him take too long.

        While the database is frozen each of them takes as long as he may: a thousand would be minutes.
        """
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_TURNS))
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await turns.acquire()
        except TimeoutError as error:
            raise Unanswered("those who waited for their jobs before are not answered yet") from error
        try:
            yield
        finally:
            turns.release()

    async def until_finished(self, job_id: int, seconds: float) -> None:
        """Returns when the job has ended or is gone, when the time is over, or at once if too many wait already.

        Raises Unanswered where nobody can be started who would ask.
        """
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        if not self._add(job_id, waiter):
            return
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter, seconds)
        finally:
            self._remove(job_id, waiter)

    def _add(self, job_id: int, waiter: _Waiter) -> bool:
        with self._changed:
            if self._count >= MAX_WAITING:
                return False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._poll, name="pgqueue-waiting", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # no thread can be had just now
                    raise Unanswered(str(error)) from error
            self._waiters[job_id].add(waiter)
            self._count += 1
            self._changed.notify()
        return True

    def _remove(self, job_id: int, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters[job_id].discard(waiter)
            if not self._waiters[job_id]:
                del self._waiters[job_id]
            self._count -= 1

    def _poll(self) -> None:
        using = router.db_for_write(Job)
        backoff, grumbler = Backoff(), Grumbler("api: waiting for jobs")
        with own_connection(using, "api"):
            while ids := self._wanted():
                pause = POLL_SECONDS
                try:
                    unfinished = Job.objects.using(using).filter(pk__in=ids).exclude(state__in=FINISHED)
                    left = set(unfinished.values_list("pk", flat=True))
                    backoff.worked()
                    grumbler.worked()
                    self._tell(ids - left)
                except (DatabaseError, InterfaceError) as error:
                    grumbler.failed(error)
                    drop(using)
                    pause = backoff.failed()
                time.sleep(pause)

    def _wanted(self) -> set[int]:
        """The ids that somebody waits for; none: nobody has for a while, and the thread is no longer this one."""
        with self._changed:
            if not self._waiters:
                self._changed.wait(_IDLE_SECONDS)
            if not self._waiters:
                self._thread = None
            return set(self._waiters)

    def _tell(self, ids: set[int]) -> None:
        with self._changed:
            waiters = [waiter for id in ids for waiter in self._waiters.get(id, ())]
        for waiter in waiters:
            with contextlib.suppress(RuntimeError):  # its loop is closed, and so is its request
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: _Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


waiting = Waiting()
