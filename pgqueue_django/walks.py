"""Lists of jobs, page by page, with work that does not grow with the table: of the JSON API and of the admin.

A list is a walk along one index, in its order, whatever else is asked of its rows. A page is one statement that looks
at no more than ``LOOKED_AT`` rows: what is asked for and not in the index is looked for among those, so a page may be
short, or empty, and still have one after it. A page lies between two cuts, and the next one begins at the cut where it
ended: no row is left out and none comes twice, whatever is enqueued meanwhile. It writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from django.core import signing
from django.db.backends.utils import CursorWrapper

from .models import Job
from .search import Condition
from .states import State

LOOKED_AT = 10_000
"""Rows that one page looks at, and one count, at the most."""


@dataclass(frozen=True)
class Walk:
    """The rows of an index that meet ``where``, in the index's order."""

    columns: tuple[str, ...]
    """That say where in it a row stands; with ``-`` in front downwards."""
    where: str = "true"
    params: tuple[Any, ...] = ()
    lead: str = ""
    """A column that is the same in all rows. As an equal one the planner would drop it from the order, and might walk
    the primary key over all jobs: so it is told by a range, and stands in the order."""

    @property
    def place(self) -> tuple[str, ...]:
        return tuple(column.lstrip("-") for column in self.columns)

    @property
    def is_newest_first(self) -> bool:
        return self.columns == ("-id",)

    def narrowed(self, column: str, value: str) -> Walk:
        """Of a walk that begins with ``column``: the rows that have ``value`` there."""
        where = f"{self.where} AND {column} >= %s AND {column} <= %s"
        return Walk(self.columns, where, (*self.params, value, value), self.lead)

    def order(self, backwards: bool) -> str:
        columns = [self.lead, *self.columns] if self.lead else self.columns
        return ", ".join(
            f"{column.lstrip('-')} {'DESC' if column.startswith('-') != backwards else 'ASC'}" for column in columns
        )

    def ranges(self, cut: Cut | None, backwards: bool) -> Iterator[Condition]:
        """What lies behind the cut, as ranges that the index can begin at, one after the other.

        Of an index that goes down in one column and up in the next no single comparison of rows says that.
        """
        if cut is None:
            yield Condition(self.where, self.params)
            return
        values = dict(zip(self.place, cut.place, strict=True))
        groups = [(down, list(part)) for down, part in groupby(self.columns, lambda column: column.startswith("-"))]
        for last in range(len(groups) - 1, -1, -1):
            same = [column.lstrip("-") for _, part in groups[:last] for column in part]
            down, part = groups[last]
            names = [column.lstrip("-") for column in part]
            is_inner = last == len(groups) - 1
            operator = ("<" if down != backwards else ">") + ("=" if is_inner and cut.is_after == backwards else "")
            texts = [f"{name} = {_cast(name)}" for name in same]
            texts.append(f"({', '.join(names)}) {operator} ({', '.join(map(_cast, names))})")
            params = (*self.params, *(values[name] for name in (*same, *names)))
            yield Condition(" AND ".join([self.where, *texts]), params)


def _cast(column: str) -> str:
    return "%s::timestamptz" if column == "run_after" else "%s"


class Cut(NamedTuple):
    """Where one page ends and another begins: just before a row, or just after it."""

    place: tuple[Any, ...]
    is_after: bool


class Page(NamedTuple):
    rows: list[dict[str, Any]]
    """In the order of the list."""
    begins: Cut | None
    """Where the page before it ends; None: this is the first."""
    ends: Cut | None
    """Where the next one begins; None: this is the last."""
    looked_at: int


class Count(NamedTuple):
    jobs: int
    is_exact: bool
    """False: there were more rows to look at than one may; there may be more jobs."""


NEWEST = Walk(("-id",))
_WAITING = Walk(("run_after", "id"), "state IN ('scheduled', 'retrying')")
# A bound that is in plain sight the planner takes for implied by the index's own condition, and leaves out: then a page
# far away would begin at the first job.
_BROKEN = "state IN ('failed', 'dead') AND state >= (SELECT '{0}') AND state <= (SELECT '{0}')"
OF_STATE: Mapping[State, Walk] = {
    State.SCHEDULED: _WAITING,
    State.QUEUED: Walk(("queue_name", "-priority", "run_after", "id"), "state = 'queued'"),
    State.RUNNING: Walk(("worker_id", "id"), "state = 'running'"),
    State.RETRYING: _WAITING,
    State.SUCCEEDED: NEWEST,
    State.FAILED: Walk(("-id",), _BROKEN.format("failed"), lead="state"),
    State.DEAD: Walk(("-id",), _BROKEN.format("dead"), lead="state"),
    State.CANCELLED: NEWEST,
}


