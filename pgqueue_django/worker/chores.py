"""Housekeeping of the whole queue, done by whichever worker takes it: no leader, no election.

Each chore is a row with the moment when it is due. One UPDATE takes it and moves that moment on, then one
bounded batch runs with no lock on the row; so the work does not grow with the number of workers, and a worker
that dies in the middle costs one interval. Only adopting jobs is each worker's own, since each knows its tasks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.db import connections, transaction

from pgqueue_django import audit, conf, counts, logs, schedules, snapshot, stats, transitions, wakeups
from pgqueue_django.exceptions import TaskNotFound
from pgqueue_django.tasks import resolve
from pgqueue_django.worker.connections import Grumbler, drop, first_line, own_connection

logger = logging.getLogger("pgqueue_django.worker")

REAP, PROMOTE, FIRE, PRUNE, ROLL_UP, COUNT = "reap", "promote", "fire", "prune", "roll_up", "count"

_CHORES = [REAP, PROMOTE, FIRE, PRUNE, ROLL_UP, COUNT]
_ROLL_UP_SECONDS = 60.0
_PRUNE_SECONDS = 60.0
_COUNT_SECONDS = 60.0
_COUNT_REST = 100  # and so many times as long as a count took: a hundredth of one backend's time
# Between two batches while there is more to prune: 4,000 rows a second; nobody waits for any of them.
_PRUNE_AGAIN_SECONDS = 0.25
_KEEP_SECONDS = 60.0  # between two times that a worker says which schedules its code has
# Statistics are kept by minute and worker as long as a snapshot wants to know what there was of late. It adds up every
# row that is left: of 50 workers with 50 tasks each an hour took 400 ms.
_STAT_SECONDS = snapshot.RECENT_SECONDS + 120.0
_SOON = 0.01  # seconds to the next batch when this one was full, and the shortest interval of promote

# At the first start, and after a test or a person has emptied the table.
_PREPARE = "INSERT INTO pgqueue_chore (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING"

_FORGET_WORKERS = """
    DELETE FROM pgqueue_worker WHERE id = ANY(ARRAY(
        SELECT id FROM pgqueue_worker WHERE heartbeat_at < statement_timestamp() - interval '1 hour'
        LIMIT 1000 FOR UPDATE SKIP LOCKED))
"""


# Of the chores that this version knows: another one's would be due for ever.
_NEXT = """
    SELECT EXTRACT(EPOCH FROM min(due_at) - statement_timestamp())::float8, count(*) FROM pgqueue_chore
    WHERE name = ANY(%s::text[])
"""

_TAKE = """
    UPDATE pgqueue_chore SET due_at = statement_timestamp() + make_interval(secs => %s)
    WHERE name = (SELECT name FROM pgqueue_chore WHERE name = %s AND due_at <= statement_timestamp()
                  FOR UPDATE SKIP LOCKED)
"""

_PUT_OFF = """
    UPDATE pgqueue_chore SET due_at = GREATEST(due_at, statement_timestamp() + make_interval(secs => %s))
    WHERE name = %s
"""

_HURRY = """
    UPDATE pgqueue_chore SET due_at = statement_timestamp() + make_interval(secs => %s)
    WHERE name = (SELECT name FROM pgqueue_chore
                  WHERE name = %s AND due_at > statement_timestamp() + make_interval(secs => %s)
                  FOR UPDATE SKIP LOCKED)
"""

# The earliest waiting job's moment, or nothing; one probe of the index.
_EARLIEST = """
    SELECT EXTRACT(EPOCH FROM run_after - statement_timestamp())::float8 FROM pgqueue_job
    WHERE state IN ('scheduled', 'retrying') ORDER BY run_after LIMIT 1
