"""Lists of jobs, page by page, with work that does not grow with the table.

Each page is a walk along one index that looks at no more than ``LOOKED_AT`` rows. What is asked for and not in the
index is looked for among those, so a page may be empty and still have a next one, which goes on where the walk ended.
Nothing is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pgqueue_django.models import Job
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import State

from .shapes import SUMMARY

LOOKED_AT = 10_000
"""Rows that one page looks at, at the most."""


class Walk(NamedTuple):
    """An index, in its order, and the condition that its rows come after a place."""

    where: str
    order: str
    place: tuple[str, ...]
    """Columns that say where in it a row stands."""
    after: tuple[str, ...]
    """Conditions on the columns of ``place``: first the rest of the same value, then what comes after it."""


_ALL = Walk("true", "id DESC", ("id",), ("id < %(id)s",))
# With an equal state the planner would drop it from the order, and might walk the primary key over all jobs.
_BROKEN = Walk("state IN ('failed', 'dead') AND state {} ", "state, id DESC", ("id",), ("id < %(id)s",))
_WAITING = Walk(
    "state IN ('scheduled', 'retrying')",
    "run_after, id",
    ("run_after", "id"),
    ("(run_after, id) > (%(run_after)s::timestamptz, %(id)s)",),
)
# One direction after another, as its index has them: each is a range that the index can begin at.
_READY = Walk(
    "state = 'queued'",
    "queue_name, priority DESC, run_after, id",
    ("queue_name", "priority", "run_after", "id"),
    (
        "queue_name = %(queue_name)s AND priority = %(priority)s "
        "AND (run_after, id) > (%(run_after)s::timestamptz, %(id)s)",
        "queue_name = %(queue_name)s AND priority < %(priority)s",
        "queue_name > %(queue_name)s",
    ),
)
_WALKS = {
    State.SCHEDULED: _WAITING,
    State.QUEUED: _READY,
    State.RUNNING: Walk(
        "state = 'running'", "worker_id, id", ("worker_id", "id"), ("(worker_id, id) > (%(worker_id)s, %(id)s)",)
    ),
    State.RETRYING: _WAITING,
    State.SUCCEEDED: _ALL,
    State.FAILED: _BROKEN._replace(where=_BROKEN.where.format(">= 'failed'")),
    State.DEAD: _BROKEN._replace(where=_BROKEN.where.format("<= 'dead'")),
    State.CANCELLED: _ALL,
}

_COLUMNS = ", ".join(SUMMARY)
# The last row that was looked at comes back in any case, with its number: there the next page goes on.
_PAGE = f"""
    SELECT {_COLUMNS}, is_wanted, number FROM (
        SELECT {_COLUMNS}, {{wanted}} AS is_wanted, row_number() OVER () AS number, lead(id) OVER () IS NULL AS is_last
        FROM (
            SELECT {_COLUMNS} FROM pgqueue_job WHERE {{where}} ORDER BY {{order}} LIMIT %(most)s
        ) AS walk
    ) AS seen WHERE is_wanted OR is_last LIMIT %(limit)s
"""


class Page(NamedTuple):
    rows: list[dict[str, Any]]
    place: list[Any] | None
    """Where the next page goes on; None: there is none."""


def page(using: str, filters: Mapping[str, str], limit: int, place: Sequence[Any] | None) -> Page:
    """At most ``limit`` jobs after ``place``. ``filters``: state, queue_name, task, each at most."""
    state = State(filters["state"]) if "state" in filters else None
    walk = _ALL if state is None else _WALKS[state]
    base = walk.where
    if walk is _READY and "queue_name" in filters:
        base += " AND queue_name = %(only_queue)s"
    wanted = " AND ".join(f"{name} = %(only_{name})s" for name in filters) or "true"
    params: dict[str, Any] = {f"only_{name}": value for name, value in filters.items()}
    params["only_queue"] = filters.get("queue_name")
    steps = [base]
    if place is not None:
        params |= dict(zip(walk.place, place, strict=True))
        steps = [f"{base} AND {after}" for after in walk.after]
    rows: list[dict[str, Any]] = []
    seen = 0
    with index_walks(using) as cursor:
        for where in steps:
            sql = _PAGE.format(wanted=wanted, where=where, order=walk.order)
            cursor.execute(sql, {**params, "most": LOOKED_AT - seen, "limit": limit - len(rows)})
            last = 0
            for *values, is_wanted, number in cursor.fetchall():
                row = dict(zip(SUMMARY, values, strict=True))
                last = number
                if is_wanted:
                    rows.append(row)
                if len(rows) == limit or seen + number == LOOKED_AT:
                    return Page(rows, [_plain(row[name]) for name in walk.place])
            seen += last
    return Page(rows, None)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def by_key(using: str, task: str, key: str) -> list[dict[str, Any]]:
    """The one job with this key, if there is one."""
    return list(Job.objects.using(using).filter(task=task, idempotency_key=key).values(*SUMMARY))
