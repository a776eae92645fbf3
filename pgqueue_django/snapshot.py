"""One bounded, consistent reading of the whole queue.

Everything comes from one SQL statement, so all the numbers are of one moment, read from the database that the
jobs are written to. It looks at no more than ``CAP`` rows of each walk along a partial index (and at no more than
``READY`` ready jobs, or ``FEW`` in each queue), whatever the size of the table, and says where it stopped; what
``counts`` has counted beyond that comes with its age. It never counts finished jobs but failed and dead ones: what
succeeded or was cancelled has counters only. It writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections, router, transaction
from django.db.backends.utils import CursorWrapper

from . import stats
from .models import MAX_WORKER_TASKS, Job
from .states import WAITING, State
from .transitions import PARKED_TASKS

CAP = 10_000
"""Rows that one walk looks at: of one queue's ready jobs, of all waiting, all running, all failed, all dead."""
READY = 2 * CAP
"""Ready jobs that are looked at in all queues that have many, in equal parts: 100 walks of ``CAP`` took a second."""
FEW = 100
"""Ready jobs that are looked at in each queue in any case."""
MAX_QUEUES = 200
"""Queues with ready jobs that are counted apart; the rest is counted together, as ``OTHER``."""
MAX_PAIRS = 1_000
"""Pairs of queue and task whose counters are kept apart: those seen first. The rest is (``OTHER``, ``OTHER``)."""
MAX_SCHEDULES = 200
"""Schedules that have a name of their own; of the others the latest one is ``OTHER``."""
MAX_LISTED = 50
"""Late workers, and tasks that fail: the worst ones."""
RECENT_SECONDS = 600
"""What ``Snapshot.failing`` and ``Snapshot.expired_recently`` look back on, in whole minutes."""
MAX_SECONDS = 2
"""The statement is given up after this."""

OTHER = "other"

COUNTED = (State.SCHEDULED, State.QUEUED, State.RUNNING, State.RETRYING, State.FAILED, State.DEAD)


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of one queue are in one state.

    With ``capped`` there may be others: it is what ``counts`` has counted last, and at least what was seen.
    """

    queue_name: str
    state: State
    jobs: int
    capped: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """What all attempts of one task from one queue ended in, and how long they took, in seconds.

    Bucket counts are per bucket of ``stats.BOUNDS``, not cumulative; the last one is what lay beyond.
    """

    queue_name: str
    task: str
    succeeded: int
    retried: int
    failed: int
    dead: int
    expired: int
    pickup_counts: tuple[int, ...]
    pickup_seconds: float
    run_counts: tuple[int, ...]
    run_seconds: float


@dataclass(frozen=True, slots=True)
class Failing:
    """The attempts of one task that ended within ``RECENT_SECONDS``, some of them failed."""

    task: str
    attempts: int
    failures: int


@dataclass(frozen=True, slots=True)
class Table:
    """The table of jobs, as the server's statistics have it; they are estimates."""

    live_rows: int
    dead_rows: int
    vacuumed_seconds: float | None
    """Since the last vacuum; None: there was none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queue at ``taken_at``, the database's clock."""

    taken_at: datetime
    depths: tuple[Depth, ...]
    """In the order of queue and state; none where there are no jobs."""
    capped: frozenset[State]
    """States of which a walk stopped before its end: there may be more, and in queues that are not named."""
    count_ages: Mapping[State, float]
    """Of those states: seconds since ``counts`` has counted them; no entry where it has not yet."""
    oldest_due: Mapping[str, float]
    """Seconds since the job that waits longest in each queue could have run; no entry where none is due."""
    workers: int
    """Workers whose last heartbeat is younger than their lease."""
    slots: int
    """Jobs that these can run at the same time."""
    busy_slots: int
    """Jobs that they ran at their last heartbeats."""
    served: frozenset[str] | None
    """Queues that these were told to take; None: one of them takes all."""
    late_workers: Mapping[str, float]
    """Seconds since the last heartbeat of those whose lease has ended since, the latest first."""
    paused: Mapping[str, float]
    """Seconds since each paused queue was paused."""
    unknown_tasks: Mapping[str, float]
    """Seconds since a job of each task that no live worker says it knows was handed back; ``MAX_LISTED`` at most."""
    schedules: Mapping[str, float]
    """How late the next tick of each schedule is that is to fire, in seconds; 0: it has not come."""
    failing: tuple[Failing, ...]
    """Tasks with failed attempts of late, those with the most first."""
    expired_recently: int
    """Attempts of late whose lease expired."""
    table: Table
    tallies: tuple[Tally, ...]
    """In the order in which they were first seen, so that who has a name of its own keeps it."""


