"""Every exception of the package.

Handlers raise ``Retry`` and ``PermanentError`` to say how an attempt ends. The rest is raised by us. Nothing
here imports anything of the package, so that any module may raise anything.
"""

from __future__ import annotations

from datetime import timedelta


class PgQueueError(Exception):
    """The base of all of them but ``Interrupt``."""


class Retry(PgQueueError):
    """Raised by a handler: this attempt failed, try again.

    ``delay`` (seconds or a timedelta, at least 0) replaces the task's backoff for this one time: pass a
    server's ``Retry-After`` here. The attempt is charged; on the last one the job is ``dead``.
    """

    def __init__(self, message: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(message)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        # A comparison that NaN fails too.
        if seconds is not None and not 0 <= seconds <= MAX_DELAY:
            raise ValueError(f"Retry(delay={delay!r}): give 0 to {MAX_DELAY} seconds.")
        self.delay: float | None = seconds


class PermanentError(PgQueueError):
    """Raised by a handler: no further attempt can succeed. The job is ``failed`` at once."""


class Interrupt(BaseException):
    """Raised inside a plain handler whose attempt counts no more, so that it stops.

    No ``Exception``: ``except Exception`` around one item of many must not swallow it. A handler may catch it to clean
    up, for 2 seconds; then it is raised again.
    """


class JobCancelled(Interrupt):
    """A person cancelled the job while this attempt was running."""


class LeaseLost(Interrupt):
    """The job no longer belongs to this attempt: its lease expired, or the worker ends and has given it back."""


class JobTimeout(Interrupt):
    """The attempt ran longer than its task's ``timeout``."""


class InvalidPayload(PgQueueError, ValueError):
    """Arguments or a result that cannot be stored as JSON, or no longer fit the task. Names the path.

    ``path`` is the same as data: ``("kwargs", "lines", 3)``; empty where it is not of one value.
    """

    def __init__(self, message: str = "", *, path: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.path: tuple[object, ...] = path


class InvalidSchedule(PgQueueError, ValueError):
    """A schedule's line cannot be read, can never fire, or its time zone does not exist.

    ``text`` with ``params`` in it is the message; apart, a door can say it in the language of who reads it.
    """

    def __init__(self, text: str, /, **params: object) -> None:
        super().__init__(text % params if params else text)
        self.text: str = text
        self.params: dict[str, object] = params


class InvalidOption(PgQueueError, ValueError):
    """An option of a task or of one enqueue that is out of its range. Says what is allowed."""


class TaskNotFound(PgQueueError, LookupError):
    """No task can be imported from this path in this process."""


class NoResult(PgQueueError, LookupError):
    """A result that was asked for is not there. ``state`` is what the job is, None if the task has no such job."""

    def __init__(self, message: str, *, state: str | None) -> None:
        super().__init__(message)
        self.state: str | None = state


MAX_DELAY = 366 * 24 * 3600
"""The longest wait, in seconds, that a ``Retry`` or a backoff may ask for: beyond it a typo is likelier."""
