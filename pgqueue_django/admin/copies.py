"""A new job made of an old one, with other arguments: the form, and what comes of it.

The old job stays as it is, whatever its state. Nothing is written before all of the form is right, and what was typed
stays in it until then.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime
from typing import Any, cast

import django
from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router, transaction
from django.db.models import TextField
from django.db.models.expressions import RawSQL
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from pgqueue_django import audit, options, transitions
from pgqueue_django.api import reading
from pgqueue_django.dashboard import excerpts
from pgqueue_django.dashboard.wording import state_mark
from pgqueue_django.exceptions import InvalidOption
from pgqueue_django.models import MOMENTS, Job
from pgqueue_django.states import FINISHED, State
from pgqueue_django.transitions import NewJob

from . import calls
from .rights import JobRightsMixin
from .trails import TrailMixin

MAX_EDITED = 1_000_000
"""Characters of arguments that are put into a form; Django takes 2.5 MB of one."""

_JSON = {"rows": 8, "dir": "ltr", "spellcheck": "false", "autocapitalize": "off"}


class CopyForm(forms.Form):
    """What a person changes of a job. Where all is right, ``new_job`` is the one to make."""

    args = forms.CharField(label=pgettext_lazy("queue", "Arguments"), widget=forms.Textarea(_JSON))
    kwargs = forms.CharField(label=pgettext_lazy("queue", "Keywords"), widget=forms.Textarea(_JSON))
    queue_name = forms.CharField(label=pgettext_lazy("queue", "Queue"), max_length=63)
    priority = forms.IntegerField(
        label=pgettext_lazy("queue", "Priority"), min_value=-options.MAX_PRIORITY, max_value=options.MAX_PRIORITY
    )
    run_after = forms.DateTimeField(label=_("Not before"), required=False)
    reason = forms.CharField(
        label=pgettext_lazy("queue", "Reason"),
        max_length=audit.MAX_REASON,
        required=False,
        help_text=_("For the audit log."),
    )
    token = forms.CharField(widget=forms.HiddenInput, max_length=64)

    def __init__(self, *args: Any, job: Job, using: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job, self._using = job, using
        self.fields["args"].help_text = calls.signature_of(job.task)
        text = gettext("Empty: as soon as a worker is free. Else a moment in the time zone %(zone)s.")
        self.fields["run_after"].help_text = text % {"zone": get_current_timezone_name()}

    def clean_args(self) -> list[Any]:
        return cast("list[Any]", _read(self.cleaned_data["args"], list, gettext("Arguments are a JSON array.")))

    def clean_kwargs(self) -> dict[str, Any]:
        return cast("dict[str, Any]", _read(self.cleaned_data["kwargs"], dict, gettext("Keywords are a JSON object.")))

    def clean_queue_name(self) -> str:
        name: str = self.cleaned_data["queue_name"]
        if not options.QUEUE_NAME.fullmatch(name):
            raise ValidationError(gettext("Give 1 to 63 characters A-Za-z0-9_.-"))
        return name

    def clean_run_after(self) -> datetime | None:
        moment: datetime | None = options.aware(self.cleaned_data["run_after"])
        if moment is not None and moment.year >= MOMENTS[1].year:
            raise ValidationError(gettext("Give a year before %(year)s.") % {"year": MOMENTS[1].year})
        try:
            options.check_run_after(moment)
        except InvalidOption as error:
            days = number_format(options.MAX_WAIT.days, force_grouping=True)
            raise ValidationError(gettext("At most %(days)s days from now.") % {"days": days}) from error
        return moment

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        if not self.errors:
            self.new_job = self._new_job(data)
        return data

    def _new_job(self, data: dict[str, Any]) -> NewJob:
        """By the task's own way: bound to its signature, encoded, with its label, attempts and backoff."""
        # The same form with the same content is one job, however often it is sent. The old job keeps its own key.
        said = [self.data.get(name, "") for name in ("token", "args", "kwargs", "queue_name", "priority", "run_after")]
        key = hashlib.sha256(json.dumps([self._job.pk, *said]).encode()).hexdigest()[:40]
        task = calls.task_at(self._job.task).using(
            database=self._using,
            queue_name=data["queue_name"],
            priority=data["priority"],
            run_after=data["run_after"],
            idempotency_key=f"copy:{key}",
        )
        return cast("NewJob", calls.encoded(lambda: task.new_job(tuple(data["args"]), data["kwargs"])))


