"""A project with django-unfold, as its documentation has it; the database is the shop's."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as _APPS
from testproject.settings import MIDDLEWARE as _MIDDLEWARE

INSTALLED_APPS = ["unfold", *_APPS]
# Unfold's own scripts and styles need a policy that allows more than the shop's does.
MIDDLEWARE = [one for one in _MIDDLEWARE if not one.endswith("content_security_policy")]
ROOT_URLCONF = "tests.themes.urls"
