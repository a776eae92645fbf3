"""Django's own two backends for tests, which take the options of ours: ``@task(max_attempts=3)``, ``idempotency_key``.

For settings: nothing here needs a model, as modules with tasks are imported before Django is ready.
"""

from __future__ import annotations

from pgqueue_django import compat
from pgqueue_django.backend import TakesOurOptions


class ImmediateBackend(TakesOurOptions, compat.immediate.ImmediateBackend):
    """Runs a task where it is enqueued; no job is made. The options are taken and mean nothing: it is one attempt."""


class DummyBackend(TakesOurOptions, compat.dummy.DummyBackend):
    """Runs nothing; ``task_backends["default"].results`` has what was enqueued."""
