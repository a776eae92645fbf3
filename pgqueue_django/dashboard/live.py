"""What the dashboard shows, read at most once a second for all who look at it in this process.

A reading is one snapshot and one statement more for the lists, both bounded and along indexes, whatever the size of the
table. It keeps what it needs of the readings before: the counters of two minutes, for rates, and the jobs that it has
seen, for the feed. Nobody looking means no readings: what happened meanwhile is a gap, never a guess. It writes
nothing.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgqueue_django import snapshot, stats
from pgqueue_django.answers import SHARED_SECONDS, Shared
from pgqueue_django.models import MOMENTS
from pgqueue_django.snapshot import Snapshot, index_walks
from pgqueue_django.states import FINISHED, State

SECONDS = 2
"""Between two frames of one page."""
KEPT_SECONDS = 120
"""What the window of now shows, at most one reading a second."""
GAP_SECONDS = 10.0
"""Two readings with more between them do not say what was between them."""
RATE_SECONDS = 10.0
"""What a rate is the mean of, where there are readings for it."""
LENGTH_SECONDS = 60.0
"""And what a percentile is made of."""

MAX_RUNNING = 50
MAX_NEXT = 20
"""Retrying, failed and dead jobs, and schedules, that are listed."""
MAX_OFF = 10
"""And schedules that are switched off."""
MAX_WORKERS = 50
MAX_HELD = 5
"""Jobs of one worker that are named."""
MAX_NEWEST = 30
MAX_WATCHED = 200
MAX_EVENTS = 30
_SETTLED_SECONDS = 120.0
"""After which no worker writes into a minute any more."""
MAX_MINUTE_ROWS = 30_000
"""Rows of statistics that one look at a window reads: the newest that it has not yet."""

_RUNNING_NOW = "SELECT {} FROM pgqueue_job WHERE state = 'running' ORDER BY worker_id, id LIMIT %(cap)s"
_WAITING_NOW = "SELECT {} FROM pgqueue_job WHERE state IN ('scheduled', 'retrying') ORDER BY run_after LIMIT %(cap)s"
_BROKEN_NOW = (
    "SELECT {} FROM pgqueue_job WHERE state IN ('failed', 'dead') AND state {} ORDER BY state, id DESC LIMIT %(next)s"
)
_JOB = "id, task, label, queue_name, state, attempts, max_attempts, fencing_token"
# What an error said is taken out of its row once: a history can be long, and a reading comes every second.
_MESSAGE = (
    "CASE WHEN NOT (id, fencing_token) IN (SELECT * FROM unnest(%(said_ids)s::bigint[], %(said_tokens)s::bigint[])) "
    "THEN left(COALESCE(history -> -1 ->> 'message', ''), 300) END AS message"
)
_ERROR = f"{_JOB}, error_type, finished_at, run_after, {_MESSAGE}"
_EVENT = "id, task, label, state, attempts, fencing_token, error_type, enqueued_at, started_at, finished_at, run_after"
_SUMS = "sum(succeeded), sum(retried + failed + dead), " + ", ".join(
    "ARRAY[" + ", ".join(f"sum({column}[{place}])" for place in range(1, len(stats.BOUNDS) + 2)) + "]::bigint[]"
    for column in ("pickup_counts", "run_counts")
)

_LISTS = f"""
WITH running AS MATERIALIZED ({
    _RUNNING_NOW.format(
        "id, task, label, queue_name, worker_id, attempts, max_attempts, started_at, "
        "lease_expires_at, fencing_token, progress"
    )
}), hand AS (
    SELECT worker_id, count(*) AS jobs, (array_agg(id))[1:{MAX_HELD}] AS ids FROM running
    WHERE worker_id IS NOT NULL GROUP BY worker_id
), least AS (
    SELECT id, task, label, queue_name, worker_id, attempts, max_attempts, started_at, lease_expires_at, fencing_token,
           CASE jsonb_typeof(progress -> 'fraction') WHEN 'number'
           THEN round(GREATEST(0, LEAST(1, (progress ->> 'fraction')::numeric)), 4) END AS fraction,
           left(progress ->> 'message', 200) AS message
    FROM running ORDER BY lease_expires_at, id LIMIT {MAX_RUNNING}
), retrying AS (
    SELECT {_ERROR} FROM ({_WAITING_NOW.format("*")}) AS seen WHERE state = 'retrying'
    ORDER BY run_after LIMIT %(next)s
), failed AS ({_BROKEN_NOW.format(_ERROR, ">= 'failed'")}
), dead AS ({_BROKEN_NOW.format(_ERROR, "<= 'dead'")}
), newest AS (
    SELECT {_EVENT} FROM pgqueue_job ORDER BY id DESC LIMIT {MAX_NEWEST}
), watched AS (
    SELECT {_EVENT} FROM pgqueue_job WHERE id = ANY(%(watched)s::bigint[])
), worker AS (
    SELECT * FROM (
        SELECT id, name, host, pid, queues, concurrency, running, lease_seconds, version, memory_bytes, skew_seconds,
               heartbeat_at, heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds) AS alive,
               CASE jsonb_typeof(tasks) WHEN 'array' THEN jsonb_array_length(tasks) ELSE 0 END AS tasks
        FROM pgqueue_worker) AS known
    ORDER BY CASE WHEN NOT alive THEN heartbeat_at END DESC NULLS FIRST, id LIMIT {MAX_WORKERS}
), pause AS (
    SELECT name, paused_at, resume_at, reason, actor FROM pgqueue_queue
    WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > statement_timestamp())
    ORDER BY name LIMIT {snapshot.MAX_QUEUES}
), schedule AS (
    (SELECT id, name, task, line, zone, is_enabled, skip_next, next_at, error, last_fired_at, last_job_id
     FROM pgqueue_schedule WHERE is_enabled AND retired_at IS NULL ORDER BY next_at LIMIT %(next)s)
    UNION ALL
    (SELECT id, name, task, line, zone, is_enabled, skip_next, next_at, error, last_fired_at, last_job_id
     FROM pgqueue_schedule WHERE NOT is_enabled AND retired_at IS NULL ORDER BY name LIMIT {MAX_OFF})
), minute AS (
    SELECT jsonb_build_array(minute, {_SUMS}) AS sums FROM pgqueue_stat
    WHERE minute >= date_trunc('minute', statement_timestamp() - make_interval(secs => {KEPT_SECONDS}), 'UTC')
    GROUP BY minute
)
SELECT jsonb_build_object(
    'now', EXTRACT(EPOCH FROM statement_timestamp()),
    {
    ", ".join(
        f"'{name}', (SELECT jsonb_agg(to_jsonb(one)) FROM {name} AS one)"
        for name in ("least", "retrying", "failed", "dead", "newest", "watched", "worker", "pause", "schedule")
    )
},
    'hand', (SELECT jsonb_object_agg(worker_id, jsonb_build_array(jobs, ids)) FROM hand),
    'minute', (SELECT jsonb_agg(sums) FROM minute)
)::text
"""

Row = Mapping[str, Any]
Counts = tuple[float, ...]


def moment(text: object) -> datetime | None:
    """Of PostgreSQL's JSON. Plain SQL can write moments that Python has none for, here or in another time zone."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and MOMENTS[0] <= found < MOMENTS[1] else None


