"""Counters and histograms of attempts, per minute, worker, queue and task.

Written in the transaction that settles or reaps the attempts, so that the counters and the jobs never
disagree; one statement per flush, whatever the number of jobs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.backends.utils import CursorWrapper

from .states import State

# Upper bounds of the histogram buckets, in seconds; a last bucket takes what is beyond.
BOUNDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

DIGITS = 6
"""Of a second: what is added is written so exactly, so that a sum rounded to them is the same in each order."""

_COLUMN = {State.SUCCEEDED: 0, State.RETRYING: 1, State.FAILED: 2, State.DEAD: 3}


class Sample(NamedTuple):
    """One attempt that ended. Lengths are seconds; None where nobody could measure it."""

    queue_name: str
    task: str
    state: State
    pickup_seconds: float | None
    run_seconds: float | None
    expired: bool = False  # failed because its lease had expired


class _Cell:
    """The attempts of one task in one queue."""

    __slots__ = ("expired", "outcomes", "pickups", "runs")

    def __init__(self) -> None:
        self.outcomes = [0, 0, 0, 0]
        self.expired = 0
        self.pickups: list[float] = []
        self.runs: list[float] = []


def _histogram(lengths: list[float]) -> list[int]:
    """How many are in each bucket: up to its bound, and beyond the one before. Sorted once: a tenth of one by one."""
    lengths.sort()
    ends = [bisect_right(lengths, bound) for bound in BOUNDS]
    return [end - begin for begin, end in zip([0, *ends], [*ends, len(lengths)], strict=True)]


_COUNTERS = "succeeded, retried, failed, dead, expired, pickup_counts, pickup_seconds, run_counts, run_seconds"
_COLUMNS = f"minute, worker_id, queue_name, task, {_COUNTERS}"

_ADD_UP = """
    ON CONFLICT ({key}) DO UPDATE SET
        succeeded = old.succeeded + excluded.succeeded,
        retried = old.retried + excluded.retried,
        failed = old.failed + excluded.failed,
        dead = old.dead + excluded.dead,
        expired = old.expired + excluded.expired,
        pickup_counts = (SELECT array_agg(a + b ORDER BY place)
            FROM unnest(old.pickup_counts, excluded.pickup_counts) WITH ORDINALITY AS both_counts(a, b, place)),
        pickup_seconds = old.pickup_seconds + excluded.pickup_seconds,
        run_counts = (SELECT array_agg(a + b ORDER BY place)
            FROM unnest(old.run_counts, excluded.run_counts) WITH ORDINALITY AS both_counts(a, b, place)),
        run_seconds = old.run_seconds + excluded.run_seconds
