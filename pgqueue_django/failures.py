"""Failed and dead jobs that look alike: of one task and one kind of error, counted together.

One bounded reading: the newest ``snapshot.CAP`` failed and as many dead jobs, along their index. It writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from . import snapshot
from .snapshot import index_walks

MAX_GROUPS = 200
"""Those with the most jobs."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs of one task whose newest error has one fingerprint; None: plain SQL wrote them, or an older version."""

    task: str
    fingerprint: str | None
    error_type: str | None
    jobs: int
    hour: int
    """Of these, ended within the last hour."""
    day: int
    week: int
    first_at: datetime
    last_at: datetime
    sample_id: int
    """The newest of them."""
    message: str
    """Of its newest error, the first line."""


@dataclass(frozen=True, slots=True)
class Failures:
    groups: tuple[Group, ...]
    taken_at: datetime
    until: float
    """The same moment, in seconds since 1970."""
    is_capped: bool
    """There are more failed or dead jobs than were looked at."""


_BROKEN = """
    (SELECT id, task, state, error_type, error_fingerprint, finished_at FROM pgqueue_job
     WHERE state IN ('failed', 'dead') AND state {} ORDER BY state, id DESC LIMIT %(cap)s)
"""
_GROUPS = f"""
WITH seen AS MATERIALIZED ({_BROKEN.format(">= 'failed'")} UNION ALL {_BROKEN.format("<= 'dead'")}), grouped AS (
    SELECT task, error_fingerprint, max(error_type) AS error_type, count(*) AS jobs,
           count(*) FILTER (WHERE finished_at > statement_timestamp() - interval '1 hour') AS hour,
           count(*) FILTER (WHERE finished_at > statement_timestamp() - interval '24 hours') AS day,
           count(*) FILTER (WHERE finished_at > statement_timestamp() - interval '7 days') AS week,
           min(finished_at) AS first_at, max(finished_at) AS last_at, max(id) AS sample_id
    FROM seen GROUP BY task, error_fingerprint ORDER BY jobs DESC, sample_id DESC LIMIT %(most)s
)
SELECT grouped.*, COALESCE(split_part(job.history -> -1 ->> 'message', E'\\n', 1), '')
FROM grouped JOIN pgqueue_job job ON job.id = grouped.sample_id ORDER BY grouped.jobs DESC, grouped.sample_id DESC
"""
_CAPPED = """
SELECT statement_timestamp(), EXTRACT(EPOCH FROM statement_timestamp())::float8, (SELECT count(*) FROM (
    SELECT FROM pgqueue_job WHERE state IN ('failed', 'dead') AND state >= 'failed'
    ORDER BY state, id DESC LIMIT %(cap)s) AS seen) = %(cap)s
 OR (SELECT count(*) FROM (
    SELECT FROM pgqueue_job WHERE state IN ('failed', 'dead') AND state <= 'dead'
    ORDER BY state, id DESC LIMIT %(cap)s) AS seen) = %(cap)s
"""


def take(using: str) -> Failures:
    """The failed and dead jobs in the database ``using``, grouped; those with the most jobs first."""
    bounds = {"cap": snapshot.CAP, "most": MAX_GROUPS}
    with index_walks(using) as cursor:
        cursor.execute(_CAPPED, bounds)
        taken_at, until, is_capped = cursor.fetchone()
        cursor.execute(_GROUPS, bounds)
        return Failures(tuple(Group(*row) for row in cursor.fetchall()), taken_at, until, is_capped)


# Of an equal fingerprint, the planner would drop it from the order, and may walk all jobs by their ids; of a range it
# does not. Those without one are at the end of the index: plain SQL wrote them, and they are few.
_OF_GROUP = """
    SELECT id FROM (
        SELECT id, task FROM pgqueue_job
        WHERE state IN ('failed', 'dead') AND finished_at <= to_timestamp(%(until)s) AND {which}
        ORDER BY error_fingerprint, id DESC
    ) AS seen WHERE task = %(task)s LIMIT %(most)s
"""


def ids_of(using: str, task: str, fingerprint: str | None, *, until: float, most: int) -> list[int]:
    """At most ``most`` failed and dead jobs of one group, the newest first, along the index of fingerprints.

    ``until``, in seconds since 1970: none that ended later. It looks at all jobs with the fingerprint, for
    ``snapshot.MAX_SECONDS`` at most.
    """
    known = "error_fingerprint BETWEEN %(fingerprint)s AND %(fingerprint)s"
    which = known if fingerprint else "error_fingerprint IS NULL"
    with index_walks(using) as cursor:
        cursor.execute(
            _OF_GROUP.format(which=which), {"task": task, "fingerprint": fingerprint, "until": until, "most": most}
        )
        return [id for (id,) in cursor.fetchall()]
