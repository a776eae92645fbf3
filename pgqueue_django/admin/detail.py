"""The page of one job: what it is, its time, its attempts, its arguments and result, and the jobs around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import django
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import IntegerField, JSONField, TextField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django import snapshot
from pgqueue_django.dashboard import excerpts, timeline, tracebacks
from pgqueue_django.dashboard.related import MAX_COPIES, Alike, Related, related
from pgqueue_django.dashboard.wording import KINDS, length, moment, state_mark, when
from pgqueue_django.models import Job
from pgqueue_django.payload import storable_text
from pgqueue_django.states import FINISHED, TRANSITIONS, State

from .actions import VERBS
from .copies import JobCopyMixin

EXCERPT = 8192
"""Characters of arguments or a result that the page shows; the rest is a page of its own."""
MAX_INLINE = 1024 * 1024
"""Bytes of these beyond which a browser is to save them instead."""
MAX_MESSAGE = 2000
MAX_TRACEBACK = 16_384

_PARTS = ("args", "kwargs", "result")

# Cut where it is read: a setting, or plain SQL, may let it grow.
_HISTORY = """
    CASE WHEN jsonb_typeof(pgqueue_job.history) = 'array' AND jsonb_array_length(pgqueue_job.history) > %s
    THEN jsonb_build_array(pgqueue_job.history -> 0)
         || jsonb_path_query_array(pgqueue_job.history, CAST(%s AS jsonpath))
    ELSE pgqueue_job.history END
"""
_CUT = """
    CASE WHEN jsonb_typeof(pgqueue_job.history) = 'array'
    THEN greatest(jsonb_array_length(pgqueue_job.history) - %s, 0) ELSE 0 END
"""


class _Decoder(json.JSONDecoder):
    """Plain SQL can write integers that Python refuses to read, of more than 4,300 digits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, parse_int=lambda text: int(text) if len(text) < 1000 else float(text))


@dataclass(frozen=True)
class Attempt:
    """One failed attempt, as the detail page shows it. Message and traceback are empty for who may not see them."""

    attempt: Any
    worker: Any
    started_at: Any
    took: str
    kind: Any
    error_type: Any
    anchor: str
    message: str = ""
    traceback: list[tracebacks.Part] = field(default_factory=list)
    same_as: Attempt | None = None
    """A newer one with the same frames, whose traceback is shown."""


@dataclass(frozen=True)
class Document:
    """Arguments or a result, as much of it as the page shows."""

    part: str
    name: Any
    size: str
    text: str
    is_whole: bool
    url: str


