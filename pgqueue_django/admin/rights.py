"""Who may what with jobs, asked for in every view and not only in the template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext, pgettext
from django.views.decorators.http import require_safe

from pgqueue_django import conf
from pgqueue_django.dashboard.wording import why
from pgqueue_django.exceptions import InvalidSchedule
from pgqueue_django.models import Job

if TYPE_CHECKING:
    _JobAdmin = admin.ModelAdmin[Job]
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _JobAdmin = _ModelAdmin = object


def may(request: HttpRequest, codename: str) -> bool:
    """Whether who asks has this right of ours; under ``READ_ONLY`` nobody has one but to view."""
    if conf.is_read_only() and not codename.startswith("view_"):
        return False
    return request.user.has_perm(f"pgqueue_django.{codename}")


def may_read_schedules(request: HttpRequest) -> bool:
    """Whether arguments of schedules, and what their errors say of these, may be shown: also to who may change them."""
    return may(request, "view_job_payload") or may(request, "change_schedule")


def why_not(request: HttpRequest, error: Exception) -> str:
    """What kept a schedule from what it was to do: what tells of its arguments for those who may read them."""
    if isinstance(error, InvalidSchedule):
        return why(error)
    return str(error) if may_read_schedules(request) else pgettext("queue", "failing")


class ReadOnlyMixin(_ModelAdmin):
    """Under ``READ_ONLY`` no route that changes something and none that takes a POST, and no right but to view.

    To be put before everything else of an admin, so that all its routes pass through here. Routes are read once, with
    the URLs of the project; rights at each request.
    """

    shown_routes = (
        *("changelist", "change", "history", "payload", "problems"),
        *("dashboard", "dashboard_frame", "dashboard_stream", "dashboard_how"),
    )
    """The names of the routes that are there under ``READ_ONLY``, without those of app and model: no others are."""

    def get_urls(self) -> list[URLPattern]:
        urls = super().get_urls()
        if not conf.is_read_only():
            return urls
        prefix = f"{self.opts.app_label}_{self.opts.model_name}_"
        urls = [url for url in urls if url.name is None or url.name.removeprefix(prefix) in self.shown_routes]
        for url in urls:
            url.callback = require_safe(url.callback)
        return urls

    def has_add_permission(self, request: HttpRequest) -> bool:
        return not conf.is_read_only() and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not conf.is_read_only() and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not conf.is_read_only() and super().has_delete_permission(request, obj)


class JobRightsMixin(_JobAdmin):
    """Each verb has a permission of its own."""

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

    def has_copy_permission(self, request: HttpRequest) -> bool:
        """With the right to see them: what is changed is shown."""
        return self._has(request, "copy_job") and self.has_payload_permission(request)

    def has_payload_permission(self, request: HttpRequest) -> bool:
        """Whether arguments, result and the texts of errors may be shown."""
        return self._has(request, "view_job_payload")

    def _may(self, request: HttpRequest, verb: str) -> bool:
        return bool(getattr(self, f"has_{verb}_permission")(request))

    def _has(self, request: HttpRequest, codename: str) -> bool:
        return may(request, codename)

    def _one(self, request: HttpRequest, pk: int) -> QuerySet[Job]:
        """As much of this job as it takes to say who may see it."""
        columns = ("pk", "task", "label", "queue_name", "priority", "state", "worker_id", "enqueued_at")
        return self.get_queryset(request).filter(pk=pk).only(*columns)

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = gettext("There is no job %(number)s. Finished jobs are kept for a time only.")
        self.message_user(request, text % {"number": unquote(object_id)[:40]}, messages.WARNING)
        return HttpResponseRedirect(self._url("changelist"))

    def _url(self, what: str, *args: Any) -> str:
        return reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_{what}",
            args=[quote(arg) for arg in args],
            current_app=self.admin_site.name,
        )
