"""The shop's settings, with the queues that Django's own tests name."""

from testproject.settings import *  # noqa: F403

TASKS = {
    "default": {"BACKEND": "pgqueue_django.backend.PgQueueBackend", "QUEUES": ["default", "queue_1"]},
    "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []},
    "missing": {"BACKEND": "does.not.exist"},
}
