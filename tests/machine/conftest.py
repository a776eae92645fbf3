"""Fixtures of this folder: workers that are always ended, the table that handlers write to, gates, the log."""

from __future__ import annotations

import gc
import logging
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from .workers import Process, Running, our_threads, wait_for


@pytest.fixture(autouse=True)
def machine_note(transactional_db: None) -> None:
    """A table of the handlers' own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS machine_note (id bigserial PRIMARY KEY, job_id bigint, event text NOT NULL, "
            "at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        cursor.execute("TRUNCATE machine_note")


@pytest.fixture
def worker(machine_note: None) -> Iterator[Callable[..., Running]]:
    """``worker(concurrency=2, ...)`` starts a loop in a thread; ended after the test, however it went."""
    started: list[Running] = []

    def start(**options: Any) -> Running:
        started.append(Running(**options))
        return started[-1]

    yield start
    for running in started:
        if running.is_alive:
            running.loop.stop(signal.SIGTERM)
    for running in started:
        if running.is_alive:
            running.loop.stop(signal.SIGTERM)
            running.join()
    try:
        wait_for(lambda: not our_threads(), 10)
    except AssertionError:
        pytest.fail(f"left behind: {our_threads()}")
    # What a thread that is gone has left open is closed when it is collected, and later tests count sessions.
    gc.collect()


@pytest.fixture
def drain(worker: Callable[..., Running]) -> Callable[..., Running]:
    """``drain(...)`` runs a worker until nothing is due, and returns it."""

    def run(*, timeout: float = 15.0, **options: Any) -> Running:
        running = worker(drain=True, **options)
        assert running.join(timeout) == 0
        return running

    return run


@pytest.fixture
def process(machine_note: None, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """``process("--concurrency", "2", settings={...}, environment={...})`` starts a worker process."""
    started: list[Process] = []

    def start(
        *arguments: str,
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        started_by: Sequence[str] | str = (),
    ) -> Process:
        log_file = tmp_path / f"worker-{len(started)}.log"
        options: dict[str, Any] = {"settings": settings or {}, "environment": environment or {}}
        started.append(Process(log_file, *arguments, **options, started_by=started_by))
        return started[-1]

    yield start
    for one in started:
        if one.exit_code is None:
            one.signal(signal.SIGCONT)
        one.kill_group()
        print(f"--- log of worker process {one.pid}, exit code {one.exit_code}\n{one.log[-4000:]}")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """``log("uncharged")``: the lines of the workers in this process that hold a text, or ``log(job)``: a job's."""
    caplog.set_level(logging.INFO, logger="pgqueue_django")

    def lines(about: Any = "") -> list[str]:
        pattern = re.escape(about) if isinstance(about, str) else rf"#{about.id}\b"
        messages = [record.getMessage() for record in caplog.records if record.name.startswith("pgqueue_django")]
        return [message for message in messages if re.search(pattern, message)]

    return lines


class Gate:
    """A door of a handler: ``handlers.wait_at(str(gate))`` returns once it is open, in whatever process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> None:
        self._path.touch()


@pytest.fixture
def gate(tmp_path: Path, worker: object, process: object) -> Iterator[Callable[[], Gate]]:
    """``gate()`` makes a closed one. All are open before the workers are ended, so that no handler stays behind."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.open()
