"""What happened to one job: its attempts, and the waits around them, as values and as a drawing of these.

Made of the row alone. Its history may hold anything, since plain SQL can write it, and clocks may have been set back:
what is no moment is unknown, and no length is negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext, pgettext

from pgqueue_django import options
from pgqueue_django.models import MOMENTS, Job
from pgqueue_django.states import State

from .wording import KINDS, LABELS, length

MAX_ATTEMPTS = 20
"""Of a longer history the first attempt and the newest are looked at."""

_LATEST = (State.RUNNING, State.SUCCEEDED, State.FAILED, State.DEAD)


class StepKind(StrEnum):
    WAIT = "wait"  # before the first attempt; whether its time had come is not known
    SCHEDULED = "scheduled"  # its time had not come
    READY = "ready"  # it could have run
    RUN = "run"
    BACKOFF = "backoff"  # between two attempts
    SENT_BACK = "sent-back"  # it had finished, and a person has sent it back
    LOST = "lost"  # attempts that the history no longer has


class Outcome(StrEnum):
    """What a run ended in, where it is no ``Kind`` of failure."""

    SUCCEEDED = "succeeded"
    RUNNING = "running"
    EXPIRED = "expired"  # its lease has ended, and nobody has taken it back yet
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    """One stretch of a job's time. A moment is None where nobody knows it."""

    kind: StepKind
    begin: datetime | None
    end: datetime | None
    attempt: int | None = None
    outcome: str = ""
    """Of a run: an ``Outcome``, or what the history calls the kind of the failure."""
    error_type: str = ""
    worker: str = ""
    attempts: int | None = None
    """Of LOST: how many."""

    @property
    def seconds(self) -> float | None:
        if self.begin is None or self.end is None:
            return None
        return max(0.0, (self.end - self.begin).total_seconds())


def moment_of(value: object) -> datetime | None:
    """A moment that the history holds; None where it is none, or one that no page can show."""
    try:
        found = options.aware(parse_datetime(str(value)[:64]))
        return found if found is not None and MOMENTS[0] <= found < MOMENTS[1] else None
    except (ValueError, OverflowError):
        return None


def shown_of(history: object) -> tuple[list[dict[str, Any]], int]:
    """The entries that are looked at, what is no entry as an empty one; and how many behind the first were left out."""
    entries = [entry if isinstance(entry, dict) else {} for entry in history] if isinstance(history, list) else []
    left_out = max(0, len(entries) - MAX_ATTEMPTS)
    return [*entries[:1], *entries[1 + left_out :]], left_out


def steps(job: Job, now: datetime, *, left_out: int = 0) -> list[Step]:
    """The job's time up to ``now``, the database's clock, or to the moment that it waits for; from old to new.

    ``left_out``: entries behind the first that its ``history`` does not have any more.
    """
    entries, more = shown_of(job.history)
    left_out += more
    failed = [_failed(entry) for entry in entries]
    newest = _newest(job, failed, options.aware(now))
    found: list[Step] = []
    before: Step | None = None
    for place, run in enumerate([*failed, *newest]):
        if before is None:
            between = StepKind.SCHEDULED
        elif run.attempt is not None and before.attempt is not None and run.attempt <= before.attempt:
            between = StepKind.SENT_BACK
        else:
            between = StepKind.BACKOFF
        missing = _missing(before, run, left_out if place == 1 else 0)
        begin = options.aware(job.enqueued_at) if before is None else before.end
        if missing:
            found.append(Step(StepKind.LOST, begin, run.begin, attempts=missing))
        elif begin and run.begin:
            # The row has it of the latest attempt, until another is planned; a cancel writes the lease's end over it.
            is_known = run.begin == options.aware(job.started_at) and job.state in _LATEST
            found += _waits(between, begin, options.aware(job.run_after) if is_known else None, run.begin)
        found.append(run)
        before = run
    return [*found, *_rest(job, before, bool(newest), options.aware(now))]


def _failed(entry: dict[str, Any]) -> Step:
    attempt = entry.get("attempt")
    return Step(
        StepKind.RUN,
        moment_of(entry.get("started_at")),
        moment_of(entry.get("ended_at")),
        attempt if isinstance(attempt, int) and not isinstance(attempt, bool) and 0 < attempt < 2**31 else None,
        str(entry.get("kind") or Outcome.UNKNOWN)[:40],
        str(entry.get("error_type") or "")[:200],
        str(entry.get("worker") or "")[:120],
    )