@dataclass(frozen=True, slots=True)
class Point:
    """The counters at one moment, since ever; and how many waited."""

    at: float
    """The database's clock, as a Unix time."""
    done: float
    failed: float
    pickups: Counts
    runs: Counts
    waiting: Mapping[str, int]
    busy_slots: int


@dataclass(frozen=True, slots=True)
class Span:
    """What ended from ``begin`` for ``seconds``: of a minute that is not over, of its part that is."""

    begin: float
    seconds: float
    done: float
    failed: float
    pickups: Counts
    runs: Counts


@dataclass(frozen=True, slots=True)
class Event:
    """What a job became, as far as readings show it."""

    key: str
    at: datetime
    job: Row
    kind: str
    """Its state, or ``enqueued``."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The queue as it is now, and what this process has seen of it before."""

    number: int
    now: datetime
    """The database's clock."""
    taken: Snapshot
    lists: Mapping[str, Any]
    messages: Mapping[tuple[int, int], str]
    """What the listed errors said, by id and fencing token."""
    points: tuple[Point, ...]
    """The oldest first, this reading's the last."""
    minutes: tuple[Span, ...]
    waiting_by_minute: Mapping[int, Mapping[str, int]]
    """How many waited when this process looked, by Unix time of the minute: of the last hour."""
    events: tuple[Event, ...]
    """The newest first."""

    def rows(self, name: str) -> list[Row]:
        return self.lists[name] or []

    @property
    def is_new(self) -> bool:
        """There has never been a job."""
        return not self.rows("newest") and not self.taken.tallies

    def recent(self, seconds: float) -> Span:
        """What ended in about the last ``seconds``: as readings show it, else as the minutes do."""
        last = self.points[-1]
        first = last
        for point in reversed(self.points):
            if first.at - point.at > GAP_SECONDS:
                break
            first = point
            if last.at - point.at >= seconds:
                break
        if last.at - first.at >= min(seconds, RATE_SECONDS) / 2:
            return between(first, last)
        spans = [span for span in self.minutes if span.begin + span.seconds > last.at - LENGTH_SECONDS]
        return total(spans, since=min((span.begin for span in spans), default=last.at - LENGTH_SECONDS), until=last.at)


