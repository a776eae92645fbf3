"""Django settings of the processes in these tests: the queue and nothing else, on the server in DATABASE_URL."""

from typing import Any

from testproject.settings import DATABASES, DEFAULT_AUTO_FIELD, LOGGING, SECRET_KEY, TIME_ZONE, USE_TZ

__all__ = ["DATABASES", "DEFAULT_AUTO_FIELD", "LOGGING", "SECRET_KEY", "TIME_ZONE", "USE_TZ"]

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "pgqueue_django"]
# So often, because the tests are short.
PGQUEUE: dict[str, Any] = {"CHORE_INTERVAL": 0.5}
