"""The settings that every project of the guides has: their ``settings.py`` begins with ``from project import *``."""

import os

from testproject.settings import database

SECRET_KEY = "only-for-the-tests-of-the-guides"
DATABASES = {"default": database(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "orders", "shop"]
USE_TZ = True
TIME_ZONE = "Europe/Warsaw"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
