"""A reading as one page shows it: for one language, time zone, set of rights, place and window.

The same structure draws the first page on the server and is sent to its script as JSON, so nothing is laid out twice.
It is made once for all who see the same; what somebody may not see is not in it. It asks the database for nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from typing import Any, Literal
from urllib.parse import urlencode

from django.urls import NoReverseMatch, get_script_prefix, get_urlconf, reverse, set_script_prefix, set_urlconf
from django.utils import timezone, translation
from django.utils.formats import number_format
from django.utils.translation import gettext, gettext_lazy, ngettext, pgettext

from pgqueue_django import problems, stats
from pgqueue_django.answers import Unanswered
from pgqueue_django.answers import until as in_time
from pgqueue_django.options import QUEUE_NAME
from pgqueue_django.problems import Rule
from pgqueue_django.snapshot import CAP, OTHER, Depth
from pgqueue_django.states import State
from pgqueue_django.tasks import declared_tasks

from . import charts, live
from .charts import Chart, Series
from .live import Past, Point, Reading, Records, Row, Span, moment
from .wording import LABELS, length, problem_text, written

WINDOWS = ("live", *live.WINDOWS)
MAX_QUEUES = 50
"""Queues that are listed: those in which something waits for somebody first."""
MAX_TAKEN = 20
"""Queues that one worker takes which are named."""
MAX_SERIES = 5
"""Queues that have a line of their own in a chart; the rest is one."""
MAX_KEPT = 64
"""Frames of different people that are kept."""

_LIVE_POINTS = live.KEPT_SECONDS // live.SECONDS
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Viewer:
    """All that a frame depends on, beside the reading."""

    language: str
    zone: tzinfo
    rights: frozenset[str]
    """Codenames of this app's permissions."""
    site: str
    """Name of the admin site that its links lead to."""
    window: str = "live"
    prefix: str = "/"
    """Below which the project is mounted, and by which URLconf: a stream's thread is in no request."""
    urlconf: Any = None

    @property
    def mark(self) -> str:
        """The same for all who see the same."""
        told = (self.language, str(self.zone), sorted(self.rights), self.site, self.window, self.prefix, self.urlconf)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:12]

    def may(self, right: str) -> bool:
        return right in self.rights


@dataclass(frozen=True, slots=True)
class Frame:
    body: bytes
    """JSON on one line. Kept so for all who see the same: what it is made of would take ten times the memory."""
    etag: str

    @property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content


TOO_LONG = gettext_lazy("The statistics of this window took too long to read.")
_process = uuid.uuid4().hex[:12]  # another process counts its own readings
_lock = threading.Lock()
_kept: OrderedDict[Viewer, tuple[tuple[int, int, int], Frame]] = OrderedDict()


def frame(viewer: Viewer, until: float | None = None) -> Frame:
    """What this viewer sees now, at most ``answers.SHARED_SECONDS`` old. Raises answers.Unanswered."""
    until = in_time() if until is None else until
    return of(viewer, live.readings.reading(until), until)


def of(viewer: Viewer, reading: Reading, until: float | None = None) -> Frame:
    """What this viewer sees of one reading."""
    past: Past | None = None
    if viewer.window != "live":
        # The queue has answered: without its past the page is the same but for the charts.
        with contextlib.suppress(Unanswered):
            past = live.pasts[viewer.window].reading(until)
    records: Records | None = None
    if viewer.may("view_job"):
        with contextlib.suppress(Unanswered):
            records = live.records[viewer.window].reading(until)
    which = reading.number, past.number if past else 0, records.number if records else 0
    with _lock:
        found = _kept.get(viewer)
        if found is None or found[0] != which:
            found = which, _made(viewer, reading, past, records)
            _kept[viewer] = found
        _kept.move_to_end(viewer)
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
        return found[1]


def forget() -> None:
    """For tests."""
    live.forget()
    with _lock:
        _kept.clear()


def _made(viewer: Viewer, reading: Reading, past: Past | None, records: Records | None) -> Frame:
    with translation.override(viewer.language), timezone.override(viewer.zone), _mounted(viewer):
        content = _Drawing(viewer, reading, past, records).content()
    # Plain SQL can write what UTF-8 has no bytes for; JSON has.
    body = json.dumps(content, separators=(",", ":")).encode()
    numbers = reading.number, past.number if past else 0, records.number if records else 0
    return Frame(body, f'"{_process}-{"-".join(map(str, numbers))}-{viewer.mark}"')


