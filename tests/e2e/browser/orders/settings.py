"""The demo's settings, with what one site changes: ``E2E_SETTINGS`` is a JSON object."""

import json
import os

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS, PGQUEUE

_changes = json.loads(os.environ.get("E2E_SETTINGS", "{}"))
INSTALLED_APPS += ["orders", *_changes.get("APPS", [])]
PGQUEUE |= _changes.get("PGQUEUE", {})
LANGUAGE_CODE = _changes.get("LANGUAGE_CODE", "en")
# Under ASGI requests change threads: kept connections would pile up.
DATABASES["default"]["CONN_MAX_AGE"] = 0
