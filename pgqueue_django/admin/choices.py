"""What the filters of the list of jobs offer: names from statistics and workers, in one bounded reading.

Never what is distinct in the table of jobs: that would read all of it at each view of the page. What is offered need
not be all that there is; any other value can be in the address.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import OperationalError
from django.http import HttpRequest
from psycopg.errors import QueryCanceled

from pgqueue_django.snapshot import index_walks

MOST = 50
"""Values that one filter offers: queues and tasks with the most attempts, workers heard of last."""
SECONDS = 0.5
"""A reading that takes longer is given up: the list is worth more than its filters."""
_ERRORS_AMONG = 500
"""Newest failed and as many dead jobs whose types of errors are offered."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Each in the order of the alphabet."""

    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    workers: tuple[str, ...]
    errors: tuple[str, ...]


_BROKEN = """
    (SELECT error_type FROM pgqueue_job WHERE state IN ('failed', 'dead') AND state >= '{0}' AND state <= '{0}'
     ORDER BY state, id DESC LIMIT %(among)s)
"""
# Queues with ready jobs as a loose scan of their index, one step for each.
_READING = f"""
WITH RECURSIVE ready(queue_name) AS (
    (SELECT queue_name FROM pgqueue_job WHERE state = 'queued' ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue_name FROM pgqueue_job job
            WHERE job.state = 'queued' AND job.queue_name > ready.queue_name ORDER BY job.queue_name LIMIT 1)
    FROM ready WHERE ready.queue_name IS NOT NULL
), tally AS MATERIALIZED (
    SELECT queue_name, task, sum(succeeded + retried + failed + dead) AS attempts
    FROM pgqueue_stat GROUP BY queue_name, task
), live AS MATERIALIZED (
    SELECT id, queues FROM pgqueue_worker
    WHERE heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds)
    ORDER BY heartbeat_at DESC LIMIT %(most)s
), queue AS (
    SELECT queue_name AS name, sum(attempts) AS weight FROM (
        SELECT queue_name, attempts FROM tally
        UNION ALL (SELECT queue_name, 0 FROM ready WHERE queue_name IS NOT NULL LIMIT %(most)s)
        UNION ALL SELECT name, 0 FROM live, jsonb_array_elements_text(queues) AS name
    ) AS named GROUP BY queue_name
), task AS (
    SELECT task AS name, sum(attempts) AS weight FROM tally GROUP BY task
), error AS (
    SELECT error_type AS name, count(*) AS weight
    FROM ({_BROKEN.format("failed")} UNION ALL {_BROKEN.format("dead")}) AS broken
    WHERE error_type > '' GROUP BY error_type
)
SELECT {
    ", ".join(
        "ARRAY(SELECT name FROM ("
        f"SELECT name FROM {kind} ORDER BY weight DESC, name LIMIT %(most)s) AS few ORDER BY name)"
        for kind in ("queue", "task", "(SELECT id AS name, 0 AS weight FROM live) AS worker", "error")
    )
}
"""
_KEPT = "_pgqueue_choices"


def known(request: HttpRequest, using: str) -> Choices:
    """What to offer to this request, which asks once."""
    kept: Choices | None = getattr(request, _KEPT, None)
    if kept is None:
        try:
            with index_walks(using, SECONDS) as cursor:
                cursor.execute(_READING, {"most": MOST, "among": _ERRORS_AMONG})
                kept = Choices(*map(tuple, cursor.fetchone()))
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            kept = Choices((), (), (), ())
        setattr(request, _KEPT, kept)
    return kept
