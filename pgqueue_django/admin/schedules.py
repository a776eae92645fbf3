"""The schedules: to look at, to switch, to run now and to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timezone import is_aware, make_aware
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django import schedules
from pgqueue_django.cron import Line
from pgqueue_django.dashboard.wording import FIELDS, length, written
from pgqueue_django.exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from pgqueue_django.models import Schedule

from . import calls
from .queues import WhereJobsAre

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
                raise ValidationError({"line": _why(error)}) from error
        if {"task", "args", "kwargs"} <= set(data):
            calls.check(data["task"], data["args"], data["kwargs"])
        return data


def _why(error: InvalidSchedule) -> str:
    """What is wrong, in the language of who reads it."""
    return gettext(error.text) % {
        name: FIELDS.get(str(value), value) if name == "field" else value for name, value in error.params.items()
    }


@admin.register(Schedule)
class ScheduleAdmin(WhereJobsAre, _ScheduleAdmin):
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
