"""What is wrong with the queue: a few rules over one snapshot.

One function, for everybody who asks: the health page, the metrics, ``pgqueue_check`` and the dashboard. A rule reads
the snapshot and the limits of ``PGQUEUE["PROBLEMS"]`` alone, so that whoever asks about one snapshot hears the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_noop

from . import conf
from .snapshot import OTHER, RECENT_SECONDS, Snapshot

MAX_EACH = 20
"""Problems that one rule tells of, the worst ones."""

_MINUTES = RECENT_SECONDS // 60
_BLOATED_SECONDS = 3600.0  # dead rows are no problem while vacuum comes for them
CRASHED_SECONDS = 900.0  # a worker that has not been heard of for longer is no news any more


class Severity(StrEnum):
    ERROR = "error"
    """Jobs that should run do not: somebody has to act."""
    WARNING = "warning"
    """Somebody should look at it."""


class Rule(StrEnum):
    """In the order in which they are told: errors first."""

    UNSERVED = "queue_without_worker"
    OLDEST_DUE = "oldest_due"
    UNKNOWN_TASK = "unknown_task"
    SCHEDULE_LATE = "schedule_late"
    FAILURE_RATE = "failure_rate"
    LEASES_EXPIRED = "leases_expired"
    PAUSED = "queue_paused"
    WORKER_LATE = "worker_late"
    BLOAT = "table_bloat"


_ERRORS = (Rule.UNSERVED, Rule.OLDEST_DUE, Rule.UNKNOWN_TASK, Rule.SCHEDULE_LATE)
SEVERITIES: Mapping[Rule, Severity] = {rule: Severity.ERROR if rule in _ERRORS else Severity.WARNING for rule in Rule}

TEXTS: Mapping[Rule, str] = {
    Rule.UNSERVED: gettext_noop(
        "Queue %(queue)s: no live worker takes it; its oldest due job has waited for %(time)s."
    ),
    Rule.OLDEST_DUE: gettext_noop("Queue %(queue)s: its oldest due job has waited for %(time)s."),
    Rule.UNKNOWN_TASK: gettext_noop(
        "Task %(task)s: no live worker knows it; its jobs have been handed back for %(time)s."
    ),
    Rule.SCHEDULE_LATE: gettext_noop("Schedule %(schedule)s: its next tick is %(time)s late."),
    Rule.FAILURE_RATE: gettext_noop(
        "Task %(task)s: %(failures)d of %(attempts)d attempts failed in the last %(minutes)d minutes."
    ),
    Rule.LEASES_EXPIRED: gettext_noop(
        "%(leases)d leases expired in the last %(minutes)d minutes: workers die, or cannot renew."
    ),
    Rule.PAUSED: gettext_noop("Queue %(queue)s: paused for %(time)s, and jobs are due."),
    Rule.WORKER_LATE: gettext_noop("Worker %(worker)s: no heartbeat for %(time)s; its lease has ended."),
    Rule.BLOAT: gettext_noop(
        "The table of jobs: %(dead)d dead rows beside %(live)d live ones, and no vacuum for an hour."
    ),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    rule: Rule
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What ``TEXTS`` has to fill in, but for ``time``: that is ``seconds`` as whoever reads it wants lengths."""

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.rule]

    @property
    def text(self) -> str:
        """In English, for logs and monitors."""
        return TEXTS[self.rule] % {**self.facts, "time": f"{self.facts.get('seconds', 0):.0f} s"}


def find(taken: Snapshot, *, max_lag: float | None = None) -> list[Problem]:
    """The problems of this snapshot, errors first. ``max_lag``: seconds, in the place of ``oldest_due_seconds``."""
    limits = conf.current().problems
    if max_lag is not None:
        limits = {**limits, "oldest_due_seconds": max_lag}
    found = []
    for rule in Rule:
        said = sorted(_RULES[rule](taken, limits), key=lambda facts: -facts[_WORST[rule]])
        found += [Problem(rule, facts) for facts in said[:MAX_EACH]]
    return found


_Facts = dict[str, Any]
_Limits = Mapping[str, float]


def _unserved(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    if taken.served is None:
        return
    # Behind "other" there may be many, and some of them served.
    others = {*taken.served, *taken.paused, OTHER}
    for queue, seconds in taken.oldest_due.items():
        if queue not in others and seconds > limits["unserved_seconds"]:
            yield {"queue": queue, "seconds": seconds}


def _oldest_due(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for queue, seconds in taken.oldest_due.items():
        if queue not in taken.paused and seconds > limits["oldest_due_seconds"]:
            yield {"queue": queue, "seconds": seconds}


def _unknown_task(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for task, seconds in taken.unknown_tasks.items():
        if seconds > limits["unknown_task_seconds"]:
            yield {"task": task, "seconds": seconds}


def _schedule_late(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for schedule, seconds in taken.schedules.items():
        if seconds > limits["schedule_late_seconds"]:
            yield {"schedule": schedule, "seconds": seconds}


def _failure_rate(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for one in taken.failing:
        if one.failures >= limits["failures"] and one.failures > limits["failure_rate"] * one.attempts:
            yield {"task": one.task, "failures": one.failures, "attempts": one.attempts, "minutes": _MINUTES}


def _leases_expired(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    if taken.expired_recently > limits["leases_expired"]:
        yield {"leases": taken.expired_recently, "minutes": _MINUTES}


def _paused(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for queue, seconds in taken.paused.items():
        if queue in taken.oldest_due and seconds > limits["paused_seconds"]:
            yield {"queue": queue, "seconds": seconds}


def _worker_late(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    for worker, seconds in taken.late_workers.items():
        if seconds < CRASHED_SECONDS:
            yield {"worker": worker, "seconds": seconds}


def _bloat(taken: Snapshot, limits: _Limits) -> Iterator[_Facts]:
    table = taken.table
    is_late = table.vacuumed_seconds is None or table.vacuumed_seconds > _BLOATED_SECONDS
    if is_late and table.dead_rows > max(limits["dead_rows"], table.live_rows):
        yield {"dead": table.dead_rows, "live": table.live_rows}


_RULES: Mapping[Rule, Callable[[Snapshot, _Limits], Iterator[_Facts]]] = {
    Rule.UNSERVED: _unserved,
    Rule.OLDEST_DUE: _oldest_due,
    Rule.UNKNOWN_TASK: _unknown_task,
    Rule.SCHEDULE_LATE: _schedule_late,
    Rule.FAILURE_RATE: _failure_rate,
    Rule.LEASES_EXPIRED: _leases_expired,
    Rule.PAUSED: _paused,
    Rule.WORKER_LATE: _worker_late,
    Rule.BLOAT: _bloat,
}
# The fact by which the worst are told first.
_WORST: Mapping[Rule, str] = {
    **dict.fromkeys(Rule, "seconds"),
    Rule.FAILURE_RATE: "failures",
    Rule.LEASES_EXPIRED: "leases",
    Rule.BLOAT: "dead",
}
