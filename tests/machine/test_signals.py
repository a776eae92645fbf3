"""A worker hears its signals whoever has started it: nobody as process 1 of a container, a shell, a thread."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from pgqueue_django import enqueue_many
from pgqueue_django.models import Worker
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import REAL_DATABASE, Process, Running, always, job, notes, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Gate = Callable[[], Any]


@pytest.fixture(scope="session")
def container() -> Sequence[str]:
    """What starts a command as process 1, with a /proc of its own."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, "--pid", "--fork", "--kill-child", "--mount-proc"]
        try:
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            break
    pytest.skip("this machine makes no process 1 for us (unshare)")


def process_1(started: Process) -> psutil.Process:
    """The worker in the container, as seen from outside, once its workers have registered."""
    wait_for(lambda: Worker.objects.exists() or started.exit_code is not None, 30)
    assert started.exit_code is None, started.log
    (inside,) = psutil.Process(started.pid).children()
    return inside


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["one process", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_1_of_a_container_stops_when_told(
    process: Start, container: Sequence[str], gate: Gate, arguments: Sequence[str], number: signal.Signals
) -> None:
    door = gate()
    running = handlers.write_and_wait.enqueue(str(door))
    started = process(*arguments, started_by=container)
    inside = process_1(started)
    wait_for(lambda: notes("begun"), 20)
    inside.send_signal(number)
    wait_for(lambda: "stopping" in started.log)
    door.open()
    assert started.wait() == 0
    assert (job(running).state, job(running).attempts) == (State.SUCCEEDED, 1)


def test_process_1_ends_at_once_at_a_second_signal(process: Start, container: Sequence[str], gate: Gate) -> None:
    door = gate()
    handlers.write_and_wait.enqueue(str(door))
    started = process(started_by=container)
    inside = process_1(started)
    wait_for(lambda: notes("begun"), 20)
    inside.send_signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in started.log)
    inside.send_signal(signal.SIGTERM)
    assert started.wait(10) == 143


def test_a_supervisor_that_is_process_1_takes_in_what_handlers_have_orphaned(
    process: Start, container: Sequence[str]
) -> None:
    started = process("--processes", "1", started_by=container)
    inside = process_1(started)
    wait_for_state(handlers.leave_orphans.enqueue(3), State.SUCCEEDED)

    def strangers() -> list[psutil.Process]:
        return [one for one in inside.children() if one.name() == "sleep"]

    # Those that have ended are zombies until somebody has asked for them.
    wait_for(lambda: not strangers())
    inside.send_signal(signal.SIGTERM)
    assert started.wait() == 0


def test_a_shell_that_hands_its_process_over_is_not_in_the_way(process: Start, gate: Gate) -> None:
    door = gate()
    running = handlers.write_and_wait.enqueue(str(door))
    started = process(started_by="exec {}").wait_until_ready()
    wait_for(lambda: notes("begun"), 20)
    started.signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in started.log)
    door.open()
    assert started.wait() == 0
    assert job(running).state == State.SUCCEEDED


def test_a_shell_in_between_does_not_pass_a_signal_on_but_the_group_hears_it(process: Start, gate: Gate) -> None:
    door = gate()
    running = handlers.write_and_wait.enqueue(str(door))
    started = process(started_by="{}; true")
    wait_for(lambda: notes("begun"), 20)
    (worker,) = psutil.Process(started.pid).children()
    started.signal(signal.SIGTERM)
    assert started.wait() == 143
    assert "stopping" not in started.log
    assert worker.is_running()
    started.signal_group(signal.SIGTERM)
    wait_for(lambda: "stopping" in started.log)
    door.open()
    wait_for(lambda: "ended: 1 succeeded" in started.log)
    assert (job(running).state, job(running).attempts) == (State.SUCCEEDED, 1)


def test_a_shell_that_is_process_1_and_stays_in_between_keeps_the_signal(
    process: Start, container: Sequence[str]
) -> None:
    started = process(started_by=[*container, "sh", "-c", '"$@"; true', "sh"])
    inside = process_1(started)
    (worker,) = inside.children()
    inside.send_signal(signal.SIGTERM)
    always(lambda: worker.is_running() and "stopping" not in started.log, lasting=1)
    worker.send_signal(signal.SIGTERM)
    assert started.wait() == 0


def test_control_c_lets_all_jobs_of_all_processes_finish_once(process: Start, gate: Gate) -> None:
    door = gate()
    started = process("--processes", "2", "--concurrency", "2")
    jobs = enqueue_many([handlers.write_and_wait.call(str(door))] * 4)
    wait_for(lambda: len(notes("begun")) == 4, 30)
    started.signal_group(signal.SIGINT)
    wait_for(lambda: "stopping 2 processes" in started.log and started.log.count("may finish") == 2)
    door.open()
    assert started.wait() == 0
    assert [(job(one).state, job(one).attempts) for one in jobs] == [(State.SUCCEEDED, 1)] * 4
    assert len(notes("ended")) == 4


def test_in_a_thread_it_takes_no_signal_and_ends_when_its_loop_is_told(
    worker: Callable[..., Running], gate: Gate
) -> None:
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.getsignal(number) for number in numbers]
    door = gate()
    running = worker(concurrency=1)
    enqueued = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    assert [signal.getsignal(number) for number in numbers] == before
    threading.Thread(target=running.loop.stop, args=[signal.SIGTERM]).start()
    wait_for(lambda: running.loop._is_ending)
    door.open()
    assert running.join() == 0
    assert job(enqueued).state == State.SUCCEEDED
