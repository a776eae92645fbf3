"""The process around a loop: how it is told to stop, by signals or by its supervisor, and how it ends in any case."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pgqueue_django import logs
from pgqueue_django.worker import supervisor
from pgqueue_django.worker.loop import RELEASED, Loop

logger = logging.getLogger("pgqueue_django.worker")

_STOP_SECONDS = 2.0  # beyond its time to stop, the process ends whatever it is in the middle of


@contextmanager
def signals(stop: Callable[[int], None], *, quiet: Callable[[], None], report: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop, SIGUSR1 makes quiet, SIGUSR2 reports, SIGQUIT prints where every thread is."""
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever runs us in a thread calls loop.stop()
        return
    hear: dict[int, Callable[[int, object], None]] = {
        signal.SIGTERM: lambda number, frame: stop(number),
        signal.SIGINT: lambda number, frame: stop(number),
        signal.SIGUSR1: lambda number, frame: quiet(),
        signal.SIGUSR2: lambda number, frame: report(),
    }
    before = {number: signal.signal(number, handler) for number, handler in hear.items()}
    with suppress(OSError, ValueError, AttributeError):  # a standard error that is no file
        faulthandler.register(signal.SIGQUIT, all_threads=True)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        faulthandler.unregister(signal.SIGQUIT)


class Stopping:
    """Tells the loop to stop, and ends the process even if the loop hangs in a database that does not answer."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._watchdogs: list[threading.Timer] = []
        self._once = threading.Lock()

    def stop(self, number: int) -> None:
        self._loop.stop(number)
        if not self._watchdogs:
            self._watchdogs.append(end_after(self._loop.options.shutdown_timeout + _STOP_SECONDS, RELEASED))
        elif len(self._watchdogs) == 1:
            self._watchdogs.append(end_after(_STOP_SECONDS, 128 + number))
        else:
            os._exit(128 + number)

    def stop_once(self, number: int) -> None:
        """A signal to the whole group reaches a worker process twice, and must not count as two."""
        # Also when both come at the same moment, and a signal in the middle of the other.
        if self._once.acquire(blocking=False):
            self.stop(number)

    def make_way(self, why: str) -> None:
        """Another process takes this one's place."""
        logger.info("%s: making way", why, extra=logs.event("worker.retiring"))
        self.stop_once(signal.SIGTERM)

    def obey(self, orders: int) -> None:
        """The supervisor's orders, until it is gone."""
        while order := os.read(orders, 1):
            if order == supervisor.QUIET:
                self._loop.quiet()
            elif order == supervisor.REPORT:
                self._loop.report()
            else:
                self.stop_once(signal.SIGTERM)
            if order == supervisor.STOP_NOW:
                self.stop(signal.SIGTERM)
        logger.warning("the supervisor is gone: stopping", extra=logs.event("worker.trouble"))
        self.stop_once(signal.SIGTERM)

    def over(self) -> None:
        for watchdog in self._watchdogs:
            watchdog.cancel()


def end_after(seconds: float, code: int) -> threading.Timer:
    watchdog = threading.Timer(seconds, os._exit, [code])
    watchdog.daemon = True
    watchdog.start()
    return watchdog