class JobPageMixin(JobCopyMixin):
    """The page of one job."""

    job_template = "admin/pgqueue_django/job/detail.html"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_payload"
        view = self.admin_site.admin_view(self.payload_view)
        return [path("<int:pk>/payload/<str:part>/", view, name=name), *super().get_urls()]

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
        if not self.has_view_permission(request, job):  # of this one: a project's own admin may know more
            raise PermissionDenied
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

    def payload_view(self, request: HttpRequest, pk: int, part: str) -> HttpResponse:
        """Arguments or the result as they are stored, all of it, for who may see them. Never as a page."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not (self.has_view_permission(request) and self.has_payload_permission(request)):
            raise PermissionDenied
        if part not in _PARTS:
            raise Http404
        text = RawSQL(f"coalesce(pgqueue_job.{part}::text, 'null')", [], TextField())  # noqa: S611
        found = self._one(request, pk).annotate(text=text).first()
        if found is None:
            return self._gone(request, str(pk))
        if not self.has_view_permission(request, found):
            raise PermissionDenied
        content = found.text.encode()
        response = HttpResponse(content, content_type="text/plain; charset=utf-8")
        kind = "attachment" if len(content) > MAX_INLINE else "inline"
        response.headers["Content-Disposition"] = f'{kind}; filename="job-{pk}-{part}.json"'
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _find(self, request: HttpRequest, object_id: str) -> Job | None:
        if not (object_id.isascii() and object_id.isdigit() and len(object_id) < 20):
            return None
        found = self.get_queryset(request).filter(pk=int(object_id)).defer(*_PARTS, "history", "progress", "backoff")
        newest = timeline.MAX_ATTEMPTS - 1
        history = RawSQL(_HISTORY, [newest + 1, f"$[last-{newest - 1} to last]"], JSONField(decoder=_Decoder))  # noqa: S611
        progress = RawSQL("pgqueue_job.progress", [], JSONField(decoder=_Decoder))
        left_out = RawSQL(_CUT, [newest + 1], IntegerField())  # noqa: S611
        found = found.annotate(read_at=Now(), shown_history=history, left_out=left_out, shown_progress=progress)
        for part in _PARTS:
            column = f"pgqueue_job.{part}::text"
            found = found.annotate(
                **{
                    f"{part}_start": RawSQL(f"left({column}, %s)", [EXCERPT], TextField()),  # noqa: S611
                    f"{part}_bytes": RawSQL(f"octet_length({column})", [], IntegerField()),  # noqa: S611
                }
            )
        job: Job | None = found.first()
        return job

    def job_context(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        """What the detail page shows; payload only for who may see it."""
        open_payload = self.has_payload_permission(request)
        now: datetime = job.read_at  # type: ignore[attr-defined]
        job.history = job.shown_history  # type: ignore[attr-defined]
        around = related(router.db_for_write(self.model), job)
        steps = timeline.steps(job, now, left_out=job.left_out)  # type: ignore[attr-defined]
        arguments = [self._document(job, part, name) for part, name in _ARGUMENTS if _size(job, part) > 2]
        counts = [_count(job, part) for part in ("args", "kwargs")]
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
            "copy_url": self._url("copy", job.pk) if self._may(request, "copy") else "",
            # Texts, not the row: what a template cannot reach, it cannot show.
            "number": job.pk,
            "task": job.task,
            "label": job.label,
            "state": state_mark(job.state),
            "state_seen": job.state,
            "when": when(job, now),
            "notes": list(_notes(job, now, around, steps)),
            "progress": _progress(job.shown_progress, open_payload),  # type: ignore[attr-defined]
            "facts": list(_facts(job, now, open_payload)),
            "original": self._link(job.copy_of, around.original) if around and job.copy_of else None,
            "copies": [self._link(id, state) for id, state in around.copies[:MAX_COPIES]] if around else [],
            "has_more_copies": around is not None and len(around.copies) > MAX_COPIES,
            "alike": self._alike(job, around.alike) if around else None,
            **_timeline(steps, now),
            "may_see_payload": open_payload,
            "arguments": arguments if open_payload else [],
            "argument_count": None if None in counts else sum(count or 0 for count in counts),
            "argument_size": filesizeformat(_size(job, "args") + _size(job, "kwargs")),
            "has_result": job.state == State.SUCCEEDED,
            "result": self._document(job, "result", pgettext_lazy("queue", "Result")) if open_payload else None,
            "attempts": _attempts(job.history, open_payload),
        }

    def _document(self, job: Job, part: str, name: Any) -> Document:
        text, is_whole = excerpts.pretty(_start(job, part), EXCERPT)
        is_whole = is_whole and _is_read_whole(job, part)
        size = filesizeformat(_size(job, part))
        return Document(part, name, size, text, is_whole, self._url("payload", job.pk, part))

    def _link(self, id: int, state: str | None) -> dict[str, Any]:
        """To another job; without an address where that is gone."""
        return {"number": id, "url": self._url("change", id), "state": state_mark(state)} if state else {"number": id}

    def _alike(self, job: Job, alike: Alike | None) -> dict[str, Any] | None:
        if alike is None:
            return None
        query = urlencode({"q": f"fp:{job.error_fingerprint} task:{job.task}"})
        note = gettext("Of the newest %(most)s with this error.")
        return {
            "counts": [
                # Not apart at the end of a line.
                (
                    str(text).replace(" ", "\xa0"),
                    number_format(count, force_grouping=True) + ("+" if alike.is_capped else ""),
                )
                for text, count in ((_("1 h"), alike.hour), (_("24 h"), alike.day), (_("7 d"), alike.week))
            ],
            "note": note % {"most": number_format(snapshot.CAP, force_grouping=True)} if alike.is_capped else "",
            "url": f"{self._url('changelist')}?{query}",
        }


_ARGUMENTS = (("args", pgettext_lazy("queue", "Positional")), ("kwargs", pgettext_lazy("queue", "Keywords")))


def _start(job: Job, part: str) -> str:
    """The beginning of the column's JSON, as it was read."""
    return "null" if (found := getattr(job, f"{part}_start")) is None else str(found)


def _size(job: Job, part: str) -> int:
    return getattr(job, f"{part}_bytes") or len("null")


