"""What is to be known of a job beyond its row, in one bounded reading: who knows its task, jobs that failed as it did,
the job that it was made of and those that were made of it. It writes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass

from django.db import OperationalError
from psycopg.errors import QueryCanceled

from pgqueue_django import snapshot
from pgqueue_django.models import Job
from pgqueue_django.snapshot import index_walks, knows_more

MAX_COPIES = 20


@dataclass(frozen=True, slots=True)
class Alike:
    """Failed and dead jobs of the same task and error, itself among them, by when they ended."""

    hour: int
    day: int
    week: int
    is_capped: bool
    """More of this error were there than were looked at."""


@dataclass(frozen=True, slots=True)
class Related:
    workers: int
    """That are alive."""
    knows: bool
    """Whether one of them had the task as it started, or has run this job."""
    alike: Alike | None
    original: str | None
    """State of the job that this one is a copy of; None: it is gone, or this one is none."""
    copies: tuple[tuple[int, str], ...]
    """Ids and states, at most one more than ``MAX_COPIES``."""


# Of an equal fingerprint the planner would drop it from the order, and may walk all jobs by their ids; of a range
# it does not. The copies are in no order of ids for the same reason.
_RELATED = f"""
WITH alive AS MATERIALIZED (
    SELECT id, tasks FROM pgqueue_worker
    WHERE heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds)
), seen AS MATERIALIZED (
    SELECT task, finished_at FROM pgqueue_job
    WHERE state IN ('failed', 'dead') AND error_fingerprint BETWEEN %(fingerprint)s AND %(fingerprint)s
    ORDER BY error_fingerprint, id DESC LIMIT %(cap)s
), alike AS (
    SELECT count(*) FILTER (WHERE task = %(task)s AND finished_at > statement_timestamp() - interval '1 hour') AS hour,
           count(*) FILTER (WHERE task = %(task)s AND finished_at > statement_timestamp() - interval '24 hours') AS day,
           count(*) FILTER (WHERE task = %(task)s AND finished_at > statement_timestamp() - interval '7 days') AS week,
           count(*) >= %(cap)s AS is_capped
    FROM seen
), copies AS MATERIALIZED (
    SELECT id, state FROM pgqueue_job WHERE copy_of = %(id)s ORDER BY copy_of LIMIT %(copies)s
)
SELECT (SELECT count(*) FROM alive),
       EXISTS (SELECT FROM alive WHERE id = %(worker)s OR jsonb_exists(tasks, %(task)s)
               OR {knows_more("tasks")}),
       hour, day, week, is_capped,
       (SELECT state FROM pgqueue_job WHERE id = %(original)s),
       (SELECT json_agg(json_build_array(id, state))::text FROM copies)
FROM alike
"""


def related(using: str, job: Job) -> Related | None:
    """None: the database took longer than ``MAX_SECONDS``. Raises what Django raises for one that is away."""
    told: dict[str, int | str | None] = {
        "id": job.pk,
        "task": job.task,
        "worker": job.worker_id if job.started_at else None,
        "fingerprint": job.error_fingerprint,
        "original": job.copy_of,
        "cap": snapshot.CAP,
        "copies": MAX_COPIES + 1,
    }
    try:
        with index_walks(using) as cursor:
            cursor.execute(_RELATED, told)
            workers, knows, *alike, original, copies = cursor.fetchone()
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return None
    found = Alike(*alike) if job.error_fingerprint else None
    return Related(
        workers, knows, found, original, tuple(sorted((id, state) for id, state in json.loads(copies or "[]")))
    )