"""
_ADD_UP_STAT = _ADD_UP.format(key="minute, worker_id, queue_name, task")
_ADD_UP_HISTORY = _ADD_UP.format(key="seconds, begin, queue_name, task")
_ADD = (
    f"INSERT INTO pgqueue_stat AS old ({_COLUMNS}) VALUES {{rows}} {_ADD_UP_STAT} RETURNING pg_current_xact_id()::text"
)
_ROW = (
    "(date_trunc('minute', statement_timestamp(), 'UTC'), %s, %s, %s, %s, %s, %s, %s, %s, "
    "%s::bigint[], %s, %s::bigint[], %s)"
)


def add(cursor: CursorWrapper, worker_id: str, samples: Sequence[Sample]) -> str | None:
    """Add ``samples`` to this minute's rows of ``worker_id``: one statement, a row per queue and task.

    Returns the id of the transaction, with which ``transitions.has_committed`` can be asked; None: no samples.
    """
    cells: dict[tuple[str, str], _Cell] = {}
    for queue_name, task, state, pickup_seconds, run_seconds, expired in samples:
        if (cell := cells.get((queue_name, task))) is None:
            cell = cells[queue_name, task] = _Cell()
        cell.outcomes[_COLUMN[state]] += 1
        cell.expired += expired
        if pickup_seconds is not None:
            cell.pickups.append(pickup_seconds)
        if run_seconds is not None:
            cell.runs.append(run_seconds)
    if not cells:
        return None
    params: list[Any] = []
    # Sorted, so that two writers with the same worker id (a worker and who disowns it) cannot deadlock.
    for (queue_name, task), cell in sorted(cells.items()):
        params += [worker_id, queue_name, task, *cell.outcomes, cell.expired]
        for lengths in (cell.pickups, cell.runs):
            params += [_histogram(lengths), round(sum(lengths), DIGITS)]
    cursor.execute(_ADD.format(rows=", ".join([_ROW] * len(cells))), params)
    return str(cursor.fetchone()[0])


def _sum_of(column: str) -> str:
    return "ARRAY[" + ", ".join(f"sum({column}[{i + 1}])" for i in range(len(BOUNDS) + 1)) + "]::bigint[]"


_SUMS = (
    "sum(succeeded), sum(retried), sum(failed), sum(dead), sum(expired), "
    f"{_sum_of('pickup_counts')}, sum(pickup_seconds), {_sum_of('run_counts')}, sum(run_seconds)"
)

# To the row of all that is older, which has no minute and no worker (it keeps the lowest id of its task, which stands
# for when the task was first seen), and to the history of its minute.
_ROLL_UP = f"""
    WITH old_rows AS (
        DELETE FROM pgqueue_stat WHERE id = ANY(ARRAY(
            SELECT id FROM pgqueue_stat
            WHERE minute > to_timestamp(0) AND minute < statement_timestamp() - make_interval(secs => %s)
            ORDER BY minute LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING *
    ), kept AS (
        INSERT INTO pgqueue_stat_history AS old (seconds, begin, queue_name, task, {_COUNTERS})
        SELECT 60, minute, queue_name, task, {_SUMS} FROM old_rows GROUP BY minute, queue_name, task
        ORDER BY minute, queue_name, task
        {_ADD_UP_HISTORY}
    )
    INSERT INTO pgqueue_stat AS old (id, {_COLUMNS})
    SELECT min(id), to_timestamp(0), '', queue_name, task, {_SUMS}
    FROM old_rows GROUP BY queue_name, task ORDER BY queue_name, task
    {_ADD_UP_STAT}
"""
_COUNT_OLD = """
    SELECT count(*) FROM (SELECT FROM pgqueue_stat
        WHERE minute > to_timestamp(0) AND minute < statement_timestamp() - make_interval(secs => %s) LIMIT %s) AS old
"""


def roll_up(cursor: CursorWrapper, *, older_seconds: float, limit: int) -> bool:
    """Add the rows of minutes that are over for ``older_seconds`` to one row per queue and task; totals stay.

    At most ``limit`` rows. What each minute was like stays in the history. Returns whether there are more.
    """
    cursor.execute(_ROLL_UP, [older_seconds, limit])
    cursor.execute(_COUNT_OLD, [older_seconds, 1])
    return bool(cursor.fetchone()[0])


MINUTES_SECONDS = 48 * 3600.0
"""How long the history is kept by the minute."""
HOURS_SECONDS = 90 * 24 * 3600.0
"""And by the hour."""

_THIN = f"""
    WITH old_rows AS (
        DELETE FROM pgqueue_stat_history WHERE id = ANY(ARRAY(
            SELECT id FROM pgqueue_stat_history
            WHERE seconds = 60 AND begin < statement_timestamp() - make_interval(secs => %s)
            ORDER BY begin LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING *
    )
    INSERT INTO pgqueue_stat_history AS old (seconds, begin, queue_name, task, {_COUNTERS})
    SELECT 3600, date_trunc('hour', begin, 'UTC'), queue_name, task, {_SUMS} FROM old_rows
    GROUP BY date_trunc('hour', begin, 'UTC'), queue_name, task
    ORDER BY date_trunc('hour', begin, 'UTC'), queue_name, task
    {_ADD_UP_HISTORY}
"""
_FORGET = """
    DELETE FROM pgqueue_stat_history WHERE id = ANY(ARRAY(
        SELECT id FROM pgqueue_stat_history
        WHERE seconds = 3600 AND begin < statement_timestamp() - make_interval(secs => %s)
        ORDER BY begin LIMIT %s FOR UPDATE SKIP LOCKED))
"""
_OLD_MINUTES = """
    SELECT EXISTS (SELECT FROM pgqueue_stat_history
                   WHERE seconds = 60 AND begin < statement_timestamp() - make_interval(secs => %s))
"""


def thin(cursor: CursorWrapper, *, limit: int) -> bool:
    """Minutes of the history that are over for two days become hours, hours are forgotten after ninety days.

    At most ``limit`` rows of each. Returns whether there are more minutes.
    """
    cursor.execute(_THIN, [MINUTES_SECONDS, limit])
    cursor.execute(_FORGET, [HOURS_SECONDS, limit])
    cursor.execute(_OLD_MINUTES, [MINUTES_SECONDS])
    return bool(cursor.fetchone()[0])


def quantile(counts: Sequence[float], share: float) -> float | None:
    """The length, in seconds, that ``share`` of the samples stay below; None: there are none.

    Within a bucket as if they lay evenly in it; beyond the last bound it is that bound.
    """
    wanted = share * sum(counts)
    seen, low = 0.0, 0.0
    for count, bound in zip(counts, BOUNDS, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen, low = seen + count, bound
    return BOUNDS[-1] if sum(counts) else None
