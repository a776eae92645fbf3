"""The list of jobs: pages that walk along one index, filters, and the search.

Of the walks this is a door: what may be asked, and how a page is shown. No page counts or scans the table of jobs, and
none reads what a job was given or has returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db import DataError, OperationalError, router
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext, pgettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from psycopg.errors import QueryCanceled

from pgqueue_django import argument_index, search, walks
from pgqueue_django.dashboard.wording import LABELS, moment, state_mark, when
from pgqueue_django.models import Job
from pgqueue_django.search import Condition, Query, SearchError
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import State
from pgqueue_django.tasks import places_of
from pgqueue_django.walks import Cut, Page, Walk

from . import choices
from .rights import JobRightsMixin

LISTED = 10_000
"""Jobs that one action moves at the most: all that a list whose length is known can have."""
COUNT_SECONDS = 0.5
"""A list whose jobs are not counted by then comes without their number."""
SALT = "pgqueue_django.admin.listing"
TOO_LONG = _("The database took too long. Choose a state, or name jobs by their numbers.")


class JobFilter(admin.SimpleListFilter):
    """Jobs with one value in one column. The walk asks for it: what is selected stays selected, whatever it becomes."""

    template = "admin/pgqueue_django/job/filter.html"
    column = ""
    offered = ""
    """Which of the ``Choices``."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        values = getattr(choices.known(request, model_admin.get_queryset(request).db), self.offered)
        given = self.value()
        return [(value, value) for value in (values if not given or given in values else (given, *values))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset

    @property
    def is_open(self) -> bool:
        return bool(self.value())


class StateFilter(JobFilter):
    title = pgettext_lazy("queue", "state")
    parameter_name = column = "state"
    is_open = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(state.value, LABELS[state]) for state in State]


class QueueFilter(JobFilter):
    title = pgettext_lazy("queue", "queue")
    parameter_name, column, offered = "queue", "queue_name", "queues"


class TaskFilter(JobFilter):
    title = pgettext_lazy("queue", "task")
    parameter_name, column, offered = "task", "task", "tasks"


class WorkerFilter(JobFilter):
    title = pgettext_lazy("queue", "worker")
    parameter_name, column, offered = "worker", "worker_id", "workers"


class ErrorFilter(JobFilter):
    title = _("error type")
    parameter_name, column, offered = "error", "error_type", "errors"


class SinceFilter(JobFilter):
    """Enqueued within so many seconds."""

    title = pgettext_lazy("queue", "enqueued")
    parameter_name = "since"
    seconds = {"1h": 3600.0, "24h": 86400.0, "7d": 604800.0}

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [("1h", _("within 1 h")), ("24h", _("within 24 h")), ("7d", _("within 7 d"))]


FILTERS = (StateFilter, QueueFilter, TaskFilter, WorkerFilter, ErrorFilter, SinceFilter)


@dataclass(frozen=True)
class Asked:
    """What the jobs of a list are: those of a walk, of which more is asked."""

    walk: Walk
    wanted: list[Condition]
    within: float | None


