"""For a project's tests: jobs that run inside them (``kit``), and backends of Django's own tasks (``backends``).

The names are imported at first use: settings name the backends before models may be imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backends import DummyBackend, ImmediateBackend
    from .kit import (
        MOST,
        Captured,
        Clock,
        Ran,
        RunningWorker,
        TooManyJobs,
        assert_enqueued,
        assert_not_enqueued,
        capture_jobs,
        eager,
        run_jobs,
        travel,
        worker,
    )

__all__ = [
    "MOST",
    "Captured",
    "Clock",
    "DummyBackend",
    "ImmediateBackend",
    "Ran",
    "RunningWorker",
    "TooManyJobs",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_jobs",
    "eager",
    "run_jobs",
    "travel",
    "worker",
]

if not TYPE_CHECKING:  # to type checkers it would say that there is any name

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(".backends" if name.endswith("Backend") else ".kit", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
