from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PgQueueConfig(AppConfig):
    name = "pgqueue_django"
    label = "pgqueue_django"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = _("Job queue")

    def ready(self) -> None:
        from . import checks  # noqa: F401 (registers them)
