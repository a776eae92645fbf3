"""The schedules: to look at, to switch, to run now and to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timezone import is_aware, make_aware
from django.utils.translation import gettext, pgettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django import audit, schedules
from pgqueue_django.audit import Action
from pgqueue_django.cron import Line
from pgqueue_django.dashboard.wording import length, why, written
from pgqueue_django.exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from pgqueue_django.models import Schedule

from . import calls
from .queues import WhereJobsAre
from .rights import may, may_read_schedules, why_not
from .trails import TrailMixin

if TYPE_CHECKING:
    _ScheduleAdmin = admin.ModelAdmin[Schedule]
    _ScheduleForm = forms.ModelForm[Schedule]
else:
    _ScheduleAdmin = admin.ModelAdmin
    _ScheduleForm = forms.ModelForm


class ScheduleForm(_ScheduleForm):
    """What a person writes of a schedule, checked as ``@periodic`` would."""

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if {"line", "zone"} <= set(data):
            try:
                Line(data["line"], data["zone"])
            except InvalidSchedule as error:
                raise ValidationError({"line": why(error)}) from error
        if {"task", "args", "kwargs"} <= set(data):
            calls.check(data["task"], data["args"], data["kwargs"])
        return data


@admin.register(Schedule)
class ScheduleAdmin(TrailMixin, WhereJobsAre, _ScheduleAdmin):
    """The schedules: those of the code can be switched off, run and skipped; a person's own be changed, too.

    To run one and to switch one are rights of their own, beside that to change what it does.
    """

    class Media:
        css = {"all": ["pgqueue_django/admin.css"]}

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
    _switches = ("is_enabled", "skip_next")
    _of_the_code = ("name", "task", "args", "kwargs", "line", "zone", "missed", "overlap")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        # As for jobs: any other one in the URL would guess at what payloads hold.
        return lookup.removesuffix("__exact") in self.list_filter

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None or may_read_schedules(request):
            return self.fields
        shown = [name for name in self.fields if name not in ("args", "kwargs")]
        return tuple("is_failing" if name == "error" else name for name in shown)

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        if may_read_schedules(request):
            return self.list_display
        return tuple("is_failing" if name == "error" else name for name in self.list_display)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:  # who makes one says whether it begins at once
            return self._shown
        switches = () if self.has_switch_permission(request) else self._switches
        return (*self._shown, *(self._of_the_code if obj.is_code else ()), *switches)

    def has_run_permission(self, request: HttpRequest) -> bool:
        return may(request, "run_schedule")

    def has_switch_permission(self, request: HttpRequest) -> bool:
        return may(request, "switch_schedule")

    @admin.display(description=pgettext_lazy("queue", "error"))
    def is_failing(self, schedule: Schedule) -> str:
        """For who may not read what the error says."""
        return pgettext("queue", "failing") if schedule.error else "-"

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
        using = router.db_for_write(Schedule)
        # Not all that the form takes for changed: to it, an empty JSON always is.
        changed = [name for name in form.changed_data if getattr(obj, name) != form.initial.get(name)]
        # Of what was changed the names: what is in the arguments is not for everybody who may read this.
        target = audit.told("schedule", [obj.name]) + (f": {', '.join(changed)}" if change else "")
        with transaction.atomic(using=using):
            if not change or {"line", "zone", "is_enabled"} & set(changed):
                schedules.plan(using, obj)
                changed += ["next_at", "error"]
            if not change:
                super().save_model(request, obj, form, change)
                self.trail(request, using, "add_schedule", target).add(1)
            elif changed:
                # Nothing else: a worker may just have fired a tick of it, or have declared it anew.
                values = {name: getattr(obj, name) for name in changed}
                rows = Schedule.objects.using(using).filter(pk=obj.pk).update(**values)
                self.trail(request, using, "change_schedule", target).add(rows)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        self.delete_queryset(request, Schedule.objects.using(router.db_for_write(Schedule)).filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        with transaction.atomic(using=queryset.db):
            names = dict(queryset.values_list("pk", "name"))
            trail = self.trail(request, queryset.db, "delete_schedule", audit.told("schedule", names.values()))
            gone, _ = Schedule.objects.using(queryset.db).filter(pk__in=names).delete()
            trail.add(gone, len(names) - gone)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # What the code declares would be back with the next worker: switch it off.
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_code)

    @admin.action(description=_("Run now"), permissions=["run"])
    def run_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        def run(schedule: Schedule) -> str:
            try:
                return gettext("Run now: job %(id)s.") % {"id": schedules.run_now(chosen.db, schedule.pk)}
            except Schedule.DoesNotExist:  # deleted meanwhile
                return ""

        self._act(request, "run_schedule", chosen, run)

    @admin.action(description=_("Skip the next tick"), permissions=["switch"])
    def skip_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._switch(request, "skip_schedule", chosen, gettext("The next tick is skipped."), skip_next=True)

    @admin.action(description=pgettext_lazy("queue", "Enable"), permissions=["switch"])
    def enable_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        def enable(schedule: Schedule) -> str:
            if schedule.is_enabled:
                return ""
            # From now on: what it missed while it was off is not made up for.
            schedules.plan(chosen.db, schedule)
            planned = {"is_enabled": True, "next_at": schedule.next_at, "error": ""}
            off = {"pk": schedule.pk, "is_enabled": False}
            return gettext("Enabled.") if Schedule.objects.using(chosen.db).filter(**off).update(**planned) else ""

        self._act(request, "enable_schedule", chosen, enable)

    @admin.action(description=pgettext_lazy("queue", "Disable"), permissions=["switch"])
    def disable_schedules(self, request: HttpRequest, chosen: QuerySet[Schedule]) -> None:
        self._switch(request, "disable_schedule", chosen, gettext("Disabled."), is_enabled=False)

    def _switch(
        self, request: HttpRequest, action: Action, chosen: QuerySet[Schedule], text: str, **changes: bool
    ) -> None:
        def switch(schedule: Schedule) -> str:
            rows = Schedule.objects.using(chosen.db).filter(pk=schedule.pk).exclude(**changes).update(**changes)
            return text if rows else ""

        self._act(request, action, chosen, switch)

    def _act(
        self, request: HttpRequest, action: Action, chosen: QuerySet[Schedule], act: Callable[[Schedule], str]
    ) -> None:
        """``act`` returns what its history says of it; nothing: it was so already."""
        rows = list(chosen)
        trail = self.trail(request, chosen.db, action, audit.told("schedule", rows, self.among(request)))
        for schedule in rows:
            try:
                with transaction.atomic(using=chosen.db):
                    text = act(schedule)
                    trail.add(int(bool(text)), int(not text))
            except (InvalidSchedule, TaskNotFound, TypeError, InvalidPayload) as error:
                trail.add(0, 1)
                self.message_user(request, f"{schedule}: {why_not(request, error)}", messages.ERROR)
            else:
                level = messages.SUCCESS if text else messages.WARNING
                self.message_user(request, f"{schedule}: {text or gettext('it was so already')}", level)
                if text:
                    self.log_change(request, schedule, text)