def _newest(job: Job, failed: Sequence[Step], now: datetime) -> list[Step]:
    """The latest attempt, unless it is in the history: then it has failed."""
    begin = options.aware(job.started_at)
    if begin is None or any(run.begin == begin for run in failed):
        return []
    ended, worker = options.aware(job.finished_at), job.worker_id or ""
    run = Step(StepKind.RUN, begin, ended, job.attempts or None, Outcome.UNKNOWN, worker=worker)
    if job.state == State.RUNNING:
        lease = options.aware(job.lease_expires_at)
        return [replace(run, end=now, outcome=Outcome.EXPIRED if lease and lease <= now else Outcome.RUNNING)]
    if job.state == State.SUCCEEDED:
        return [replace(run, outcome=Outcome.SUCCEEDED)]
    if job.state == State.CANCELLED and job.attempts:
        return [replace(run, outcome=Outcome.CANCELLED)]
    # It had succeeded or was cancelled, and was sent back: when it ended the row no longer says.
    return [replace(run, end=None if job.state == State.CANCELLED else run.end, attempt=None)]


def _missing(before: Step | None, run: Step, left_out: int) -> int:
    """How many attempts between these two are not known any more."""
    if run.attempt is None or (before is not None and before.attempt is None):
        return left_out
    last = before.attempt if before and before.attempt and before.attempt < run.attempt else 0
    return max(run.attempt - last - 1, left_out)


def _waits(kind: StepKind, begin: datetime, ready: datetime | None, end: datetime) -> Iterator[Step]:
    """The wait for its time, and then for a free slot; one step where nobody knows when that was."""
    if ready is None:
        yield Step(StepKind.WAIT if kind == StepKind.SCHEDULED else kind, begin, end)
    elif ready <= begin:
        yield Step(StepKind.READY, begin, end)
    elif ready <= end:
        yield Step(kind, begin, ready)
        yield Step(StepKind.READY, ready, end)
    else:
        yield Step(kind, begin, end)


def _rest(job: Job, last: Step | None, is_newest: bool, now: datetime) -> Iterator[Step]:
    """What came after the last attempt, or is to come."""
    begin = options.aware(job.enqueued_at) if last is None else last.end
    ready = options.aware(job.run_after)
    kind = StepKind.SCHEDULED
    if last is not None:
        kind = StepKind.BACKOFF if job.attempts else StepKind.SENT_BACK
    if job.state == State.CANCELLED and not is_newest and begin is not None and job.finished_at is not None:
        yield from _waits(kind, begin, ready, options.aware(job.finished_at))
    elif job.state in (State.SCHEDULED, State.QUEUED, State.RETRYING):
        if begin is None or ready > now:
            yield Step(kind, begin, max(ready, now))
        else:
            yield from _waits(kind, begin, ready, now)


# -- in words --------------------------------------------------------------------------------------------------


def told(step: Step) -> str:
    """What a step was, without its length."""
    if step.kind == StepKind.RUN:
        name = gettext("Attempt %(number)s") % {"number": step.attempt or "?"}
        return f"{name}: {_ending(step.outcome)}{f' ({step.error_type})' if step.error_type else ''}"
    if step.kind == StepKind.LOST:
        count = step.attempts or 1
        text = ngettext("%(count)s attempt that is not kept", "%(count)s attempts that are not kept", count)
        return text % {"count": count}
    return {
        StepKind.WAIT: pgettext("queue", "Waiting"),
        StepKind.SCHEDULED: gettext("Waiting for its time"),
        StepKind.READY: gettext("Waiting for a worker"),
        StepKind.BACKOFF: gettext("Backoff before the next attempt"),
        StepKind.SENT_BACK: gettext("Finished, until it was sent back"),
    }[step.kind]


def _ending(outcome: str) -> str:
    if outcome == Outcome.EXPIRED:
        return gettext("its lease has ended")
    if outcome == Outcome.UNKNOWN:
        return gettext("its end is not known")
    return str(KINDS.get(outcome) or LABELS.get(outcome) or outcome)  # type: ignore[call-overload]


def long(step: Step) -> str:
    return "?" if step.seconds is None else length(step.seconds)


