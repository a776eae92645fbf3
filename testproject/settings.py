"""Django settings of the shop. For a demo on one machine: nothing in here is fit for a public server."""

import os
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from psycopg.conninfo import conninfo_to_dict

from pgqueue_django.conf import RIGHTS


def database(conninfo: str) -> dict[str, Any]:
    """Django's words for a libpq URI or connection string; what Django has no word for goes into OPTIONS."""
    words = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    parts = {name: value for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{word: str(parts.pop(name)) for name, word in words.items() if name in parts},
        "OPTIONS": parts,
    }


def database_url() -> str:
    """DATABASE_URL, or the embedded server, started if it is not running."""
    if given := os.environ.get("DATABASE_URL"):
        return given
    from testproject import localdb

    return localdb.url()


BASE_DIR = Path(__file__).resolve().parent

SECRET_KEY = "only-for-the-demo-of-pgqueue-django"
DEBUG = os.environ.get("DEBUG", "") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "pgqueue_django",
    "testproject.shop",
    # Django's own tasks, for Django 5.2.
    *(["django_tasks"] if django.VERSION < (6, 0) and find_spec("django_tasks") else []),
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "testproject.middleware.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        **database(database_url()),
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        # Two runs of the tests at the same time need two names.
        "TEST": {"NAME": os.environ.get("TEST_DATABASE_NAME")},
    }
}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
STATIC_URL = "static/"

TASKS = {"default": {"BACKEND": "pgqueue_django.backend.PgQueueBackend", "QUEUES": []}}

# The JSON API: for whoever is logged into the admin, and for programs that know SHOP_API_TOKEN. A real project writes
# what manage.py pgqueue_token prints, and has the token itself nowhere.
API_TOKEN = os.environ.get("SHOP_API_TOKEN", "")
PGQUEUE: dict[str, Any] = {
    "METRICS_PUBLIC": True,
    "API_AUTH": ["pgqueue_django.access.token", "pgqueue_django.access.session"],
    "API_TOKENS": {"demo": {"sha256": sha256(API_TOKEN.encode()).hexdigest(), "rights": RIGHTS}} if API_TOKEN else {},
}

# Where the shop finds the outside world: testproject/outside.py plays all of it.
OUTSIDE = os.environ.get("SHOP_OUTSIDE_URL", "http://127.0.0.1:8090")
SHOP = {"CARDS_URL": OUTSIDE, "WAREHOUSE_URL": OUTSIDE, "RATES_URL": OUTSIDE}
EMAIL_HOST = "127.0.0.1"
EMAIL_PORT = int(os.environ.get("SHOP_SMTP_PORT", "8025"))
EMAIL_TIMEOUT = 5

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "django": {"handlers": ["console"], "level": "WARNING", "propagate": False},
        "pgqueue_django": {"handlers": ["console"], "level": "INFO"},
        "testproject": {"handlers": ["console"], "level": "INFO"},
    },
}