"""


class Chores(threading.Thread):
    """Does what is due until ``stop``; looks at once when ``nudge`` is called.

    ``promoted`` hears that jobs have become ready.
    """

    def __init__(
        self,
        using: str,
        *,
        worker_id: str,
        interval: float,
        adopt_at_once: int,
        queues: Collection[str],
        excluded: Collection[str],
        promoted: Callable[[], None],
    ) -> None:
        super().__init__(name="pgqueue chores", daemon=True)
        self._using = using
        self._worker_id = worker_id
        self._interval = interval
        self._adopt_at_once = adopt_at_once
        self._queues = queues
        self._excluded = excluded
        self._promoted = promoted
        self._nudged = threading.Event()
        self._stopping = False
        self._hurried = False
        self._adopt_at = 0.0
        self._to_notify: tuple[str, Callable[[], None]] | None = None
        self._has_declared = False
        self._began_at = time.monotonic()
        self._keep_at = 0.0
        self._grumbler = Grumbler("chores")

    def nudge(self) -> None:
        """A waiting job may be due before the next look."""
        self._hurried = True
        self._nudged.set()

    def notify(self, channel: str, sent: Callable[[], None]) -> None:
        """Soon send a NOTIFY on this channel, and call ``sent`` then; the last one that was asked for."""
        self._to_notify = channel, sent
        self._nudged.set()

    def stop(self) -> None:
        self._stopping = True
        self._nudged.set()

    def run(self) -> None:
        pause = 0.0
        with own_connection(self._using, "chores"):
            while not self._stopping:
                self._nudged.wait(pause)
                self._nudged.clear()
                if not self._stopping:
                    pause = self._try()

    def _try(self) -> float:
        try:
            pause = self.look()
            self._notify()  # last: where NOTIFY fails, the chores are done all the same
        except Exception as error:  # whatever it is: the queue would stand still without this thread
            self._grumbler.failed(error)
            drop(self._using)
            return random.uniform(0.2, 1.0)  # noqa: S311
        self._grumbler.worked()
        return pause

    def look(self) -> float:
        """Do what is due; return the seconds until the next look."""
        if self._hurried:
            self._hurried = False
            self._hurry_promote()
        if self._take(REAP):
            self._reap()
        if self._take(PROMOTE):
            self._promote()
        self._declare()
        if self._take(FIRE):
            self._fire()
        if self._take(PRUNE, interval=_PRUNE_SECONDS):
            self._prune()
        if self._take(ROLL_UP, interval=_ROLL_UP_SECONDS):
            self._roll_up()
        if self._take(COUNT, interval=_COUNT_SECONDS):
            self._count()
        adopted_all = True
        if time.monotonic() >= self._adopt_at:
            adopted_all = self._adopt()
            self._adopt_at = time.monotonic() + (self._interval if adopted_all else 0.0)
        wait, known = self._query(_NEXT, [_CHORES])[0]
        if known < len(_CHORES):
            self._execute(_PREPARE, [_CHORES])
            return 0.0
        if not adopted_all:
            return _SOON
        # A little late on purpose, each worker by another little: they would all meet at the row.
        return min(self._interval, max(0.0, float(wait))) + random.uniform(0, 0.02 * self._interval)  # noqa: S311

    def _notify(self) -> None:
        if (order := self._to_notify) is None:
            return
        channel, sent = order
        wakeups.send(self._using, "", channel=channel)
        sent()
        if self._to_notify is order:
            self._to_notify = None

    def _reap(self) -> None:
        if transitions.reap(self._using, by=self._worker_id) == transitions.BATCH:
            self._execute(_HURRY, [_SOON, REAP, _SOON])
        self._execute(_FORGET_WORKERS)

    def _declare(self) -> None:
        """The schedules of this process's code: written once, and kept alive."""
        if not self._has_declared:
            self._has_declared = schedules.declare(self._using)
        if time.monotonic() >= self._keep_at:
            old = time.monotonic() > self._began_at + schedules.RETIRE_SECONDS
            schedules.keep(self._using, may_retire=old)
            self._keep_at = time.monotonic() + _KEEP_SECONDS

    def _fire(self) -> None:
        fired = schedules.fire(self._using)
        if fired.jobs:
            self._promoted()
        seconds = _SOON if fired.more else schedules.next_seconds(self._using)
        if seconds is not None and 0 < seconds < self._interval:
            wait = max(_SOON, seconds)
            self._execute(_HURRY, [wait, FIRE, wait])

    def _prune(self) -> None:
        moved = transitions.prune(self._using)
        if moved < transitions.BATCH and (most := conf.current().MAX_FINISHED) is not None:
            moved = transitions.prune_beyond(self._using, most)
        forgotten = 0
        if (age := conf.current().AUDIT_RETENTION) is not None:
            forgotten = audit.prune(self._using, older_seconds=age, limit=transitions.BATCH)
        if transitions.BATCH in (moved, forgotten):
            self._execute(_HURRY, [_PRUNE_AGAIN_SECONDS, PRUNE, _PRUNE_AGAIN_SECONDS])

    def _roll_up(self) -> None:
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            more = stats.roll_up(cursor, older_seconds=_STAT_SECONDS, limit=transitions.BATCH)
            more |= stats.thin(cursor, limit=transitions.BATCH)
        if more:
            self._execute(_HURRY, [_SOON, ROLL_UP, _SOON])

    def _count(self) -> None:
        """In a thread of its own: counting millions takes seconds, and nothing here can wait for it."""
        if crowds := counts.crowded(self._using):
            threading.Thread(target=_count, args=[self._using, crowds], name="pgqueue count", daemon=True).start()

    def _promote(self) -> None:
        moved = transitions.promote(self._using)
        if moved:
            self._promoted()
        if moved == transitions.BATCH:
            self._execute(_HURRY, [_SOON, PROMOTE, _SOON])
        else:
            self._hurry_promote(overdue=bool(moved))

    def _hurry_promote(self, *, overdue: bool = True) -> None:
        """Let promote be due when the earliest waiting job is.

        Not for one that is overdue after a run that moved nothing: somebody holds its row, and looking at it a
        hundred times a second would not free it.
        """
        rows = self._query(_EARLIEST)
        if rows and rows[0][0] < self._interval and (overdue or rows[0][0] > 0):
            wait = max(_SOON, rows[0][0])
            self._execute(_HURRY, [wait, PROMOTE, wait])

    def _adopt(self) -> bool:
        """Take on jobs that others handed back and that this worker knows. False: there may be more."""
        known = [path for path in transitions.parked_tasks(self._using) if _is_known(path)]
        if not known:
            return True
        moved = transitions.adopt(
            self._using, known, queues=self._queues, excluded=self._excluded, limit=self._adopt_at_once
        )
        if moved:
            self._promoted()
        return moved < self._adopt_at_once

    def _take(self, name: str, *, interval: float | None = None) -> bool:
        return self._execute(_TAKE, [interval or self._interval, name]) == 1

    def _execute(self, sql: str, params: list[Any] | None = None) -> int:
        # Autocommit: a process that freezes between a statement and its COMMIT would hold the row.
        with connections[self._using].cursor() as cursor:
            cursor.execute(sql, params)
            return int(cursor.rowcount)

    def _query(self, sql: str, params: list[Any] | None = None) -> list[Any]:
        with connections[self._using].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())


def _count(using: str, crowds: Sequence[counts.Crowd]) -> None:
    with own_connection(using, "count"):
        began = time.monotonic()
        try:
            try:
                counts.take(using, crowds)
            finally:
                with connections[using].cursor() as cursor:
                    cursor.execute(_PUT_OFF, [_COUNT_REST * (time.monotonic() - began), COUNT])
        except Exception as error:  # whatever it is, the next count may do better
            logger.warning("jobs were not counted: %s", first_line(error), extra=logs.event("worker.trouble"))


def _is_known(path: str) -> bool:
    try:
        resolve(path)
    except TaskNotFound:
        return False
    return True
