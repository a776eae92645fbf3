"""Leases: a thread with a connection of its own that extends them all, whatever the rest of the worker does.

Owns the moment ``lease_until`` of each attempt. It never waits for a row, a handler or the loop. What the fence
answers goes to the loop as an event: *gone* means that the attempt is void.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from django.db import DatabaseError, connections

from pgqueue_django import logs, transitions
from pgqueue_django.states import State
from pgqueue_django.worker.connections import Grumbler, drop, first_line, is_broken, may_pass, own_connection
from pgqueue_django.worker.executor import Attempt, lease_clock
from pgqueue_django.worker.memory import resident_bytes

logger = logging.getLogger("pgqueue_django.worker")

_AGAIN_SECONDS = 0.5  # after a beat that met a row which someone holds

# The first beats come sooner: workers that were started together have then counted each other.
_FIRST_SECONDS = (1.0, 3.0)

_REGISTER = """
    INSERT INTO pgqueue_worker (id, name, host, pid, queues, concurrency, lease_seconds, version, tasks, running,
                                memory_bytes, skew_seconds)
    VALUES (%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s::jsonb, %s, %s,
            %s::float8 - EXTRACT(EPOCH FROM statement_timestamp())::float8)
    ON CONFLICT (id) DO UPDATE SET running = excluded.running, memory_bytes = excluded.memory_bytes,
        skew_seconds = excluded.skew_seconds, heartbeat_at = statement_timestamp()
    RETURNING (SELECT count(*) FROM pgqueue_worker other WHERE other.id <> pgqueue_worker.id
               AND other.heartbeat_at > statement_timestamp() - make_interval(secs => %s))
"""


class Heartbeat(threading.Thread):
    """Beats at once when ``nudge`` is called, else each ``interval`` seconds, until ``stop``.

    ``held`` gives the attempts at this moment; ``lost`` hears of each that is gone, with its state now (None:
    the row is gone, too), ``recovered`` of the first beat after ``is_in_time`` was False; ``row`` is what
    stays the same of this worker's row in the table of workers.
    """

    def __init__(
        self,
        using: str,
        *,
        interval: float,
        lease_seconds: float,
        held: Callable[[], Iterable[Attempt]],
        lost: Callable[[Attempt, State | None], None],
        recovered: Callable[[], None],
        row: Callable[[], list[object]],
    ) -> None:
        super().__init__(name="pgqueue heartbeat", daemon=True)
        self._using = using
        self._interval = interval
        # If the line swallows a beat, the next one finds another line before the lease ends.
        self._silence = min(20.0, max(1.0, interval))
        self._lease_seconds = lease_seconds
        self._held = held
        self._lost = lost
        self._recovered = recovered
        self._row = row
        self.others = 0
        """Other workers that are alive, whatever their queues; of the last beat."""
        self._renewed_at = lease_clock()
        self._nudged = threading.Event()
        self._stopping = False
        self._grumbler = Grumbler("heartbeat")

    @property
    def is_in_time(self) -> bool:
        """Whether leases can be renewed: the last time that they were is less than a lease ago."""
        return lease_clock() < self._renewed_at + self._lease_seconds

    def nudge(self) -> None:
        self._nudged.set()

    def stop(self) -> None:
        self._stopping = True
        self._nudged.set()

    def run(self) -> None:
        pause = 0.0
        first = iter(_FIRST_SECONDS)
        with own_connection(self._using, "heartbeat", silence=self._silence):
            while not self._stopping:
                self._nudged.wait(pause)
                self._nudged.clear()
                if not self._stopping:
                    pause = min(self._try_to_beat(), next(first, self._interval))

    def _try_to_beat(self) -> float:
        """Beat, and return the seconds until the next one."""
        try:
            busy = self.beat()
        except Exception as error:  # whatever it is: without this thread every lease would be lost
            self._grumbler.failed(error)
            drop(self._using)
            return min(self._interval / 4, 1.0) * random.uniform(0.5, 1.0)  # noqa: S311
        self._grumbler.worked()
        return min(_AGAIN_SECONDS, self._interval) if busy else self._interval

    def beat(self) -> bool:
        """Extend every lease once. True: some rows were busy, try again soon."""
        attempts = {attempt.job.id: attempt for attempt in self._held()}
        ids = sorted(attempts)
        busy = False
        sent_at = lease_clock()
        for start in range(0, len(ids), transitions.BATCH):
            part = [attempts[id] for id in ids[start : start + transitions.BATCH]]
            busy |= self._beat_for(part)
        was_in_time, self._renewed_at = self.is_in_time, sent_at
        if not was_in_time:
            self._recovered()
        with connections[self._using].cursor() as cursor:
            facts = [len(attempts), resident_bytes(), time.time(), 2 * self._interval]
            cursor.execute(_REGISTER, [*self._row(), *facts])  # type: ignore[list-item]
            (self.others,) = cursor.fetchone()
        return busy

    def _beat_for(self, attempts: list[Attempt]) -> bool:
        try:
            return self._beat_once(attempts)
        except DatabaseError as error:
            if is_broken(error) or may_pass(error):
                raise
            if len(attempts) > 1:
                # Somebody's trigger refuses one of them; it must not cost the leases of the others.
                middle = len(attempts) // 2
                return any([self._beat_for(attempts[:middle]), self._beat_for(attempts[middle:])])
            job = attempts[0].job
            logger.error(
                "%s #%d: its lease cannot be extended: %s",
                *(job.task, job.id, first_line(error)),
                extra=logs.event("job.refused", job),
            )
            return False

    def _beat_once(self, attempts: list[Attempt]) -> bool:
        progress = {attempt.job.id: note for attempt in attempts if (note := attempt.take_progress()) is not None}
        sent_at = lease_clock()
        try:
            fenced = transitions.heartbeat(
                self._using,
                [attempt.job.pair for attempt in attempts],
                lease_seconds=self._lease_seconds,
                progress=progress,
            )
        except BaseException:
            self._keep_progress(attempts, progress, progress)
            raise
        self._keep_progress(attempts, progress, fenced.busy)
        for attempt in attempts:
            if attempt.job.id in fenced.moved:
                attempt.lease_until = max(attempt.lease_until, sent_at + self._lease_seconds)
            elif attempt.job.id in fenced.gone:
                self._lost(attempt, fenced.gone[attempt.job.id])
        return bool(fenced.busy)

    @staticmethod
    def _keep_progress(attempts: list[Attempt], progress: dict[int, str], unsent: Iterable[int]) -> None:
        for attempt in attempts:
            if attempt.job.id in progress and attempt.job.id in set(unsent):
                attempt.keep_progress(progress[attempt.job.id])
