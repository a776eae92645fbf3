"""The dashboard: a page that keeps itself up to date, what it asks for, and what its buttons do.

Everything that shows the queue answers within two seconds, also when the database does not: whoever asks is only looked
for in there once it has answered a ping.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, cast
from urllib.parse import urlencode

import django
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError, router, transaction
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.cache import get_conditional_response
from django.utils.translation import gettext, pgettext
from psycopg.errors import QueryCanceled

from pgqueue_django import answers, audit, conf, deadline, queues, schedules
from pgqueue_django.dashboard import frames, script, stream
from pgqueue_django.exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from pgqueue_django.models import Job, Schedule
from pgqueue_django.options import QUEUE_NAME
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import State

from . import listing
from .actions import JobActionsMixin, send_back
from .listing import most_listed
from .rights import why_not

logger = logging.getLogger("pgqueue_django")

AWAY_SECONDS = 5
"""After which who was told that the database is away may ask again."""

# What each button needs, beside the dashboard itself.
BUTTONS = {
    "pause": "pause_queue",
    "resume": "pause_queue",
    "requeue_dead": "requeue_job",
    "requeue": "requeue_job",
    "run_now": "run_job_now",
    "cancel": "cancel_job",
    "run_schedule": "run_schedule",
    "skip_schedule": "switch_schedule",
    "disable_schedule": "switch_schedule",
    "enable_schedule": "switch_schedule",
}
_OTHERS = ("pause_queue", "view_queue", "view_worker", "view_schedule", "run_schedule", "switch_schedule")

View = Callable[..., HttpResponseBase]


class DashboardPageMixin(JobActionsMixin):
    """The dashboard, for who has ``view_dashboard``: lists of jobs, workers and schedules are for who may see those."""

    dashboard_template = "admin/pgqueue_django/dashboard/page.html"
    how_template = "admin/pgqueue_django/dashboard/how.html"
    away_template = "admin/pgqueue_django/dashboard/away.html"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_dashboard"

        def button(verb: str) -> View:
            def view(request: HttpRequest) -> HttpResponse:
                return self.button_view(request, verb)

            return self.admin_site.admin_view(view)

        return [
            path("dashboard/", self._in_time(self.dashboard_view, self._away), name=name),
            path(
                "dashboard/frame.json", self._in_time(self.frame_view, _no_frame, for_script=True), name=f"{name}_frame"
            ),
            path(
                "dashboard/stream/", self._in_time(self.stream_view, _no_frame, for_script=True), name=f"{name}_stream"
            ),
            path("dashboard/how/", self.admin_site.admin_view(self.how_view), name=f"{name}_how"),
            *(path(f"dashboard/{verb.replace('_', '-')}/", button(verb), name=f"{name}_{verb}") for verb in BUTTONS),
            *super().get_urls(),
        ]

    def has_dashboard_permission(self, request: HttpRequest) -> bool:
        return self._has(request, "view_dashboard")

    def _in_time(self, view: View, away: Callable[[str], HttpResponse], *, for_script: bool = False) -> View:
        """``view`` behind the admin's login, once the database has answered; else what ``away`` says of it."""
        inside = self.admin_site.admin_view(view)

        # Who it is, is found out below: a middleware that wants a login would ask the database first.
        @answers.in_no_transaction
        @login_not_required
        @wraps(view)
        def ask_first(request: HttpRequest) -> HttpResponseBase:
            if request.method not in ("GET", "HEAD"):
                return HttpResponseNotAllowed(["GET", "HEAD"])
            try:
                if request.COOKIES:
                    answers.pings.reading()
                with deadline.limit():
                    # The script has no use for a page to log in.
                    if for_script and not self.admin_site.has_permission(request):
                        return _unheld({"status": "login"}, 401)
                    return inside(request)
            except (answers.Unanswered, OperationalError, InterfaceError) as error:
                logger.warning("dashboard: %s", error)
                response = away(str(error))
                response.headers["Retry-After"] = str(AWAY_SECONDS)
                return response

        return answers.in_no_transaction(ask_first)

    def _away(self, why: str) -> HttpResponse:
        """A page that needs no database, and so no user either."""
        context = {"seconds": AWAY_SECONDS, "is_unmigrated": why.startswith("ProgrammingError")}
        response = HttpResponse(render_to_string(self.away_template, context), status=503)
        response.headers["Cache-Control"] = "no-store"
        return response

    def _viewer(self, request: HttpRequest) -> frames.Viewer:
        """Raises PermissionDenied."""
        if not self.has_dashboard_permission(request):
            raise PermissionDenied
        of_jobs = {
            "view_job": self.has_view_permission,
            "view_job_payload": self.has_payload_permission,
            "requeue_job": self.has_requeue_permission,
            "run_job_now": self.has_run_now_permission,
            "cancel_job": self.has_cancel_permission,
        }
        rights = {right for right, has in of_jobs.items() if has(request)}
        rights |= {right for right in _OTHERS if self._has(request, right)}
        return frames.viewer_of(request, frozenset(rights), self.admin_site.name)

    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        """The page, with its first frame."""
        viewer = self._viewer(request)
        content = frames.frame(viewer).content
        query = "" if viewer.window == "live" else f"?{urlencode({'window': viewer.window})}"
        is_streaming = conf.current().LIVE == "sse" and isinstance(request, ASGIRequest)
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            self.dashboard_template,
            {
                **self._page(request, gettext("Queue dashboard")),
                "media": self.media + script.MEDIA,
                "frame": content,
                "viewer": viewer.mark,
                "charts": content["charts"],
                "frame_url": self._url("dashboard_frame") + query,
                "stream_url": self._url("dashboard_stream") + query if is_streaming else "",
                "how_url": self._url("dashboard_how"),
                "words": json.dumps(script.words()),
            },
        )

    def _page(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "breadcrumbs_listed": django.VERSION >= (6, 1),
            "list_url": self._url("changelist"),
            "dashboard_url": self._url("dashboard"),
        }

    def frame_view(self, request: HttpRequest) -> HttpResponseBase:
        """The frame of now as JSON, or a 304 for who has it."""
        frame = frames.frame(self._viewer(request))
        _leave_session(request)
        response = HttpResponse(frame.body, content_type="application/json", headers={"ETag": frame.etag})
        return get_conditional_response(request, etag=frame.etag, response=response) or response

    def stream_view(self, request: HttpRequest) -> HttpResponseBase:
        """The frames as they come, where they can be sent so: a 204 tells a browser to ask no more."""
        viewer = self._viewer(request)
        _leave_session(request)
        if conf.current().LIVE != "sse" or not isinstance(request, ASGIRequest) or request.method == "HEAD":
            return HttpResponse(status=204)
        response = StreamingHttpResponse(stream.events(viewer), content_type="text/event-stream")
        # nginx would collect them, and so would Django's own GZipMiddleware.
        response.headers["X-Accel-Buffering"] = "no"
        response.headers["Content-Encoding"] = "identity"
        return response

    def how_view(self, request: HttpRequest) -> HttpResponse:
        """How the queue works, for who looks at it."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_dashboard_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        context = self._page(request, gettext("How the queue works"))
        return TemplateResponse(request, self.how_template, {**context, "media": self.media + script.MEDIA})

    # -- buttons ------------------------------------------------------------------------------------------------

    def button_view(self, request: HttpRequest, verb: str) -> HttpResponse:
        """What a button does: POST only, by who may see the dashboard and has the right of the verb."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_dashboard_permission(request) and self._may_press(request, verb)):
            raise PermissionDenied
        using = router.db_for_write(self.model)
        if verb in ("pause", "resume", "requeue_dead"):
            name = request.POST.get("queue", "")
            if not QUEUE_NAME.fullmatch(name):
                raise SuspiciousOperation("no queue")
            {"pause": self._pause, "resume": self._resume, "requeue_dead": self._requeue_dead}[verb](
                request, using, name
            )
        elif verb in ("requeue", "run_now", "cancel"):
            job = self._one(request, _number(request, "job")).first()
            if job is None:
                text = gettext("There is no such job any more. Finished jobs are kept for a time only.")
                self.message_user(request, text, messages.WARNING)
            elif not self.has_view_permission(request, job):
                raise PermissionDenied
            else:
                self._move_chosen(request, verb, [job.pk], "", send_back if verb == "requeue" else None)
        else:
            self._schedule(request, using, cast(audit.Action, verb), _number(request, "schedule"))
        window = request.POST.get("window")
        query = f"?{urlencode({'window': window})}" if window in frames.WINDOWS else ""
        return HttpResponseRedirect(self._url("dashboard") + query)

    def _may_press(self, request: HttpRequest, verb: str) -> bool:
        if verb in ("requeue", "run_now", "cancel"):
            return self.has_view_permission(request) and self._may(request, verb)
        if verb == "requeue_dead":
            return self.has_requeue_permission(request)
        # What a schedule is called is said by the answer.
        may_see = "schedule" not in verb or self._has(request, "view_schedule")
        return may_see and self._has(request, BUTTONS[verb])

    def _pause(self, request: HttpRequest, using: str, name: str) -> None:
        reason = request.POST.get("reason", "").replace("\0", "").strip()[: audit.MAX_REASON]
        with transaction.atomic(using=using):
            queues.pause(using, name, reason=reason, actor=request.user.get_username())
            self.trail(request, using, "pause", f"queue {name}").add(1)
        text = gettext("%(queue)s is paused: what runs goes on, nothing new begins.") % {"queue": name}
        self.message_user(request, text, messages.SUCCESS)

    def _resume(self, request: HttpRequest, using: str, name: str) -> None:
        with transaction.atomic(using=using):
            is_resumed = queues.resume(using, name)
            self.trail(request, using, "resume", f"queue {name}").add(int(is_resumed), int(not is_resumed))
        if is_resumed:
            self.message_user(request, gettext("%(queue)s goes on.") % {"queue": name}, messages.SUCCESS)
        else:
            self.message_user(request, gettext("%(queue)s was not paused.") % {"queue": name}, messages.WARNING)

    def _requeue_dead(self, request: HttpRequest, using: str, name: str) -> None:
        """Of the newest ``listing.LISTED`` dead jobs, those of this queue."""
        try:
            with index_walks(using):
                walk = Job.objects.using(using).in_state(State.DEAD)
                rows = list(walk.values_list("pk", "queue_name")[: listing.LISTED])
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            self.message_user(request, str(listing.TOO_LONG), messages.ERROR)
            return
        ids = self._visible(request, [pk for pk, queue_name in rows if queue_name == name])
        self._move_chosen(request, "requeue", ids, f"state=dead, queue={name}", send_back)
        if len(rows) == listing.LISTED:
            text = gettext("Looked for among the newest %(most)s dead jobs: there may be more.")
            self.message_user(request, text % {"most": most_listed()}, messages.WARNING)

    def _schedule(self, request: HttpRequest, using: str, verb: audit.Action, pk: int) -> None:
        with transaction.atomic(using=using):
            row = Schedule.objects.using(using).select_for_update().filter(pk=pk, retired_at=None).first()
            if row is None:
                self.message_user(request, gettext("There is no such schedule any more."), messages.WARNING)
                return
            try:
                # A savepoint: what a failing enqueue leaves of the transaction is none.
                with transaction.atomic(using=using):
                    text, logged, is_done = self._switched(using, verb, row)
            except (TaskNotFound, TypeError, InvalidPayload, InvalidSchedule) as error:
                self.message_user(request, f"{row}: {why_not(request, error)}", messages.ERROR)
                return
            self.trail(request, using, verb, f"schedule {row.name}").add(int(is_done), int(not is_done))
            if is_done:
                self.log_change(request, row, logged)
            else:
                text = gettext("it was so already")
        self.message_user(request, f"{row}: {text}", messages.SUCCESS if is_done else messages.WARNING)

    @staticmethod
    def _switched(using: str, verb: str, row: Schedule) -> tuple[str, str, bool]:
        """What to tell, what to log, and whether there was anything to do."""

        def change(**changes: Any) -> bool:
            """Unless it is so already."""
            as_it_was = {name: not value for name, value in changes.items() if isinstance(value, bool)}
            return bool(Schedule.objects.using(using).filter(pk=row.pk, **as_it_was).update(**changes))

        if verb == "run_schedule":
            job = schedules.run_now(using, row.pk)
            return f"#{job}", gettext("Run now: job %(id)s.") % {"id": job}, True
        if verb == "enable_schedule":
            # From now on: what it missed while it was off is not made up for.
            schedules.plan(using, row)
            is_done = change(is_enabled=True, next_at=row.next_at, error="")
            return pgettext("queue", "enabled"), gettext("Enabled."), is_done
        if verb == "disable_schedule":
            return pgettext("queue", "disabled"), gettext("Disabled."), change(is_enabled=False)
        return gettext("the next tick is skipped"), gettext("The next tick is skipped."), change(skip_next=True)


def _number(request: HttpRequest, name: str) -> int:
    """Raises SuspiciousOperation."""
    given = request.POST.get(name, "")
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise SuspiciousOperation(f"no {name}")
    return int(given)


def _leave_session(request: HttpRequest) -> None:
    """A page that asks by itself is nobody at work: with ``SESSION_SAVE_EVERY_REQUEST`` no session would ever end."""
    session: Any = getattr(request, "session", None)
    if session is not None and not session.modified:
        session.save = lambda *args, **kwargs: None


def _no_frame(why: str) -> HttpResponse:
    return _unheld({"status": "unavailable"}, 503)


def _unheld(content: dict[str, str], status: int) -> HttpResponse:
    return JsonResponse(content, status=status, headers={"Cache-Control": "no-store"})
