"""What a worker process has begun, in memory that survives it.

Memory that the process and its supervisor have mapped: one place for each attempt that a slot has
begun and whose outcome is not in the row yet, and a pulse that says that the process still answers. When the process
is dead its supervisor so knows which attempts are to be charged, and when it answers no more, whose time is over.

The process writes, the supervisor reads; neither waits for the other. An id is written last and erased first, so a
place that is read at any moment, or was left at any moment, is free or right.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from pgqueue_django.worker.probe import Health

PLACES = 8192
"""More than a worker can hold: its slots, one claim ahead of them, and the outcomes of the claims before."""

_PULSE = struct.Struct("=d")
_READY = struct.Struct("=d")
_USED = struct.Struct("=q")
_NAME = struct.Struct("=512s")
_ID = struct.Struct("=q")
_DEADLINE = struct.Struct("=d")
_REST = struct.Struct("=qd")  # token, deadline
_PULSE_AT, _READY_AT, _USED_AT, _NAME_AT, _PLACES_AT = 0, 8, 16, 24, 24 + _NAME.size
_PLACE_BYTES = _ID.size + _REST.size
_BYTES = _PLACES_AT + PLACES * _PLACE_BYTES
_PULSE_SECONDS = 0.1


def _make() -> int:
    if hasattr(os, "memfd_create"):
        # No disk that may be full or slow: a mapped write would then stop the interpreter, or the process.
        fd = os.memfd_create("pgqueue board")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _BYTES)
    return fd


class Begun(NamedTuple):
    """An attempt that a slot has begun. ``deadline``: of time.monotonic(), which all processes share; inf: none."""

    id: int
    fencing_token: int
    deadline: float

    @property
    def pair(self) -> tuple[int, int]:
        return self.id, self.fencing_token


class Board:
    """``Board()`` makes one; ``Board(fd)`` opens the one that a supervisor has handed down."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _make() if fd is None else fd
        self._memory = mmap.mmap(self.fd, _BYTES)
        self._free = list(range(PLACES - 1, -1, -1))  # the lowest ones are used first, and again
        self._used = 0  # no place beyond this one was ever taken
        self._lock = threading.Lock()

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    # The process -----------------------------------------------------------------------------------------------

    def sign(self, worker_id: str) -> None:
        """Say whose it is, before anything is claimed."""
        _NAME.pack_into(self._memory, _NAME_AT, worker_id.encode())

    def begin(self, pair: tuple[int, int], deadline: float | None) -> int | None:
        """The place of an attempt that is about to begin; None: there is none left, and it must not begin."""
        try:
            place = self._free.pop()
        except IndexError:
            return None
        if place >= self._used:
            with self._lock:
                self._used = max(self._used, place + 1)
                _USED.pack_into(self._memory, _USED_AT, self._used)
        at = _PLACES_AT + place * _PLACE_BYTES
        _REST.pack_into(self._memory, at + _ID.size, pair[1], math.inf if deadline is None else deadline)
        _ID.pack_into(self._memory, at, pair[0])
        return place

    def over(self, place: int) -> None:
        """Its handler has ended in time; its outcome is still to be written, and may have to wait for the database."""
        _DEADLINE.pack_into(self._memory, _PLACES_AT + place * _PLACE_BYTES + _ID.size + 8, math.inf)

    def end(self, place: int) -> None:
        """Its outcome is in the row, or it is not ours any more."""
        _ID.pack_into(self._memory, _PLACES_AT + place * _PLACE_BYTES, 0)
        self._free.append(place)

    def ready(self) -> None:
        """It has looked for jobs, and would take some."""
        _READY.pack_into(self._memory, _READY_AT, time.monotonic())

    def keep_pulse(self, health: Callable[[], Health]) -> None:
        """Start the thread that beats as long as the interpreter runs threads at all, and the loop is not stuck."""
        threading.Thread(target=self._beat, args=[health], name="pgqueue pulse", daemon=True).start()

    def _beat(self, health: Callable[[], Health]) -> None:
        with suppress(ValueError):  # it is being closed
            while not self._memory.closed:
                found = health()
                if found.is_live:
                    _PULSE.pack_into(self._memory, _PULSE_AT, time.monotonic())
                if found.is_ready:
                    self.ready()
                time.sleep(_PULSE_SECONDS)

    # The supervisor --------------------------------------------------------------------------------------------

    @property
    def worker_id(self) -> str:
        """Empty until it has signed."""
        (name,) = _NAME.unpack_from(self._memory, _NAME_AT)
        return str(name.rstrip(b"\0").decode(errors="replace"))

    @property
    def pulse(self) -> float:
        return float(_PULSE.unpack_from(self._memory, _PULSE_AT)[0])

    @property
    def ready_at(self) -> float:
        """When it was ready for the last time, of time.monotonic(); 0 if it never was."""
        return float(_READY.unpack_from(self._memory, _READY_AT)[0])

    def begun(self) -> Iterator[Begun]:
        """What it has begun and not settled, at this moment."""
        (used,) = _USED.unpack_from(self._memory, _USED_AT)
        memory = self._memory[_PLACES_AT : _PLACES_AT + used * _PLACE_BYTES]
        for id, token, deadline in struct.iter_unpack("=qqd", memory):
            if id:
                yield Begun(id, token, deadline)
