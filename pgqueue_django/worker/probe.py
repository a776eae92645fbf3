"""What a container platform asks a worker: does it live, and is it ready for jobs.

A thread of its own answers, from a file or by HTTP. Where the interpreter runs no threads any more there is no answer,
and that is the right one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pgqueue_django import logs
from pgqueue_django.worker.server import Answer, Answering

logger = logging.getLogger("pgqueue_django.worker")

LIVE_SECONDS = 30.0
"""A loop that has been in one turn for longer, and does not wait for the database, is stuck."""
_TOUCH_SECONDS = 1.0


class Health(NamedTuple):
    """``is_live``: worth keeping. ``is_ready``: would take a job now. ``facts``: why, for people."""

    is_live: bool
    is_ready: bool
    facts: dict[str, Any]


def touch(path: Path, health: Callable[[], Health]) -> None:
    """Keep a file at ``path`` that says ``ready`` or ``not ready``, touched each second while the worker lives.

    Raises OSError if it cannot be written. It is left behind when the process ends: its age says so.
    """
    said = _write(path, health())
    threading.Thread(target=_touch, args=[path, health, said], name="pgqueue probe", daemon=True).start()


def _write(path: Path, found: Health) -> str:
    """In one step: a reader never finds half a word."""
    text = "ready\n" if found.is_ready else "not ready\n"
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)
        with new.open("x") as file:  # never through a link that somebody has put there
            file.write(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return text


def _touch(path: Path, health: Callable[[], Health], said: str) -> None:
    failing = False
    while True:
        time.sleep(_TOUCH_SECONDS)
        found = health()
        if not found.is_live:
            continue
        try:
            if (said == "ready\n") == found.is_ready and path.exists():
                os.utime(path)
            else:
                said = _write(path, found)
            failing = False
        except OSError as error:
            if not failing:
                logger.error("the probe file cannot be written: %s", error, extra=logs.event("worker.trouble"))
            failing = True


def answer(health: Callable[[], Health]) -> Answering:
    """``GET /live`` and ``GET /ready``: 200 or 503."""

    def answer(path: str, accept: str) -> Answer:
        found = health()
        good = {"/live": found.is_live, "/ready": found.is_ready}.get(path)
        if good is None:
            return Answer(404)
        return Answer(200 if good else 503, json.dumps(found.facts).encode() + b"\n", "application/json")

    return answer
