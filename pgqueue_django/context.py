"""What a handler that asks for it learns of its own attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .exceptions import InvalidPayload
from .payload import dump

MAX_PROGRESS_BYTES = 1000


class JobContext:
    """The first argument of a task with ``takes_context=True``.

    ``job_id`` never changes and is the key to make calls to the outside idempotent. ``attempt`` counts from 1.
    ``deadline`` is a moment of ``time.monotonic()``, None without a timeout.
    """

    __slots__ = ("_cancelled", "_report", "attempt", "deadline", "job_id", "max_attempts")

    def __init__(
        self,
        *,
        job_id: int,
        attempt: int,
        max_attempts: int,
        deadline: float | None,
        cancelled: threading.Event,
        report: Callable[[str], None],
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.deadline = deadline
        self._cancelled = cancelled
        self._report = report

    @property
    def cancelled(self) -> bool:
        """True once the attempt counts no more: a person cancelled it, its lease or its time is lost."""
        return self._cancelled.is_set()

    @property
    def remaining(self) -> float | None:
        """Seconds until the timeout, None without one; negative beyond it."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def progress(self, fraction: float, message: str = "") -> None:
        """Show how far the attempt is: ``fraction`` from 0 to 1 and a short text.

        Costs nothing here: the next heartbeat carries the newest one. Raises InvalidPayload.
        """
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidPayload(f"progress({fraction!r}): give a fraction from 0 to 1.")
        self._report(dump({"fraction": fraction, "message": message}, where="progress", limit=MAX_PROGRESS_BYTES))