def _read(text: str, kind: type, wanted: str) -> Any:
    try:
        found = reading.document(text)
    except (ValueError, RecursionError) as error:
        raise ValidationError(gettext("This is no JSON: %(why)s") % {"why": error}) from error
    if not isinstance(found, kind):
        raise ValidationError(wanted)
    return found


class JobCopyMixin(TrailMixin, JobRightsMixin):
    """*Copy with changes*: of a job in any state; one that has not finished runs beside its copy."""

    copy_template = "admin/pgqueue_django/job/copy.html"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_copy"
        return [path("<int:pk>/copy/", self.admin_site.admin_view(self.copy_view), name=name), *super().get_urls()]

    def copy_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """GET shows the form, POST makes the job, once."""
        if not (self.has_view_permission(request) and self._may(request, "copy")):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        using = router.db_for_write(self.model)
        job = self._to_copy(request, pk)
        if job is None:
            return self._gone(request, str(pk))
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        if request.method == "POST":
            form = CopyForm(request.POST, job=job, using=using)
            if form.is_valid():
                return HttpResponseRedirect(self._url("change", self._copy(request, using, job, form)))
        else:
            texts = [_editable(job, name) for name in ("args", "kwargs")]
            if None in texts:
                self.message_user(request, gettext("The arguments are too long to be changed here."), messages.ERROR)
                return HttpResponseRedirect(self._url("change", pk))
            initial: dict[str, Any] = {
                "args": texts[0],
                "kwargs": texts[1],
                "queue_name": job.queue_name,
                "priority": job.priority,
                "token": secrets.token_urlsafe(16),
            }
            if job.state == State.SCHEDULED and not job.parked_at:
                initial["run_after"] = job.run_after
            form = CopyForm(initial=initial, job=job, using=using)
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            self.copy_template,
            {
                **self.admin_site.each_context(request),
                "title": gettext("Copy of job %(number)s") % {"number": job.pk},
                "opts": self.opts,
                "media": self.media,
                "breadcrumbs_listed": django.VERSION >= (6, 1),
                "list_url": self._url("changelist"),
                "job_url": self._url("change", job.pk),
                "form": form,
                "number": job.pk,
                "task": job.task,
                "label": job.label,
                "state": state_mark(job.state),
                "is_unfinished": job.state not in FINISHED,
            },
        )

    def _to_copy(self, request: HttpRequest, pk: int) -> Job | None:
        """Without what is not shown; arguments as they are stored, as far as they fit into a form."""
        columns = ("id", "task", "label", "state", "queue_name", "priority", "run_after", "parked_at")
        found = self.get_queryset(request).filter(pk=pk).only(*columns)
        for name in ("args", "kwargs"):
            start = RawSQL(f"left(pgqueue_job.{name}::text, %s)", [MAX_EDITED + 1], TextField())  # noqa: S611
            found = found.annotate(**{f"{name}_text": start})
        return found.first()

    def _copy(self, request: HttpRequest, using: str, job: Job, form: CopyForm) -> int:
        """Makes the job, and its entries in the logs where this is the first time; returns its id."""
        with transaction.atomic(using=using):
            made = transitions.copy(using, form.new_job, job.pk)
            facts = {"old": job.pk, "new": made.id}
            if made.created:
                self.trail(request, using, "copy", audit.told("job", [job.pk])).add(1)
                new: Any = Job(pk=made.id, task=job.task)
                self.log_addition(request, new, gettext("Made of job %(old)s.") % facts)
                self.log_change(request, job, gettext("Copied with changes: job %(new)s.") % facts)
        text = gettext("Job %(new)s was made of job %(old)s.")
        if not made.created:
            text = gettext("This form has already made job %(new)s; there is no second one.")
        self.message_user(request, text % facts, messages.SUCCESS if made.created else messages.WARNING)
        return made.id


def _editable(job: Job, name: str) -> str | None:
    """The column's JSON to be changed, indented; None: it is too long."""
    text: str = getattr(job, f"{name}_text")
    if len(text) > MAX_EDITED:
        return None
    shown, is_whole = excerpts.pretty(text, 2 * MAX_EDITED)
    return shown if is_whole else text
