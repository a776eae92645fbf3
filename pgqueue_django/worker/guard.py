"""Stopping a handler that runs in a thread, by an exception that is raised there and nowhere else.

CPython can raise an exception in another thread, at that thread's next bytecode (``PyThreadState_SetAsyncExc``).
Where that is nobody can choose. A ``Guard`` sees to it that it is inside the call that it guards: none is sent once
the call is being left, and one that is under way then is taken back, or caught here. So it never hits our own code,
nor the next job on that thread.

It does not interrupt what waits outside of Python (a socket, a lock, ``time.sleep``, a pattern that is being matched):
that goes on until it returns.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from pgqueue_django.exceptions import Interrupt

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_take_back = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Guard:
    """One call of one handler. ``call`` is for the thread that runs it, ``interrupt`` for one other thread at a time.

    Without a lock, which an exception between two bytecodes could leave locked. Each side writes before it reads what
    the other one writes (``_leaving`` and ``_is_sent``), so at least one of them sees the other.
    """

    __slots__ = ("_is_leaving", "_is_sending", "_is_sent", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._is_leaving = False
        self._is_sending = False
        self._is_sent = False

    def call(self, func: Callable[[], Any]) -> Any:
        """``func()``; raises what it raises, and ``Interrupt`` if it was interrupted. It may hand out the guard."""
        try:
            try:
                return func()
            finally:
                self._leave()
        except Interrupt:
            # Perhaps it came on the way out, in the line above.
            while True:
                try:
                    self._leave()
                    break
                except Interrupt:
                    continue
            raise

    def _leave(self) -> None:
        self._is_leaving = True
        if self._is_sent:
            while self._is_sending:
                time.sleep(0.0001)
            _take_back(self._thread, None)

    def interrupt(self, why: type[Interrupt]) -> None:
        """Raise ``why`` inside the call, unless that is over. May be called again: a handler may have caught it."""
        self._is_sending = True
        self._is_sent = True
        try:
            if not self._is_leaving:
                _raise_in(self._thread, why)
        finally:
            self._is_sending = False