def of_error(fingerprint: str) -> Walk:
    """The failed and dead jobs of one kind of error."""
    where = "state IN ('failed', 'dead') AND error_fingerprint >= %s AND error_fingerprint <= %s"
    return Walk(("-id",), where, (fingerprint, fingerprint), "error_fingerprint")


def of_numbers(ids: Sequence[int]) -> Walk:
    return Walk(("-id",), "id = ANY(%s::bigint[])", (list(ids),))


# In each task that has keys, found by a loose scan of their index: with a task and a key it knows the one job.
_OF_KEY = """
    id = ANY(ARRAY(
        WITH RECURSIVE step(task) AS (
            (SELECT task FROM pgqueue_job WHERE idempotency_key IS NOT NULL ORDER BY task, idempotency_key LIMIT 1)
            UNION ALL
            SELECT (SELECT keyed.task FROM pgqueue_job keyed
                    WHERE keyed.idempotency_key IS NOT NULL AND keyed.task > step.task
                    ORDER BY keyed.task, keyed.idempotency_key LIMIT 1)
            FROM step WHERE step.task IS NOT NULL
        )
        SELECT found.id FROM (SELECT task FROM step WHERE task IS NOT NULL LIMIT %s) AS step
        CROSS JOIN LATERAL (
            SELECT keyed.id FROM pgqueue_job keyed
            WHERE keyed.task = step.task AND keyed.idempotency_key = %s LIMIT 1
        ) AS found))
"""
KEYED_TASKS = 1_000
"""Tasks in which a key is looked for."""


def of_key(key: str) -> Walk:
    """The jobs with this idempotency key, one of a task."""
    return Walk(("-id",), _OF_KEY, (KEYED_TASKS, key))


def equal(column: str, value: str) -> Condition:
    return Condition(f"job.{column} = %s", (value,))


def chosen(filters: Mapping[str, str]) -> tuple[Walk, list[Condition]]:
    """The walk that has the jobs of these columns, and what its rows have to be asked."""
    walk = OF_STATE[State(filters["state"])] if "state" in filters else NEWEST
    if walk.place[0] in filters:  # the queue of ready jobs, the worker of running ones
        walk = walk.narrowed(walk.place[0], filters[walk.place[0]])
    return walk, [equal(column, value) for column, value in filters.items()]


# The last row that was looked at comes back in any case, with its number: there the next page goes on. What is asked of
# a row is asked in the walk, so that what it needs for that (arguments, errors) need not be carried on.
_PAGE = """
    SELECT {columns}, is_wanted, number, {edge}, {place} FROM (
        SELECT {columns}, is_wanted, row_number() OVER () AS number, lead(id) OVER () IS NULL AS is_last
        FROM (SELECT * FROM ({rows}) AS ranges LIMIT %s) AS walk
    ) AS seen WHERE is_wanted OR is_last LIMIT %s
"""
_RANGE = "(SELECT {columns}, ({wanted}) AS is_wanted FROM pgqueue_job job WHERE {where} ORDER BY {order} LIMIT %s)"
_COUNT = """
    SELECT count(*) FILTER (WHERE is_wanted), count(*), min(id), {edge} FROM ({rows}) AS seen
"""
# The lowest number of those enqueued within so many seconds, by halves: numbers are drawn as jobs are enqueued. One
# minute more, since sessions do not write in the order in which they draw.
_EDGE = """(
    WITH RECURSIVE half(low, high) AS (
        SELECT min(id), max(id) + 1 FROM pgqueue_job
        UNION ALL
        SELECT CASE WHEN found.is_old THEN found.id + 1 ELSE half.low END,
               CASE WHEN found.is_old THEN half.high ELSE half.low + (half.high - half.low) / 2 END
        FROM half LEFT JOIN LATERAL (
            SELECT id, enqueued_at < statement_timestamp() - make_interval(secs => %s + 60) AS is_old FROM pgqueue_job
            WHERE id >= half.low + (half.high - half.low) / 2 AND id < half.high ORDER BY id LIMIT 1
        ) AS found ON true
        WHERE half.low < half.high
    )
    SELECT max(low) FROM half
)"""


