"""The jobs in Django's admin: to look at, to send back, to cancel.

It writes nothing but by the verbs of ``transitions``, and each action has a permission of its own, asked for in
the view and not only in the template. Arguments, results and what errors said are for people with
``view_job_payload``; for all others they never reach a template. Those of a schedule are also for people who may
change it. No page counts or scans the table of jobs: a listing is a walk of at most ``LISTED`` rows along one index,
and what is asked of those rows.

``JobAdminMixin`` has all of it without a base class, for admins with another one::

    class JobAdmin(JobAdminMixin, unfold.admin.ModelAdmin): ...
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import django
from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import PermissionDenied, SuspiciousOperation, ValidationError
from django.core.paginator import InvalidPage
from django.db import DataError, OperationalError, router, transaction
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import Combinable, RawSQL
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.formats import get_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime, make_aware, now
from django.utils.translation import gettext, ngettext_lazy, pgettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from psycopg.errors import QueryCanceled

from . import failures, problems, queues, schedules, search, snapshot, transitions
from .cron import Line
from .exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from .models import MOMENTS, Job, Queue, Schedule, Worker
from .options import QUEUE_NAME
from .outcomes import Kind
from .payload import storable_text
from .search import SearchError
from .snapshot import index_walks
from .states import FINISHED, TRANSITIONS, WAITING, State
from .tasks import places_of, resolve

LISTED = 10_000
"""Jobs that a listing looks at, and that one action moves, at the most."""

# What a walk for the jobs of one state looks at, in the order of an index. Only where the walk sees other jobs too
# is the state asked for again. Failed and dead are told apart by a range: see snapshot.py.
_NEWEST = "SELECT id FROM pgqueue_job ORDER BY id DESC"
# From both ends: behind a backlog of retries there may be what is scheduled for next week, and the other way round.
_WAITING = " UNION ALL ".join(
    "(SELECT id FROM pgqueue_job WHERE state IN ('scheduled', 'retrying') "
    f"ORDER BY run_after {direction} LIMIT {LISTED // 2})"
    for direction in ("ASC", "DESC")
)
_BROKEN = "SELECT id FROM pgqueue_job WHERE state IN ('failed', 'dead') AND state {} ORDER BY state, id DESC"
_OF_ERROR = (
    "SELECT * FROM pgqueue_job WHERE state IN ('failed', 'dead') AND error_fingerprint = %s "
    "ORDER BY error_fingerprint, id DESC"
)
_WALKS = {
    State.SCHEDULED: _WAITING,
    State.QUEUED: "SELECT id FROM pgqueue_job WHERE state = 'queued' ORDER BY queue_name, priority DESC, run_after, id",
    State.RUNNING: "SELECT id FROM pgqueue_job WHERE state = 'running' ORDER BY worker_id, id",
    State.RETRYING: _WAITING,
    State.SUCCEEDED: _NEWEST,
    State.FAILED: _BROKEN.format(">= 'failed'"),
    State.DEAD: _BROKEN.format("<= 'dead'"),
    State.CANCELLED: _NEWEST,
}


class StateFilter(admin.SimpleListFilter):
    """One state, found along an index that has its jobs, or among the newest jobs."""

    title = pgettext_lazy("queue", "state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, LABELS[state]) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        value = self.value()
        if value is None:
            return queryset
        if value not in LABELS:
            return queryset.none()
        if not request.GET.get(SEARCH_VAR):  # a search walks by itself
            queryset = queryset.filter(_among(f"{_WALKS[State(value)]} LIMIT %s", [LISTED]))
        return queryset.filter(state=value)


def _among(walk: str, params: list[Any]) -> RawSQL:
    """That its id is one of these. As an array: joined, the planner may read the whole table beside the walk."""
    return RawSQL(f"pgqueue_job.id = ANY(ARRAY({walk}))", params, output_field=BooleanField())  # noqa: S611


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


class JobChangeList(ChangeList):
    """A page of jobs in two queries: the ids of the listing, at most ``LISTED``, then the rows of the page."""

    limit_note: str

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        # Not by what ?o= asks for: sortable_by only takes the links away.
        return ["-id"]

    def get_results(self, request: HttpRequest) -> None:
        try:
            with index_walks(self.queryset.db):
                ids = list(self.queryset.values_list("pk", flat=True)[: LISTED + 1])
        except DataError:
            # Plain SQL can write json that no text can be made of.
            ids = []
            text = gettext("A job holds what cannot be compared; look for less of it.")
            self.model_admin.message_user(request, text, messages.ERROR)
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            ids = []
            text = gettext("The database took too long. Choose a state, or name jobs by their numbers.")
            self.model_admin.message_user(request, text, messages.ERROR)
        paginator = self.model_admin.get_paginator(request, ids[:LISTED], self.list_per_page)  # type: ignore[arg-type]
        try:
            page = paginator.page(self.page_num).object_list
        except InvalidPage:
            raise IncorrectLookupParameters from None
        self.result_count = paginator.count
        # Equal to the result, it keeps away the link to see all.
        self.full_result_count = None if self.query or self.has_active_filters else self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = bool(ids)
        self.can_show_all = False
        self.multi_page = paginator.num_pages > 1
        self.paginator = paginator
        self.result_list = (
            self.root_queryset.filter(pk__in=page)
            .defer("args", "kwargs", "result", "history", "backoff", "progress")
            .annotate(read_at=Now())
            .order_by("-pk")
        )
        self.limit_note = self._limit_note(len(ids))

    def _limit_note(self, found: int) -> str:
        most = _most()
        state = self.params.get("state")
        if self.query and (state in (None, State.FAILED, State.DEAD, State.QUEUED, State.RUNNING)):
            return gettext("Named jobs are found whatever their age, others among the first %(most)s of the list.") % {
                "most": most
            }
        if state in (State.SUCCEEDED, State.CANCELLED):
            return gettext("Looked for among the newest %(most)s jobs.") % {"most": most}
        if state in WAITING:
            return gettext("Looked for among the %(most)s waiting jobs that are due first and last.") % {"most": most}
        if found <= LISTED and not (state and found == LISTED):
            return ""
        if state == State.QUEUED:
            return gettext("There may be more: %(most)s ready jobs, queue by queue, are listed.") % {"most": most}
        if state == State.RUNNING:
            return gettext("There may be more: %(most)s running jobs are listed.") % {"most": most}
        return gettext("There may be more: the newest %(most)s are listed.") % {"most": most}


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


if TYPE_CHECKING:
    _JobAdmin = admin.ModelAdmin[Job]
    _WorkerAdmin = admin.ModelAdmin[Worker]
    _QueueAdmin = admin.ModelAdmin[Queue]
    _ScheduleAdmin = admin.ModelAdmin[Schedule]
    _QueueForm = forms.ModelForm[Queue]
    _ScheduleForm = forms.ModelForm[Schedule]
else:
    _JobAdmin = object
    _WorkerAdmin = _QueueAdmin = _ScheduleAdmin = admin.ModelAdmin
    _QueueForm = _ScheduleForm = forms.ModelForm


class JobAdminMixin(_JobAdmin):
    """Lists and shows jobs; sends back and cancels by ``transitions``. To be put before a ModelAdmin."""

    list_display = (
        "job_number", "job_state", "job_task", "queue_name", "job_attempts", "job_when", "job_enqueued_at",
    )  # fmt: skip
    list_display_links = ("job_number",)
    list_filter = (StateFilter,)
    list_per_page = 100
    list_select_related = ()
    search_fields = ("id",)
    search_help_text = _(
        "A number, a key, or task:shop.* queue:mail worker: label: error:CardError args.tenant_id:7, joined by AND."
    )
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-id",)
    actions = ("requeue_jobs", "run_jobs_now", "cancel_jobs", "delete_finished_jobs")
    job_template = "admin/pgqueue_django/job/detail.html"
    problems_template = "admin/pgqueue_django/job/problems.html"

    class Media:
        css = {"all": ["pgqueue_django/admin.css"]}

    # -- who may what ------------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Also what keeps Django's own delete_selected away, which would delete running jobs.
        return False

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self._has(request, "requeue_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._has(request, "cancel_job")

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return self._has(request, "run_job_now")

    def has_delete_finished_permission(self, request: HttpRequest) -> bool:
        return self._has(request, "delete_job")

    def has_payload_permission(self, request: HttpRequest) -> bool:
        """Whether arguments, result and the texts of errors may be shown."""
        return self._has(request, "view_job_payload")

    def _may(self, request: HttpRequest, verb: str) -> bool:
        return bool(getattr(self, f"has_{verb}_permission")(request))

    def _has(self, request: HttpRequest, codename: str) -> bool:
        return request.user.has_perm(f"pgqueue_django.{codename}")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        # Any other lookup in the URL would search without an index, and guess at what payloads hold.
        return lookup == StateFilter.parameter_name

    # -- the list ----------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        # From where jobs are written: on a replica a job that was just made, or moved, may be missing.
        return super().get_queryset(request).using(router.db_for_write(self.model))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Each term on the rows of one walk: the newest, or those of a state. Named jobs whatever their age."""
        if not search_term.strip():
            return queryset, False
        try:
            query = search.read(search_term, places_of)
        except SearchError as error:
            text = gettext("At character %(position)s: %(problem)s")
            problem = gettext(search.REASONS[error.reason]) % error.facts
            self.message_user(request, text % {"position": error.position + 1, "problem": problem}, messages.ERROR)
            return queryset.none(), False
        if query.reads_payload and not self.has_payload_permission(request):
            self.message_user(
                request,
                gettext("To look for keys, arguments and errors you need the right to see them."),
                messages.ERROR,
            )
            return queryset.none(), False
        wanted = " AND ".join(condition.sql for condition in query.conditions) or "true"
        if query.ids is not None:
            walk, first = "SELECT job.id FROM pgqueue_job job WHERE job.id = ANY(%s::bigint[])", list(query.ids)
            if query.fingerprint is not None:
                queryset = queryset.filter(error_fingerprint=query.fingerprint)
            chosen = _among(f"{walk} AND {wanted}", [first, *query.params])
        elif query.fingerprint is not None:
            walk = f"{_OF_ERROR} LIMIT %s"
            params = [query.fingerprint, LISTED, *query.params]
            chosen = _among(f"SELECT job.id FROM ({walk}) AS job WHERE {wanted}", params)
        else:
            state = request.GET.get(StateFilter.parameter_name)
            walk = (_WALKS[State(state)] if state in LABELS else _NEWEST).replace("SELECT id", "SELECT *")
            chosen = _among(f"SELECT job.id FROM ({walk} LIMIT %s) AS job WHERE {wanted}", [LISTED, *query.params])
        return queryset.filter(chosen), False

    @admin.display(description=pgettext_lazy("queue", "job"))
    def job_number(self, job: Job) -> str:
        return str(job.pk)

    @admin.display(description=pgettext_lazy("queue", "state"))
    def job_state(self, job: Job) -> SafeString:
        return state_mark(job.state)

    @admin.display(description=pgettext_lazy("queue", "task"))
    def job_task(self, job: Job) -> SafeString:
        if job.label:
            return format_html('{} <span class="pgq-label">{}</span>', job.task, job.label)
        return format_html("{}", job.task)

    @admin.display(description=pgettext_lazy("queue", "attempts"))
    def job_attempts(self, job: Job) -> SafeString:
        return format_html('<span class="pgq-number">{}/{}</span>', job.attempts, job.max_attempts)

    @admin.display(description=pgettext_lazy("queue", "when"))
    def job_when(self, job: Job) -> SafeString:
        return when(job, job.read_at)  # type: ignore[attr-defined]

    @admin.display(description=pgettext_lazy("queue", "enqueued"))
    def job_enqueued_at(self, job: Job) -> SafeString:
        return moment(job.enqueued_at, short=True)

    # -- actions -----------------------------------------------------------------------------------------------

    @admin.action(permissions=["requeue"], description=_("Requeue selected jobs"))
    def requeue_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Of the selected jobs, those that have finished go back to their queue."""
        self._move(request, "requeue", queryset)

    @admin.action(permissions=["run_now"], description=_("Run selected jobs now"))
    def run_jobs_now(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Of the selected jobs, those that wait for their time or for another attempt are ready at once."""
        self._move(request, "run_now", queryset)

    @admin.action(permissions=["cancel"], description=_("Cancel selected jobs"))
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Of the selected jobs, those that have not finished are cancelled."""
        self._move(request, "cancel", queryset)

    @admin.action(permissions=["delete_finished"], description=_("Delete selected jobs that have finished"))
    def delete_finished_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Of the selected jobs, those that have finished are gone."""
        self._move(request, "delete_finished", queryset)

    def _move(
        self,
        request: HttpRequest,
        verb: str,
        queryset: QuerySet[Job],
        move: Callable[[str, Collection[int]], set[int]] | None = None,
    ) -> None:
        using = router.db_for_write(self.model)
        move = move or _VERBS[verb].move
        with index_walks(using):
            ids = list(queryset.order_by("-pk").values_list("pk", flat=True)[: LISTED + 1])
        moved: set[int] = set()
        skipped: list[int] = []
        for chunk in _chunks(ids[:LISTED]):
            # One transaction for what was done and who did it, where the log is in the same database.
            with transaction.atomic(using=using):
                # Before: of what is deleted there is no row afterwards.
                rows = self.get_queryset(request).only("pk", "task").in_bulk(chunk)
                done = move(using, chunk)
                if done:
                    changed: Any = [rows[pk] for pk in sorted(done)]
                    flag = DELETION if verb == "delete_finished" else CHANGE
                    LogEntry.objects.log_actions(request.user.pk, changed, flag, str(_VERBS[verb].logged))  # type: ignore[arg-type]
            moved |= done
            skipped += [pk for pk in chunk if pk not in done]
        self.message_user(request, *_report(using, verb, moved, skipped))
        if len(ids) > LISTED:
            self.message_user(
                request,
                gettext("%(most)s jobs are the most at one time; the rest was left alone.") % {"most": _most()},
                messages.WARNING,
            )

    # -- one job -----------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"

        def button(verb: str) -> Callable[..., HttpResponse]:
            def view(request: HttpRequest, pk: int) -> HttpResponse:
                return self.move_view(request, verb, pk)

            return self.admin_site.admin_view(view)

        return [
            path("problems/", self.admin_site.admin_view(self.problems_view), name=f"{name}_problems"),
            path("<int:pk>/requeue/", button("requeue"), name=f"{name}_requeue"),
            path("<int:pk>/run-now/", button("run_now"), name=f"{name}_run_now"),
            path("<int:pk>/cancel/", button("cancel"), name=f"{name}_cancel"),
            path("<int:pk>/delete-finished/", button("delete_finished"), name=f"{name}_delete_finished"),
            *super().get_urls(),
        ]

    def problems_view(self, request: HttpRequest) -> HttpResponse:
        """What is wrong: the rules that find something, and failed and dead jobs by kind of error.

        POST sends all jobs of one kind back, at most ``LISTED``, and none that failed after the page was shown.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = router.db_for_write(self.model)
        if request.method == "POST":
            if not self._may(request, "requeue"):
                raise PermissionDenied
            self._requeue_group(request, using)
            return HttpResponseRedirect(self._url("problems"))
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        request.current_app = self.admin_site.name
        open_payload = self.has_payload_permission(request)
        found = failures.take(using)
        return TemplateResponse(
            request,
            self.problems_template,
            {
                **self.admin_site.each_context(request),
                "title": pgettext("queue", "Problems"),
                "opts": self.opts,
                "media": self.media,
                "breadcrumbs_listed": django.VERSION >= (6, 1),
                "list_url": self._url("changelist"),
                "problems": [
                    {"severity": one.severity, "text": gettext(problems.TEXTS[one.rule]) % one.facts}
                    for one in problems.find(snapshot.take(using))
                ],
                "groups": [self._group(one, found.taken_at, open_payload) for one in found.groups],
                "may_requeue": self._may(request, "requeue"),
                "limit_note": gettext("Of the newest %(most)s failed and dead jobs.") % {"most": _most()}
                if found.is_capped
                else "",
            },
        )

    def _group(self, group: failures.Group, now: datetime, open_payload: bool) -> dict[str, Any]:
        ago = length(max(0.0, (now - group.last_at).total_seconds()))
        query = urlencode({"q": f"fp:{group.fingerprint} task:{group.task}"})
        return {
            "task": group.task,
            "fingerprint": group.fingerprint or "",
            "error_type": group.error_type or "-",
            "message": group.message[:200] if open_payload else "",
            "counts": [group.jobs, group.hour, group.day, group.week],
            "last": moment(group.last_at, gettext("%(time)s ago") % {"time": ago}),
            "newest": group.sample_id,
            "sample_url": self._url("change", group.sample_id),
            "jobs_url": f"{self._url('changelist')}?{query}" if group.fingerprint else "",
        }

    def _requeue_group(self, request: HttpRequest, using: str) -> None:
        task, fingerprint = request.POST.get("task", ""), request.POST.get("fingerprint") or None
        newest = request.POST.get("newest", "")
        if not (newest.isascii() and newest.isdigit() and len(newest) < 19) or "\0" in task + (fingerprint or ""):
            raise SuspiciousOperation("no group of failed jobs")
        jobs = failures.jobs_of(using, task, fingerprint).filter(pk__lte=int(newest))

        def requeue(using: str, ids: Collection[int]) -> set[int]:
            # One that somebody else has sent back meanwhile may have succeeded.
            return transitions.requeue(using, ids, (State.FAILED, State.DEAD))

        self._move(request, "requeue", jobs, requeue)

    def move_view(self, request: HttpRequest, verb: str, pk: int) -> HttpResponse:
        """The buttons of the detail page: POST only, by who may see the job and has the right of the verb."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self._may(request, verb)):
            raise PermissionDenied
        if not self.get_queryset(request).filter(pk=pk).exists():
            return self._gone(request, str(pk))
        self._move(request, verb, self.get_queryset(request).filter(pk=pk))
        is_there = self.get_queryset(request).filter(pk=pk).exists()
        return HttpResponseRedirect(self._url("change", pk) if is_there else self._url("changelist"))

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

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = gettext("There is no job %(number)s. Finished jobs are kept for a time only.")
        self.message_user(request, text % {"number": unquote(object_id)[:40]}, messages.WARNING)
        return HttpResponseRedirect(self._url("changelist"))

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
                for verb, known in _VERBS.items()
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

    def _url(self, what: str, *args: Any) -> str:
        return reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_{what}",
            args=[quote(arg) for arg in args],
            current_app=self.admin_site.name,
        )


