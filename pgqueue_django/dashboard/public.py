"""The status page for everybody: what is on it, and nothing else.

It is made of values that may be shown. A template that a project writes for it has no more either: neither a row nor a
snapshot reaches it. No request is read but for its method, no cookie, no session, no user; nothing is written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.utils.formats import number_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pgqueue_django import answers, conf, problems, redaction, snapshot
from pgqueue_django.options import QUEUE_NAME
from pgqueue_django.problems import Rule, Severity
from pgqueue_django.snapshot import OTHER, Snapshot, index_walks
from pgqueue_django.states import WAITING, State

from .wording import LABELS, length, moment

logger = logging.getLogger("pgqueue_django")

MAX_QUEUES = 100
MAX_WORKERS = 50
MAX_FAILURES = 10
PACE_SECONDS = 300
"""What is done and fails per minute is the mean of so long, in whole minutes, and of the one that has begun."""

TEMPLATE = "pgqueue_django/status.html"
_HEADERS = {"X-Robots-Tag": "noindex, nofollow", "X-Content-Type-Options": "nosniff"}
_CHARACTERS = 2_000  # of a message's end, where its last line is

# A rule without a text is not for everybody: what names a task or a schedule, or is a matter of the database.
_TEXTS: Mapping[Rule, Any] = {
    Rule.UNSERVED: _("Queue %(queue)s: no worker takes its jobs."),
    Rule.OLDEST_DUE: _("Queue %(queue)s: a job has been waiting for %(time)s."),
    Rule.UNKNOWN_TASK: _("No worker has the code of a task."),
    Rule.SCHEDULE_LATE: _("A schedule is late."),
    Rule.FAILURE_RATE: _("Many attempts of a task fail."),
    Rule.LEASES_EXPIRED: _("Workers are lost while they run jobs."),
    Rule.PAUSED: _("Queue %(queue)s is paused, and jobs are waiting."),
    Rule.WORKER_LATE: _("A worker has not been heard of."),
}
_VERDICTS: Mapping[Severity | None, Any] = {
    None: _("All is well."),
    Severity.WARNING: _("The queue works, but not all is well."),
    Severity.ERROR: _("Jobs that should run do not."),
}


@dataclass
class QueueLine:
    """One queue. ``capped``: states of which there may be more."""

    name: str
    jobs: dict[State, int] = field(default_factory=dict)
    capped: set[State] = field(default_factory=set)
    oldest_due: float | None = None
    done_a_minute: float = 0.0
    failed_a_minute: float = 0.0
    is_paused: bool = False


@dataclass(frozen=True)
class WorkerLine:
    label: str
    slots: int
    busy: int
    heartbeat_age: float
    is_alive: bool


@dataclass(frozen=True)
class FailureLine:
    age: float
    queue: str
    task: str
    state: State
    error: str
    said: str


@dataclass(frozen=True)
class Told:
    """A rule that found something; ``queue`` and ``seconds`` where its text has them."""

    rule: Rule
    queue: str
    seconds: float


@dataclass(frozen=True)
class Status:
    """All that is known to who makes the page."""

    taken_at: datetime
    severity: Severity | None
    told: tuple[Told, ...]
    workers: int
    slots: int
    busy: int
    queues: tuple[QueueLine, ...]
    worker_lines: tuple[WorkerLine, ...]
    failures: tuple[FailureLine, ...]


# -- reading ---------------------------------------------------------------------------------------------------

_PACE = f"""
SELECT queue_name, sum(succeeded), sum(retried + failed + dead),
       EXTRACT(EPOCH FROM statement_timestamp() - date_trunc('minute', statement_timestamp(), 'UTC')) + {PACE_SECONDS}
FROM pgqueue_stat
WHERE minute >= date_trunc('minute', statement_timestamp(), 'UTC') - make_interval(secs => {PACE_SECONDS})
GROUP BY queue_name
"""
_WORKERS = """
SELECT id, concurrency, running, EXTRACT(EPOCH FROM statement_timestamp() - heartbeat_at),
       heartbeat_at > statement_timestamp() - make_interval(secs => lease_seconds)
