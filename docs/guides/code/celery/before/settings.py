from project import *

# -- what the guide shows --
from celery.schedules import crontab

CELERY_BROKER_URL = "redis://localhost:6379/0"
CELERY_TIMEZONE = "Europe/Warsaw"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_ROUTES = {
    "shop.tasks.charge": {"queue": "billing"},
    "shop.tasks.send_*": {"queue": "mail"},
}
CELERY_BEAT_SCHEDULE = {
    "daily-report": {"task": "shop.tasks.file_daily_report", "schedule": crontab(hour=3, minute=0)},
}