_BUCKETS = len(stats.BOUNDS) + 1
_OUTCOMES = ("succeeded", "retried", "failed", "dead", "expired")
# Each a column of the tally: its name, and what it sums over pgqueue_stat.
_SUMS = {
    **{name: name for name in (*_OUTCOMES, "pickup_seconds", "run_seconds")},
    **{f"pickup_{place}": f"pickup_counts[{place}]" for place in range(1, _BUCKETS + 1)},
    **{f"run_{place}": f"run_counts[{place}]" for place in range(1, _BUCKETS + 1)},
}


def knows_more(tasks: str) -> str:
    """SQL: whether the worker whose ``tasks`` these are may know others, too."""
    return f"CASE WHEN jsonb_typeof({tasks}) = 'array' THEN jsonb_array_length({tasks}) >= {MAX_WORKER_TASKS} END"


# Every walk is ordered as its index is. Failed and dead are told apart by a range, not by equality: the planner
# would drop an equal state from the order, and might walk the primary key over all jobs to find them.
# A ready job's due time is read from the head of each priority: the first row there has waited longest.
# A job that nobody knows the task of has been due since it was first handed back: each time its run_after moves on, and
# without this it would wait for ever, and no rule would say so.
_READING = f"""
WITH RECURSIVE name(queue_name) AS (
    (SELECT queue_name FROM pgqueue_job WHERE state = 'queued' ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue_name FROM pgqueue_job job
            WHERE job.state = 'queued' AND job.queue_name > name.queue_name
            ORDER BY job.queue_name LIMIT 1)
    FROM name WHERE name.queue_name IS NOT NULL
), named AS MATERIALIZED (
    SELECT queue_name FROM name WHERE queue_name IS NOT NULL LIMIT %(queues)s
), few AS MATERIALIZED (
    SELECT named.queue_name, walk.jobs
    FROM named
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM pgqueue_job job WHERE job.state = 'queued' AND job.queue_name = named.queue_name
            ORDER BY job.priority DESC, job.run_after, job.id LIMIT %(few)s) AS seen
    ) AS walk
), part AS MATERIALIZED (
    SELECT LEAST(%(cap)s, GREATEST(%(few)s, %(ready)s / GREATEST(1, count(*)))) AS jobs
    FROM few WHERE jobs >= %(few)s
), ready AS MATERIALIZED (
    SELECT few.queue_name, GREATEST(few.jobs, walk.jobs) AS jobs, walk.jobs >= part.jobs AS has_more, head.due
    FROM part
    CROSS JOIN few
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM pgqueue_job job WHERE job.state = 'queued' AND job.queue_name = few.queue_name
            ORDER BY job.priority DESC, job.run_after, job.id
            LIMIT CASE WHEN few.jobs >= %(few)s THEN part.jobs ELSE 0 END) AS seen
    ) AS walk
    CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority, due) AS (
            (SELECT job.priority, GREATEST(job.run_after, job.enqueued_at) FROM pgqueue_job job
             WHERE job.state = 'queued' AND job.queue_name = few.queue_name
             ORDER BY job.priority DESC, job.run_after, job.id LIMIT 1)
            UNION ALL
            SELECT lower.priority, lower.due FROM level CROSS JOIN LATERAL (
                SELECT job.priority, GREATEST(job.run_after, job.enqueued_at) AS due FROM pgqueue_job job
                WHERE job.state = 'queued' AND job.queue_name = few.queue_name AND job.priority < level.priority
                ORDER BY job.priority DESC, job.run_after, job.id LIMIT 1) AS lower
        )
        SELECT min(due) AS due FROM level
    ) AS head
    UNION ALL
    SELECT '{OTHER}', count(*), count(*) >= %(cap)s, min(due) FROM (
        SELECT GREATEST(run_after, enqueued_at) AS due FROM pgqueue_job
        WHERE state = 'queued' AND queue_name > (SELECT max(queue_name) FROM named)
        ORDER BY queue_name, priority DESC, run_after, id LIMIT %(cap)s) AS seen
), waiting AS MATERIALIZED (
    SELECT queue_name, state, LEAST(GREATEST(run_after, enqueued_at), parked_at) AS due FROM pgqueue_job
    WHERE state IN ('scheduled', 'retrying') ORDER BY run_after LIMIT %(cap)s
), running AS MATERIALIZED (
    SELECT queue_name, state FROM pgqueue_job WHERE state = 'running' ORDER BY worker_id, id LIMIT %(cap)s
), failed AS MATERIALIZED (
    SELECT queue_name, state FROM pgqueue_job
    WHERE state IN ('failed', 'dead') AND state >= 'failed' ORDER BY state, id DESC LIMIT %(cap)s
), dead AS MATERIALIZED (
    SELECT queue_name, state FROM pgqueue_job
    WHERE state IN ('failed', 'dead') AND state <= 'dead' ORDER BY state, id DESC LIMIT %(cap)s
), depth AS (
    SELECT queue_name, 'queued' AS state, sum(jobs) AS jobs, bool_or(has_more) AS has_more
    FROM ready WHERE jobs > 0 GROUP BY queue_name
    UNION ALL
    SELECT queue_name, state, count(*), false FROM (
        SELECT queue_name, state FROM waiting UNION ALL TABLE running UNION ALL TABLE failed UNION ALL TABLE dead
    ) AS seen GROUP BY queue_name, state
), {PARKED_TASKS}, unknown AS (
    SELECT named.task, EXTRACT(EPOCH FROM statement_timestamp() - first.parked_at) AS seconds
    FROM (
        SELECT task FROM (SELECT task FROM parked WHERE task IS NOT NULL LIMIT %(pairs)s) AS one
        WHERE NOT EXISTS (
            SELECT FROM pgqueue_worker live
            WHERE live.heartbeat_at > statement_timestamp() - make_interval(secs => live.lease_seconds)
              AND (jsonb_exists(live.tasks, one.task) OR {knows_more("live.tasks")}))
        LIMIT %(listed)s
    ) AS named
    CROSS JOIN LATERAL (
        SELECT min(parked_at) AS parked_at FROM (
            SELECT job.parked_at FROM pgqueue_job job
            WHERE job.parked_at IS NOT NULL AND job.state || '' = 'scheduled'
              AND job.task >= named.task AND job.task <= named.task
            ORDER BY job.task, job.id LIMIT %(few)s) AS seen
    ) AS first
), oldest AS (
    SELECT queue_name, EXTRACT(EPOCH FROM statement_timestamp() - min(due)) AS seconds FROM (
        SELECT queue_name, due FROM ready WHERE due IS NOT NULL
        UNION ALL SELECT queue_name, due FROM waiting WHERE due <= statement_timestamp()
    ) AS seen GROUP BY queue_name
), pair AS (
    SELECT min(id) AS first, queue_name, task, {", ".join(f"sum({what}) AS {name}" for name, what in _SUMS.items())}
    FROM pgqueue_stat GROUP BY queue_name, task
), placed AS (
    SELECT *, row_number() OVER (ORDER BY first) <= %(pairs)s AS own FROM pair
), tally AS (
    SELECT min(first) AS first,
           CASE WHEN own THEN queue_name ELSE '{OTHER}' END AS queue_name,
           CASE WHEN own THEN task ELSE '{OTHER}' END AS task,
           {", ".join(f"sum({name}) AS {name}" for name in _SUMS)}
    FROM placed GROUP BY 2, 3
), worker AS MATERIALIZED (
    SELECT id, queues, concurrency, running,
           EXTRACT(EPOCH FROM statement_timestamp() - heartbeat_at) AS age,
           heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds) AS alive
    FROM pgqueue_worker
), late AS (
    SELECT id, age FROM worker WHERE NOT alive ORDER BY age, id LIMIT %(listed)s
), paused AS (
    SELECT name, EXTRACT(EPOCH FROM statement_timestamp() - paused_at) AS seconds FROM pgqueue_queue
    WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > statement_timestamp())
    ORDER BY name LIMIT %(cap)s
), schedule AS (
    SELECT CASE WHEN place <= %(schedules)s THEN name ELSE '{OTHER}' END AS name, max(late) AS late FROM (
        SELECT name, row_number() OVER (ORDER BY id) AS place,
               GREATEST(0, EXTRACT(EPOCH FROM statement_timestamp() - next_at)) AS late
        FROM (SELECT id, name, next_at FROM pgqueue_schedule
              WHERE is_enabled AND retired_at IS NULL ORDER BY next_at LIMIT %(cap)s) AS planned
    ) AS numbered GROUP BY 1
), recent AS MATERIALIZED (
    SELECT task, sum(succeeded + retried + failed + dead) AS attempts, sum(retried + failed + dead) AS failures,
           sum(expired) AS expired
    FROM pgqueue_stat
    WHERE minute >= date_trunc('minute', statement_timestamp() - make_interval(secs => {RECENT_SECONDS}), 'UTC')
    GROUP BY task
), failing AS (
    SELECT task, attempts, failures FROM recent WHERE failures > 0 ORDER BY failures DESC, task LIMIT %(listed)s
)
SELECT statement_timestamp(), jsonb_build_object(
    'depths', (SELECT jsonb_agg(jsonb_build_array(queue_name, state, jobs, has_more)) FROM depth),
    'counts', (SELECT jsonb_agg(jsonb_build_array(queue_name, state, jobs,
                   EXTRACT(EPOCH FROM statement_timestamp() - counted_at))) FROM pgqueue_count),
    'oldest', (SELECT jsonb_object_agg(queue_name, seconds) FROM oldest),
    'fleet', (SELECT jsonb_build_array(count(*), COALESCE(sum(concurrency), 0), COALESCE(sum(running), 0),
                  COALESCE(bool_or(queues = '[]'), false)) FROM worker WHERE alive),
    'served', (SELECT jsonb_agg(DISTINCT taken) FROM worker, jsonb_array_elements_text(queues) AS taken WHERE alive),
    'late', (SELECT jsonb_agg(jsonb_build_array(id, age) ORDER BY age, id) FROM late),
    'paused', (SELECT jsonb_object_agg(name, seconds) FROM paused),
    'unknown', (SELECT jsonb_object_agg(task, seconds) FROM unknown),
    'schedules', (SELECT jsonb_object_agg(name, late) FROM schedule),
    'failing', (SELECT jsonb_agg(jsonb_build_array(task, attempts, failures) ORDER BY failures DESC, task)
                FROM failing),
    'expired', (SELECT COALESCE(sum(expired), 0) FROM recent),
    'table', (SELECT jsonb_build_array(n_live_tup, n_dead_tup,
                  EXTRACT(EPOCH FROM statement_timestamp() - GREATEST(last_autovacuum, last_vacuum)))
              FROM pg_stat_user_tables WHERE relid = to_regclass('pgqueue_job')),
    'tallies', (SELECT jsonb_agg(jsonb_build_array(first, queue_name, task, {", ".join(_SUMS)})) FROM tally)
)::text
"""

