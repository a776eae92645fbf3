"""The processes of a test: workers and producers, each ``python -m ...`` with a log file, and one database.

Owns every process that it starts and ends them all. Waiting is polling with a deadline, never a sleep that hopes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from pgqueue_django.states import FINISHED
from testproject import ledger
from testproject.ledger import Ack, History, Kill
from testproject.processes import CHECKOUT, Child

T = TypeVar("T")
_POLL_SECONDS = 0.02


def until(what: str, condition: Callable[[], T], seconds: float = 30.0) -> T:
    """Poll until ``condition`` gives something true; an AssertionError that says ``what`` after the deadline.

    A database that does not answer counts as not yet.
    """
    deadline = time.monotonic() + seconds
    while True:
        trouble: object = ""
        try:
            if found := condition():
                return found
        except psycopg.Error as error:
            trouble = f" ({error})"
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}{trouble}"
        time.sleep(_POLL_SECONDS)


class Worker(Child):
    """One ``manage.py pgqueue_worker``."""

    @property
    def pid(self) -> int:
        return self.process.pid


class Producer:
    """One ``chaos.producer``, with its ledger in ``<path>.acks`` and its log in ``<path>.log``."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        with path.with_suffix(".log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.producer", str(path.with_suffix(".acks"))],
                cwd=CHECKOUT,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, order: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Fleet:
    """Workers and a producer on the database at ``url``; ``kills`` is the ledger of those that we killed."""

    def __init__(self, url: str, directory: Path, seed: int = 0) -> None:
        self.url = url
        self.directory = directory
        self.dice = random.Random(seed)
        self.workers: list[Worker] = []
        self.kills: list[Kill] = []
        self._hired = 0
        self._orders = 0
        self._ordered = 0
        self._producers: dict[str, Producer] = {}
        self._watch: psycopg.Connection[Any] | None = None

    # Processes -------------------------------------------------------------------------------------------------

    def hire(self, *options: str, url: str | None = None, ready: bool = True) -> Worker:
        """Start a worker, by default on the database of the fleet; ``ready``: wait until it has registered."""
        self._hired += 1
        name = f"w{self._hired}"
        log = self.directory / f"{name}.log"
        command = ("testproject.manage", "pgqueue_worker", "--name", name, *options)
        worker = Worker(name, *command, log=log, environ=self._environ(url or self.url))
        self.workers.append(worker)
        if ready:
            self.wait_until_ready(worker)
        return worker

    def wait_until_ready(self, *workers: Worker) -> None:
        wanted = {worker.name for worker in workers or self.workers}
        until(f"workers {sorted(wanted)} are ready", lambda: wanted <= self.ready())

    def ready(self) -> set[str]:
        """Names of the workers that have registered, dead or alive."""
        return {name for (name,) in self.query("SELECT name FROM pgqueue_worker")}

    def kill(self, worker: Worker) -> Kill:
        """SIGKILL; recorded with a moment just before it."""
        killed = Kill(worker.name, worker.pid, datetime.now(UTC))
        worker.kill()
        self.kills.append(killed)
        self.workers.remove(worker)
        return killed

    def suspend(self, worker: Worker) -> None:
        """SIGSTOP; recorded like a kill, since its leases will end."""
        self.kills.append(Kill(worker.name, worker.pid, datetime.now(UTC)))
        os.kill(worker.pid, signal.SIGSTOP)

    def resume(self, worker: Worker) -> None:
        os.kill(worker.pid, signal.SIGCONT)

    def produce(
        self,
        count: int,
        *,
        task: str = "work",
        rate: float | None = None,
        milliseconds: tuple[int, int] = (10, 50),
        in_transaction: bool = False,
        url: str | None = None,
    ) -> None:
        """Order ``count`` jobs from the producer process of this ``url``; does not wait for them."""
        self._orders += 1
        self._ordered += count
        order = {
            "task": task,
            "count": count,
            "rate": rate,
            "milliseconds": milliseconds,
            "in_transaction": in_transaction,
            "prefix": f"order{self._orders}",
            "seed": self.dice.random(),
        }
        self._producer(url or self.url).send(order)

    def _producer(self, url: str) -> Producer:
        if url not in self._producers:
            self._producers[url] = Producer(self.directory / f"producer{len(self._producers) + 1}", self._environ(url))
        return self._producers[url]

    def _environ(self, url: str) -> dict[str, str]:
        return {
            "DATABASE_URL": url,
            "LEDGER_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "chaos.settings",
            "PYTHONPATH": str(CHECKOUT / "tests"),
        }

    def disband(self) -> None:
        """End whatever still runs."""
        for worker in self.workers:
            worker.kill()
        for producer in self._producers.values():
            producer.close()
        if self._watch is not None:
            self._watch.close()

    def logs(self) -> str:
        """The warnings of all processes, for the report of a failed test."""
        lines = []
        for log in sorted(self.directory.glob("*.log")):
            written = log.read_text(errors="replace").splitlines()
            lines += [f"{log.stem}: {line}" for line in written if " INFO " not in line]
        return "\n".join(lines[-80:])

    # What is so now --------------------------------------------------------------------------------------------

    def query(self, sql: str, params: Sequence[Any] | None = None) -> list[Any]:
        """The rows of a statement, on the observer's own session; after an error the next call opens a new one."""
        if self._watch is None:
            self._watch = ledger.connect(self.url)
        try:
            cursor = self._watch.execute(sql, params)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            self._watch.close()
            self._watch = None
            raise

    def acks(self) -> list[Ack]:
        return [ack for file in sorted(self.directory.glob("*.acks")) for ack in ledger.read_acks(file)]

    def unfinished(self) -> int:
        """Jobs that are not in a final state, and jobs ordered that are not acknowledged yet."""
        ((rows,),) = self.query(
            "SELECT count(*) FROM pgqueue_job WHERE state <> ALL(%s)", [[str(state) for state in FINISHED]]
        )
        return int(rows) + self._ordered - len(self.acks())

    def finished(self) -> int:
        return self._ordered - self.unfinished()

    def running(self, *workers: str) -> int:
        """Jobs in ``running``, of these workers or of all."""
        ((rows,),) = self.query(
            "SELECT count(*) FROM pgqueue_job WHERE state = 'running' "
            "AND (%s OR split_part(worker_id, ':', 1) = ANY(%s::text[]))",
            [not workers, list(workers)],
        )
        return int(rows)

    def sessions(self, role: str = "%") -> list[int]:
        """Backend pids of the workers' own sessions on this database."""
        rows = self.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
            [f"pgqueue {role}"],
        )
        return [pid for (pid,) in rows]

    # The end ---------------------------------------------------------------------------------------------------

    def wait_until_finished(self, seconds: float = 30.0) -> None:
        try:
            until("every job has ended", lambda: self.unfinished() == 0, seconds)
        except AssertionError as error:
            states = self.query("SELECT state, worker_id, count(*), min(id) FROM pgqueue_job GROUP BY 1, 2")
            raise AssertionError(f"{error}: {states}, {self._ordered} ordered\n{self.logs()}") from error

    def history(self) -> History:
        return ledger.read(self.url, self.acks(), self.kills)

    def settle_accounts(self) -> History:
        """The history, after the checker has found nothing wrong with it.

        Counters of atomic jobs ride in the next flush: what is not there yet gets a moment.
        """
        deadline = time.monotonic() + 5
        while True:
            history = self.history()
            wrong = ledger.check(history)
            if not wrong or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        assert not wrong, "\n".join([f"{len(wrong)} violations", *map(str, wrong[:20]), self.logs()])
        return history
