"""Settings of the worker processes that these tests start: the shop's, with what one test changes.

``MACHINE_SETTINGS`` is a JSON object: ``PGQUEUE``, ``DEBUG``, ``LOGGING``, ``APPS`` beside the shop's, ``ISOLATION``, a
level of the project's own connections, ``DATABASE``, more words for the default database, ``OPTIONS``, for its driver,
``DIRECT``, the URI of another alias of that name, ``URLS``, another module of them, and ``DIE`` or ``HANG``: a process
that has a supervisor is killed as it starts, or hangs.
"""

import json
import os
import signal

from psycopg import IsolationLevel

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS, ROOT_URLCONF, database

_changes = json.loads(os.environ.get("MACHINE_SETTINGS", "{}"))
PGQUEUE = _changes.get("PGQUEUE", {})
DEBUG = _changes.get("DEBUG", False)
INSTALLED_APPS += _changes.get("APPS", [])
if "LOGGING" in _changes:
    LOGGING = _changes["LOGGING"]
if _isolation := _changes.get("ISOLATION"):
    DATABASES["default"]["OPTIONS"]["isolation_level"] = IsolationLevel[_isolation]
DATABASES["default"] |= _changes.get("DATABASE", {})
DATABASES["default"]["OPTIONS"] |= _changes.get("OPTIONS", {})
if _direct := _changes.get("DIRECT"):
    DATABASES["direct"] = database(_direct)
ROOT_URLCONF = _changes.get("URLS", ROOT_URLCONF)
if _changes.get("DIE") and "PGQUEUE_WORKER_CHILD" in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
if _changes.get("HANG") and "PGQUEUE_WORKER_CHILD" in os.environ:
    signal.pause()
