"""How many jobs there are of states with more than a snapshot looks at: a full count, now and then.

A reading stops at ``snapshot.CAP`` rows; beyond it this count says how many there were, and its age. It goes along the
partial indexes of the live, failed and dead jobs, never over finished ones, in one transaction of its own; whoever
comes while another counts leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from . import snapshot
from .snapshot import OTHER
from .states import State

MAX_SECONDS = 120
"""A count is given up after this."""

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
    """The states of which there are ``snapshot.CAP`` jobs or more; of all others the counts are forgotten.

    Looks at no more than so many jobs of each.
    """
    with _along_indexes(using, snapshot.MAX_SECONDS) as cursor:
        found = []
        for states in _CROWDS:
            cursor.execute(_PROBE.format(where=_where(states)), [snapshot.CAP])
            if cursor.fetchone()[0] >= snapshot.CAP:
                found.append(states)
        cursor.execute(_FORGET, [[str(state) for states in _CROWDS if states not in found for state in states]])
    return found


def take(using: str, crowds: Sequence[Crowd]) -> None:
    """Count all jobs of these states, each queue's; nothing where somebody else is counting."""
    with _along_indexes(using, MAX_SECONDS) as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return
        for states in crowds:
            cursor.execute(_FORGET, [[str(state) for state in states]])
            cursor.execute(_COUNT.format(where=_where(states)), [snapshot.MAX_QUEUES])


def _where(states: Crowd) -> str:
    # Literals: only with them the planner sees that a partial index has all of these rows.
    return "state IN ({})".format(", ".join(f"'{state}'" for state in states))
