"""When each handler started: one line a job in a file that all worker processes of a run append to.

The producer's clock and this one are ``time.time()`` of one machine. No dependency: the peers' environments import
this module, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_file: int | None = None


def stamp(number: int) -> None:
    """The first line of a handler: job ``number`` starts now."""
    now = time.time()
    global _file
    if _file is None:
        _file = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, f"{number} {now:.6f}\n".encode())


def read(path: Path) -> dict[int, float]:
    """Job number to the first moment that its handler started."""
    moments: dict[int, float] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            number, _, moment = line.partition(" ")
            moments.setdefault(int(number), float(moment))
    return moments