# -- moving -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Verb:
    arrow: str  # in states.TRANSITIONS
    move: Callable[[str, Collection[int]], set[int]]
    button: Any
    done: Any
    logged: Any


_VERBS = {
    "requeue": _Verb(
        "requeue",
        transitions.requeue,
        pgettext_lazy("queue", "Requeue"),
        ngettext_lazy("%(count)s requeued", "%(count)s requeued", "count"),
        _("Requeued."),
    ),
    "run_now": _Verb(
        "run_now",
        transitions.run_now,
        _("Run now"),
        ngettext_lazy("%(count)s made ready", "%(count)s made ready", "count"),
        _("Made ready."),
    ),
    "cancel": _Verb(
        "cancel",
        transitions.cancel,
        pgettext_lazy("queue", "Cancel"),
        ngettext_lazy("%(count)s cancelled", "%(count)s cancelled", "count"),
        _("Cancelled."),
    ),
    "delete_finished": _Verb(
        "delete",
        transitions.delete,
        pgettext_lazy("queue", "Delete"),
        ngettext_lazy("%(count)s deleted", "%(count)s deleted", "count"),
        _("Deleted."),
    ),
}


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), transitions.BATCH):
        yield ids[start : start + transitions.BATCH]


def _report(using: str, verb: str, moved: Collection[int], skipped: Sequence[int]) -> tuple[str, int]:
    """What was done and what was not, and why not; and how good that news is."""
    text = str(_VERBS[verb].done % {"count": len(moved)})
    if not skipped:
        return gettext("%(done)s.") % {"done": text}, messages.SUCCESS
    states: Counter[str] = Counter()
    for chunk in _chunks(skipped):
        states.update(Job.objects.using(using).filter(pk__in=chunk).values_list("state", flat=True))
    reasons = [(count, str(LABELS[State(state)])) for state, count in sorted(states.items())]
    if gone := len(skipped) - sum(states.values()):
        reasons.append((gone, pgettext("queue", "gone")))
    if len(skipped) == 1:
        text = gettext("%(done)s, 1 skipped: it is %(state)s.") % {"done": text, "state": reasons[0][1]}
    else:
        text = gettext("%(done)s, %(count)s skipped: %(reasons)s.") % {
            "done": text,
            "count": len(skipped),
            "reasons": ", ".join(f"{count} {label}" for count, label in reasons),
        }
    return text, messages.WARNING