def _is_read_whole(job: Job, part: str) -> bool:
    return len(_start(job, part).encode()) >= _size(job, part)


def _count(job: Job, part: str) -> int | None:
    """How many arguments there are; None: too many to have been read."""
    return excerpts.count(_start(job, part)) if _is_read_whole(job, part) else None


def _notes(job: Job, now: datetime, around: Related | None, steps: Sequence[timeline.Step]) -> Iterator[str]:
    """What a person has to know at once."""
    if around is None:
        yield gettext("The database took too long to look for workers and jobs around this one.")
    elif not around.workers and job.state not in FINISHED:
        yield gettext("No worker is alive.")
    elif around.workers and not around.knows:
        yield gettext("No live worker knows this task. In a deploy, those that come may.")
    if job.run_after > now and any(step.outcome == timeline.Outcome.CANCELLED for step in steps):
        left = length((job.run_after - now).total_seconds())
        yield gettext("Cancelled while it ran: its handler was told, and may go on for %(time)s.") % {"time": left}
    if job.state == State.RUNNING and job.lease_expires_at and job.lease_expires_at <= now:
        yield gettext("Its lease has ended: a worker that is alive will take it back.")


def _progress(progress: Any, open_payload: bool) -> dict[str, Any] | None:
    """What a handler says of it is payload. The column may hold anything: plain SQL can write it."""
    if not isinstance(progress, dict):
        return None
    fraction: Any = progress.get("fraction")
    is_known = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    part = float(min(1, max(0, fraction))) if is_known else None
    return {
        # No number of this language: a browser reads it.
        "value": None if part is None else f"{part:.4f}",
        "percent": "" if part is None else gettext("%(percent)s%%") % {"percent": f"{part * 100:.0f}"},
        "message": str(progress.get("message") or "")[:MAX_MESSAGE] if open_payload else "",
    }


def _timeline(steps: Sequence[timeline.Step], now: datetime) -> dict[str, Any]:
    lost = sum(step.attempts or 0 for step in steps)
    text = ngettext(
        "%(count)s attempt is not kept, or not shown.", "%(count)s attempts are not kept, or not shown.", lost
    )
    return {
        "lost_note": text % {"count": lost} if lost else "",
        "timeline": timeline.draw(steps, now),
        "timeline_summary": timeline.summary(steps, now),
        "steps": [
            {
                "looks": timeline.looks(step),
                "text": timeline.told(step),
                "long": "" if step.kind == timeline.StepKind.LOST else timeline.long(step),
                "begin": moment(step.begin) if step.begin else "",
                "worker": step.worker,
            }
            for step in steps
        ],
    }


def _facts(job: Job, now: datetime, open_payload: bool) -> Iterator[tuple[Any, Any]]:
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
    if job.idempotency_key is not None and open_payload:
        yield _("Idempotency key"), job.idempotency_key
    if job.parked_at:
        yield _("Handed back"), _("by workers that do not know this task")


def _attempts(history: Any, open_payload: bool) -> list[Attempt]:
    """The failed attempts, the newest first. The column may hold anything: plain SQL can write it."""
    entries, _ = timeline.shown_of(history)
    attempts: list[Attempt] = []
    shown: dict[str, Attempt] = {}
    for place, entry in reversed(list(enumerate(entries))):
        started, ended = timeline.moment_of(entry.get("started_at")), timeline.moment_of(entry.get("ended_at"))
        text = _text(entry.get("traceback"), MAX_TRACEBACK) if open_payload else ""
        same_as = shown.get(frames := tracebacks.frames_of(text)) if text else None
        attempt = Attempt(
            attempt=_text(entry.get("attempt"), 20),
            worker=_text(entry.get("worker"), 120),
            started_at=moment(started) if started else _text(entry.get("started_at"), 40),
            took=length((ended - started).total_seconds()) if started and ended else "",
            kind=KINDS.get(_text(entry.get("kind"), 40), _text(entry.get("kind"), 40)),
            error_type=_text(entry.get("error_type"), 200),
            anchor=f"pgq-attempt-{place}",
            message=_text(entry.get("message"), MAX_MESSAGE) if open_payload else "",
            traceback=[] if same_as else tracebacks.fold(text),
            same_as=same_as,
        )
        attempts.append(attempt)
        if text and frames and not same_as:
            shown[frames] = attempt
    return attempts


def _text(value: Any, limit: int) -> str:
    return "" if value is None else storable_text(str(value), limit)