@contextlib.contextmanager
def _mounted(viewer: Viewer) -> Iterator[None]:
    before = get_script_prefix(), get_urlconf()
    set_script_prefix(viewer.prefix)
    set_urlconf(viewer.urlconf)
    try:
        yield
    finally:
        set_script_prefix(before[0])
        set_urlconf(before[1])


Cell = dict[str, Any]


def _cell(text: object = "", **more: Any) -> Cell:
    return {"text": str(text), **{name: value for name, value in more.items() if value not in (None, "", [])}}


def _count(number: float) -> str:
    return number_format(number, force_grouping=True)


def _rate(number: float) -> str:
    return number_format(round(number, 1 if number < 100 else 0), 1 if number < 100 else 0, force_grouping=True)


def _both(counts: Sequence[float]) -> str:
    """Half of them took at most so long, and 95 of 100."""
    both = [stats.quantile(counts, share) for share in (0.5, 0.95)]
    return " · ".join("-" if one is None else charts.measured(one, length(one)) for one in both)


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


class _Drawing:
    """One frame, while it is made."""

    def __init__(self, viewer: Viewer, reading: Reading, past: Past | None, records: Records | None) -> None:
        self.viewer = viewer
        self.reading = reading
        self.taken = reading.taken
        self.now = reading.now
        self.past = past
        self.records = records
        self._urls: dict[str, str] = {}
        self.lists_url = self._url("job_changelist") if viewer.may("view_job") else ""
        self.workers_url = self._url("worker_changelist") if viewer.may("view_worker") else ""
        self.depths = {(depth.queue_name, depth.state): depth for depth in self.taken.depths}

    def content(self) -> dict[str, Any]:
        reading = self.reading
        return {
            "number": reading.number,
            "taken_at": self.now.isoformat(),
            "window": self.viewer.window,
            "problems": list(self._problems()),
            "tiles": list(self._tiles()),
            "charts": [charts.draw(chart) for chart in self._charts()],
            "tables": list(self._tables()),
            "feed": list(self._feed()),
            "checklist": list(self._checklist()) if reading.is_new else None,
        }

    # -- where things are ---------------------------------------------------------------------------------------

    def _url(self, name: str, *args: int) -> str:
        """Empty where this admin site has no such page."""
        if name not in self._urls:
            # Once for each kind of page: a frame has a hundred links.
            try:
                url = reverse(f"admin:pgqueue_django_{name}", args=[0] * len(args), current_app=self.viewer.site)
            except NoReverseMatch:
                url = ""
            self._urls[name] = url
        url = self._urls[name]
        if not (url and args):
            return url
        head, _, tail = url.rpartition("/0/")
        return f"{head}/{args[0]}/{tail}"

    def _jobs(self, state: State | None = None, search: str = "") -> str:
        if not self.lists_url:
            return ""
        query = {**({"state": str(state)} if state else {}), **({"q": search} if search else {})}
        return f"{self.lists_url}?{urlencode(query)}" if query else self.lists_url

    def _of_queue(self, name: str, state: State | None = None) -> str:
        return self._jobs(state, f"queue:{name}") if QUEUE_NAME.fullmatch(name) else ""

    def _of_task(self, name: str, state: State | None = None) -> str:
        query = {"task": name, **({"state": str(state)} if state else {})}
        return f"{self.lists_url}?{urlencode(query)}" if self.lists_url else ""

    def _job(self, id: int) -> str:
        return self._url("job_change", id) if self.lists_url else ""

    def _button(self, text: str, right: str, name: str, **fields: Any) -> list[dict[str, Any]]:
        url = self._url(f"job_dashboard_{name}")
        if not (url and self.viewer.may(right)):
            return []
        if self.viewer.window != "live":
            fields["window"] = self.viewer.window
        return [{"text": text, "url": url, "fields": fields}]

    # -- moments ------------------------------------------------------------------------------------------------

    def _at(self, when: datetime | None, **more: Any) -> Cell:
        """How long ago, counting on."""
        if when is None:
            return _cell("-", **more)
        seconds = (self.now - when).total_seconds()
        text = gettext("%(time)s ago") if seconds >= 0 else gettext("in %(time)s")
        title = more.pop("title", "") or self._written(when)
        return _cell(text % {"time": length(abs(seconds))}, at=when.isoformat(), title=title, **more)

    @staticmethod
    def _written(when: datetime) -> str:
        return written(timezone.localtime(when))

    # -- problems and tiles -------------------------------------------------------------------------------------

    def _problems(self) -> Iterator[dict[str, str]]:
        if self.viewer.window != "live" and self.past is None:
            yield {"severity": "warning", "text": str(TOO_LONG), "url": ""}
        for one in problems.find(self.taken):
            text = problem_text(one)
            yield {"severity": str(one.severity), "text": text, "url": self._explained(one)}

    def _explained(self, problem: problems.Problem) -> str:
        facts = problem.facts
        if "queue" in facts:
            return self._of_queue(str(facts["queue"]))
        if problem.rule == Rule.UNKNOWN_TASK:
            return self._of_task(str(facts["task"]), State.SCHEDULED)
        if problem.rule == Rule.FAILURE_RATE:
            return self._url("job_problems") if self.lists_url else ""
        if problem.rule in (Rule.LEASES_EXPIRED, Rule.WORKER_LATE):
            return self.workers_url
        if problem.rule == Rule.SCHEDULE_LATE and self.viewer.may("view_schedule"):
            url = self._url("schedule_changelist")
            return f"{url}?{urlencode({'q': facts['schedule']})}" if url else ""
        return ""

    def _tiles(self) -> Iterator[dict[str, str]]:
        rates = self.reading.recent(live.RATE_SECONDS)
        lengths = self.reading.recent(live.LENGTH_SECONDS)
        note = gettext("last %(time)s") % {"time": length(rates.seconds)}
        yield self._tile(
            "done", gettext("Done/s"), _rate(rates.done / rates.seconds), note, self._jobs(State.SUCCEEDED)
        )
        failed = self._url("job_problems") if self.lists_url else ""
        yield self._tile("failed", gettext("Failed/s"), _rate(rates.failed / rates.seconds), note, failed)
        note = gettext("last %(time)s") % {"time": length(lengths.seconds)}
        for key, label, counts, state in (
            ("pickup", gettext("Pickup p50 · p95"), lengths.pickups, State.QUEUED),
            ("run", gettext("Run p50 · p95"), lengths.runs, State.RUNNING),
        ):
            yield self._tile(key, label, _both(counts), note, self._jobs(state))
        yield self._waiting()
        queue = max(self.taken.oldest_due, key=lambda name: self.taken.oldest_due[name], default=None)
        oldest = "-" if queue is None else length(self.taken.oldest_due[queue])
        yield self._tile(
            "oldest", gettext("Oldest due"), oldest, queue or "", self._of_queue(queue or "", State.QUEUED)
        )
        workers = ngettext("%(count)s worker", "%(count)s workers", self.taken.workers)
        slots = f"{_count(self.taken.busy_slots)}/{_count(self.taken.slots)}"
        note = workers % {"count": _count(self.taken.workers)}
        yield self._tile("slots", gettext("Slots used"), slots, note, self.workers_url)

    @staticmethod
    def _tile(key: str, label: str, text: str, note: str, url: str) -> dict[str, str]:
        return {"key": key, "label": label, "text": text, "note": note, "url": url}

    def _waiting(self) -> dict[str, str]:
        cell = self._depth([depth for depth in self.taken.depths if depth.state == State.QUEUED], State.QUEUED)
        notes = [cell.get("title", "")]
        for state in (State.SCHEDULED, State.RETRYING):
            depths = [depth for depth in self.taken.depths if depth.state == state]
            if depths:
                notes.append(f"{self._depth(depths, state)['text']} {LABELS[state]}")
        return self._tile(
            "waiting",
            pgettext("queue", "Waiting"),
            cell["text"],
            ", ".join(note for note in notes if note),
            self._jobs(State.QUEUED),
        )

    def _depth(self, depths: Sequence[Depth], state: State, **more: Any) -> Cell:
        """How many; where not all were counted, that there are more, or what was counted last and when."""
        jobs = sum(depth.jobs for depth in depths)
        if not any(depth.capped for depth in depths):
            return _cell(_count(jobs), **more)
        age = self.taken.count_ages.get(state)
        if age is None:
            return _cell(f"{_count(jobs)}+", title=gettext("there may be more"), **more)
        return _cell(f"≈ {_count(jobs)}", title=gettext("counted %(time)s ago") % {"time": length(age)}, **more)

    # -- charts -------------------------------------------------------------------------------------------------

    def _charts(self) -> Iterator[Chart]:
        if self.viewer.window != "live" and self.past is None:
            return
        if self.past is None:
            size, spans, waits, ends_at = live.SECONDS, *self._now()
        else:
            size, spans, ends_at = (
                live.WINDOWS[self.viewer.window].seconds_per_point,
                self.past.spans,
                self.past.ends_at,
            )
            waits = []
            if self.viewer.window == "hour":
                seen = self.reading.waiting_by_minute
                waits = [seen.get(int(ends_at) - _MINUTE * (len(spans) - place)) for place in range(len(spans))]
        ends = datetime.fromtimestamp(ends_at, UTC).isoformat()

        def chart(key: str, label: str, unit: str, scale: Literal["linear", "log"], series: list[Series]) -> Chart:
            return Chart(
                key=key, label=label, unit=unit, scale=scale, seconds_per_point=size, ends_at=ends, series=series
            )

        yield chart(
            "throughput",
            pgettext("queue", "Throughput"),
            "/s",
            "linear",
            [
                _series("done", pgettext("queue", "done"), [one.done / one.seconds if one else None for one in spans]),
                _series("failed", LABELS[State.FAILED], [one.failed / one.seconds if one else None for one in spans]),
            ],
        )
        for key, label, counts in (
            ("pickup", gettext("Enqueue to start"), [one.pickups if one else () for one in spans]),
            ("run", gettext("Run time"), [one.runs if one else () for one in spans]),
        ):
            lines = [
                _series(name, name, [stats.quantile(one, share) for one in counts])
                for name, share in (("p50", 0.5), ("p95", 0.95))
            ]
            yield chart(key, label, "s", "log", lines)
        if waits:
            yield chart("waiting", gettext("Ready jobs"), "", "linear", list(_by_queue(waits)))

    def _now(self) -> tuple[tuple[Span | None, ...], list[Mapping[str, int] | None], float]:
        """The last two minutes: between readings what they show, where there were none the mean of each minute."""
        points, size = self.reading.points, live.SECONDS
        ends_at = points[-1].at // size * size
        ends = [ends_at - size * (_LIVE_POINTS - place) for place in range(_LIVE_POINTS + 1)]
        seen = [_between(points, at) for at in ends]
        spans: list[Span | None] = []
        for begin, before, after in zip(ends, seen, seen[1:], strict=False):
            if before and after:
                spans.append(live.between(before, after))
                continue
            held = [span for span in self.reading.minutes if span.begin <= begin < span.begin + _MINUTE]
            spans.append(held[0] if held else live.total((), since=begin, until=begin + size))
        return tuple(spans), [point.waiting if point else None for point in seen[1:]], ends_at

    # -- tables -------------------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[dict[str, Any]]:
        yield self._queues()
        if self.viewer.may("view_worker"):
            yield self._workers()
        if self.viewer.may("view_job"):
            yield self._tasks()
            yield self._running()
            yield self._retrying()
            yield self._broken(State.DEAD)
            yield self._broken(State.FAILED)
        if self.viewer.may("view_schedule"):
            yield self._schedules()

    def _tasks(self) -> dict[str, Any]:
        """What became of each task's attempts in the window, those with the most first."""
        rows = []
        for one in self.records.tasks if self.records else ():
            failed = _count(one.failed)
            if one.failed:
                share = number_format(100 * one.failed / (one.done + one.failed), 1)
                failed += f" ({gettext('%(percent)s%%') % {'percent': share}})"
            url = self._of_task(one.task)
            cells = [
                _cell(one.task, url=url),
                _cell(_count(one.done)),
                _cell(failed, **({"class": "pgq-failed"} if one.failed else {})),
                _cell(_both(one.pickups)),
                _cell(_both(one.runs)),
            ]
            rows.append({"key": one.task, "class": "", "cells": cells})
        notes = [gettext("last %(time)s") % {"time": length(self.records.seconds)}] if self.records else []
        if self.records and self.records.is_cut:
            notes.append(gettext("the newest part: there is too much"))
        return _table(
            "tasks",
            pgettext("queue", "Tasks"),
            [
                ("task", pgettext("queue", "Task")),
                ("done", pgettext("queue", "Done")),
                ("failed", pgettext("queue", "Failed")),
                ("pickup", gettext("Pickup p50 · p95")),
                ("run", gettext("Run p50 · p95")),
            ],
            rows,
            gettext("No attempt has ended.") if self.records else str(TOO_LONG),
            ", ".join(notes),
        )

    def _queues(self) -> dict[str, Any]:
        pauses = {row["name"]: row for row in self.reading.rows("pause")}
        names = {depth.queue_name for depth in self.taken.depths} | set(pauses) | set(self.taken.served or ())
        names |= {tally.queue_name for tally in self.taken.tallies}

        jobs = Counter[str]()
        for depth in self.taken.depths:
            jobs[depth.queue_name] += depth.jobs

        def weight(name: str) -> tuple[bool, float, int, str]:
            return name not in pauses, -self.taken.oldest_due.get(name, 0.0), -jobs[name], name

        shown = sorted(sorted(names, key=weight)[:MAX_QUEUES])
        states = (State.QUEUED, State.SCHEDULED, State.RUNNING, State.RETRYING, State.FAILED, State.DEAD)
        return _table(
            "queues",
            pgettext("queue", "Queues"),
            [
                ("queue", pgettext("queue", "Queue")),
                *((str(state), _ready(state)) for state in states),
                ("oldest", gettext("Oldest due")),
                ("state", pgettext("queue", "State")),
            ],
            [self._queue(name, states, pauses.get(name)) for name in shown],
            gettext("No queue has had a job yet."),
            gettext("The first %(count)s of %(all)s queues.") % {"count": len(shown), "all": _count(len(names))}
            if len(names) > len(shown)
            else "",
        )

    def _queue(self, name: str, states: Iterable[State], pause: Row | None) -> dict[str, Any]:
        cells = [_cell(name, url=self._of_queue(name))]
        for state in states:
            depth = self.depths.get((name, state))
            zero = _cell(
                "≥ 0" if state in self.taken.capped and state != State.QUEUED else "0", **{"class": "pgq-none"}
            )
            told = {"url": self._of_queue(name, state), "class": f"pgq-{state}"}
            cells.append(self._depth([depth], state, **told) if depth else zero)
        oldest = self.taken.oldest_due.get(name)
        cells.append(_cell("-" if oldest is None else length(oldest)))
        buttons = []
        if QUEUE_NAME.fullmatch(name):
            if pause:
                buttons += self._button(pgettext("queue", "Resume"), "pause_queue", "resume", queue=name)
            else:
                buttons += self._button(pgettext("queue", "Pause"), "pause_queue", "pause", queue=name, reason=None)
            if (name, State.DEAD) in self.depths:
                buttons += self._button(gettext("Requeue dead"), "requeue_job", "requeue_dead", queue=name)
        cells.append(self._paused(pause, buttons) if pause else _cell(pgettext("queue", "active"), buttons=buttons))
        return {"key": f"queue-{name}", "class": "pgq-paused" if pause else "", "cells": cells}

    def _paused(self, pause: Row, buttons: list[dict[str, Any]]) -> Cell:
        text = pgettext("queue", "paused")
        if self.viewer.may("view_queue") or self.viewer.may("pause_queue"):
            if pause["actor"]:
                text = gettext("paused by %(actor)s") % {"actor": pause["actor"]}
            if pause["reason"]:
                text = gettext("%(paused)s: %(reason)s") % {"paused": text, "reason": pause["reason"]}
        if resume_at := moment(pause["resume_at"]):
            text = gettext("%(paused)s, until %(moment)s") % {"paused": text, "moment": self._written(resume_at)}
        paused_at = moment(pause["paused_at"])
        title = gettext("since %(moment)s") % {"moment": self._written(paused_at)} if paused_at else ""
        return _cell(text, title=title, buttons=buttons, **{"class": "pgq-paused"})

    def _workers(self) -> dict[str, Any]:
        rows = self.reading.rows("worker")
        hands = self.reading.lists["hand"] or {}
        known = self.taken.workers
        return _table(
            "workers",
            pgettext("queue", "Workers"),
            [
                ("worker", pgettext("queue", "Worker")),
                ("heartbeat", pgettext("queue", "Heartbeat")),
                ("slots", pgettext("queue", "Slots")),
                ("lease", pgettext("queue", "Lease")),
                ("queues", pgettext("queue", "Queues")),
                ("jobs", pgettext("queue", "Jobs")),
                ("memory", pgettext("queue", "Memory")),
                ("version", pgettext("queue", "Version")),
                ("skew", gettext("Clock skew")),
            ],
            [self._worker(row, hands.get(row["id"], (0, []))) for row in rows],
            gettext("No worker has come yet: manage.py pgqueue_worker starts one."),
            gettext("The first %(count)s of %(all)s workers.") % {"count": len(rows), "all": _count(known)}
            if known > len(rows)
            else "",
        )

    def _worker(self, row: Row, hand: Sequence[Any]) -> dict[str, Any]:
        jobs, ids = hand
        beat = self._at(moment(row["heartbeat_at"]))
        if not row["alive"]:
            # By its own lease: from now on somebody else takes back what it ran.
            text = gettext("lost, last seen %(when)s") % {"when": beat["text"]}
            beat = _cell(text, title=beat.get("title"), **{"class": "pgq-lost"})
        names = ", ".join(f"#{id}" for id in ids) if self.lists_url else ""
        more = jobs - len(ids)
        queues = [str(name) for name in row["queues"]] if isinstance(row["queues"], list) else []
        takes = ", ".join(queues[:MAX_TAKEN]) + (f" + {len(queues) - MAX_TAKEN}" if len(queues) > MAX_TAKEN else "")
        slots = row["concurrency"]
        memory, skew = row["memory_bytes"], row["skew_seconds"]
        cells = [
            _cell(row["name"], title=row["id"]),
            beat,
            _cell(f"{row['running']}/{slots}", fraction=min(1.0, row["running"] / slots) if slots else 0.0),
            _cell(length(row["lease_seconds"])),
            _cell(takes or pgettext("queue", "all")),
            _cell(
                f"{names} + {more}" if names and more else names or _count(jobs),
                url=self._jobs(State.RUNNING, f"worker:{row['id']}") if jobs and " " not in row["id"] else "",
            ),
            _cell("-" if memory is None else gettext("%(n)s MB") % {"n": number_format(round(memory / 1e6))}),
            _cell(row["version"] or "-"),
            _cell("-" if skew is None else _skew(skew), **{"class": "pgq-warning" if abs(skew or 0) > 2 else ""}),
        ]
        return {"key": f"worker-{row['id']}", "class": "" if row["alive"] else "pgq-lost", "cells": cells}

    def _named(self, row: Row) -> list[Cell]:
        return [
            _cell(f"#{row['id']}", url=self._job(row["id"])),
            _cell(_called(row)),
            _cell(row["queue_name"], url=self._of_queue(row["queue_name"])),
        ]

    @staticmethod
    def _names() -> list[tuple[str, str]]:
        return [
            ("job", pgettext("queue", "Job")),
            ("task", pgettext("queue", "Task")),
            ("queue", pgettext("queue", "Queue")),
        ]

    @staticmethod
    def _tries(row: Row) -> Cell:
        return _cell(f"{row['attempts']}/{row['max_attempts']}")

    def _running(self) -> dict[str, Any]:
        leases = {row["id"]: row["lease_seconds"] for row in self.reading.rows("worker")}
        rows = self.reading.rows("least")
        all_of_them = sum(depth.jobs for depth in self.taken.depths if depth.state == State.RUNNING)
        return _table(
            "running",
            gettext("Running jobs"),
            [
                *self._names(),
                ("attempt", pgettext("queue", "Attempt")),
                ("worker", pgettext("queue", "Worker")),
                ("started", pgettext("queue", "Started")),
                ("lease", pgettext("queue", "Lease")),
                ("progress", pgettext("queue", "Progress")),
                ("actions", pgettext("queue", "Actions")),
            ],
            [self._runs(row, leases.get(row["worker_id"])) for row in rows],
            gettext("No job is running."),
            gettext("The %(count)s whose leases end first, of %(all)s.")
            % {"count": len(rows), "all": self._depths_of(State.RUNNING)["text"]}
            # The two are of two statements: a shorter list is all that there was in its own.
            if all_of_them > len(rows) >= live.MAX_RUNNING
            else "",
        )

    def _depths_of(self, state: State) -> Cell:
        return self._depth([depth for depth in self.taken.depths if depth.state == state], state)

    def _runs(self, row: Row, lease_seconds: float | None) -> dict[str, Any]:
        until = moment(row["lease_expires_at"])
        left = (until - self.now).total_seconds() if until else 0.0
        share = left / lease_seconds if lease_seconds else 1.0
        mark = "pgq-over" if left <= 0 else "pgq-low" if share < 0.2 else "pgq-half" if share < 0.5 else ""
        text = length(left) if left > 0 else gettext("lease expired, waiting for a worker to take it back")
        fraction = row["fraction"]
        percent = "" if fraction is None else gettext("%(percent)s%%") % {"percent": f"{fraction * 100:.0f}"}
        message = row["message"] or "" if self.viewer.may("view_job_payload") else ""
        button = self._button(pgettext("queue", "Cancel"), "cancel_job", "cancel", job=row["id"])
        cells = [
            *self._named(row),
            self._tries(row),
            _cell(row["worker_id"] or "-"),
            self._at(moment(row["started_at"])),
            _cell(text, until=until.isoformat() if until else "", **{"class": mark}),
            _cell(f"{percent} {message}".strip(), fraction=fraction),
            _cell(buttons=button),
        ]
        return {"key": f"running-{row['id']}-{row['fencing_token']}", "class": "", "cells": cells}

    def _error(self, row: Row) -> Cell:
        message = ""
        if self.viewer.may("view_job_payload"):
            message = self.reading.messages.get((row["id"], row["fencing_token"]), "").partition("\n")[0]
        kind = row["error_type"] or "-"
        return _cell(f"{kind}: {message}" if message else kind)

    def _retrying(self) -> dict[str, Any]:
        waiting = [depth for depth in self.taken.depths if depth.state in (State.SCHEDULED, State.RETRYING)]
        return _table(
            "retrying",
            gettext("Next retries"),
            [
                *self._names(),
                ("attempt", pgettext("queue", "Attempt")),
                ("when", pgettext("queue", "When")),
                ("error", pgettext("queue", "Error")),
                ("actions", pgettext("queue", "Actions")),
            ],
            [
                {
                    "key": f"retrying-{row['id']}-{row['fencing_token']}",
                    "class": "",
                    "cells": [
                        *self._named(row),
                        self._tries(row),
                        self._at(moment(row["run_after"])),
                        self._error(row),
                        _cell(buttons=self._button(gettext("Run now"), "run_job_now", "run_now", job=row["id"])),
                    ],
                }
                for row in self.reading.rows("retrying")
            ],
            gettext("No job waits for another attempt."),
            gettext("Looked for among the first %(most)s waiting jobs.") % {"most": _count(CAP)}
            if any(depth.capped for depth in waiting)
            else "",
        )

    def _broken(self, state: State) -> dict[str, Any]:
        is_dead = state == State.DEAD
        return _table(
            str(state),
            gettext("Newest dead jobs") if is_dead else gettext("Newest failed jobs"),
            [
                *self._names(),
                ("attempt", pgettext("queue", "Attempts")),
                ("when", pgettext("queue", "When")),
                ("error", pgettext("queue", "Error")),
                ("actions", pgettext("queue", "Actions")),
            ],
            [
                {
                    "key": f"{state}-{row['id']}-{row['fencing_token']}",
                    "class": "",
                    "cells": [
                        *self._named(row),
                        self._tries(row),
                        self._at(moment(row["finished_at"])),
                        self._error(row),
                        _cell(
                            buttons=self._button(pgettext("queue", "Requeue"), "requeue_job", "requeue", job=row["id"])
                        ),
                    ],
                }
                for row in self.reading.rows(str(state))
            ],
            gettext("No job is dead.") if is_dead else gettext("No job has failed for good."),
        )

    def _schedules(self) -> dict[str, Any]:
        return _table(
            "schedules",
            pgettext("queue", "Schedules"),
            [
                ("schedule", pgettext("queue", "Schedule")),
                ("line", pgettext("queue", "Line")),
                ("task", pgettext("queue", "Task")),
                ("last", gettext("Last run")),
                ("next", gettext("Next tick")),
                ("state", pgettext("queue", "State")),
            ],
            [self._schedule(row) for row in self.reading.rows("schedule")],
            gettext("There are no schedules: @periodic above a task makes one."),
        )

    def _schedule(self, row: Row) -> dict[str, Any]:
        url, id = self._url("schedule_change", row["id"]), row["id"]
        last = self._at(moment(row["last_fired_at"]))
        if row["last_job_id"] is not None:
            last["url"] = self._job(row["last_job_id"])
        is_on = row["is_enabled"]
        following = self._at(moment(row["next_at"])) if is_on else _cell("-")
        state = pgettext("queue", "active") if is_on else pgettext("queue", "disabled")
        if is_on and row["skip_next"]:
            state = gettext("the next tick is skipped")
        if row["error"]:
            # Not called in the text itself, where Babel looks for messages on newer Pythons alone.
            told = row["error"] if self.viewer.may("view_job_payload") else pgettext("queue", "failing")
            state = f"{state}: {told}"
        buttons = self._button(gettext("Run now"), "run_schedule", "run_schedule", schedule=id)
        if is_on and not row["skip_next"]:
            buttons += self._button(gettext("Skip next"), "switch_schedule", "skip_schedule", schedule=id)
        if is_on:
            buttons += self._button(pgettext("queue", "Disable"), "switch_schedule", "disable_schedule", schedule=id)
        else:
            buttons += self._button(pgettext("queue", "Enable"), "switch_schedule", "enable_schedule", schedule=id)
        cells = [
            _cell(row["name"], url=url),
            _cell(f"{row['line']} ({row['zone']})"),
            _cell(row["task"]),
            last,
            following,
            _cell(state, buttons=buttons, **{"class": "pgq-error" if row["error"] else ""}),
        ]
        return {"key": f"schedule-{id}", "class": "" if is_on else "pgq-off", "cells": cells}

    # -- feed and checklist -------------------------------------------------------------------------------------

    def _feed(self) -> Iterator[dict[str, str]]:
        if not self.viewer.may("view_job"):
            return
        for event in self.reading.events:
            job = event.job
            what = pgettext("queue", "enqueued") if event.kind == "enqueued" else str(LABELS[State(event.kind)])
            if event.kind in (State.RETRYING, State.FAILED, State.DEAD) and job["error_type"]:
                what = f"{what}, {job['error_type']}"
            began = moment(job["started_at"])
            if event.kind == State.SUCCEEDED and began:
                took = length(max(0.0, (event.at - began).total_seconds()))
                what = gettext("%(state)s after %(time)s") % {"state": what, "time": took}
            yield {
                "key": event.key,
                "at": event.at.isoformat(),
                "ago": self._at(event.at)["text"],
                "text": f"#{job['id']} {_called(job)}: {what}",
                "url": self._job(job["id"]),
                "class": f"pgq-{event.kind}",
            }

    def _checklist(self) -> Iterator[dict[str, Any]]:
        tasks = declared_tasks()
        many = max([len(tasks), *(row["tasks"] for row in self.reading.rows("worker"))])
        yield {"done": True, "text": gettext("The tables are there."), "code": "python manage.py migrate"}
        text = ngettext("%(count)s task is known.", "%(count)s tasks are known.", many) % {"count": _count(many)}
        code = "from pgqueue_django import task\n\n@task\ndef greet(name: str) -> None: ..."
        yield {"done": many > 0, "text": text, "code": "" if many else code}
        text = gettext("A worker is running.") if self.taken.workers else gettext("No worker is running yet.")
        yield {"done": self.taken.workers > 0, "text": text, "code": "python manage.py pgqueue_worker"}
        code = f"python manage.py pgqueue_enqueue {tasks[0] if tasks else 'shop.tasks.greet'}"
        yield {"done": False, "text": gettext("The first job has yet to be enqueued."), "code": code}


