"""What people do to jobs: actions of the list, and buttons of the page of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext_lazy, pgettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from psycopg.errors import LockNotAvailable, QueryCanceled

from pgqueue_django import audit, search, transitions
from pgqueue_django.audit import Action
from pgqueue_django.dashboard.wording import LABELS
from pgqueue_django.models import Job
from pgqueue_django.search import SearchError
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import State

from . import listing
from .listing import most_listed
from .rights import JobRightsMixin
from .trails import TrailMixin

MAX_LOGGED = 100
"""Jobs of one action up to which each has an entry in its own history; of more the audit log tells alone."""


@dataclass(frozen=True)
class Verb:
    arrow: Action  # in states.TRANSITIONS
    move: Callable[[str, Collection[int]], set[int]]
    button: Any
    done: Any
    logged: Any


VERBS = {
    "requeue": Verb(
        "requeue",
        transitions.requeue,
        pgettext_lazy("queue", "Requeue"),
        ngettext_lazy("%(count)s requeued", "%(count)s requeued", "count"),
        _("Requeued."),
    ),
    "run_now": Verb(
        "run_now",
        transitions.run_now,
        _("Run now"),
        ngettext_lazy("%(count)s made ready", "%(count)s made ready", "count"),
        _("Made ready."),
    ),
    "cancel": Verb(
        "cancel",
        transitions.cancel,
        pgettext_lazy("queue", "Cancel"),
        ngettext_lazy("%(count)s cancelled", "%(count)s cancelled", "count"),
        _("Cancelled."),
    ),
    "delete_finished": Verb(
        "delete",
        transitions.delete,
        pgettext_lazy("queue", "Delete"),
        ngettext_lazy("%(count)s deleted", "%(count)s deleted", "count"),
        _("Deleted."),
    ),
}


def send_back(using: str, ids: Collection[int]) -> set[int]:
    """Requeue those that are failed or dead still: what somebody else has sent back meanwhile may have succeeded."""
    return transitions.requeue(using, ids, (State.FAILED, State.DEAD))


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), transitions.BATCH):
        yield ids[start : start + transitions.BATCH]


def _report(using: str, verb: str, moved: Collection[int], skipped: Sequence[int]) -> tuple[str, int]:
    """What was done and what was not, and why not; and how good that news is."""
    text = str(VERBS[verb].done % {"count": len(moved)})
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


class JobActionsMixin(TrailMixin, JobRightsMixin):
    """Sends back, runs now, cancels and deletes, by the verbs of ``transitions``."""

    actions = ("requeue_jobs", "run_jobs_now", "cancel_jobs", "delete_finished_jobs")

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"

        def button(verb: str) -> Callable[..., HttpResponse]:
            def view(request: HttpRequest, pk: int) -> HttpResponse:
                return self.move_view(request, verb, pk)

            return self.admin_site.admin_view(view)

        return [
            *(path(f"<int:pk>/{verb.replace('_', '-')}/", button(verb), name=f"{name}_{verb}") for verb in VERBS),
            *super().get_urls(),
        ]

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

    def search_told(self, words: str) -> str:
        try:
            return search.read(words).told
        except SearchError:
            return ""

    def _move(self, request: HttpRequest, verb: str, queryset: QuerySet[Job]) -> None:
        with index_walks(router.db_for_write(self.model)):
            ids = list(queryset.order_by("-pk").values_list("pk", flat=True)[: listing.LISTED + 1])
        self._move_chosen(request, verb, ids, self.among(request))

    def _visible(self, request: HttpRequest, ids: Sequence[int]) -> list[int]:
        """Of jobs that no list has shown: an admin of the project's own may leave some out for some people."""
        seen = self.get_queryset(request)
        found = {pk for chunk in _chunks(ids) for pk in seen.filter(pk__in=chunk).values_list("pk", flat=True)}
        return [pk for pk in ids if pk in found]

    def _move_chosen(
        self,
        request: HttpRequest,
        verb: str,
        ids: Sequence[int],
        among: str,
        move: Callable[[str, Collection[int]], set[int]] | None = None,
    ) -> None:
        """At most ``listing.LISTED`` of them, in steps; and says what became of it.

        ``among``: what they were chosen from, for the audit log.
        """
        using = router.db_for_write(self.model)
        move = move or VERBS[verb].move
        chosen = ids[: listing.LISTED]
        target = audit.told("job", chosen, among)
        trail = self.trail(request, using, VERBS[verb].arrow, target)

        def step(chunk: Sequence[int]) -> set[int]:
            # One transaction for what was done and who did it; the admin's log may be in another database.
            with transaction.atomic(using=using):
                # Before: of what is deleted there is no row afterwards.
                rows = self.get_queryset(request).only("pk", "task").in_bulk(chunk) if len(chosen) <= MAX_LOGGED else {}
                done = move(using, chunk)
                if rows and done:
                    changed: Any = [rows[pk] for pk in sorted(done)]
                    flag = DELETION if verb == "delete_finished" else CHANGE
                    LogEntry.objects.log_actions(request.user.pk, changed, flag, str(VERBS[verb].logged))  # type: ignore[arg-type]
                trail.add(len(done), len(chunk) - len(done))
            return done

        moved: set[int] = set()
        skipped: list[int] = []
        left = 0
        for chunk in _chunks(chosen):
            try:
                done = step(chunk)
            except OperationalError as error:
                # Of the project's own timeouts. What the steps before have done stays done.
                if not isinstance(error.__cause__, (QueryCanceled, LockNotAvailable)):
                    raise
                left = len(chosen) - len(moved) - len(skipped)
                break
            moved |= done
            skipped += [pk for pk in chunk if pk not in done]
        if moved or skipped or not left:
            self.message_user(request, *_report(using, verb, moved, skipped))
        if left:
            text = gettext("The database took too long. Left alone: %(count)s. Try it again.")
            self.message_user(request, text % {"count": number_format(left, force_grouping=True)}, messages.ERROR)
        if len(ids) > listing.LISTED:
            self.message_user(
                request,
                gettext("%(most)s jobs are the most at one time; the rest was left alone.") % {"most": most_listed()},
                messages.WARNING,
            )

    def move_view(self, request: HttpRequest, verb: str, pk: int) -> HttpResponse:
        """The buttons of the detail page: POST only, by who may see the job and has the right of the verb."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self._may(request, verb)):
            raise PermissionDenied
        job = self._one(request, pk).first()
        if job is None:
            return self._gone(request, str(pk))
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        # What was pressed beside a failed or dead job is not meant for one that has succeeded since.
        is_broken = request.POST.get("state") in (State.FAILED, State.DEAD)
        self._move_chosen(request, verb, [pk], "", send_back if verb == "requeue" and is_broken else None)
        is_there = self.get_queryset(request).filter(pk=pk).exists()
        return HttpResponseRedirect(self._url("change", pk) if is_there else self._url("changelist"))
