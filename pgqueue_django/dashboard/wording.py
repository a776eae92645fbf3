"""How the pages say things: states, kinds of failures, moments and lengths, in the language of who looks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils.formats import get_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django.exceptions import InvalidSchedule
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Kind
from pgqueue_django.problems import TEXTS, Problem
from pgqueue_django.states import FINISHED, WAITING, State

LABELS = {
    State.SCHEDULED: pgettext_lazy("queue", "scheduled"),
    State.QUEUED: pgettext_lazy("queue", "queued"),
    State.RUNNING: pgettext_lazy("queue", "running"),
    State.RETRYING: pgettext_lazy("queue", "retrying"),
    State.SUCCEEDED: pgettext_lazy("queue", "succeeded"),
    State.FAILED: pgettext_lazy("queue", "failed"),
    State.DEAD: pgettext_lazy("queue", "dead"),
    State.CANCELLED: pgettext_lazy("queue", "cancelled"),
}


KINDS: Mapping[str, Any] = {
    Kind.ERROR: pgettext_lazy("queue", "error"),
    Kind.RETRY: pgettext_lazy("queue", "retry"),
    Kind.PERMANENT: pgettext_lazy("queue", "permanent"),
    Kind.PAYLOAD: pgettext_lazy("queue", "payload"),
    Kind.RESULT: pgettext_lazy("queue", "result"),
    Kind.TIMEOUT: pgettext_lazy("queue", "timeout"),
    Kind.TRANSACTION: pgettext_lazy("queue", "transaction"),
    Kind.LEASE_EXPIRED: _("lease expired"),
    Kind.WORKER_LOST: _("worker lost"),
}


FIELDS: Mapping[str, Any] = {
    "minute": pgettext_lazy("queue", "minute"),
    "hour": pgettext_lazy("queue", "hour"),
    "day of month": _("day of month"),
    "month": pgettext_lazy("queue", "month"),
    "day of week": _("day of week"),
    "second": pgettext_lazy("queue", "second"),
}


def why(error: InvalidSchedule) -> str:
    """What is wrong, in the language of who reads it."""
    return gettext(error.text) % {
        name: FIELDS.get(str(value), value) if name == "field" else value for name, value in error.params.items()
    }


def state_mark(state: str) -> SafeString:
    """The state as a word with a class of its own for its colour and sign."""
    return format_html('<span class="pgq-state pgq-{}">{}</span>', state, LABELS[State(state)])


def moment(value: datetime | None, text: str = "", *, short: bool = False) -> SafeString:
    """A moment that machines can read too; ``text`` instead of the date where that says more."""
    if value is None:
        return format_html("{}", "-")
    local = localtime(value) if is_aware(value) else value
    full = written(local)
    shown = text or (written(local, short=True) if short else full)
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), full, shown)


def written(local: datetime, *, short: bool = False) -> str:
    """As a form of this language would write it: other formats have no seconds, or are long."""
    ending = "%M" if short else "%S"
    return local.strftime(next(one for one in get_format("DATETIME_INPUT_FORMATS") if one.endswith(ending)))


def length(seconds: float) -> str:
    """About how long, in one unit."""
    if seconds < 1:
        return gettext("%(n)s ms") % {"n": round(max(0.0, seconds) * 1000)}
    for size, text in ((86400, gettext("%(n)s d")), (3600, gettext("%(n)s h")), (60, gettext("%(n)s min"))):
        if seconds >= 2 * size:
            return text % {"n": round(seconds / size)}
    return gettext("%(n)s s") % {"n": round(seconds)}


def when(job: Job, now: datetime) -> SafeString:
    """The moment that matters in the job's state, from ``now``, the database's clock."""

    def ago(value: datetime) -> str:
        return length(max(0.0, (now - value).total_seconds()))

    if job.state in WAITING:
        if job.run_after <= now:
            return moment(job.run_after, gettext("due for %(time)s") % {"time": ago(job.run_after)})
        ahead = length((job.run_after - now).total_seconds())
        return moment(job.run_after, gettext("due in %(time)s") % {"time": ahead})
    if job.state == State.RUNNING and job.started_at:
        return moment(job.started_at, gettext("for %(time)s") % {"time": ago(job.started_at)})
    if job.state in FINISHED and job.finished_at:
        return moment(job.finished_at, gettext("%(time)s ago") % {"time": ago(job.finished_at)})
    ready = max(job.run_after, job.enqueued_at)
    return moment(ready, gettext("ready for %(time)s") % {"time": ago(ready)})


def problem_text(problem: Problem) -> str:
    """What is wrong, in the language of who reads it."""
    return gettext(TEXTS[problem.rule]) % {**problem.facts, "time": length(problem.facts.get("seconds", 0))}
