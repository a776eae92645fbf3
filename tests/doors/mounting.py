"""The project's URLs, mounted anew: modes that are read with them are changed by nothing less."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.urls import clear_url_caches

from pgqueue_django import urls
from pgqueue_django.api import urls as api_urls
from testproject import urls as project_urls


@contextmanager
def mounted(settings: Any, **pgqueue: Any) -> Iterator[None]:
    """As a process has them that starts with these settings."""
    before = settings.PGQUEUE
    settings.PGQUEUE = {**before, **pgqueue}
    _mount()
    try:
        yield
    finally:
        settings.PGQUEUE = before
        _mount()


def _mount() -> None:
    for module in (api_urls, urls, project_urls):
        importlib.reload(module)
    clear_url_caches()
