"""A barrier for processes that this one does not start as its own threads: they wait, then go together.

A worker imports its tasks before it claims; the benchmark's tasks call ``wait``. It says that it is there (a file
beside the gate) and opens a FIFO for reading, which blocks until the benchmark opens the other end: so nobody
drains a backlog while the others still start. No dependency: the peers' environments import this module, too.
"""

from __future__ import annotations

import os
from pathlib import Path


def wait() -> None:
    """Block until the gate in BENCH_GATE opens; at once when it is open, or when there is none."""
    path = os.environ.get("BENCH_GATE")
    if path:
        Path(f"{path}.{os.getpid()}").touch()
        os.close(os.open(path, os.O_RDONLY))


class Gate:
    """The benchmark's end of it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        self._end: int | None = None

    def waiting(self) -> int:
        """How many processes have come to the gate."""
        return len(list(self.path.parent.glob("gate.*")))

    def open(self) -> None:
        # Stays open, so that a process that comes later walks through.
        self._end = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        if self._end is not None:
            os.close(self._end)
            self._end = None
