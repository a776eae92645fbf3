from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["django_tasks_db"]
TASKS = {
    "default": {
        "BACKEND": "django_tasks_db.DatabaseBackend",
        "QUEUES": ["default", "billing", "mail"],
    },
}
