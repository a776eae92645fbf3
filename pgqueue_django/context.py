"""What a handler that asks for it learns of its own attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .exceptions import InvalidPayload
from .payload import dump

MAX_PROGRESS_BYTES = 1000


class Latch:
    """A ``threading.Event`` that is set once and costs next to nothing until somebody waits for it.

    Two events for each attempt were a tenth of what a worker spends on a job whose handler does nothing.
    """

    __slots__ = ("_event", "_is_set", "is_watched")

    def __init__(self) -> None:
        self._is_set = False
        self.is_watched: bool = False  # a handler looks at it
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        # In this order, and wait() in the opposite one: whichever comes first, nobody is left waiting.
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float) -> bool:
        """For one thread: wait until it is set, for so many seconds at the most; return whether it is."""
        self._event = event = self._event or threading.Event()
        return self._is_set or event.wait(timeout)


class JobContext:
    """The first argument of a task with ``takes_context=True``.

    ``job_id`` never changes and is the key to make calls to the outside idempotent. ``attempt`` counts from 1.
    ``deadline`` is a moment of ``time.monotonic()``, None without a timeout.
    """

    __slots__ = ("_cancelled", "_gives_way", "_report", "attempt", "deadline", "job_id", "max_attempts")

    def __init__(
        self,
        *,
        job_id: int,
        attempt: int,
        max_attempts: int,
        deadline: float | None,
        cancelled: Latch,
        gives_way: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.job_id: int = job_id
        self.attempt: int = attempt
        self.max_attempts: int = max_attempts
        self.deadline: float | None = deadline
        self._cancelled = cancelled
        self._gives_way = gives_way
        self._report = report

    @property
    def cancelled(self) -> bool:
        """True once the attempt counts no more: a person cancelled it, its lease or its time is lost.

        A plain handler that has asked has two seconds to return by itself before it is interrupted.

        Also True when its lease has ended because no heartbeat came through: another worker may have the job by now.
        Who is told so once is told so ever after, and what it returns is no success. Who does not ask goes on, and if
        nobody has taken the job meanwhile, its outcome counts.
        """
        self._cancelled.is_watched = True
        return self._cancelled.is_set() or self._gives_way()

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
