"""The app."""

import django
from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PgQueueConfig(AppConfig):
    name = "pgqueue_django"
    label = "pgqueue_django"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = _("Job queue")

    def ready(self) -> None:
        from . import checks  # noqa: F401 (registers them)

        if django.VERSION >= (6, 0):
            # Django looks at TASKS in `manage.py check` only where somebody has imported its tasks.
            from . import compat  # noqa: F401
