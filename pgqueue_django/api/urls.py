"""The URLs of the JSON API, below ``api/v1``, with and without a last slash: a POST must not depend on APPEND_SLASH."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, re_path

from pgqueue_django import conf

from . import views

_JOB = "jobs/(?P<id>[1-9][0-9]{0,18})"
_QUEUE = "queues/(?P<name>[A-Za-z0-9_.-]{1,63})"


def _path(route: str, view: Callable[..., Any], name: str) -> URLPattern:
    return re_path(rf"^{route}/?\Z", view, name=f"api_{name}")


_CHANGING = [
    _path("jobs:batch", views.batch, "batch"),
    _path(f"{_JOB}/cancel", views.cancel, "cancel"),
    _path(f"{_JOB}/requeue", views.requeue, "requeue"),
    _path(f"{_JOB}/run-now", views.run_now, "run_now"),
    _path(f"{_QUEUE}/pause", views.pause, "pause"),
    _path(f"{_QUEUE}/resume", views.resume, "resume"),
    _path(f"{_QUEUE}/requeue", views.requeue_queue, "requeue_queue"),
]
urlpatterns = [
    _path("jobs", views.jobs, "jobs"),
    _path(_JOB, views.job, "job"),
    _path("queues", views.all_queues, "queues"),
    _path("snapshot", views.snapshot, "snapshot"),
    _path("workers", views.workers, "workers"),
    _path("schedules", views.schedules, "schedules"),
    _path("tasks", views.tasks, "tasks"),
    _path(r"openapi\.json", views.openapi, "openapi"),
    *([] if conf.is_read_only() else _CHANGING),
    # Whatever else is asked for below here, line breaks and all, is a problem document, too.
    re_path("", views.nothing, name="api_nothing"),
]
