"""Only where django-unfold is, with these settings."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("DJANGO_SETTINGS_MODULE") == "tests.themes.settings" else ["test_*.py"]
