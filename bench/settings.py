"""Django settings of the benchmarks' workers and producers: a plain project, as it would be in production.

DEBUG off, persistent connections, no connection pool, logs from WARNING on. The environment says what one
benchmark changes: see ``bench/apps.py``.
"""

import os

from testproject.settings import database, database_url

SECRET_KEY = "only-for-the-benchmarks"
DEBUG = False
ALLOWED_HOSTS = ["localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "bench.urls"

# The contrib apps are here because projects have them: they are part of a worker's memory.
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "pgqueue_django",
    "bench.apps.BenchConfig",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_max_age = os.environ.get("BENCH_CONN_MAX_AGE")
DATABASES = {"default": {**database(database_url()), "CONN_MAX_AGE": int(_max_age) if _max_age else None}}

PGQUEUE = {
    "POLL_INTERVAL": float(os.environ.get("BENCH_POLL_INTERVAL", "1")),
    "LIVE": os.environ.get("BENCH_LIVE", "poll"),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"pgqueue_django": {"level": "WARNING"}},
}
