"""The audit log: who did what, newest first. To be read only, and as fast with a million entries as with ten.

No page counts the entries. One without a filter reads its own rows alone; one with a filter or a search looks at the
next ``LOOKED_AT`` entries, shows those of them that were asked for, and the link below goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django.audit import Action
from pgqueue_django.dashboard.wording import moment
from pgqueue_django.models import AuditEntry
from pgqueue_django.snapshot import index_walks

from .queues import WhereJobsAre

if TYPE_CHECKING:
    _AuditAdmin = admin.ModelAdmin[AuditEntry]
else:
    _AuditAdmin = admin.ModelAdmin

LOOKED_AT = 10_000
BEFORE = "before"
"""In the address: of entries with a smaller number. Pages that go by it do not shift while entries are written."""

ACTIONS: dict[Action, Any] = {
    "requeue": pgettext_lazy("queue", "Requeue"),
    "run_now": _("Run now"),
    "cancel": pgettext_lazy("queue", "Cancel"),
    "delete": pgettext_lazy("queue", "Delete"),
    "prune": pgettext_lazy("queue", "Prune"),
    "copy": pgettext_lazy("queue", "Copy"),
    "pause": pgettext_lazy("queue", "Pause"),
    "resume": pgettext_lazy("queue", "Resume"),
    "run_schedule": _("Run schedule now"),
    "skip_schedule": _("Skip the next tick"),
    "enable_schedule": _("Enable schedule"),
    "disable_schedule": _("Disable schedule"),
    "add_schedule": _("Add schedule"),
    "change_schedule": _("Change schedule"),
    "delete_schedule": _("Delete schedule"),
}


class ActionFilter(admin.SimpleListFilter):
    """One action, of those that there are: what is in the table is not asked for them."""

    title = pgettext_lazy("queue", "action")
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        return list(ACTIONS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset if self.value() is None else queryset.filter(action=self.value())


class AuditChangeList(ChangeList):
    """A page of entries below one number, in one query, or in two where something is looked for."""

    older_url: str
    newest_url: str
    limit_note: str

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        # Who looks for something else begins with the newest again.
        self.params.pop(BEFORE, None)
        self.filter_params.pop(BEFORE, None)
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        # Not by what ?o= asks for: sortable_by only takes the links away.
        return ["-pk"]

    def get_results(self, request: HttpRequest) -> None:
        before = request.GET.get(BEFORE, "")
        if before and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise IncorrectLookupParameters
        entries, walk, rest = self.queryset, self.root_queryset.order_by("-pk"), None
        with index_walks(entries.db):
            if before:
                entries, walk = entries.filter(pk__lt=int(before)), walk.filter(pk__lt=int(before))
            if self.query or self.has_active_filters:
                rest = walk.values_list("pk", flat=True)[LOOKED_AT : LOOKED_AT + 1].first()
                entries = entries if rest is None else entries.filter(pk__gt=rest)
            found = list(entries[: self.list_per_page + 1])
        page = found[: self.list_per_page]
        older = page[-1].pk if len(found) > len(page) else None if rest is None else rest + 1
        self.older_url = "" if older is None else self.get_query_string({BEFORE: older})
        self.newest_url = self.get_query_string() if before else ""
        self.limit_note = ""
        if rest is not None and len(found) == len(page):
            most = number_format(LOOKED_AT, force_grouping=True)
            self.limit_note = gettext("Looked for among %(most)s entries; older ones are on the next page.") % {
                "most": most
            }
        self.result_list = page
        # Equal, they keep away the link to see all.
        self.result_count = self.full_result_count = len(page)
        self.show_full_result_count = self.show_admin_actions = False
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(page, self.list_per_page)


@admin.register(AuditEntry)
class AuditEntryAdmin(WhereJobsAre, _AuditAdmin):
    """The audit log, to look at."""

    list_display = ("when", "actor", "what", "target", "reason", "changed", "skipped")
    list_display_links = None
    list_filter = (ActionFilter,)
    list_per_page = 100
    list_select_related = ()
    search_fields = ("actor", "target", "reason")
    search_help_text = _("A part of who, of what or of the reason.")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-pk",)
    actions = None

    class Media:
        css = {"all": ["pgqueue_django/admin.css"]}

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return lookup == ActionFilter.parameter_name

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return AuditChangeList

    @admin.display(description=pgettext_lazy("queue", "when"))
    def when(self, entry: AuditEntry) -> SafeString:
        return moment(entry.at, short=True)

    @admin.display(description=pgettext_lazy("queue", "action"))
    def what(self, entry: AuditEntry) -> Any:
        return ACTIONS.get(entry.action, entry.action)  # type: ignore[call-overload]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