FROM pgqueue_worker
WHERE heartbeat_at > statement_timestamp() - make_interval(secs => GREATEST(lease_seconds, %(news)s))
ORDER BY heartbeat_at DESC LIMIT %(workers)s
"""
_FAILED = """
    (SELECT id, finished_at FROM pgqueue_job
     WHERE state IN ('failed', 'dead') AND state {} ORDER BY state, id DESC LIMIT %(failures)s)
"""
# The newest by their ids. A message is only read of those that are shown, and of it only the end.
_FAILURES = f"""
SELECT EXTRACT(EPOCH FROM statement_timestamp() - job.finished_at), job.queue_name, job.task, job.state, job.error_type,
       right(job.history -> -1 ->> 'message', %(characters)s)
FROM ({_FAILED.format(">= 'failed'")} UNION ALL {_FAILED.format("<= 'dead'")}) AS seen
JOIN pgqueue_job job ON job.id = seen.id
"""


def take(using: str) -> Status:
    """The queue as everybody may see it, in the database ``using``: three bounded readings, beside the snapshot."""
    taken = snapshot.take(using)
    with index_walks(using) as cursor:
        cursor.execute(_PACE)
        paces = cursor.fetchall()
        cursor.execute(_WORKERS, {"workers": MAX_WORKERS, "news": problems.CRASHED_SECONDS})
        workers = cursor.fetchall()
        cursor.execute(_FAILURES, {"failures": MAX_FAILURES, "characters": _CHARACTERS})
        failures = sorted(cursor.fetchall(), key=lambda row: row[0])[:MAX_FAILURES]
    found = [problem for problem in problems.find(taken) if problem.rule in _TEXTS]
    told = [Told(one.rule, _queue(one.facts.get("queue")), one.facts.get("seconds", 0.0)) for one in found]
    return Status(
        taken_at=taken.taken_at,
        severity=max((one.severity for one in found), key=list(Severity)[::-1].index, default=None),
        told=tuple({(one.rule, one.queue): one for one in reversed(told)}.values())[::-1],
        workers=taken.workers,
        slots=taken.slots,
        busy=taken.busy_slots,
        queues=tuple(_queues(taken, paces)),
        worker_lines=tuple(
            WorkerLine(redaction.worker(id), slots, busy, max(0.0, float(age)), is_alive)
            for id, slots, busy, age, is_alive in workers
        ),
        failures=tuple(
            FailureLine(
                age=max(0.0, float(age)),
                queue=_queue(queue),
                task=redaction.name(task),
                state=State(state),
                error=redaction.name(error_type),
                said=redaction.line(message or ""),
            )
            for age, queue, task, state, error_type, message in failures
        ),
    )


def _queue(name: str | None) -> str:
    """Its name, where it is one: plain SQL can write any text there."""
    return name if name is not None and QUEUE_NAME.fullmatch(name) else OTHER


def _queues(taken: Snapshot, paces: list[tuple[Any, ...]]) -> list[QueueLine]:
    lines: dict[str, QueueLine] = {}

    def line(name: str) -> QueueLine:
        return lines.setdefault(_queue(name), QueueLine(_queue(name)))

    for depth in taken.depths:
        one = line(depth.queue_name)
        one.jobs[depth.state] = one.jobs.get(depth.state, 0) + depth.jobs
        one.capped |= {depth.state} if depth.capped else set()
    for name, seconds in taken.oldest_due.items():
        one = line(name)
        one.oldest_due = max(seconds, one.oldest_due or 0.0)
    for name, done, failed, seconds in paces:
        one = line(name)
        one.done_a_minute += float(done) * 60 / float(seconds)
        one.failed_a_minute += float(failed) * 60 / float(seconds)
    for name in taken.paused:
        line(name).is_paused = True
    return sorted(lines.values(), key=lambda one: one.name)


def _database() -> str:
    return conf.current().PUBLIC_DATABASE or answers.of_the_jobs()


shared = answers.Shared(take, answers.SHARED_SECONDS, _database)


# -- showing ---------------------------------------------------------------------------------------------------


@answers.in_no_transaction
@login_not_required
@never_cache
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """Whether the queue is well, for everybody; 503 within two seconds when the database does not answer."""
    try:
        return page(shared.reading())
    except answers.Unanswered as error:
        logger.warning("status page: %s", error)
        return _rendered({"is_away": True, "verdict": gettext("The queue cannot be asked."), "mark": "error"}, 503)


def page(seen: Status) -> HttpResponse:
    """The page of one reading."""
    shown = seen.queues[:MAX_QUEUES]
    return _rendered(
        {
            "is_away": False,
            "verdict": gettext("No worker is running.") if not seen.workers else _VERDICTS[seen.severity],
            "mark": seen.severity or ("good" if seen.workers else Severity.WARNING),
            "told": [_TEXTS[one.rule] % {"queue": one.queue, "time": length(one.seconds)} for one in seen.told],
            "taken_at": moment(seen.taken_at),
            "facts": list(_facts(seen)),
            "queues": [_of_queue(one) for one in shown],
            "queues_left": len(seen.queues) - len(shown),
            "workers": [_of_worker(one) for one in seen.worker_lines],
            "failures": [_of_failure(one) for one in seen.failures],
        },
        200,
    )


def _rendered(context: dict[str, Any], status: int) -> HttpResponse:
    # Without the request: what a project's context processors know is not for everybody.
    body = loader.render_to_string(TEMPLATE, context)
    return HttpResponse(body, status=status, headers={**_HEADERS, **({"Retry-After": "5"} if status == 503 else {})})


def _facts(seen: Status) -> Iterator[tuple[Any, str]]:
    yield _("Workers alive"), number_format(seen.workers, force_grouping=True)
    yield _("Slots in use"), f"{number_format(seen.busy)}/{number_format(seen.slots)}"
    yield _("Ready to run"), _total(seen, State.QUEUED)
    yield _("Running now"), _total(seen, State.RUNNING)
    oldest = [one.oldest_due for one in seen.queues if one.oldest_due is not None and not one.is_paused]
    yield _("Oldest due"), length(max(oldest)) if oldest else "-"
    yield _("Done per minute"), _rate(sum(one.done_a_minute for one in seen.queues))
    yield _("Failed per minute"), _rate(sum(one.failed_a_minute for one in seen.queues))


def _total(seen: Status, state: State) -> str:
    return _count(sum(one.jobs.get(state, 0) for one in seen.queues), any(state in one.capped for one in seen.queues))


def _count(jobs: int, is_capped: bool) -> str:
    return number_format(jobs, force_grouping=True) + ("+" if is_capped else "")


def _rate(a_minute: float) -> str:
    """12 or 0.4: two digits, and all of those in front of the point."""
    digits = max(0, min(2, 1 - math.floor(math.log10(a_minute)))) if a_minute else 0
    return number_format(round(a_minute, digits) if digits else round(a_minute), force_grouping=True)


def _of_queue(one: QueueLine) -> dict[str, str | bool]:
    waiting = sum(one.jobs.get(state, 0) for state in WAITING)
    return {
        "name": one.name,
        "is_paused": one.is_paused,
        "ready": _count(one.jobs.get(State.QUEUED, 0), State.QUEUED in one.capped),
        "waiting": _count(waiting, bool(one.capped & set(WAITING))),
        "running": _count(one.jobs.get(State.RUNNING, 0), State.RUNNING in one.capped),
        "oldest_due": "-" if one.oldest_due is None else length(one.oldest_due),
        "done": _rate(one.done_a_minute),
        "failed": _rate(one.failed_a_minute),
    }


def _of_worker(one: WorkerLine) -> dict[str, str | bool]:
    return {
        "label": one.label,
        "is_alive": one.is_alive,
        "slots": f"{number_format(one.busy)}/{number_format(one.slots)}",
        "heartbeat": gettext("%(time)s ago") % {"time": length(one.heartbeat_age)},
    }


def _of_failure(one: FailureLine) -> dict[str, Any]:
    return {
        "when": gettext("%(time)s ago") % {"time": length(one.age)},
        "state": one.state.value,
        "state_label": LABELS[one.state],
        "queue": one.queue,
        "task": one.task or "-",
        "error": one.error or "-",
        "said": one.said,
    }
