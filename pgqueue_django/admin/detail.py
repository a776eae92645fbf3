"""The page of one job: what it is, its arguments and result, its attempts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import django
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django.dashboard.wording import KINDS, length, moment, state_mark, when
from pgqueue_django.models import Job
from pgqueue_django.payload import storable_text
from pgqueue_django.states import TRANSITIONS, State

from .actions import VERBS
from .rights import JobRightsMixin


@dataclass(frozen=True)
class Attempt:
    """One failed attempt, as the detail page shows it. Message and traceback are empty for who may not see them."""

    attempt: Any
    worker: Any
    started_at: Any
    ended_at: Any
    took: str
    kind: Any
    error_type: Any
    message: str
    traceback: str


class JobPageMixin(JobRightsMixin):
    """The page of one job."""

    job_template = "admin/pgqueue_django/job/detail.html"

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        """The detail page. Django's own form page would need inline styles before Django 6.1."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = self._find(request, unquote(object_id))
        if job is None:
            return self._gone(request, object_id)
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            self.job_template,
            {
                **self.admin_site.each_context(request),
                **self.job_context(request, job),
                **(extra_context or {}),
            },
        )

    def _find(self, request: HttpRequest, object_id: str) -> Job | None:
        if not (object_id.isascii() and object_id.isdigit() and len(object_id) < 20):
            return None
        return self.get_queryset(request).annotate(read_at=Now()).filter(pk=int(object_id)).first()

    def job_context(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        """What the detail page shows; payload only for who may see it."""
        open_payload = self.has_payload_permission(request)
        return {
            "title": gettext("Job %(number)s") % {"number": job.pk},
            "opts": self.opts,
            "media": self.media,
            # Django 6.1 lists its breadcrumbs; older ones have them in a row.
            "breadcrumbs_listed": django.VERSION >= (6, 1),
            "list_url": self._url("changelist"),
            "history_url": self._url("history", job.pk),
            "buttons": [
                {"verb": verb, "text": known.button, "url": self._url(verb, job.pk)}
                for verb, known in VERBS.items()
                if job.state in TRANSITIONS[known.arrow].sources and self._may(request, verb)
            ],
            # Texts, not the row: what a template cannot reach, it cannot show.
            "number": job.pk,
            "task": job.task,
            "label": job.label,
            "state": state_mark(job.state),
            "when": when(job, job.read_at),  # type: ignore[attr-defined]
            "facts": list(_facts(job, job.read_at)),  # type: ignore[attr-defined]
            "may_see_payload": open_payload,
            "arguments": _pretty({"args": job.args, "kwargs": job.kwargs}) if open_payload else "",
            "argument_count": len(job.args or ()) + len(job.kwargs or ()),
            "has_result": job.state == State.SUCCEEDED,
            "result": _pretty(job.result) if open_payload else "",
            "attempts": _attempts(job.history, open_payload),
        }


def _facts(job: Job, now: datetime) -> Iterator[tuple[Any, Any]]:
    yield pgettext_lazy("queue", "Queue"), job.queue_name
    yield pgettext_lazy("queue", "Priority"), job.priority
    yield pgettext_lazy("queue", "Attempts"), f"{job.attempts}/{job.max_attempts}"
    yield _("Enqueued at"), moment(job.enqueued_at)
    yield _("Not before"), moment(job.run_after)
    yield _("Started at"), moment(job.started_at)
    yield _("Finished at"), moment(job.finished_at)
    if job.lease_expires_at:
        ahead = (job.lease_expires_at - now).total_seconds()
        text = gettext("in %(time)s") if ahead > 0 else gettext("%(time)s ago")
        yield _("Lease ends"), moment(job.lease_expires_at, text % {"time": length(abs(ahead))})
    if job.prune_after:
        yield _("Kept until"), moment(job.prune_after)
    if job.worker_id:
        yield pgettext_lazy("queue", "Worker"), job.worker_id
    if job.idempotency_key is not None:
        yield _("Idempotency key"), job.idempotency_key
    if isinstance(job.progress, dict):
        fraction = job.progress.get("fraction")
        percent = ""
        if isinstance(fraction, int | float):
            percent = gettext("%(percent)s%%") % {"percent": f"{fraction * 100:.0f}"}
        yield pgettext_lazy("queue", "Progress"), f"{percent} {job.progress.get('message') or ''}".strip() or "-"
    if job.parked_at:
        yield _("Handed back"), _("by workers that do not know this task")


def _pretty(value: Any) -> str:
    # Plain SQL can write surrogates, which no page can be encoded with.
    return storable_text(json.dumps(value, indent=2, ensure_ascii=False))


def _attempts(history: Any, open_payload: bool) -> list[Attempt]:
    """The failed attempts, the newest first. The column may hold anything: plain SQL can write it."""
    entries: Iterable[Any] = history if isinstance(history, list) else []
    attempts = []
    for entry in entries:
        known: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
        started, ended = _moment_of(known.get("started_at")), _moment_of(known.get("ended_at"))
        took = ended - started if isinstance(started, datetime) and isinstance(ended, datetime) else None
        attempts.append(
            Attempt(
                attempt=known.get("attempt", ""),
                worker=known.get("worker") or "",
                started_at=moment(started) if isinstance(started, datetime) else started,
                ended_at=moment(ended) if isinstance(ended, datetime) else ended,
                took=length(took.total_seconds()) if isinstance(took, timedelta) else "",
                kind=KINDS.get(str(known.get("kind")), known.get("kind", "")),
                error_type=known.get("error_type", ""),
                message=str(known.get("message") or "") if open_payload else "",
                traceback=str(known.get("traceback") or "") if open_payload else "",
            )
        )
    return attempts[::-1]


def _moment_of(value: Any) -> datetime | str:
    try:
        return parse_datetime(str(value)) or ""
    except ValueError:
        return str(value)
