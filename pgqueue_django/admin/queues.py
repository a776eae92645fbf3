"""The queues that are paused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.db.models import BooleanField, ExpressionWrapper, QuerySet
from django.http import HttpRequest
from django.utils.timezone import now
from django.utils.translation import gettext, pgettext_lazy

from pgqueue_django import audit, queues
from pgqueue_django.models import MOMENTS, Queue
from pgqueue_django.options import QUEUE_NAME

from .rights import ReadOnlyMixin, may
from .trails import TrailMixin

if TYPE_CHECKING:
    _QueueAdmin = admin.ModelAdmin[Queue]
    _QueueForm = forms.ModelForm[Queue]
else:
    _QueueAdmin = admin.ModelAdmin
    _QueueForm = forms.ModelForm


class WhereJobsAre(ReadOnlyMixin):
    """Read and written where the jobs are, whatever the router says of readings."""

    model: Any

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(router.db_for_write(self.model))


class QueueForm(_QueueForm):
    """What a person writes of a pause, checked as ``pgqueue_pause`` would."""

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if not QUEUE_NAME.fullmatch(name):
            raise ValidationError(gettext("Give 1 to 63 characters A-Za-z0-9_.-"))
        return name

    def clean_resume_at(self) -> datetime | None:
        moment: datetime | None = self.cleaned_data["resume_at"]
        if moment is not None and moment.year >= MOMENTS[1].year:
            raise ValidationError(gettext("Give a year before %(year)s.") % {"year": MOMENTS[1].year})
        if moment is not None and moment <= now():
            raise ValidationError(gettext("It has passed: the queue would not be paused."))
        return moment


@admin.register(Queue)
class QueueAdmin(TrailMixin, WhereJobsAre, _QueueAdmin):
    """The queues that are paused. Adding one pauses it."""

    form = QueueForm
    list_display = ("name", "paused", "reason", "actor", "resume_at")
    fields = ("name", "reason", "resume_at")
    actions = ("resume_queues",)
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        is_paused = ExpressionWrapper(queues.IS_PAUSED, output_field=BooleanField())
        rows: QuerySet[Queue] = super().get_queryset(request).annotate(is_paused=is_paused)
        return rows

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    @admin.display(boolean=True, description=pgettext_lazy("queue", "paused"))
    def paused(self, queue: Any) -> bool:
        return bool(queue.is_paused)

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        using = router.db_for_write(Queue)
        trail = self.trail(request, using, "pause", audit.told("queue", [obj.name]))
        with transaction.atomic(using=using):
            queues.pause(using, obj.name, reason=obj.reason, actor=request.user.get_username(), until=obj.resume_at)
            trail.add(1)

    @admin.action(description=pgettext_lazy("queue", "Resume"), permissions=["pause"])
    def resume_queues(self, request: HttpRequest, chosen: QuerySet[Queue]) -> None:
        using, rows = router.db_for_write(Queue), list(chosen)
        trail = self.trail(request, using, "resume", audit.told("queue", rows, self.among(request)))
        for queue in rows:
            with transaction.atomic(using=using):
                goes_on = queues.resume(using, queue.name)
                trail.add(int(goes_on), int(not goes_on))
            if goes_on:
                self.log_change(request, queue, gettext("Resumed."))
                self.message_user(request, gettext("%(queue)s goes on.") % {"queue": queue.name})
            else:
                text = gettext("%(queue)s was not paused.") % {"queue": queue.name}
                self.message_user(request, text, messages.WARNING)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_queue")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_pause_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_pause_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
