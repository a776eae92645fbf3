"""Only where Wagtail is, with its settings."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("DJANGO_SETTINGS_MODULE") == "tests.cms.settings" else ["test_*.py"]
