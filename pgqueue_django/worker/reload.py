"""In development: notice that code has changed, with Django's own watcher of files.

Only that. Django's ``run_with_reloader`` would run the worker in a daemon thread and end the process in the middle of a
job; here whoever watches is told, drains, and is started again by its supervisor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.urls import get_resolver
from django.utils import autoreload

_IMPORTED_AT = time.time()


def watch(changed: Callable[[Path], None]) -> None:
    """Call ``changed`` once, from a thread, with the first source file of a loaded module that changes."""
    told = threading.Event()

    def tell(sender: Any, file_path: Path, **_: Any) -> bool:
        # Templates and translations are looked after by Django's own receivers.
        if file_path.suffix == ".py" and not told.is_set():
            told.set()
            changed(file_path)
        return True  # or Django would end this thread with its own exit code

    autoreload.file_changed.connect(tell, weak=False, dispatch_uid="pgqueue")
    reloader = autoreload.get_reloader()

    def run() -> None:
        # As Django does: what the URLs import is watched, too, even if they are broken just now.
        with suppress(Exception):
            get_resolver().urlconf_module  # noqa: B018
        autoreload.autoreload_started.send(sender=reloader)
        for number, _ in enumerate(reloader.tick()):
            if number == 0:
                # It compares with what it found first: what was saved before that would be missed.
                for path in reloader.watched_files(include_globs=False):
                    if _is_newer(path):
                        tell(None, path)

    threading.Thread(target=run, name="pgqueue reload", daemon=True).start()


def _is_newer(path: Path) -> bool:
    """Whether it was saved since our code was loaded; one from the future would be newer each time."""
    try:
        return _IMPORTED_AT < path.stat().st_mtime <= time.time()
    except OSError:
        return False
