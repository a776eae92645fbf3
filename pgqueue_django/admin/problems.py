"""The page of problems: what the rules find, and failed and dead jobs by kind of error."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import django
from django.contrib import messages
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import OperationalError, router
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext, pgettext
from psycopg.errors import QueryCanceled

from pgqueue_django import failures, problems, snapshot
from pgqueue_django.dashboard.wording import length, moment, problem_text

from . import listing
from .actions import JobActionsMixin, send_back
from .listing import TOO_LONG, most_listed

_MOMENT = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")


class ProblemsPageMixin(JobActionsMixin):
    """The page of problems, and the requeue of a group."""

    problems_template = "admin/pgqueue_django/job/problems.html"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_problems"
        return [path("problems/", self.admin_site.admin_view(self.problems_view), name=name), *super().get_urls()]

    def problems_view(self, request: HttpRequest) -> HttpResponse:
        """What is wrong: the rules that find something, and failed and dead jobs by kind of error.

        POST sends all jobs of one kind back, at most ``listing.LISTED``, and none that failed after the page was shown.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return self._problems(request)
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            self.message_user(request, str(TOO_LONG), messages.ERROR)
            return HttpResponseRedirect(self._url("changelist"))

    def _problems(self, request: HttpRequest) -> HttpResponse:
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
        found, taken = failures.take(using), snapshot.take(using)
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
                "problems": [{"severity": one.severity, "text": problem_text(one)} for one in problems.find(taken)],
                "groups": [self._group(one, found.taken_at, open_payload) for one in found.groups],
                "until": f"{found.until:.6f}",
                "may_requeue": self._may(request, "requeue"),
                "limit_note": gettext("Of the newest %(most)s failed and dead jobs.") % {"most": most_listed()}
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
            "sample_url": self._url("change", group.sample_id),
            "jobs_url": f"{self._url('changelist')}?{query}" if group.fingerprint else "",
        }

    def _requeue_group(self, request: HttpRequest, using: str) -> None:
        task, fingerprint = request.POST.get("task", ""), request.POST.get("fingerprint") or None
        until = request.POST.get("until", "")
        if not _MOMENT.fullmatch(until) or "\0" in task + (fingerprint or ""):
            raise SuspiciousOperation("no group of failed jobs")
        try:
            ids = failures.ids_of(using, task, fingerprint, until=float(until), most=listing.LISTED + 1)
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            text = gettext("The database took too long to find them: nothing was requeued.")
            self.message_user(request, text, messages.ERROR)
            return
        kind = f"{f'fp:{fingerprint}' if fingerprint else 'without a fingerprint'} task:{task}"
        self._move_chosen(request, "requeue", self._visible(request, ids), kind, send_back)
