from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["pgqueue_django"]
TASKS = {
    "default": {
        "BACKEND": "pgqueue_django.backend.PgQueueBackend",
        "QUEUES": ["default", "billing", "mail"],
    },
}
DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