class JobChangeList(ChangeList):
    """One page of jobs: a walk along an index, the rows that it found, and a count that ends early."""

    head: str
    """How many jobs in which order."""
    limit_note: str
    count_text: str
    page_links: list[dict[str, str]]
    further_url: str
    """Where the walk goes on that ended before the page was full."""
    _across: list[int] | None = None

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        # Not by what ?o= asks for: sortable_by only takes the links away.
        return ["-id"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        """What an action may choose of: the selected jobs, or with *select all* those that the list has now."""
        queryset: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        if request.method == "POST" and request.POST.get("select_across") == "1":
            queryset = queryset.filter(pk__in=self._all_ids(request))
        return queryset

    def _all_ids(self, request: HttpRequest) -> list[int]:
        # Django asks twice: once for the list, once for the action.
        if self._across is None:
            found = self._walked(request, self._asked(request), None, LISTED, backwards=False)
            self._across = [row["id"] for row in found.rows]
            if found.ends is not None:
                text = gettext("%(most)s jobs are the most at one time; the rest was left alone.")
                self.model_admin.message_user(request, text % {"most": most_listed()}, messages.WARNING)
        return self._across

    def _asked(self, request: HttpRequest) -> Asked | None:
        """None: nothing can be found, since it cannot be read, or nothing has such a value."""
        given = {spec.parameter_name: spec.value() for spec in self.filter_specs if isinstance(spec, JobFilter)}
        query = self.model_admin.read_search(request, self.query)  # type: ignore[attr-defined]
        since = given.pop("since", None)
        if query is None or (since and since not in SinceFilter.seconds):
            return None
        filters = {one.column: value for one in FILTERS if (value := given.get(str(one.parameter_name)))}
        if filters.get("state", State.QUEUED) not in LABELS or any("\0" in value for value in filters.values()):
            return None
        walk, wanted = walks.chosen(filters)
        wanted += query.conditions
        if query.fingerprint is not None:
            wanted.append(walks.equal("error_fingerprint", query.fingerprint))
        if query.ids is not None:
            walk = walks.of_numbers(query.ids)
        elif query.key is not None:
            walk = walks.of_key(query.key)
        elif query.fingerprint is not None:
            walk = walks.of_error(query.fingerprint)
        elif (numbers := self._numbers(wanted)) is not None:
            walk = walks.of_numbers(numbers)
        return Asked(walk, wanted, SinceFilter.seconds.get(since or ""))

    def _numbers(self, wanted: list[Condition]) -> list[int] | None:
        """Of jobs that the index on arguments has found, where there is one."""
        try:
            return argument_index.numbers(self.root_queryset.db, wanted)
        except DataError:
            return None  # the walk may not come to that row, and says so if it does

    def get_results(self, request: HttpRequest) -> None:
        asked = self._asked(request)
        cut, backwards = self._cut(request)
        if asked is not None and cut is not None and len(cut.place) != len(asked.walk.columns):
            cut, backwards = None, False  # the index on arguments has come or gone: it is a list in another order
        page = self._walked(request, asked, cut, self.list_per_page, backwards=backwards)
        ids = [row["id"] for row in page.rows]
        rows = self.queryset.filter(pk__in=ids).defer(*_LARGE).annotate(read_at=Now()).in_bulk() if ids else {}
        self.result_list = [rows[pk] for pk in ids if pk in rows]
        jobs, is_exact = self._count(asked, page)
        # What Django offers to select across pages is what is known to be there.
        can_select_all = is_exact and jobs is not None and jobs > len(ids)
        self.result_count = jobs if can_select_all and jobs is not None else len(self.result_list)
        self.full_result_count = self.result_count  # equal, so that it stands not beside the search, too
        self.show_full_result_count = False
        self.show_admin_actions = bool(ids)
        self.can_show_all = self.multi_page = False  # nothing of its own pages
        self.paginator = self.model_admin.get_paginator(request, self.result_list, self.list_per_page)
        self._say(asked, page, jobs, is_exact)

    def _walked(
        self, request: HttpRequest, asked: Asked | None, cut: Cut | None, limit: int, *, backwards: bool
    ) -> Page:
        nothing = Page([], None, None, 0)
        if asked is None:
            return nothing
        try:
            with index_walks(self.root_queryset.db) as cursor:
                found = walks.page(
                    cursor, asked.walk, asked.wanted, limit, cut, backwards=backwards, within=asked.within
                )
                if backwards and found.begins is None and len(found.rows) < limit:  # the first page, and not all of it
                    found = walks.page(cursor, asked.walk, asked.wanted, limit, within=asked.within)
                return found
        except DataError:
            # Plain SQL can write json that no text can be made of.
            text = gettext("A job holds what cannot be compared; look for less of it.")
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            text = str(TOO_LONG)
        self.model_admin.message_user(request, text, messages.ERROR)
        return nothing

    def _count(self, asked: Asked | None, page: Page) -> tuple[int | None, bool]:
        """How many jobs the list has, and whether these are all; None: it takes too long to say."""
        if asked is None or (page.begins is None and page.ends is None):
            return len(page.rows), True
        try:
            with index_walks(self.root_queryset.db, COUNT_SECONDS) as cursor:
                found = walks.count(cursor, asked.walk, asked.wanted, within=asked.within)
        except (DataError, OperationalError) as error:
            if isinstance(error, OperationalError) and not isinstance(error.__cause__, QueryCanceled):
                raise
            return None, False
        return found.jobs, found.is_exact

    # -- where in the list -------------------------------------------------------------------------------------

    def _filters(self) -> dict[str, str]:
        names = {"q", *(str(one.parameter_name) for one in FILTERS)}
        return {name: value for name, value in self.params.items() if name in names}

    def _cut(self, request: HttpRequest) -> tuple[Cut | None, bool]:
        text = request.GET.get(PAGE_VAR)
        if not text:
            return None, False
        try:
            backwards, is_after, *place = walks.read(text, SALT, self._filters())
        except ValueError:
            raise IncorrectLookupParameters from None
        return Cut(tuple(place), is_after), backwards

    def _url(self, cut: Cut, *, backwards: bool) -> str:
        text = walks.written([backwards, cut.is_after, *cut.place], SALT, self._filters())
        return self.get_query_string({PAGE_VAR: text})

    def _say(self, asked: Asked | None, page: Page, jobs: int | None, is_exact: bool) -> None:
        is_newest_first = asked is None or asked.walk.is_newest_first
        self.page_links = []
        if page.begins is not None:
            text = pgettext("queue", "Newest") if is_newest_first else pgettext("queue", "First")
            self.page_links.append({"url": self.get_query_string(), "text": f"\u00ab {text}", "rel": ""})
            text = pgettext("queue", "Newer") if is_newest_first else pgettext("queue", "Previous")
            url = self._url(page.begins, backwards=True)
            self.page_links.append({"url": url, "text": f"\u2039 {text}", "rel": "prev"})
        self.further_url = self.limit_note = ""
        if page.ends is not None:
            text = pgettext("queue", "Older") if is_newest_first else pgettext("queue", "Next")
            url = self._url(page.ends, backwards=False)
            self.page_links.append({"url": url, "text": f"{text} \u203a", "rel": "next"})
            if len(page.rows) < self.list_per_page:
                self.further_url = url
                self.limit_note = gettext("%(most)s jobs were looked at for this page, and there are more.") % {
                    "most": number_format(page.looked_at, force_grouping=True)
                }
        self.count_text = ""
        if jobs is not None:
            number = number_format(jobs, force_grouping=True) + ("" if is_exact else "+")
            self.count_text = ngettext("%(number)s job", "%(number)s jobs", jobs if is_exact else 2) % {
                "number": number
            }
        self.head = ", ".join(filter(None, (self.count_text, str(_order(asked)) if page.rows else "")))


# What no list shows, and may be large.
_LARGE = ("args", "kwargs", "result", "history", "backoff", "progress", "past_worker_ids", "trace")


def _order(asked: Asked | None) -> Any:
    if asked is None or asked.walk.is_newest_first:
        return _("the newest first")
    if asked.walk.place[0] == "run_after":
        return _("in the order in which they are due")
    return _("by worker") if asked.walk.place[0] == "worker_id" else _("in the order in which each queue is claimed")


def most_listed() -> str:
    return number_format(LISTED, force_grouping=True)


class JobListMixin(JobRightsMixin):
    """The list of jobs, and the search in it."""

    list_display = (
        "job_number", "job_state", "job_task", "queue_name", "job_attempts", "job_when", "job_enqueued_at",
    )  # fmt: skip
    list_display_links = ("job_number",)
    list_filter = FILTERS
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
        return any(lookup == one.parameter_name for one in FILTERS)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        # From where jobs are written: on a replica a job that was just made, or moved, may be missing.
        return super().get_queryset(request).using(router.db_for_write(self.model))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """The walk asks what the search asks (``read_search``), within its bounds."""
        return queryset, False

    def read_search(self, request: HttpRequest, text: str) -> Query | None:
        """What was typed. None: it cannot be read, or asks for what this person may not see; which is said."""
        try:
            query = search.read(text, places_of)
        except SearchError as error:
            problem = gettext(search.REASONS[error.reason]) % error.facts
            refusal = gettext("At character %(position)s: %(problem)s") % {
                "position": error.position + 1,
                "problem": problem,
            }
        else:
            if not query.reads_payload or self.has_payload_permission(request):
                return query
            refusal = gettext("To look for keys, arguments and errors you need the right to see them.")
        if request.method != "POST":  # the list that follows says so
            self.message_user(request, refusal, messages.ERROR)
        return None

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
