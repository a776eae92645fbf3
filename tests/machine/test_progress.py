"""What a drain says of how far it has come."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from django.core.management import call_command

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED
from pgqueue_django.worker import progress
from tests.machine import handlers

from .workers import REAL_DATABASE, ROOT, database_url

pytestmark = REAL_DATABASE
Log = Callable[..., list[str]]


def test_elsewhere_it_is_a_line_from_time_to_time_and_one_at_the_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.05)
    monkeypatch.setattr(progress, "MOST", 20)
    enqueue_many(handlers.sleep.call(0.05) for _ in range(30))
    enqueue_many([handlers.fail_always.using(max_attempts=1).call()])
    call_command("pgqueue_worker", "--drain", "--no-listen", "--concurrency", "1")
    lines = log("draining: ")
    assert "more than 20 due" in lines[0]
    left = [int(found[1]) for line in lines if (found := re.search(r"; (\d+) due", line))]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 20
    (last,) = log("drained: ")
    assert re.search(r"drained: 1 dead, 30 succeeded in \d+\.\d s, \d+/s$", last)


def drain_at_a_terminal() -> tuple[subprocess.Popen[bytes], int]:
    """The worker, and the end of the terminal that a person would sit at."""
    terminal, ours = pty.openpty()
    worker = subprocess.Popen(
        [sys.executable, "-m", "testproject.manage", "pgqueue_worker", "--drain", "--concurrency", "2"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=ours,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.machine.settings",
            "DATABASE_URL": database_url(),
            "MACHINE_SETTINGS": '{"LOGGING": {}, "DEBUG": true}',
        },
    )
    os.close(ours)
    return worker, terminal


def test_a_terminal_that_is_closed_stops_no_drain() -> None:
    enqueue_many(handlers.sleep.call(0.05) for _ in range(100))
    enqueue_many(handlers.fail_always.using(max_attempts=1).call() for _ in range(10))
    worker, terminal = drain_at_a_terminal()
    os.read(terminal, 1)
    os.close(terminal)
    assert worker.wait(60) == 0
    assert not Job.objects.exclude(state__in=FINISHED).exists()


def test_at_a_terminal_one_line_is_rewritten_and_what_matters_stands_above_it() -> None:
    enqueue_many(handlers.sleep.call(0.05) for _ in range(60))
    handlers.fail_always.using(max_attempts=1).enqueue()
    worker, terminal = drain_at_a_terminal()
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    text = shown.decode()
    assert worker.wait(20) == 0
    assert re.search(r"\r\x1b\[Kdraining: [^\n]*\d+ succeeded in [^\n]* due\r\x1b\[K", text)
    assert "job.dead" in text
    assert "job.succeeded" not in text
    assert re.search(r"drained: 1 dead, 60 succeeded in \d+\.\d s, \d+/s\r\n$", text)
