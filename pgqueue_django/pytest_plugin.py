"""Fixtures for pytest, found by its entry point: ``pgqueue`` and ``pgqueue_worker``.

Loaded in every run of pytest where the package is installed: so it imports nothing of Django, and the kit itself only
for a test that asks for it. Both need pytest-django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import RunningWorker


class Kit:
    """What ``pgqueue_django.testing`` has, for one test; ``travel`` and ``eager`` last until its end."""

    def __init__(self, until_the_end: ExitStack) -> None:
        from . import testing

        self.run_jobs = testing.run_jobs
        self.capture_jobs = testing.capture_jobs
        self.assert_enqueued = testing.assert_enqueued
        self.assert_not_enqueued = testing.assert_not_enqueued
        self._testing = testing
        self._until_the_end = until_the_end

    def travel(self, *length: Any, **words: Any) -> None:
        self._until_the_end.enter_context(self._testing.travel(*length, **words))

    def eager(self, **options: Any) -> Any:
        """The list of the attempts so far."""
        return self._until_the_end.enter_context(self._testing.eager(**options))


@pytest.fixture
def pgqueue(db: None) -> Iterator[Kit]:
    """Jobs in this test: ``pgqueue.run_jobs()``, ``pgqueue.travel(hours=3)``, ``pgqueue.assert_enqueued(task)``, ..."""
    with ExitStack() as until_the_end:
        yield Kit(until_the_end)


@pytest.fixture
def pgqueue_worker(transactional_db: None) -> Iterator[Callable[..., RunningWorker]]:
    """``pgqueue_worker(concurrency=2)`` starts a worker, which is ended after the test."""
    from .testing import worker

    with ExitStack() as until_the_end:
        yield lambda **options: until_the_end.enter_context(worker(**options))
