"""How far a drain has come: one line that is rewritten at a terminal, a log record every ten seconds elsewhere."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError

from pgqueue_django import logs
from pgqueue_django.states import State
from pgqueue_django.worker.connections import drop, own_connection

logger = logging.getLogger("pgqueue_django.worker")

MOST = 10_000
"""So many jobs that are left are counted, and no more: counting all of a backlog takes longer than running some."""
_TERMINAL_SECONDS, _LOG_SECONDS = 0.5, 10.0
_CLEAR = "\r\x1b[K"


class Terminal(logging.StreamHandler[Any]):
    """Log records above a last line that is rewritten. Single successes are not shown: the line counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == "job.succeeded":
            return
        self._write(_CLEAR)
        super().emit(record)
        self._write(self._line)

    def show(self, line: str) -> None:
        self.acquire()
        try:
            self._line = line
            self._write(_CLEAR + line)
        finally:
            self.release()

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.flush()
        except (OSError, ValueError):
            # The terminal is gone, and whoever logs must not hear of it; nor the interpreter at its end, which would
            # fail to write what is left and exit with 120.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())


class Progress(threading.Thread):
    """``counts``: the attempts of this worker that have ended, by state; ``left``: jobs that are due, up to so many."""

    def __init__(
        self,
        using: str,
        *,
        counts: Callable[[], Mapping[State, int]],
        left: Callable[[int], int],
        terminal: Terminal | None,
    ) -> None:
        super().__init__(name="pgqueue progress", daemon=True)
        self._using = using
        self._counts = counts
        self._left = left
        self._terminal = terminal
        self._began_at = time.monotonic()
        self._over = threading.Event()

    def run(self) -> None:
        with own_connection(self._using, "progress"):
            while not self._over.wait(_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
                self._tell()

    def finish(self) -> None:
        """Say what was done, as the last line."""
        self._over.set()
        self.join(1.0)
        if self._terminal:
            self._terminal.show("")
        logger.info("drained: %s", self._done(), extra=logs.event("worker.progress", **self._facts()))

    def _tell(self) -> None:
        try:
            left = self._left(MOST + 1)
        except (DatabaseError, InterfaceError):
            drop(self._using)
            return
        line = f"{self._done()}; {'more than ' if left > MOST else ''}{min(left, MOST):,} due"
        if self._terminal:
            self._terminal.show(f"draining: {line}")
        else:
            logger.info("draining: %s", line, extra=logs.event("worker.progress", **self._facts(), left=left))

    def _facts(self) -> dict[str, Any]:
        counts = dict(self._counts())
        return {
            "seconds": round(time.monotonic() - self._began_at, 3),
            "counts": {str(state): count for state, count in sorted(counts.items())},
        }

    def _done(self) -> str:
        counts = dict(self._counts())
        seconds = time.monotonic() - self._began_at
        total = sum(counts.values())
        by_state = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "no jobs"
        return f"{by_state} in {seconds:.1f} s, {total / max(seconds, 0.001):,.0f}/s"