# -- showing ----------------------------------------------------------------------------------------------------


def _most() -> str:
    return number_format(LISTED, force_grouping=True)


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


@admin.register(Job)
class JobAdmin(JobAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The jobs."""


@admin.register(Worker)
class WorkerAdmin(_WorkerAdmin):
    """The worker processes, to look at."""

    list_display = (
        *("name", "host", "process", "version", "queues", "running", "concurrency", "memory", "skew", "started_at"),
        "heartbeat_at",
    )
    list_display_links = None
    ordering = ("-heartbeat_at",)
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return super().get_queryset(request).using(router.db_for_write(self.model))

    @admin.display(description=pgettext_lazy("queue", "process"))
    def process(self, worker: Worker) -> str:
        return str(worker.pid)  # a name, not a number: without the separators of thousands

    @admin.display(description=pgettext_lazy("queue", "memory"))
    def memory(self, worker: Worker) -> str:
        if worker.memory_bytes is None:
            return "-"
        return gettext("%(n)s MB") % {"n": number_format(round(worker.memory_bytes / 1e6))}

    @admin.display(description=_("clock skew"))
    def skew(self, worker: Worker) -> str:
        if worker.skew_seconds is None:
            return "-"
        sign = "-" if worker.skew_seconds < 0 else "+"
        return gettext("%(n)s s") % {"n": sign + number_format(abs(worker.skew_seconds), 3)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class _WhereJobsAre:
    """Read and written where the jobs are, whatever the router says of readings."""

    model: Any

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(router.db_for_write(self.model))  # type: ignore[misc,no-any-return]


class QueueForm(_QueueForm):
    """What a person writes of a pause, checked as ``pgqueue_pause`` would."""

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if not QUEUE_NAME.fullmatch(name):
            raise ValidationError(gettext("Give 1 to 63 characters A-Za-z0-9_.-"))
        return name

    def clean_resume_at(self) -> datetime | None:
        moment: datetime | None = self.cleaned_data["resume_at"]
        if moment is not None and moment.year >= MOMENTS[1].year:
            raise ValidationError(gettext("Give a year before %(year)s.") % {"year": MOMENTS[1].year})
        if moment is not None and moment <= now():
            raise ValidationError(gettext("It has passed: the queue would not be paused."))
        return moment


@admin.register(Queue)
class QueueAdmin(_WhereJobsAre, _QueueAdmin):
    """The queues that are paused. Adding one pauses it."""

    form = QueueForm
    list_display = ("name", "paused", "reason", "actor", "resume_at")
    fields = ("name", "reason", "resume_at")
    actions = ("resume_queues",)
    ordering = ("name",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    @admin.display(boolean=True, description=pgettext_lazy("queue", "paused"))
    def paused(self, queue: Queue) -> bool:
        return queue.name in queues.paused(router.db_for_write(Queue))

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        queues.pause(
            *(router.db_for_write(Queue), obj.name),
            reason=obj.reason,
            actor=request.user.get_username(),
            until=obj.resume_at,
        )

    @admin.action(description=pgettext_lazy("queue", "Resume"), permissions=["pause"])
    def resume_queues(self, request: HttpRequest, chosen: QuerySet[Queue]) -> None:
        for queue in chosen:
            if queues.resume(router.db_for_write(Queue), queue.name):
                self.log_change(request, queue, gettext("Resumed."))
                self.message_user(request, gettext("%(queue)s goes on.") % {"queue": queue.name})

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgqueue_django.pause_queue")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_pause_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_pause_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ScheduleForm(_ScheduleForm):
    """What a person writes of a schedule, checked as ``@periodic`` would."""

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if {"line", "zone"} <= set(data):
            try:
                Line(data["line"], data["zone"])
            except InvalidSchedule as error:
                raise ValidationError({"line": _why(error)}) from error
        if {"task", "args", "kwargs"} <= set(data):
            self._check_call(data["task"], data["args"], data["kwargs"])
        return data

    @staticmethod
    def _check_call(path: str, args: Any, kwargs: Any) -> None:
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise ValidationError(gettext("Arguments are a JSON array, keywords a JSON object."))
        module = path.rpartition(".")[0]
        if module not in sys.modules and apps.get_containing_app_config(module) is None:
            # What is imported runs, and this is a web process: not whatever somebody has written into a form.
            raise ValidationError({"task": gettext("%(path)s is in no installed app.") % {"path": path}})
        try:
            resolve(path).call(*args, **kwargs)
        except TaskNotFound as error:
            text = gettext("There is no such task here: %(why)s")
            raise ValidationError({"task": text % {"why": error}}) from error
        except (TypeError, InvalidPayload) as error:
            text = gettext("The task does not take these arguments: %(why)s")
            raise ValidationError({"args": text % {"why": error}}) from error


def _why(error: InvalidSchedule) -> str:
    """What is wrong, in the language of who reads it."""
    return gettext(error.text) % {
        name: FIELDS.get(str(value), value) if name == "field" else value for name, value in error.params.items()
    }


@admin.register(Schedule)
class ScheduleAdmin(_WhereJobsAre, _ScheduleAdmin):
    """The schedules: those of the code can be switched off, run and skipped; a person's own be changed, too."""

    form = ScheduleForm
    list_display = ("name", "line", "zone", "is_enabled", "next_at", "error", "task", "last_fired_at", "late")
    list_filter = ("is_enabled", "is_code")
    search_fields = ("name", "task")
    ordering = ("name",)
    show_full_result_count = False
    actions = ("run_schedules", "skip_schedules", "enable_schedules", "disable_schedules")
    fields = (
        *("name", "task", "args", "kwargs", "line", "zone", "missed", "overlap", "is_enabled", "skip_next"),
        *("is_code", "next_ticks", "last_tick", "last_fired_at", "late", "last_job", "retired_at", "error"),
    )
    _shown = ("is_code", "next_ticks", "last_tick", "last_fired_at", "late", "last_job", "retired_at", "error")
    _of_the_code = ("name", "task", "args", "kwargs", "line", "zone", "missed", "overlap")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        # As for jobs: any other one in the URL would guess at what payloads hold.
        return lookup.removesuffix("__exact") in self.list_filter

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        may_read = self.has_change_permission(request, obj) or request.user.has_perm("pgqueue_django.view_job_payload")
        hidden = () if may_read or obj is None else ("args", "kwargs")
        return tuple(name for name in self.fields if name not in hidden)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self._shown, *self._of_the_code) if obj is not None and obj.is_code else self._shown

    @admin.display(description=_("late by"))
    def late(self, schedule: Schedule) -> str:
        return "-" if schedule.late_seconds is None else length(schedule.late_seconds)

    @admin.display(description=_("last job"))
    def last_job(self, schedule: Schedule) -> str:
        return "-" if schedule.last_job_id is None else str(schedule.last_job_id)

    @admin.display(description=_("next ticks"))
    def next_ticks(self, schedule: Schedule) -> str:
        if schedule.next_at is None:
            return "-"
        first = schedule.next_at if is_aware(schedule.next_at) else make_aware(schedule.next_at)
        try:
            line = Line(schedule.line, schedule.zone)
        except InvalidSchedule:
            return "-"
        # By the clocks that the line goes by, not by those of whoever looks.
        ticks = ", ".join(written(line.wall(one)) for one in [first, *line.ticks(first, 4)])
        return f"{ticks} ({schedule.zone})"

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        changed = list(form.changed_data)
        if not change or {"line", "zone", "is_enabled"} & set(changed):
            schedules.plan(router.db_for_write(Schedule), obj)
            changed += ["next_at", "error"]
        if change:
            # Nothing else: a worker may just have fired a tick of it, or have declared it anew.
            values = {name: getattr(obj, name) for name in changed}
            Schedule.objects.using(router.db_for_write(Schedule)).filter(pk=obj.pk).update(**values)
        else:
            super().save_model(request, obj, form, change)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # What the code declares would be back with the next worker: switch it off.
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_code)

    @admin.action(description=_("Run now"), permissions=["change"])
    def run_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        for schedule in chosen:
            try:
                job = schedules.run_now(chosen.db, schedule.pk)
            except (TaskNotFound, TypeError, InvalidPayload) as error:
                self.message_user(request, f"{schedule}: {error}", messages.ERROR)
                continue
            self.log_change(request, schedule, gettext("Run now: job %(id)s.") % {"id": job})
            self.message_user(request, f"{schedule}: #{job}")

    @admin.action(description=_("Skip the next tick"), permissions=["change"])
    def skip_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._switch(request, chosen, gettext("The next tick is skipped."), skip_next=True)

    @admin.action(description=pgettext_lazy("queue", "Enable"), permissions=["change"])
    def enable_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        for schedule in chosen.filter(is_enabled=False):
            try:
                # From now on: what it missed while it was off is not made up for.
                schedules.plan(chosen.db, schedule)
            except InvalidSchedule as error:
                self.message_user(request, f"{schedule}: {_why(error)}", messages.ERROR)
                continue
            planned = {"is_enabled": True, "next_at": schedule.next_at, "error": ""}
            Schedule.objects.using(chosen.db).filter(pk=schedule.pk).update(**planned)
            self.log_change(request, schedule, gettext("Enabled."))

    @admin.action(description=pgettext_lazy("queue", "Disable"), permissions=["change"])
    def disable_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._switch(request, chosen, gettext("Disabled."), is_enabled=False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[Schedule], text: str, **changes: bool) -> None:
        for schedule in chosen:
            if Schedule.objects.using(chosen.db).filter(pk=schedule.pk).update(**changes):
                self.log_change(request, schedule, text)