def between(first: Point, last: Point) -> Span:
    # They only grow; less is another table, or one that was emptied.
    return Span(
        first.at,
        last.at - first.at,
        max(0, last.done - first.done),
        max(0, last.failed - first.failed),
        tuple(max(0, b - a) for a, b in zip(first.pickups, last.pickups, strict=True)),
        tuple(max(0, b - a) for a, b in zip(first.runs, last.runs, strict=True)),
    )


def total(spans: Sequence[Span], *, since: float, until: float) -> Span:
    return Span(
        since,
        max(1.0, until - since),
        sum(span.done for span in spans),
        sum(span.failed for span in spans),
        _added(span.pickups for span in spans),
        _added(span.runs for span in spans),
    )


def _added(counts: Iterable[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True))) or (0,) * (len(stats.BOUNDS) + 1)


class _Watch:
    """What this process has seen. One reading at a time: ``Shared`` sees to that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._points: deque[Point] = deque()
        self._waiting: dict[int, Mapping[str, int]] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._watched: dict[int, tuple[str, int]] = {}
        self._told: frozenset[int] = frozenset()
        self._messages: dict[tuple[int, int], str] = {}

    def take(self, using: str) -> Reading:
        taken = snapshot.take(using)
        with index_walks(using) as cursor:
            cursor.execute(_LISTS, self._bounds())
            lists: dict[str, Any] = json.loads(cursor.fetchone()[0])
        # Whoever asked for one that came too late has gone, and somebody else may have begun the next.
        with self._lock:
            self._number += 1
            # Not the snapshot's own: without USE_TZ Django's moments know no zone.
            now = datetime.fromtimestamp(lists["now"], UTC)
            self._remember(lists["now"], taken)
            self._tell(now, lists)
            self._say([row for name in ("retrying", "failed", "dead") for row in lists[name] or ()])
            return Reading(
                self._number,
                now,
                taken,
                lists,
                dict(self._messages),
                tuple(self._points),
                tuple(_minute(sums, self._points[-1].at) for sums in lists["minute"] or ()),
                dict(self._waiting),
                tuple(self._events),
            )

    def _bounds(self) -> dict[str, Any]:
        said = list(self._messages)
        return {
            "cap": snapshot.CAP,
            "next": MAX_NEXT,
            "watched": list(self._watched),
            "said_ids": [id for id, _ in said],
            "said_tokens": [token for _, token in said],
        }

    def _say(self, rows: Iterable[Row]) -> None:
        known, self._messages = self._messages, {}
        for row in rows:
            key = row["id"], row["fencing_token"]
            self._messages[key] = known.get(key, "") if row["message"] is None else row["message"]

    def _remember(self, at: float, taken: Snapshot) -> None:
        waiting: dict[str, int] = {}
        for depth in taken.depths:
            if depth.state == State.QUEUED:
                waiting[depth.queue_name] = depth.jobs
        tallies = taken.tallies
        point = Point(
            at,
            sum(tally.succeeded for tally in tallies),
            sum(tally.retried + tally.failed + tally.dead for tally in tallies),
            _added(tally.pickup_counts for tally in tallies),
            _added(tally.run_counts for tally in tallies),
            waiting,
            taken.busy_slots,
        )
        if self._points and point.at <= self._points[-1].at:  # its clock was set back, or it is another server's
            self._points.clear()
        self._points.append(point)
        while self._points[0].at < point.at - KEPT_SECONDS - GAP_SECONDS:
            self._points.popleft()
        minute = int(point.at // 60) * 60
        self._waiting[minute] = waiting
        for old in [at for at in self._waiting if at <= minute - 3600 or at > minute]:
            del self._waiting[old]

    def _tell(self, now: datetime, lists: Mapping[str, Any]) -> None:
        """What has become of the jobs that the reading before saw, and which are new."""
        seen: dict[int, Row] = {row["id"]: row for row in lists["watched"] or ()}
        newest = lists["newest"] or ()
        oldest = min(self._told, default=0) if len(self._told) >= MAX_NEWEST else 0
        seen |= {row["id"]: row for row in newest}
        found = []
        for id, row in seen.items():
            before = self._watched.get(id)
            if before == (row["state"], row["fencing_token"]):
                continue
            # Ids can be seen in another order than they were given: a lower one may just have been committed.
            if before is None and (id in self._told or id < oldest):
                continue
            kind = str(row["state"]) if before or row["state"] in ("running", *FINISHED) else "enqueued"
            found.append(Event(f"{id}-{row['fencing_token']}-{kind}", _when(row, kind, now), row, kind))
        for event in sorted(found, key=lambda event: (event.at, event.job["id"])):
            self._events.appendleft(event)
        self._told = frozenset(row["id"] for row in newest)
        watch = [*(lists["least"] or ()), *newest, *(lists["retrying"] or ()), *seen.values()]
        self._watched = {}
        for row in watch:
            state = row.get("state", "running")
            if state not in FINISHED and row["id"] not in self._watched and len(self._watched) < MAX_WATCHED:
                self._watched[row["id"]] = state, row["fencing_token"]


def _when(row: Row, kind: str, now: datetime) -> datetime:
    column = {"enqueued": "enqueued_at", "running": "started_at"}.get(kind, "finished_at")
    at = moment(row[column])
    return now if at is None or at > now else at


def _minute(sums: Sequence[Any], now: float) -> Span:
    at = moment(sums[0])
    begin = at.timestamp() if at else 0.0
    return _span(begin, max(1.0, min(60.0, now - begin)), sums[1:])


def _span(begin: float, seconds: float, sums: Sequence[Any]) -> Span:
    done, failed, pickups, runs = sums
    return Span(begin, seconds, int(done), int(failed), *(tuple(n or 0 for n in counts) for counts in (pickups, runs)))


@dataclass(frozen=True, slots=True)
class Length:
    """How a window of the past is cut, and how long one reading of it is good for, in seconds."""

    seconds_per_point: int
    points: int
    shared_seconds: float


WINDOWS: Mapping[str, Length] = {
    "hour": Length(60, 60, 5.0),
    "day": Length(900, 96, 30.0),
    "week": Length(3600, 168, 60.0),
}


@dataclass(frozen=True, slots=True)
class Past:
    """A window of the past; None: of that part nothing has been read yet, or it is too much."""

    number: int
    ends_at: float
    spans: tuple[Span | None, ...]
    is_whole: bool
    """There is no more to read of it."""


_NO_END = 1e11
_PAST = f"""
WITH since AS (
    SELECT to_timestamp(GREATEST(%(since)s,
        (floor(EXTRACT(EPOCH FROM statement_timestamp()) / %(size)s) - %(points)s + 1) * %(size)s)) AS at,
        to_timestamp(%(until)s) AS until
), now_kept AS MATERIALIZED (
    SELECT minute AS begin, stat.* FROM pgqueue_stat stat
    WHERE minute >= (SELECT at FROM since) AND minute < (SELECT until FROM since)
    ORDER BY minute DESC LIMIT {MAX_MINUTE_ROWS}
), minutes AS MATERIALIZED (
    SELECT * FROM pgqueue_stat_history
    WHERE seconds = 60 AND begin >= (SELECT at FROM since) AND begin < (SELECT until FROM since)
    ORDER BY seconds DESC, begin DESC LIMIT {MAX_MINUTE_ROWS}
), hours AS MATERIALIZED (
    SELECT * FROM pgqueue_stat_history
    WHERE seconds = 3600 AND begin >= (SELECT at FROM since) AND begin < (SELECT until FROM since)
    ORDER BY seconds DESC, begin DESC LIMIT {MAX_MINUTE_ROWS}
), part AS (
    SELECT begin, succeeded, retried, failed, dead, pickup_counts, run_counts FROM now_kept
    UNION ALL SELECT begin, succeeded, retried, failed, dead, pickup_counts, run_counts FROM minutes
    UNION ALL SELECT begin, succeeded, retried, failed, dead, pickup_counts, run_counts FROM hours
), slot AS (
    SELECT jsonb_build_array(floor(EXTRACT(EPOCH FROM begin) / %(size)s), {_SUMS}) AS sums
    FROM part GROUP BY floor(EXTRACT(EPOCH FROM begin) / %(size)s)
)
SELECT jsonb_build_array(
    EXTRACT(EPOCH FROM statement_timestamp()), (SELECT jsonb_agg(sums) FROM slot),
    EXTRACT(EPOCH FROM GREATEST((SELECT min(begin) FROM now_kept HAVING count(*) >= {MAX_MINUTE_ROWS}),
                                (SELECT min(begin) FROM minutes HAVING count(*) >= {MAX_MINUTE_ROWS}),
                                (SELECT min(begin) FROM hours HAVING count(*) >= {MAX_MINUTE_ROWS})))
)::text
"""
_numbers = itertools.count(1)


class _Window:
    """A window of the past. What is over is read once, the newest first, and in steps where there is much of it."""

    def __init__(self, length: Length) -> None:
        self._length = length
        self._over: dict[int, Span | None] = {}
        """By place, in units of the window's points; none is missing between the first and the last."""

    def take(self, using: str) -> Past:
        size, points = self._length.seconds_per_point, self._length.points
        over = dict(self._over)
        now, spans = self._read(using, (max(over) + 1) * size if over else 0.0, _NO_END)
        last = int(now // size)
        if over and max(over) >= last:  # its clock was set back, or it is another server's
            self._over = {}
            return self.take(using)
        first = last - points + 1
        if over and min(spans) > max(over) + 1:  # nobody has looked for long: between them there is more
            over = {}
        if (lowest := min([*over, *spans])) > first:
            _, older = self._read(using, first * size, lowest * size)
            spans = {**older, **spans}
        spans = {**over, **spans}
        self._over = {
            slot: span for slot, span in spans.items() if slot >= first and (slot + 1) * size < now - _SETTLED_SECONDS
        }
        shown = tuple(spans.get(slot) for slot in range(first, last + 1))
        return Past(next(_numbers), (last + 1.0) * size, shown, min(spans) <= first)

    def _read(self, using: str, since: float, until: float) -> tuple[float, dict[int, Span | None]]:
        """When it was, and the places of this part of the window that were read whole."""
        size, points = self._length.seconds_per_point, self._length.points
        with index_walks(using) as cursor:
            cursor.execute(_PAST, {"size": size, "points": points, "since": since, "until": until})
            now, slots, cut = json.loads(cursor.fetchone()[0])
        found = {int(sums[0]): sums[1:] for sums in slots or ()}
        begin, end = (
            max(int(since // size), int(now // size) - points + 1),
            min(int(until // size), int(now // size) + 1),
        )
        if cut is not None:
            # The rest is for the next time. One that is too much by itself is left out for ever.
            begin = min(int(cut // size) + 1, end)
        spans: dict[int, Span | None] = {}
        for slot in range(begin, end):
            at = slot * size
            length = max(1.0, min(size, now - at))
            spans[slot] = _span(at, length, found[slot]) if slot in found else total((), since=at, until=at + length)
        if cut is not None and not spans:
            spans[begin - 1] = None
        return now, spans


@dataclass(frozen=True, slots=True)
class Record:
    """What the attempts of one task ended in within a window, and how long they took."""

    task: str
    done: float
    failed: float
    pickups: Counts
    runs: Counts


@dataclass(frozen=True, slots=True)
class Records:
    """Of the tasks with the most attempts, those first."""

    number: int
    seconds: float
    """What they look back on: without a gap, up to now."""
    tasks: tuple[Record, ...]
    is_cut: bool
    """That is only the newest part of the window: there is too much."""


RECORD_SECONDS: Mapping[str, int] = {
    "live": snapshot.RECENT_SECONDS,
    **{name: length.seconds_per_point * length.points for name, length in WINDOWS.items()},
}
MAX_RECORDS = 50
_RECORDS = f"""
WITH since AS (
    SELECT date_trunc('minute', statement_timestamp() - make_interval(secs => %(seconds)s), 'UTC') AS at
), now_kept AS MATERIALIZED (
    SELECT * FROM pgqueue_stat WHERE minute >= (SELECT at FROM since) ORDER BY minute DESC LIMIT {MAX_MINUTE_ROWS}
), minutes AS MATERIALIZED (
    SELECT * FROM pgqueue_stat_history WHERE seconds = 60 AND begin >= (SELECT at FROM since)
    ORDER BY seconds DESC, begin DESC LIMIT {MAX_MINUTE_ROWS}
), hours AS MATERIALIZED (
    SELECT * FROM pgqueue_stat_history WHERE seconds = 3600 AND begin >= (SELECT at FROM since)
    ORDER BY seconds DESC, begin DESC LIMIT {MAX_MINUTE_ROWS}
), cut AS MATERIALIZED (
    SELECT GREATEST((SELECT min(minute) FROM now_kept HAVING count(*) >= {MAX_MINUTE_ROWS}),
                    (SELECT min(begin) FROM minutes HAVING count(*) >= {MAX_MINUTE_ROWS}),
                    (SELECT min(begin) FROM hours HAVING count(*) >= {MAX_MINUTE_ROWS})) AS at
), part AS (
    SELECT kept.* FROM (
        SELECT minute AS begin, task, succeeded, retried, failed, dead, pickup_counts, run_counts FROM now_kept
        UNION ALL SELECT begin, task, succeeded, retried, failed, dead, pickup_counts, run_counts FROM minutes
        UNION ALL SELECT begin, task, succeeded, retried, failed, dead, pickup_counts, run_counts FROM hours
    ) AS kept WHERE begin > COALESCE((SELECT at FROM cut), '-infinity')
), record AS (
    SELECT jsonb_build_array(task, {_SUMS}) AS sums, sum(succeeded + retried + failed + dead) AS attempts, task
    FROM part GROUP BY task ORDER BY attempts DESC, task LIMIT {MAX_RECORDS}
)
SELECT jsonb_build_array(
    (SELECT jsonb_agg(sums ORDER BY attempts DESC, task) FROM record),
    (SELECT EXTRACT(EPOCH FROM statement_timestamp() - at) FROM cut)
)::text
"""


def _take_records(using: str, seconds: int) -> Records:
    with index_walks(using) as cursor:
        cursor.execute(_RECORDS, {"seconds": seconds})
        rows, covered = json.loads(cursor.fetchone()[0])
    tasks = [
        Record(task, int(done), int(failed), *(tuple(n or 0 for n in counts) for counts in (pickups, runs)))
        for task, done, failed, pickups, runs in rows or ()
    ]
    return Records(next(_numbers), seconds if covered is None else covered, tuple(tasks), covered is not None)


_watch = _Watch()
_windows = {name: _Window(length) for name, length in WINDOWS.items()}
readings: Shared[Reading] = Shared(lambda using: _watch.take(using), SHARED_SECONDS)


RETRY_SECONDS = 10.0
"""After statistics that took too long: else each kind of viewer would wait for them in turn."""


def _sharing(name: str) -> Shared[Past]:
    def look(using: str) -> Past:
        past = _windows[name].take(using)
        shared.seconds = WINDOWS[name].shared_seconds if past.is_whole else SECONDS
        return past

    shared = Shared(look, WINDOWS[name].shared_seconds, retry_seconds=RETRY_SECONDS)
    return shared


pasts: Mapping[str, Shared[Past]] = {name: _sharing(name) for name in WINDOWS}


def _recording(name: str) -> Shared[Records]:
    seconds = WINDOWS[name].shared_seconds if name in WINDOWS else WINDOWS["hour"].shared_seconds
    return Shared(lambda using: _take_records(using, RECORD_SECONDS[name]), seconds, retry_seconds=RETRY_SECONDS)


records: Mapping[str, Shared[Records]] = {name: _recording(name) for name in RECORD_SECONDS}


def forget() -> None:
    """For tests: nothing was seen yet."""
    global _watch
    _watch = _Watch()
    readings.forget()
    for name, length in WINDOWS.items():
        _windows[name] = _Window(length)
        pasts[name].forget()
    for one in records.values():
        one.forget()
