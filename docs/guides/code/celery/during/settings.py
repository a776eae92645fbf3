from project import *
from project import INSTALLED_APPS

# -- what the guide shows --
INSTALLED_APPS += ["pgqueue_django"]

# As before, but for CELERY_BEAT_SCHEDULE: beat has nothing more to do.
CELERY_BROKER_URL = "redis://localhost:6379/0"
CELERY_TIMEZONE = "Europe/Warsaw"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_ROUTES = {
    "shop.tasks.charge": {"queue": "billing"},
    "shop.tasks.send_*": {"queue": "mail"},
}
