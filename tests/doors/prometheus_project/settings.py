"""Settings of the project. ``PROJECT_DATABASE`` is the jobs' database; with ``ALONE`` there is no django-prometheus."""

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "pgqueue_django",
    "kitchen",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {"default": json.loads(os.environ["PROJECT_DATABASE"])}
PGQUEUE = {"METRICS_TOKEN": "open-sesame"}

if "ALONE" not in os.environ:
    INSTALLED_APPS.append("django_prometheus")
    MIDDLEWARE.insert(0, "django_prometheus.middleware.PrometheusBeforeMiddleware")
    MIDDLEWARE.append("django_prometheus.middleware.PrometheusAfterMiddleware")
    DATABASES["default"]["ENGINE"] = "django_prometheus.db.backends.postgresql"
