"""``--probe-file`` and ``--probe-port``: what a container platform is told of a worker."""

from __future__ import annotations

import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from pgqueue_django.worker import loop, probe, server
from tests.machine import handlers

from .workers import REAL_DATABASE, Process, Running, notes, wait_for

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Worker = Callable[..., Running]
Gate = Callable[[], Any]


def port_of(started: Process) -> int:
    found: re.Match[str] = wait_for(lambda: re.search(r"/ready on port (\d+)", started.log), 20)
    return int(found[1])


def ask(port: int, path: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = answer.read()
            assert bool(body) == (method == "GET")
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


# -- by HTTP ---------------------------------------------------------------------------------------------------


def test_a_worker_is_live_and_ready_until_it_is_told_to_be_quiet(process: Start) -> None:
    started = process("--probe-port", "127.0.0.1:0").wait_until_ready()
    port = port_of(started)
    wait_for(lambda: ask(port, "/ready") == 200)
    assert ask(port, "/live") == ask(port, "/live", "HEAD") == 200
    assert ask(port, "/") == ask(port, "/metrics") == 404
    started.signal(signal.SIGUSR1)
    wait_for(lambda: ask(port, "/ready") == 503)
    assert ask(port, "/live") == 200
    assert started.stop() == 0


def test_a_worker_without_a_database_is_live_and_not_ready(process: Start) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"postgresql://nobody@127.0.0.1:{reserved.getsockname()[1]}/nothing"
        started = process("--probe-port", "0", environment={"DATABASE_URL": url})
        port = port_of(started)
        wait_for(lambda: "trying again" in started.log)
        assert (ask(port, "/live"), ask(port, "/ready")) == (200, 503)
        assert started.stop() == 0


def test_who_is_slow_keeps_no_probe_from_its_answer(process: Start) -> None:
    """Not even one that says a little now and then, for whom the limit of each read never comes."""
    started = process("--probe-port", "127.0.0.1:0").wait_until_ready()
    port = port_of(started)
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    for _ in range(10):
        for one in slow:
            with suppress(OSError):
                one.sendall(b"x")
        assert status(port) == 200
    # Who came first was hung up on, so there are never more: long before the limit of a read.
    for one in slow[: len(slow) - server._REQUESTS]:
        one.settimeout(server._REQUEST_SECONDS / 2)
        with suppress(ConnectionResetError):
            assert one.recv(1) == b""
    for one in slow:
        one.close()
    assert started.stop() == 0


def status(port: int) -> int:
    try:
        return ask(port, "/live")
    except OSError:
        return 0


def test_a_supervisor_answers_for_its_processes(process: Start) -> None:
    started = process("--processes", "1", "--probe-port", "127.0.0.1:0", "--stall-timeout", "60")
    port = port_of(started)
    wait_for(lambda: ask(port, "/ready") == 200, 20)
    import psutil

    (child,) = psutil.Process(started.pid).children()
    child.suspend()
    wait_for(lambda: ask(port, "/ready") == 503)
    assert ask(port, "/live") == 200
    child.resume()
    wait_for(lambda: ask(port, "/ready") == 200)
    assert started.stop() == 0


# -- by a file -------------------------------------------------------------------------------------------------


def test_the_file_says_whether_it_is_ready_and_grows_old_when_it_lives_no_more(process: Start, tmp_path: Path) -> None:
    path = tmp_path / "probe"
    started = process("--probe-file", str(path))
    wait_for(lambda: path.exists() and path.read_text() == "ready\n", 20)
    first = path.stat().st_mtime
    wait_for(lambda: path.stat().st_mtime > first)
    started.signal(signal.SIGSTOP)
    wait_for(lambda: age(path) > 2 * probe._TOUCH_SECONDS)
    started.signal(signal.SIGCONT)
    wait_for(lambda: age(path) < probe._TOUCH_SECONDS)
    started.signal(signal.SIGUSR1)
    wait_for(lambda: path.read_text() == "not ready\n")
    assert started.stop() == 0
    assert [one.name for one in tmp_path.iterdir() if "probe" in one.name] == ["probe"]


# -- what is live, and what is ready ---------------------------------------------------------------------------


def test_a_loop_that_is_stuck_is_not_live(worker: Worker, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LIVE_SECONDS", 0.3)
    door = gate()
    running = worker()
    wait_for(lambda: running.loop.health().is_ready)
    monkeypatch.setattr(running.loop, "_describe", lambda: handlers.wait_deaf_at(str(door)) or "")
    running.loop.report()
    wait_for(lambda: not running.loop.health().is_live)
    door.open()
    wait_for(lambda: running.loop.health().is_live)


def test_a_loop_that_connects_for_long_is_not_stuck(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hosts that swallow what is sent to them take longer than a loop may, and so does one name server."""
    monkeypatch.setattr(loop, "LIVE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as hole:
        there = {"HOST": "127.0.0.1", "PORT": hole.getsockname()[1], "OPTIONS": {"connect_timeout": 60}}
        monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **there})
        running = worker()
        wait_for(lambda: running.loop.health().facts["turn_seconds"] > 0.5)
        assert running.loop.health().is_live
    running.stop()


def test_a_worker_whose_slots_are_all_taken_is_ready_however_long_ago_it_looked(worker: Worker, gate: Gate) -> None:
    door = gate()
    handlers.write_and_wait.enqueue(str(door))
    running = worker(concurrency=1)
    wait_for(lambda: notes("begun"))
    running.loop._looked_at = time.monotonic() - 3600
    assert running.loop.health().is_ready
    door.open()
    # Free again, it looks at once.
    wait_for(lambda: running.loop.health().facts["looked_seconds"] < 60)


def test_a_worker_whose_last_look_is_long_ago_is_not_ready(worker: Worker) -> None:
    running = worker(poll_interval=60)
    wait_for(lambda: running.loop.health().is_ready)
    running.loop._looked_at = time.monotonic() - 60 - loop._LOOKED_SECONDS - 1
    assert not running.loop.health().is_ready


# -- wrong options ---------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_ends_it_with_2(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--probe-file: .*No such file") as raised:
        call_command("pgqueue_worker", "--drain", "--probe-file", str(tmp_path / "no" / "where"))
    assert raised.value.returncode == 2


def test_a_port_that_is_taken_ends_it_with_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"--probe-port 127.0.0.1:{port}: .*in use") as raised:
            call_command("pgqueue_worker", "--drain", "--probe-port", f"127.0.0.1:{port}")
    assert raised.value.returncode == 2
