"""The list of jobs: a walk of at most ``LISTED`` rows along one index, and what is asked of those rows."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import InvalidPage
from django.db import DataError, OperationalError, router
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import Combinable, RawSQL
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from psycopg.errors import QueryCanceled

from pgqueue_django import search
from pgqueue_django.dashboard.wording import LABELS, moment, state_mark, when
from pgqueue_django.models import Job
from pgqueue_django.search import SearchError
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import WAITING, State
from pgqueue_django.tasks import places_of

from .rights import JobRightsMixin

LISTED = 10_000
"""Jobs that a listing looks at, and that one action moves, at the most."""


_NEWEST = "SELECT id FROM pgqueue_job ORDER BY id DESC"


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
        most = most_listed()
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


def most_listed() -> str:
    return number_format(LISTED, force_grouping=True)


class JobListMixin(JobRightsMixin):
    """The list of jobs, and the search in it."""

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

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        # Any other lookup in the URL would search without an index, and guess at what payloads hold.
        return lookup == StateFilter.parameter_name

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
