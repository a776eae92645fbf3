"""The worker processes, to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django.models import Worker

from .rights import ReadOnlyMixin

if TYPE_CHECKING:
    _WorkerAdmin = admin.ModelAdmin[Worker]
else:
    _WorkerAdmin = admin.ModelAdmin


@admin.register(Worker)
class WorkerAdmin(ReadOnlyMixin, _WorkerAdmin):
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
