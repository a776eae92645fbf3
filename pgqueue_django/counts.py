"""How many jobs there are of states with more than a snapshot looks at: a full count, now and then.

A reading stops at ``snapshot.CAP`` rows or sooner; beyond it this count says how many there were, and its age. It goes
along the partial indexes of the live, failed and dead jobs, never over finished ones, in a transaction for each crowd,
since vacuum takes nothing away behind one; whoever comes while another counts leaves it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from . import snapshot
from .snapshot import OTHER
from .states import State

MAX_SECONDS = 120
"""A count of all that there is to count is given up after this."""

Crowd = tuple[State, ...]
"""States that are counted together, along one index."""

_CROWDS: tuple[Crowd, ...] = (
    (State.QUEUED,),
    (State.SCHEDULED, State.RETRYING),
    (State.RUNNING,),
    (State.FAILED,),
    (State.DEAD,),
)

_PLANNING = """
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', %s, true)
"""
_LOCK = 0x70677175637475  # a number that is ours
_PROBE = "SELECT count(*) FROM (SELECT FROM pgqueue_job WHERE {where} LIMIT %s) AS seen"
_FORGET = "DELETE FROM pgqueue_count WHERE state = ANY(%s::text[])"
# Whoever is counting them has deleted them already, and commits when it has counted everything.
_FORGET_FREE = """
    DELETE FROM pgqueue_count WHERE id = ANY(ARRAY(
        SELECT id FROM pgqueue_count WHERE state = ANY(%s::text[]) FOR UPDATE SKIP LOCKED))
"""
_COUNT = f"""
    INSERT INTO pgqueue_count (state, queue_name, jobs, counted_at)
    SELECT state, CASE WHEN place <= %s THEN queue_name ELSE '{OTHER}' END, sum(jobs), statement_timestamp()
    FROM (
        SELECT state, queue_name, jobs, row_number() OVER (PARTITION BY state ORDER BY jobs DESC, queue_name) AS place
        FROM (SELECT state, queue_name, count(*) AS jobs FROM pgqueue_job WHERE {{where}} GROUP BY 1, 2) AS counted
    ) AS placed
    GROUP BY 1, 2
"""


@contextmanager
def _along_indexes(using: str, seconds: float) -> Iterator[CursorWrapper]:
    """A transaction that reads no whole table: that would take its time from the rest of the server."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_PLANNING, [f"{seconds:g}s"])
        yield cursor


def crowded(using: str) -> list[Crowd]:
    """The states of which a reading may not see all jobs; of all others the counts are forgotten.

    Looks at no more than ``snapshot.CAP`` jobs of each, and waits for nobody.
    """
    with _along_indexes(using, snapshot.MAX_SECONDS) as cursor:
        found = []
        for states in _CROWDS:
            many = _least_unseen() if State.QUEUED in states else snapshot.CAP
            cursor.execute(_PROBE.format(where=_where(states)), [many])
            if cursor.fetchone()[0] >= many:
                found.append(states)
        cursor.execute(_FORGET_FREE, [[str(state) for states in _CROWDS if states not in found for state in states]])
    return found


def _least_unseen() -> int:
    """With fewer ready jobs a reading sees them all.

    It looks at ``FEW`` of each queue, and n queues with more share ``READY``: one of them has jobs that are not seen if
    it has over READY / n, beside n - 1 with FEW each. That is the least where n is the root of READY / FEW.
    """
    few = min(snapshot.FEW, snapshot.CAP)
    return min(snapshot.CAP, int(2 * math.sqrt(few * snapshot.READY)) - few)


def take(using: str, crowds: Sequence[Crowd]) -> None:
    """Count all jobs of these states, each queue's; nothing where somebody else is counting.

    Raises what Django raises for a statement that is cancelled: what was counted before it stays.
    """
    until = time.monotonic() + MAX_SECONDS
    for states in crowds:
        with _along_indexes(using, max(0.001, until - time.monotonic())) as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
            if not cursor.fetchone()[0]:
                return
            cursor.execute(_FORGET, [[str(state) for state in states]])
            cursor.execute(_COUNT.format(where=_where(states)), [snapshot.MAX_QUEUES])


def _where(states: Crowd) -> str:
    # Literals: only with them the planner sees that a partial index has all of these rows.
    return "state IN ({})".format(", ".join(f"'{state}'" for state in states))
