"""A site made with Wagtail, as its own project template has it; the database is the shop's."""

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import BASE_DIR

INSTALLED_APPS = [
    "tests.cms",
    "wagtail.embeds",
    "wagtail.sites",
    "wagtail.users",
    "wagtail.snippets",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.admin",
    "wagtail",
    "modelcluster",
    "taggit",
    "django_filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_tasks",
    "pgqueue_django",
]
# All that such a project changes.
TASKS = {"default": {"BACKEND": "pgqueue_django.backend.PgQueueBackend"}}

ROOT_URLCONF = "tests.cms.urls"
WAGTAIL_SITE_NAME = "The shop's pages"
WAGTAILADMIN_BASE_URL = "http://testserver"
WAGTAILSEARCH_BACKENDS = {"default": {"BACKEND": "wagtail.search.backends.database"}}
WAGTAILIMAGES_FEATURE_DETECTION_ENABLED = False
MEDIA_ROOT = os.environ.get("CMS_MEDIA", BASE_DIR.parent / ".demo" / "cms-media")
MEDIA_URL = "media/"