# Without sorts the planner has only the indexes to give a walk its order; beside few rows of a big table, or
# with old statistics, it would rather read the whole table and sort. Compiling costs more than it runs for.
_PLANNING = """
SELECT set_config('enable_sort', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', %s, true), set_config('transaction_read_only', 'on', true)
"""


@contextmanager
def index_walks(using: str, seconds: float | None = None) -> Iterator[CursorWrapper]:
    """A transaction to read in: what is ordered as an index is walks it, and ends after ``seconds`` (``MAX_SECONDS``).

    Nothing can be written in it. It is rolled back at the end, and these settings, also inside a caller's transaction.
    """
    with transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute(_PLANNING, [f"{MAX_SECONDS if seconds is None else seconds}s"])
            yield cursor
        transaction.set_rollback(True, using=using)


def _bounds() -> dict[str, int]:
    return {
        "cap": CAP,
        "ready": READY,
        "few": min(FEW, CAP),
        "queues": MAX_QUEUES,
        "pairs": MAX_PAIRS,
        "schedules": MAX_SCHEDULES,
        "listed": MAX_LISTED,
    }


def take(using: str | None = None) -> Snapshot:
    """The queue as it is now, in the database ``using``; by default the one that jobs are written to.

    Raises what Django raises for a database that is away, or one that takes longer than ``MAX_SECONDS``.
    """
    with index_walks(using or router.db_for_write(Job)) as cursor:
        cursor.execute(_READING, _bounds())
        taken_at, text = cursor.fetchone()
    told = json.loads(text)
    depths = told["depths"] or ()
    seen = {(queue_name, State(state)): jobs for queue_name, state, jobs, _ in depths}
    full = frozenset(queue_name for queue_name, _, _, is_full in depths if is_full)
    capped = _capped(seen, full)
    counted = [(queue_name, State(state), jobs, age) for queue_name, state, jobs, age in told["counts"] or ()]
    workers, slots, busy_slots, takes_all = told["fleet"]
    return Snapshot(
        taken_at=taken_at,
        depths=_depths(seen, full, capped, counted),
        capped=capped,
        count_ages={state: max(0.0, age) for _, state, _, age in counted if state in capped},
        oldest_due=_seconds(told["oldest"]),
        workers=workers,
        slots=slots,
        busy_slots=busy_slots,
        served=None if takes_all else frozenset(told["served"] or ()),
        late_workers=_seconds(dict(told["late"] or ())),
        paused=_seconds(told["paused"]),
        unknown_tasks=_seconds(told["unknown"]),
        schedules=_seconds(told["schedules"]),
        failing=tuple(Failing(*one) for one in told["failing"] or ()),
        expired_recently=told["expired"],
        table=Table(*(told["table"] or (0, 0, None))),
        tallies=tuple(_tally(values) for values in sorted(told["tallies"] or ())),
    )


