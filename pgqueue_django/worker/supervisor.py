"""N worker processes: replaced when they die, killed when they answer no more, stopped together.

Each is a fresh interpreter with the supervisor's own command line (nothing is forked: no inherited socket, lock or
thread), a ``Board`` that it shares with the supervisor, and a pipe through which it is told to stop; when that closes,
because the supervisor is gone, it stops by itself. The supervisor runs no job and holds no connection while all is
well. What a dead process held is given back at once: charged what it had begun, refunded what it had only claimed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connections

from pgqueue_django import logs, transitions
from pgqueue_django.worker.board import PLACES, Board
from pgqueue_django.worker.connections import Backoff, Grumbler, drop, is_broken, may_pass, own_connection
from pgqueue_django.worker.loop import CLEAN, RELEASED
from pgqueue_django.worker.probe import LIVE_SECONDS, Health
from pgqueue_django.worker.telemetry import VARIABLE, Directory

logger = logging.getLogger("pgqueue_django.worker")

CHILD = "PGQUEUE_WORKER_CHILD"
"""In the environment of a worker process: the file descriptors of its board and of its orders, and its number."""
STOP, STOP_NOW, QUIET, REPORT = b"s", b"n", b"q", b"r"
"""What it can be told. Not by signals: before a process listens to them some would end it."""
MOST_SLOTS = PLACES - 4 * transitions.BATCH
"""Of one process: so many, one claim ahead of them, and the outcomes of some claims are on its board."""
FAILED = 6
"""Exit code: of a worker that was to end so if a job failed."""
CRASHING = 9
"""Exit code: worker processes die before they look for jobs, again and again."""

_TICK_SECONDS = 0.05
_LOOK_SECONDS = 0.2  # how often deadlines are looked at
_OVERDUE_SECONDS = 0.5  # a process records its timeouts within 0.25 s; then it cannot
_MARGIN_SECONDS = 3.0  # for a process to end, beyond its own time to stop
_READY_SECONDS = 2.0  # after which one that has not said so again is not ready
_CRASHES = 5  # in a row
_AGAIN_SECONDS = 1.0  # until what may have been held is tried again
_DISOWN_SECONDS = 10.0  # how long a dead process may turn out to have held more
_FINAL = frozenset({2, 4, 5})  # exit codes of what a new process would meet, too
_LAST_WORDS_SECONDS = 5.0  # for what dead processes held to be given back, at the end


@dataclass(frozen=True)
class Options:
    """Lengths are seconds."""

    using: str
    processes: int
    shutdown_timeout: float
    stall_timeout: float  # without a pulse, until a process is killed
    drain: bool = False  # processes that end are not replaced
    patient: bool = False  # whoever edits their code will mend it: they are tried again every two seconds
    start_timeout: float = 60.0  # for a process to show its first sign of life


class Inherited(NamedTuple):
    """What a worker process has from its supervisor."""

    board: Board
    orders: int  # file descriptor
    number: int


def inherited() -> Inherited | None:
    """None in a process that has no supervisor. Once: what the process starts itself has none either."""
    if (words := os.environ.pop(CHILD, None)) is None:
        return None
    board, orders, number = (int(word) for word in words.split())
    os.set_inheritable(board, False)
    os.set_inheritable(orders, False)
    return Inherited(Board(board), orders, number)


class _Child:
    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.board = Board()
        orders, self._orders = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own command line
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                pass_fds=(self.board.fd, orders),
                env={**os.environ, **environment, CHILD: f"{self.board.fd} {orders} {number}"},
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(orders)
        self.pulse = 0.0
        self.silent = 0.0  # seconds without a pulse that the supervisor itself was awake for
        self.next_look = 0.0
        self.overdue: dict[tuple[int, int], float] = {}  # when to tell the clerk of which again

    def event(self, name: logs.Event, **facts: Any) -> dict[str, Any]:
        return logs.event(name, number=self.number, child_pid=self.process.pid, **facts)

    def tell(self, order: bytes) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            os.write(self._orders, order)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        os.close(self._orders)
        self.board.close()


class Supervisor:
    """``run`` returns the exit code; ``stop`` may be called by signal handlers."""

    def __init__(self, options: Options, command: Sequence[str], telemetry: Directory | None = None) -> None:
        self.options = options
        self._command = command
        self._telemetry = telemetry
        self._environment = {} if telemetry is None else {VARIABLE: str(telemetry.path)}
        self._children: dict[int, _Child] = {}  # by number
        self._due: dict[int, float] = dict.fromkeys(range(1, options.processes + 1), 0.0)  # when to start which
        self._signals: list[int] = []
        self._told = 0  # how many of these the processes know of
        self._is_quiet = False
        self._kill_at: float | None = None
        self._crashes: dict[int, int] = {}  # in a row, by number
        self._exit_code = CLEAN
        self._looked_at = time.monotonic()
        self._clerk = _Clerk(options.using)

    def stop(self, number: int) -> None:
        """Once: finish what runs. Twice: end now. More often: kill."""
        self._signals.append(number)

    def quiet(self) -> None:
        """No process claims anything more, nor one that takes the place of another."""
        self._is_quiet = True
        self._tell_all(QUIET)

    def report(self) -> None:
        """Each process logs what it is doing."""
        self._tell_all(REPORT)

    def health(self) -> Health:
        """From any thread. Ready: at least one of its processes is."""
        now = time.monotonic()
        looked = now - self._looked_at
        ready = sum(now - child.board.ready_at < _READY_SECONDS for child in list(self._children.values()))
        return Health(
            looked < LIVE_SECONDS,
            ready > 0 and not self._is_ending and not self._is_quiet,
            {"looked_seconds": round(looked, 3), "processes": len(self._children), "ready": ready},
        )

    def _tell_all(self, order: bytes) -> None:
        for child in list(self._children.values()):
            child.tell(order)

    def run(self) -> int:
        self._clerk.start()
        before = time.monotonic()
        while self._children or (self._due and not self._is_ending):
            now = time.monotonic()
            # Not longer: if it was the supervisor that stood still, nothing is wrong with its processes.
            awake, before = min(now - before, 4 * _TICK_SECONDS), now
            self._looked_at = now
            self._pass_on_signals(now)
            for child in list(self._children.values()):
                self._look_after(child, now, awake)
            if not self._is_ending:
                self._start_due(now)
            _reap_strangers({child.process.pid for child in self._children.values()})
            time.sleep(_TICK_SECONDS)
        self._clerk.finish(_LAST_WORDS_SECONDS)
        return 128 + self._signals[-1] if len(self._signals) > 1 else self._exit_code

    @property
    def _is_ending(self) -> bool:
        return self._kill_at is not None

    def _pass_on_signals(self, now: float) -> None:
        if len(self._signals) <= self._told:
            return
        self._told = len(self._signals)
        if self._told == 1:
            logger.info("stopping %d processes", len(self._children), extra=logs.event("worker.stopping"))
            self._end_all(now, self.options.shutdown_timeout + _MARGIN_SECONDS)
        elif self._told == 2:
            self._kill_at = now + _MARGIN_SECONDS
            self._tell_all(STOP_NOW)
        else:
            self._kill_at = now

    def _end_all(self, now: float, seconds: float) -> None:
        self._kill_at = now + seconds
        self._tell_all(STOP)

    def _start_due(self, now: float) -> None:
        for number, at in list(self._due.items()):
            if now < at:
                continue
            try:
                self._children[number] = _Child(number, self._command, self._environment)
            except OSError as error:
                logger.error(
                    "worker process %d cannot be started: %s", number, error, extra=logs.event("process.failing")
                )
                self._crashed(number, now)
            else:
                del self._due[number]
                if self._is_quiet:
                    self._children[number].tell(QUIET)
                child_pid = self._children[number].process.pid
                logger.info(
                    "worker process %d started: %d",
                    *(number, child_pid),
                    extra=logs.event("process.started", number=number, child_pid=child_pid),
                )

    # One process -----------------------------------------------------------------------------------------------

    def _look_after(self, child: _Child, now: float, awake: float) -> None:
        code = child.process.poll()
        if code is not None:
            self._bury(child, code, now)
            return
        pulse = child.board.pulse
        child.silent = 0.0 if pulse != child.pulse else child.silent + awake
        child.pulse = pulse
        if child.board.ready_at:
            self._crashes.pop(child.number, None)
        limit = self.options.stall_timeout if pulse else max(self.options.start_timeout, self.options.stall_timeout)
        if self._kill_at is not None and now >= self._kill_at:
            logger.error("worker process %d does not end: killed", child.number, extra=child.event("process.killed"))
            child.kill()
        elif child.silent > limit:
            logger.error(
                "worker process %d (%d) has not answered for %g s: killed",
                *(child.number, child.process.pid, limit),
                extra=child.event("process.killed"),
            )
            child.silent = 0.0
            child.kill()
        if now >= child.next_look:
            child.next_look = now + _LOOK_SECONDS
            self._look_at_deadlines(child, now)

    def _look_at_deadlines(self, child: _Child, now: float) -> None:
        overdue = [begun.pair for begun in child.board.begun() if begun.deadline + _OVERDUE_SECONDS < now]
        # Until it is in the row: somebody may have held that.
        told = [pair for pair in overdue if child.overdue.get(pair, 0.0) <= now]
        child.overdue = {pair: child.overdue.get(pair, 0.0) for pair in overdue}
        child.overdue.update(dict.fromkeys(told, now + _AGAIN_SECONDS))
        for start in range(0, len(told), transitions.BATCH):
            self._clerk.time_out(told[start : start + transitions.BATCH], child.board.worker_id, part=start)

    def _bury(self, child: _Child, code: int, now: float) -> None:
        del self._children[child.number]
        begun = [begun.pair for begun in child.board.begun()]
        if worker_id := child.board.worker_id:
            self._clerk.disown(worker_id, begun)
        # Ready is said after the first claim: what was begun before that was looked for, too.
        was_ready = child.board.ready_at > 0 or bool(begun)
        if was_ready:
            # It may have been so since the last look at it.
            self._crashes.pop(child.number, None)
        child.close()
        if self._telemetry is not None:
            self._telemetry.fold()
        level = logging.INFO if code == CLEAN else logging.WARNING
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        logger.log(
            level,
            "worker process %d (%d) %s; %d jobs begun",
            *(child.number, child.process.pid, how, len(begun)),
            extra=child.event("process.ended", exit_code=code, begun=len(begun)),
        )
        if self._is_ending:
            if code == RELEASED or begun:
                self._exit_code = self._exit_code or RELEASED
        elif code in _FINAL and not was_ready:
            self._exit_code = code
            self._end_all(now, self.options.shutdown_timeout + _MARGIN_SECONDS)
        elif self.options.drain and code in (CLEAN, FAILED):
            self._exit_code = self._exit_code or code
        else:
            self._due[child.number] = now
            if not was_ready and code != CLEAN:
                self._crashed(child.number, now)

    def _crashed(self, number: int, now: float) -> None:
        """It is tried again after a growing pause; when none of them can start any more, that is the end."""
        self._crashes[number] = crashes = self._crashes.get(number, 0) + 1
        self._due[number] = now + min(2.0 if self.options.patient else 30.0, 0.25 * 2.0 ** min(crashes, 10))
        if self.options.patient:
            return
        # Of those that are still to run: some may have drained.
        if all(self._crashes.get(other, 0) >= _CRASHES for other in (*self._children, *self._due)):
            logger.error(
                "no worker process gets as far as looking for jobs, after %d tries: giving up",
                crashes,
                extra=logs.event("process.failing"),
            )
            self._exit_code = CRASHING
            self._end_all(now, self.options.shutdown_timeout + _MARGIN_SECONDS)


@dataclass
class _Errand:
    name: tuple[object, ...]  # a later one of the same name takes its place
    act: Callable[[], None]
    not_before: float = 0.0
    until: float = 0.0  # done again each second till then


class _Clerk(threading.Thread):
    """Writes for those that cannot any more; a thread, so that a database that is away stops nobody."""

    def __init__(self, using: str) -> None:
        super().__init__(name="pgqueue clerk", daemon=True)
        self._using = using
        self._inbox: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._waiting: dict[tuple[object, ...], _Errand] = {}
        self._finishing = False
        self._grumbler = Grumbler("supervisor")
        self._backoff = Backoff()

    def disown(self, worker_id: str, begun: Sequence[tuple[int, int]]) -> None:
        """Again for some seconds: the server may still be carrying out what the process has sent, or hold its rows."""
        until = time.monotonic() + _DISOWN_SECONDS
        self._inbox.put(_Errand(("disown", worker_id), lambda: self._disown(worker_id, begun), until=until))

    def time_out(self, pairs: Sequence[tuple[int, int]], worker_id: str, *, part: int) -> None:
        self._inbox.put(_Errand(("time out", worker_id, part), lambda: self._time_out(pairs, worker_id)))

    def finish(self, seconds: float) -> None:
        """Each errand once more, if the database is there."""
        self._inbox.put(None)
        self.join(seconds)

    def run(self) -> None:
        with own_connection(self._using, "supervisor"):
            while self._waiting or not self._finishing:
                self._listen()
                for errand in list(self._waiting.values()):
                    if errand.not_before <= time.monotonic() or self._finishing:
                        self._run(errand)
                if not self._waiting:
                    # It may be days until the next one.
                    drop(self._using)

    def _listen(self) -> None:
        timeout = None
        if self._waiting:
            first = min(errand.not_before for errand in self._waiting.values())
            timeout = _TICK_SECONDS if self._finishing else max(0.0, first - time.monotonic())
        try:
            while True:
                errand = self._inbox.get(timeout=timeout)
                if errand is None:
                    self._finishing = True
                else:
                    self._waiting[errand.name] = errand
                timeout = 0.0
        except queue.Empty:
            pass

    def _run(self, errand: _Errand) -> None:
        try:
            errand.act()
        except Exception as error:  # whatever it is: this thread has others to write for
            self._grumbler.failed(error)
            drop(self._using)
            if is_broken(error) or may_pass(error):
                now = time.monotonic()  # it may have failed after ten seconds
                errand.not_before = now + self._backoff.failed()
                errand.until = max(errand.until, now + _AGAIN_SECONDS)
                return
            # Somebody's trigger refuses it: their leases end these jobs.
        else:
            self._backoff.worked()
            self._grumbler.worked()
        now = time.monotonic()
        if now < errand.until and not self._finishing:
            errand.not_before = now + _AGAIN_SECONDS
        else:
            del self._waiting[errand.name]

    def _disown(self, worker_id: str, begun: Sequence[tuple[int, int]]) -> None:
        while transitions.disown(self._using, worker_id, begun=begun, by=worker_id):
            pass
        with connections[self._using].cursor() as cursor:
            cursor.execute("DELETE FROM pgqueue_worker WHERE id = %s", [worker_id])

    def _time_out(self, pairs: Sequence[tuple[int, int]], worker_id: str) -> None:
        moved = transitions.reap(self._using, overdue=pairs, by=worker_id)
        if moved:
            logger.warning(
                "worker %s: %d attempts ran longer than their timeout; recorded for it",
                *(worker_id, moved),
                extra=logs.event("worker.trouble", worker=worker_id),
            )


def _reap_strangers(own: set[int]) -> None:
    """As process 1 of a container, take in the orphans that handlers have left: nobody else does."""
    if os.getpid() != 1:
        return
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