def _called(row: Row) -> str:
    return f"{row['task']} · {row['label']}" if row["label"] else str(row["task"])


def _ready(state: State) -> str:
    return pgettext("queue", "Ready") if state == State.QUEUED else str(LABELS[state]).capitalize()


def _skew(seconds: float) -> str:
    sign = "-" if seconds < 0 else "+"
    return gettext("%(n)s s") % {"n": sign + number_format(abs(seconds), 3)}


def _series(key: str, label: object, points: Iterable[float | None]) -> Series:
    return Series(key=key, label=str(label), points=[_rounded(point) for point in points])


def _by_queue(waits: Sequence[Mapping[str, int] | None]) -> Iterator[Series]:
    most: dict[str, int] = {}
    for one in waits:
        for name, jobs in (one or {}).items():
            most[name] = max(jobs, most.get(name, 0))
    most.pop(OTHER, None)
    first = sorted(most, key=lambda name: (-most[name], name))[:MAX_SERIES]
    for name in first:
        yield _series(f"queue-{name}", name, [None if one is None else one.get(name, 0) for one in waits])
    others = [None if one is None else sum(one.values()) - sum(one.get(name, 0) for name in first) for one in waits]
    if not first or any(others):
        yield _series(OTHER, pgettext("queue", "other"), others)


