"""`python -m testproject.demo`: the shop in business, with a worker killed now and then.

Starts the outside world, the web server and the workers, lets customers order through the pages, and shows what
the queue holds. `--seconds N` closes the shop after N seconds, lets the queue settle and checks the books: every
order that was acknowledged or committed has all its jobs, and every job is finished, waiting for its time, or on
its way. Ctrl-C closes the shop at once and checks the same.

Exit code: 0 when the books are right, 1 when they are not, 2 when the demo cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import django

from testproject import knobs
from testproject.customers import Crowd, Ledger
from testproject.outside import Mood
from testproject.processes import CHECKOUT, Child

if TYPE_CHECKING:
    from testproject.books import Account, Mark

STATES = ("scheduled", "queued", "running", "retrying", "succeeded", "failed", "dead", "cancelled")

WORKER_SECONDS = 10
"""How long a worker that is told to stop may finish what it runs."""


@dataclass(frozen=True)
class Limits:
    """What the demo does at most. Times are seconds; 0 turns off what happens EVERY so often."""

    PORT: int = 8000
    WORKERS: int = 2
    CONCURRENCY: int = 16
    LEASE: float = 4.0
    CUSTOMERS: int = 3
    RATE: float = 8.0
    """Orders per second, of all customers together."""
    BACKLOG: int = 300
    """Customers wait outside while more jobs than this are due, until half of them are done."""
    BURST: int = 100
    """Recipients of a newsletter."""
    BURST_EVERY: float = 9.0
    EXPORT_EVERY: float = 4.0
    KILL_EVERY: float = 6.0
    PAUSE_EVERY: float = 7.0
    """The letters are held back for two seconds."""
    GRACE: float = 45.0
    """How long the queue may take to settle at the end."""


class CannotRun(Exception):
    """The demo cannot start or go on; the message is for the person who started it."""


class Demo:
    """One run. `closing` is set when it is to end."""

    def __init__(self, limits: Limits, closing: threading.Event) -> None:
        self.limits = limits
        self.closing = closing
        self.address = f"127.0.0.1:{limits.PORT}"
        self.root = f"http://{self.address}"
        self.logs = CHECKOUT / ".demo" / str(limits.PORT)
        self.ledger = Ledger()
        self.killed = 0
        self.paused = 0
        self.began = time.monotonic()
        self.problems: list[str] = []
        self._screen = Screen()
        self._workers: list[Child] = []
        self._started = 0
        self._environ: dict[str, str] = {}

    def run(self, seconds: float | None) -> Account:
        """Open the shop, for so many seconds or until `closing` is set; then `problems` says what was wrong.

        Raises CannotRun.
        """
        from testproject import timetable
        from testproject.books import Mark, balance, problems

        limits = self.limits
        self._prepare_database(password := os.environ.get("DEMO_ADMIN_PASSWORD") or secrets.token_urlsafe(9))
        mark = Mark.now()
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        with contextlib.ExitStack() as children:
            outside = children.enter_context(self._child("outside", "testproject.outside", *_ANY_PORTS))
            ports = json.loads(self._wait_for(outside, lambda: outside.log.read_text().strip()))
            outside_url = f"http://127.0.0.1:{ports['http']}"
            self._environ |= {"SHOP_OUTSIDE_URL": outside_url, "SHOP_SMTP_PORT": str(ports["smtp"])}
            web = children.enter_context(self._child("web", *_MANAGE, "runserver", self.address, *_PLAIN_SERVER))
            self._wait_for(web, lambda: _answers(self.root))
            children.callback(self._kill_workers)
            self._workers = [self._worker() for _ in range(limits.WORKERS)]
            for worker in self._workers:
                self._wait_for(worker, self._workers_registered)
            self._screen.say(
                f"Shop {self.root}/   admin {self.root}/admin/ (admin / {password})   status {self.root}/status/"
            )
            self._screen.say(f"Metrics {self.root}/pgqueue/metrics")
            self._screen.say(f"Logs in {self.logs}. {'' if seconds else 'Ctrl-C closes the shop.'}")

            self._trade(mark, password, seconds, [outside, web])
            if seconds and not self.closing.is_set():
                self._settle(mark, [outside, web])
            self.problems += problems(mark, self.ledger)
            if seconds and seconds > timetable.LONGEST_SECONDS:
                self.problems += timetable.problems()
            self._stop_workers()
            seen = json.loads(_get(f"{outside_url}/summary"))
            for child in (web, outside):
                child.terminate()
                child.join(5)
        account = balance(mark)
        if account.jobs_found != account.jobs_expected:
            self.problems.append(f"{account.jobs_expected} jobs were enqueued, {account.jobs_found} are there")
        self._report(account, seen)
        return account

    # Opening --------------------------------------------------------------------------------------------------

    def _prepare_database(self, password: str) -> None:
        from django.core.management import call_command
        from django.db import DatabaseError

        from testproject.shop import seed

        try:
            call_command("migrate", verbosity=0)
        except DatabaseError as error:
            raise CannotRun(f"The database cannot be used: {error}".strip()) from None
        seed.products()
        seed.admin(password)

    def _child(self, name: str, *command: str) -> Child:
        return Child(name, *command, log=self.logs / f"{name}.log", environ=self._environ)

    def _worker(self) -> Child:
        self._started += 1
        # The rows of workers that an earlier run killed are still there: no name twice.
        name = f"demo{os.getpid()}-{self._started}"
        options = {
            "name": name,
            "concurrency": self.limits.CONCURRENCY,
            "lease": self.limits.LEASE,
            "shutdown-timeout": WORKER_SECONDS,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        return self._child(name, *_MANAGE, "pgqueue_worker", *words)

    def _wait_for(self, child: Child, condition: Callable[[], Any]) -> Any:
        """The first true value of `condition`. Raises CannotRun when the child ends before, or after 30 seconds."""
        deadline = time.monotonic() + 30
        while not (value := condition()):
            if child.exit_code is not None or time.monotonic() > deadline:
                raise CannotRun(f"{child.name} did not start:\n{child.last_words()}")
            if self.closing.wait(0.05):
                raise CannotRun("Stopped before the shop was open.")
        return value

    def _workers_registered(self) -> bool:
        from testproject.books import registered

        return registered([worker.name for worker in self._workers]) >= len(self._workers)

    # Business -------------------------------------------------------------------------------------------------

    def _trade(self, mark: Mark, password: str, seconds: float | None, needed: list[Child]) -> None:
        """Let the crowd in, kill workers, hold the crowd back when the queue is long; at the end send it home."""
        from testproject import timetable

        limits = self.limits
        self.began = time.monotonic()
        open_, closed = threading.Event(), threading.Event()
        open_.set()
        crowd = Crowd(self.root, self.ledger, open_, closed)
        people = [
            crowd.customer(pause=limits.CUSTOMERS / limits.RATE, seed=number) for number in range(limits.CUSTOMERS)
        ]
        if limits.BURST_EVERY:
            people.append(crowd.clerk(password, action="campaigns", every=limits.BURST_EVERY, recipients=limits.BURST))
        if limits.EXPORT_EVERY:
            people.append(crowd.clerk(password, action="exports", every=limits.EXPORT_EVERY))
        next_kill, next_pause = self.began + limits.KILL_EVERY, self.began + limits.PAUSE_EVERY
        timetable.open_()
        try:
            for counts in self._watch(mark, needed):
                if seconds and time.monotonic() > self.began + seconds:
                    break
                due = counts["queued"] + counts["running"]
                if due > limits.BACKLOG:
                    open_.clear()
                elif due <= limits.BACKLOG / 2:
                    open_.set()
                if self._workers and limits.KILL_EVERY and time.monotonic() > next_kill and self._kill_a_busy_worker():
                    next_kill = time.monotonic() + limits.KILL_EVERY
                if limits.PAUSE_EVERY and time.monotonic() > next_pause:
                    timetable.pause()
                    self.paused += 1
                    next_pause = time.monotonic() + limits.PAUSE_EVERY
        finally:
            timetable.close()
            closed.set()
            for person in people:
                person.join()  # every request that is on its way is answered, and so in the ledger

    def _settle(self, mark: Mark, needed: list[Child]) -> None:
        """Wait until nothing moves but what is due much later."""
        from testproject.books import moving

        deadline = time.monotonic() + self.limits.GRACE
        for _ in self._watch(mark, needed):
            left = deadline - time.monotonic()
            if not (count := moving(mark, max(left, 0))):
                return
            if left <= 0:
                self.problems.append(f"{count} jobs had not settled {self.limits.GRACE:g} s after the shop closed")
                return

    def _watch(self, mark: Mark, needed: list[Child]) -> Iterator[Counter[str]]:
        """The number of jobs by state, some times a second, and on the screen, until `closing` is set."""
        from testproject import books

        pause = 0.0
        while not self.closing.wait(pause):
            asked = time.monotonic()
            counts = books.states(mark)
            # Counting a long run takes long: it may cost the database a twentieth of its time at most.
            pause = max(0.25, 20 * (time.monotonic() - asked))
            self._screen.show(
                f"{asked - self.began:.0f} s  orders {len(self.ledger.orders)}"
                f"  newsletters {len(self.ledger.campaigns)}  workers killed {self.killed}",
                *("  ".join(f"{state} {counts[state]}" for state in states) for states in (STATES[:4], STATES[4:])),
            )
            for child in needed:
                if child.exit_code is not None:
                    raise CannotRun(f"{child.name} ended by itself:\n{child.last_words()}")
            self._replace_ended_workers()
            yield counts

    def _kill_a_busy_worker(self) -> bool:
        """SIGKILL to the worker that has run the longest, in the middle of its work; False when it has none."""
        from testproject.books import running_on

        victim = self._workers[0]
        if not running_on(victim.name):
            return False
        victim.kill()
        self.killed += 1
        self._workers = [*self._workers[1:], self._worker()]
        return True

    def _replace_ended_workers(self) -> None:
        for worker in self._workers:
            if worker.exit_code is not None:
                self.problems.append(
                    f"worker {worker.name} ended by itself ({worker.exit_code}): {worker.last_words(1)}"
                )
                if len(self.problems) > 5:
                    raise CannotRun(f"Workers do not stay up:\n{worker.last_words()}")
                self._workers[self._workers.index(worker)] = self._worker()

    # Closing --------------------------------------------------------------------------------------------------

    def _stop_workers(self) -> None:
        """All at once. None may keep a job when it is gone."""
        from testproject.books import running_on

        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            code = worker.join(2 * WORKER_SECONDS)
            # 7: it gave back what it could not finish in its time. One that was just starting has said nothing yet: it
            # takes no signals, and has no jobs either.
            was_starting = code == -signal.SIGTERM and not worker.last_words()
            if code not in (0, 7) and not was_starting:
                self.problems.append(f"worker {worker.name} stopped with exit code {code}: {worker.last_words(3)}")
            if count := running_on(worker.name):
                self.problems.append(f"worker {worker.name} is gone and still holds {count} jobs")

    def _kill_workers(self) -> None:
        for worker in self._workers:
            if worker.exit_code is None:
                worker.kill()

    def _report(self, account: Account, outside: dict[str, int]) -> None:
        pickup = (
            f"p50 {account.pickup_ms_p50:g} ms, p95 {account.pickup_ms_p95:g} ms"
            if account.pickup_ms_p50 is not None
            else "nothing was picked up"
        )
        table = [
            ("orders", f"{len(self.ledger.orders)} acknowledged, {account.orders} committed"),
            ("newsletters, exports", f"{len(self.ledger.campaigns)}, {len(self.ledger.exports)} acknowledged"),
            ("ticks of schedules", str(account.ticks)),
            ("pauses of a queue", str(self.paused)),
            ("jobs", f"{account.jobs_expected} expected, {account.jobs_found} found"),
            *((f"  {state}", str(account.states.get(state, 0))) for state in STATES),
            ("retries", str(account.retries)),
            ("workers killed", str(self.killed)),
            ("recovered after kills", f"{account.recovered} of {account.leases_expired} jobs"),
            ("pickup", pickup),
            *(sorted(outside.items())),
        ]
        width = max(len(name) for name, _ in table)
        for name, value in table:
            self._screen.say(f"{name:<{width}}  {value}")
        for problem in self.problems:
            self._screen.say(f"PROBLEM: {problem}")
        if not self.problems:
            self._screen.say("The books are right: no order lost a job, and every job is accounted for.")


class Screen:
    """Standard output: on a terminal the newest lines are rewritten, elsewhere they come every five seconds."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._height = 0
        self._shown = -5.0

    def show(self, *lines: str) -> None:
        """The newest state of things, in place of the one before."""
        if self._live:
            self._take_back()
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
            print("\n".join(line[:width] for line in lines), end="", flush=True)
            self._height = len(lines)
        elif time.monotonic() - self._shown >= 5:
            self._shown = time.monotonic()
            print("  ".join(lines), flush=True)

    def say(self, line: str) -> None:
        """Something that stays."""
        self._take_back()
        print(line, flush=True)

    def _take_back(self) -> None:
        if self._height:
            up = f"\x1b[{self._height - 1}A" if self._height > 1 else ""
            print(f"\r{up}\x1b[J", end="")
            self._height = 0


