"""Tells the receivers of Django's ``task_finished``, once an outcome is in the row.

A thread of its own, since receivers are the project's code and may do anything for any time; it is started by the
first outcome of a task of Django's. Its connections are the project's, as a handler's are. Receivers that are slower
than the handlers slow the worker: it claims nothing while too many outcomes wait here.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import close_old_connections, connections, reset_queries

from pgqueue_django import logs
from pgqueue_django.exceptions import JobTimeout, PgQueueError
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Kind, Retried, Settled, Succeeded
from pgqueue_django.transitions import Claimed
from pgqueue_django.worker.connections import drop_changed, first_line, is_broken, left_open
from pgqueue_django.worker.executor import Attempt

logger = logging.getLogger("pgqueue_django.worker")

_BATCH = 100  # outcomes whose rows are read together
_BEHIND = 1000  # outcomes that may wait here


class _Outcome(NamedTuple):
    job: Claimed
    origin: Any
    outcome: Settled
    error: BaseException


class Announcer(threading.Thread):
    """``announce`` from the loop's thread, then ``stop`` and ``join``."""

    def __init__(self, using: str) -> None:
        super().__init__(name="pgqueue announcer", daemon=True)
        self._using = using
        self._queue: queue.SimpleQueue[_Outcome | None] = queue.SimpleQueue()
        self._announced = 0  # by the thread alone
        self._taken = 0  # by the loop alone

    @property
    def waiting(self) -> int:
        """Outcomes of which the receivers have not all heard yet."""
        return self._taken - self._announced

    @property
    def is_behind(self) -> bool:
        return self.waiting >= _BEHIND

    def announce(self, attempt: Attempt, outcome: Settled) -> None:
        """Soon tell the receivers, if the job has ended and is one of Django's."""
        if attempt.task.origin is None or isinstance(outcome, Retried):
            return
        self._taken += 1
        # Not the attempt: frames of the error refer to it, and so to the error.
        error, attempt.error = attempt.error or stand_in(outcome), None
        self._queue.put(_Outcome(attempt.job, attempt.task.origin, outcome, error))
        if self._taken == 1:
            self.start()

    def stop(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        while self._turn():
            pass
        connections.close_all()

    def _turn(self) -> bool:
        """False: it is to stop. What it tells of is not kept while it waits for more."""
        if not (batch := self._next()):
            return False
        until = self._announced + len(batch)
        try:
            close_old_connections()
            rows = self._read(batch)
            for one in batch:
                self._tell(one, rows)
                self._announced += 1
            close_old_connections()
            reset_queries()
        except BaseException as error:
            self._failed(error, *batch)
        finally:
            self._announced = until
        return True

    def _next(self) -> list[_Outcome]:
        """What is there, at least one; empty: it is to stop."""
        batch = []
        one = self._queue.get()
        while one is not None:
            batch.append(one)
            if len(batch) == _BATCH:
                break
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                break
        if one is None and batch:
            self._queue.put(None)
        return batch

    def _read(self, batch: Sequence[_Outcome]) -> dict[int, Job]:
        from pgqueue_django import results  # which needs the framework

        try:
            return results.read(self._using, [one.job.id for one in batch])
        except Exception as error:
            if len(batch) == 1 or is_broken(error):
                self._failed(error, *batch)
                return {}
        # What somebody wrote into one of them cannot be read.
        return {id: row for one in batch for id, row in self._read([one]).items()}

    def _tell(self, one: _Outcome, rows: Mapping[int, Job]) -> None:
        from pgqueue_django import results

        try:
            results.finished(rows.get(one.job.id), one.job, one.outcome, one.origin, self._using, one.error)
        except BaseException as error:  # a receiver may raise what it likes
            self._failed(error, one)
        wrappers = connections.all(initialized_only=True)
        if any(wrapper.errors_occurred for wrapper in wrappers):
            close_old_connections()
        if left := left_open():
            # Otherwise nothing of what later receivers write would ever be committed.
            logger.error(
                "%s #%d: a receiver of task_finished left %s open; its writes there are rolled back",
                *(one.job.task, one.job.id, left),
                extra=logs.event("job.warning", one.job),
            )
        drop_changed(wrappers)

    def _failed(self, error: BaseException, *ones: _Outcome) -> None:
        names = ", ".join(f"{one.job.task} #{one.job.id}" for one in ones[:5])
        logger.error(
            "receivers of task_finished were not told of %d outcomes (%s): %s: %s",
            *(len(ones), names, type(error).__name__, first_line(error)),
            extra=logs.event("worker.trouble"),
        )


def stand_in(outcome: Settled) -> BaseException:
    """An exception for a failure that none was caught for: its deadline came, or a transaction was left open."""
    if isinstance(outcome, Succeeded):
        return PgQueueError()
    failure = outcome.failure
    return (JobTimeout if failure.kind == Kind.TIMEOUT else PgQueueError)(failure.message)


__all__ = ["Announcer"]