def summary(found: Sequence[Step], now: datetime) -> str:
    """How long it ran, waited and took in all, up to now."""
    others = (StepKind.RUN, StepKind.SENT_BACK, StepKind.LOST)
    waited = sum(step.seconds or 0.0 for step in _past(found, options.aware(now)) if step.kind not in others)
    runs = [step for step in found if step.kind == StepKind.RUN]
    count = len(runs) + sum(step.attempts or 0 for step in found if step.kind == StepKind.LOST)
    ran = sum(step.seconds or 0.0 for step in runs)
    attempts = ngettext("%(count)s attempt", "%(count)s attempts", count) % {"count": count}
    moments = [moment for step in found for moment in (step.begin, step.end) if moment is not None]
    whole = (min(max(moments), options.aware(now)) - min(moments)).total_seconds() if moments else 0.0
    text = gettext("%(attempts)s, %(ran)s running, %(waited)s waiting, %(whole)s in all.")
    return text % {"attempts": attempts, "ran": length(ran), "waited": length(waited), "whole": length(whole)}


def _past(found: Sequence[Step], now: datetime) -> list[Step]:
    return [replace(step, end=now) if step.end and step.end > now else step for step in found]


# -- as a drawing ----------------------------------------------------------------------------------------------

_HEIGHTS = {StepKind.RUN: 24, StepKind.READY: 10, StepKind.SCHEDULED: 10, StepKind.WAIT: 10}
_MIDDLE = 16
_NUMBERED = 3.5  # percent of the width: room for two digits on a phone


def draw(found: Sequence[Step], now: datetime) -> SafeString:
    """An SVG of the steps, one after another. What is longer is wider, and not in proportion: beside an hour of backoff
    a run of a second would not be seen. All of it is in percent of the width, and looks are the style sheet's."""
    weights = [_weight(step) for step in found]
    whole = sum(weights) or 1.0
    shapes, left = [], 0.0
    now = options.aware(now)
    mark = None
    for step, weight in zip(found, weights, strict=True):
        width = 100 * weight / whole
        shapes.append(_shape(step, left, width))
        if step.end and step.end >= now and mark is None:
            ahead = (step.end - now).total_seconds() / step.seconds if step.seconds else 0.0
            mark = left + width * (1 - min(1.0, ahead))
        left += width
    return format_html(
        '<svg class="pgq-timeline" width="100%" height="{}" aria-hidden="true" focusable="false">{}{}</svg>',
        2 * _MIDDLE if mark is None else 52,  # with room for a word below
        format_html_join("", "{}", ((shape,) for shape in shapes)),
        _now(mark) if mark is not None else "",
    )


def _weight(step: Step) -> float:
    return 1.0 if step.seconds is None or step.kind == StepKind.LOST else 1.0 + math.log2(1.0 + step.seconds)


def _shape(step: Step, left: float, width: float) -> SafeString:
    title = told(step) if step.kind == StepKind.LOST else f"{told(step)}, {long(step)}"
    if height := _HEIGHTS.get(step.kind):
        shape = format_html(
            '<rect x="{}" width="{}" y="{}" height="{}"/>',
            *(_percent(left), _percent(max(width - 0.2, 0.2)), _MIDDLE - height // 2, height),
        )
    else:
        shape = format_html(
            '<line x1="{}" x2="{}" y1="{}" y2="{}"/>',
            *(_percent(left), _percent(left + width - 0.2), _MIDDLE, _MIDDLE),
        )
    number = ""
    if step.kind == StepKind.RUN and step.attempt and width >= _NUMBERED:
        number = format_html(
            '<text x="{}" y="{}" text-anchor="middle">{}</text>', _percent(left + width / 2), _MIDDLE + 4, step.attempt
        )
    return format_html('<g class="{}"><title>{}</title>{}{}</g>', looks(step), title, shape, number)


def looks(step: Step) -> str:
    """The classes of a step: what a run ended in is one of six, whatever the history says."""
    if step.kind != StepKind.RUN:
        return f"pgq-t-{step.kind}"
    return f"pgq-t-run pgq-t-{step.outcome if step.outcome in [*Outcome] else 'failed'}"


def _now(left: float) -> SafeString:
    at_end = left > 50
    return format_html(
        '<g class="pgq-t-now"><line x1="{0}" x2="{0}" y1="0" y2="36"/>'
        '<text x="{0}" y="48" text-anchor="{1}">{2}</text></g>',
        *(_percent(min(left, 99.8)), "end" if at_end else "start", pgettext("queue", "now")),
    )


def _percent(value: float) -> str:
    return f"{value:.2f}%"