_MANAGE = ("testproject.manage",)
_ANY_PORTS = ("--http-port", "0", "--smtp-port", "0")
_PLAIN_SERVER = ("--noreload", "--insecure", "--skip-checks")


def _get(url: str) -> str:
    with urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def _answers(url: str) -> bool:
    try:
        _get(url)
    except OSError:
        return False
    return True


def _check_port(port: int) -> None:
    """Raises CannotRun when something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotRun(
                f"Port {port} of 127.0.0.1 cannot be used ({error.strerror}). "
                f"Choose another one: make demo DEMO_PORT={port + 1}"
            ) from None


def _closing_on_signals() -> threading.Event:
    """Set by the first SIGINT, SIGTERM or SIGHUP; the second one raises KeyboardInterrupt."""
    closing = threading.Event()

    def close(number: int, frame: FrameType | None) -> None:
        if closing.is_set():
            raise KeyboardInterrupt
        closing.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, close)
    return closing


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testproject.demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog=f"Environment, with defaults:\n{knobs.table(Limits)}\n{knobs.table(Mood)}",
    )
    parser.add_argument("--seconds", type=float, help="close the shop after so many seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the books to this file")
    arguments = parser.parse_args()
    closing = _closing_on_signals()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    try:
        limits, _ = knobs.read(Limits, os.environ), knobs.read(Mood, os.environ)
        _check_port(limits.PORT)
        _choose_database()
        django.setup()
        demo = Demo(limits, closing)
        account = demo.run(arguments.seconds)
    except (CannotRun, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped at once; nothing was checked.", file=sys.stderr)
        return 130
    if arguments.json:
        books = {
            "orders_acknowledged": len(demo.ledger.orders),
            "workers_killed": demo.killed,
            "problems": demo.problems,
            **asdict(account),
        }
        arguments.json.write_text(json.dumps(books, indent=2))
    return 1 if demo.problems else 0


def _choose_database() -> None:
    """DATABASE_URL, or `demo` on the embedded server; the children are told through the environment."""
    if os.environ.get("DATABASE_URL"):
        return
    from testproject import localdb

    try:
        os.environ["DATABASE_URL"] = localdb.url("demo")
    except localdb.LocalDatabaseError as error:
        raise CannotRun(str(error)) from None
    print("Embedded PostgreSQL; it goes on running. To stop it: python -m testproject.localdb stop", flush=True)


if __name__ == "__main__":
    sys.exit(main())