def _rows(
    walk: Walk, wanted: Sequence[Condition], columns: Sequence[str], cut: Cut | None, backwards: bool, most: int
) -> tuple[str, list[Any]]:
    """SQL of the rows behind the cut, in order: one range of the index after another, begun when it is needed."""
    asked = " AND ".join(condition.sql for condition in wanted) or "true"
    parts, params = [], list[Any]()
    for where in walk.ranges(cut, backwards):
        parts.append(
            _RANGE.format(columns=", ".join(columns), wanted=asked, where=where.sql, order=walk.order(backwards))
        )
        params += [*(value for condition in wanted for value in condition.params), *where.params, most]
    return " UNION ALL ".join(parts), params


def page(
    cursor: CursorWrapper,
    walk: Walk,
    wanted: Sequence[Condition],
    limit: int,
    cut: Cut | None = None,
    *,
    backwards: bool = False,
    columns: Sequence[str] = ("id",),
    within: float | None = None,
) -> Page:
    """At most ``limit`` jobs that follow the cut, or with ``backwards`` those before it.

    ``cursor``: one of ``snapshot.index_walks``. ``within``: only jobs that were enqueued within so many seconds.
    """
    columns = tuple(dict.fromkeys((*columns, *walk.place, "id")))
    asked = [*wanted, *_within(within)]
    rows, params = _rows(walk, asked, columns, cut, backwards, LOOKED_AT)
    edge, edge_params = _edge(walk, within)
    # A moment as a text with its offset: without USE_TZ Django's know no zone, and one hour a year comes twice.
    moment = "to_jsonb(run_after) #>> '{}'"
    place = ", ".join(moment if name == "run_after" else name for name in walk.place)
    sql = _PAGE.format(columns=", ".join(columns), edge=edge, rows=rows, place=place)
    # One more than is shown: whether there is a next page.
    cursor.execute(sql, [*edge_params, *params, LOOKED_AT, limit + 1])
    found, last, looked_at, oldest = list[tuple[dict[str, Any], tuple[Any, ...]]](), None, 0, None
    for values in cursor.fetchall():
        is_wanted, looked_at, oldest, *stands = values[len(columns) :]
        last = dict(zip(columns, values, strict=False)), tuple(stands)
        if is_wanted:
            found.append(last)
    if len(found) > limit:
        found.pop()
        last = found[-1]
    elif looked_at < LOOKED_AT or (last and oldest is not None and last[0]["id"] < oldest and not backwards):
        last = None
    far = None if last is None else Cut(last[1], not backwards)
    shown = [row for row, _ in found]
    if backwards:
        return Page(shown[::-1], far, cut, looked_at)
    return Page(shown, cut, far, looked_at)


def count(cursor: CursorWrapper, walk: Walk, wanted: Sequence[Condition], *, within: float | None = None) -> Count:
    """How many there are in the whole list, of its first ``LOOKED_AT`` rows."""
    # One more: whether there are others.
    rows, params = _rows(walk, [*wanted, *_within(within)], ("id",), None, False, LOOKED_AT + 1)
    edge, edge_params = _edge(walk, within)
    cursor.execute(_COUNT.format(edge=edge, rows=rows), [*edge_params, *params])
    jobs, looked_at, lowest, oldest = cursor.fetchone()
    is_over = lowest is None or (oldest is not None and lowest < oldest)
    return Count(min(jobs, LOOKED_AT), looked_at <= LOOKED_AT or is_over)


def _within(seconds: float | None) -> list[Condition]:
    if seconds is None:
        return []
    return [Condition("job.enqueued_at >= statement_timestamp() - make_interval(secs => %s)", (seconds,))]


def _edge(walk: Walk, within: float | None) -> tuple[str, list[Any]]:
    if within is None or not walk.is_newest_first:
        return "NULL::bigint", []
    return _EDGE, [within]


def by_key(using: str, task: str, key: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The one job with this key, if there is one."""
    return list(Job.objects.using(using).filter(task=task, idempotency_key=key).values(*columns))


# -- cuts as text ----------------------------------------------------------------------------------------------


def written(values: Sequence[Any], salt: str, filters: Mapping[str, str]) -> str:
    """The values of a cut as a text that only this project could have made, for these filters."""
    return signing.dumps(list(values), salt=_salt(salt, filters))


def read(text: str, salt: str, filters: Mapping[str, str]) -> list[Any]:
    """What was written. Raises ValueError for a text that we did not make, or made for other filters."""
    try:
        values: list[Any] = signing.loads(text, salt=_salt(salt, filters))
    except signing.BadSignature as error:
        raise ValueError(str(error)) from error
    return values


def _salt(salt: str, filters: Mapping[str, str]) -> str:
    return salt + json.dumps(filters, sort_keys=True)