def _seconds(told: Mapping[str, float] | None) -> dict[str, float]:
    # PostgreSQL's clock may be set back.
    return {name: max(0.0, seconds) for name, seconds in (told or {}).items()}


def _depths(
    seen: Mapping[tuple[str, State], int],
    full: frozenset[str],
    capped: frozenset[State],
    counted: list[tuple[str, State, int, float]],
) -> tuple[Depth, ...]:
    """What was seen; and of a capped state what was counted last, where that is more."""
    jobs = dict(seen)
    for queue_name, state, many, _ in counted:
        here = seen.get((queue_name, state), 0)
        # Of ready jobs each queue has a walk of its own: one that came to its end is exact.
        if state in capped and (state != State.QUEUED or queue_name in full):
            jobs[queue_name, state] = max(many, here)
    return tuple(
        Depth(queue_name, state, many, state in capped and (state != State.QUEUED or queue_name in full))
        for (queue_name, state), many in sorted(jobs.items())
    )


def _capped(seen: Mapping[tuple[str, State], int], full: frozenset[str]) -> frozenset[State]:
    """The states of which a walk ended before its end; ``full``: queues of whose ready jobs one did."""
    # One walk for all queues; scheduled and retrying share one.
    walked = dict.fromkeys(COUNTED, 0)
    for (_, state), jobs in seen.items():
        walked[state] += jobs
    for state in WAITING:
        walked[state] = sum(jobs for (_, other), jobs in seen.items() if other in WAITING)
    walked[State.QUEUED] = CAP if full else 0
    return frozenset(state for state, jobs in walked.items() if jobs >= CAP)


def _tally(values: list[Any]) -> Tally:
    _, queue_name, task, *sums = values
    value = dict(zip(_SUMS, sums, strict=True))
    return Tally(
        queue_name,
        task,
        **{name: int(value[name]) for name in _OUTCOMES},
        pickup_counts=tuple(int(value[f"pickup_{place}"] or 0) for place in range(1, _BUCKETS + 1)),
        # As exact as they are written: in another order, as after a roll-up, the last digits of a sum are others, and a
        # counter that is the least bit less has started from 0, to Prometheus.
        pickup_seconds=round(float(value["pickup_seconds"]), stats.DIGITS),
        run_counts=tuple(int(value[f"run_{place}"] or 0) for place in range(1, _BUCKETS + 1)),
        run_seconds=round(float(value["run_seconds"]), stats.DIGITS),
    )