def _between(points: Sequence[Point], at: float) -> Point | None:
    """The counters at this moment, between two readings; None: nobody looked."""
    for before, after in pairwise(points):
        if before.at <= at <= after.at:
            if after.at - before.at > live.GAP_SECONDS:
                return None
            share = (at - before.at) / (after.at - before.at)
            return Point(
                at,
                before.done + share * (after.done - before.done),
                before.failed + share * (after.failed - before.failed),
                tuple(a + share * (b - a) for a, b in zip(before.pickups, after.pickups, strict=True)),
                tuple(a + share * (b - a) for a, b in zip(before.runs, after.runs, strict=True)),
                before.waiting if share < 0.5 else after.waiting,
                before.busy_slots,
            )
    return None


def _table(
    key: str,
    label: str,
    columns: Sequence[tuple[str, str]],
    rows: list[dict[str, Any]],
    empty: str,
    note: str = "",
) -> dict[str, Any]:
    return {
        "key": key,
        "label": label,
        "columns": [{"key": name, "label": text} for name, text in columns],
        "rows": rows,
        "empty": empty,
        "note": note,
    }


def viewer_of(request: Any, rights: frozenset[str], site: str) -> Viewer:
    """Who sees what ``rights`` say, in the language and time zone of this request."""
    window = request.GET.get("window", "live")
    return Viewer(
        translation.get_language() or "en",
        timezone.get_current_timezone(),
        rights,
        site,
        window if window in WINDOWS else "live",
        get_script_prefix(),
        get_urlconf(),
    )
