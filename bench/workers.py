"""Worker processes, started through their real command line, held at the gate and let go together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bench import meter
from bench.gate import Gate
from bench.lab import ROOT, wait_for

START_SECONDS = 120.0


class Workers:
    """``commands``, one process each. ``gated``: how many processes come to the gate; 0: none, they just start.

    ``sessions``: each has one of its own. Linux shares the cores between sessions first (autogroup): beside other work
    six workers in six sessions get six times what a supervisor with six processes gets, who all are in one.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        environment: Mapping[str, str],
        gated: int,
        cwd: Path = ROOT,
        sessions: bool = True,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pgqueue-bench-"))
        self._gate = Gate(self.directory)
        self._gated = gated
        self._cwd = cwd
        self._sessions = sessions
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        if gated:
            self._environment["BENCH_GATE"] = str(self._gate.path)
        self._started = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for command in commands:
            self.start(command)

    def start(self, command: Sequence[str]) -> None:
        """One more. After ``release`` it walks through the gate."""
        number, self._started = self._started, self._started + 1
        with (self.directory / f"log.{number}").open("wb") as log:
            self._processes[number] = subprocess.Popen(
                command,
                cwd=self._cwd,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=self._sessions,
                process_group=None if self._sessions else 0,
            )

    def kill(self, pid: int) -> bool:
        """SIGKILL to one that was started here, or below one; whether it is one fewer now."""
        os.kill(pid, signal.SIGKILL)
        for number, process in list(self._processes.items()):
            if process.pid == pid:
                process.wait()
                del self._processes[number]
                return True
        return False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def wait(self) -> None:
        """Until all of them are at the gate."""
        wait_for(self._are_there, START_SECONDS, "the workers did not start")

    def _are_there(self) -> bool:
        self.raise_if_ended()
        return self._gate.waiting() >= self._gated

    def raise_if_ended(self) -> None:
        for number, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended with {process.returncode}: {self.log(number)[-1500:]}")

    def release(self) -> None:
        self._gate.open()

    def log(self, number: int) -> str:
        return (self.directory / f"log.{number}").read_text(errors="replace")

    def stop(self, seconds: float = 8.0) -> None:
        """SIGTERM, and after ``seconds`` SIGKILL to each of them and what it has started."""
        family = meter.descendants(self.pids)
        processes = list(self._processes.values())
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(process.poll() is None for process in processes):
            time.sleep(0.02)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own group: nobody else is in it
            process.wait(10)
        for pid in family - {process.pid for process in processes}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        self._gate.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def command(*, slots: int, listen: bool = True, python: str = sys.executable, more: Sequence[str] = ()) -> list[str]:
    """``manage.py pgqueue_worker``, as a project runs it."""
    arguments = ["--concurrency", str(slots), *more]
    if not listen:
        arguments.append("--no-listen")
    return [python, "-m", "testproject.manage", "pgqueue_worker", *arguments]


def ours(
    processes: int, *, slots: int = 32, listen: bool = True, url: str, environment: Mapping[str, str] | None = None
) -> Workers:
    """So many of our workers, at the gate as soon as they have imported the tasks."""
    return Workers(
        [command(slots=slots, listen=listen)] * processes,
        environment={"DJANGO_SETTINGS_MODULE": "bench.settings", "DATABASE_URL": url, **(environment or {})},
        gated=processes,
    )


def claims(path: Path) -> dict[str, Any]:
    """What the workers noted of their claims (``BENCH_CLAIMS``): milliseconds, and jobs per claim."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    if not rows:
        return {}
    took = meter.percentiles(1000 * float(seconds) for seconds, _ in rows)
    return {
        "claims": len(rows),
        "claim_ms_p50": took["p50"],
        "claim_ms_p99": took["p99"],
        "jobs_per_claim": sum(int(count) for _, count in rows) / len(rows),
    }
