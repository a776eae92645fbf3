"""Settings of the peers that are Django apps: as their READMEs say, connections kept, DEBUG off, no pool."""

import os
from urllib.parse import unquote, urlsplit

_url = urlsplit(os.environ["DATABASE_URL"])
_system = os.environ["BENCH_SYSTEM"]

SECRET_KEY = "only-for-the-benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": _url.hostname,
        "PORT": _url.port,
        "USER": _url.username,
        "PASSWORD": unquote(_url.password or ""),
        "NAME": unquote(_url.path.lstrip("/")),
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
if _system == "django-tasks-db":
    INSTALLED_APPS += ["django_tasks_db"]
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
elif _system == "django-ox":
    INSTALLED_APPS += ["django_ox"]
    TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
elif _system == "dj-queue":
    INSTALLED_APPS += ["dj_queue"]
    DATABASE_ROUTERS = ["dj_queue.routers.DjQueueRouter"]
    TASKS = {
        "default": {
            "BACKEND": "dj_queue.backend.DjQueueBackend",
            "QUEUES": [],
            "OPTIONS": {"workers": [{"threads": 32, "processes": int(os.environ.get("BENCH_PROCESSES", "1"))}]},
        }
    }
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {name: {"level": "WARNING"} for name in ("django_tasks", "django_tasks_db", "django_ox", "dj_queue")},
}
