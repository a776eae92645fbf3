"""Worker processes under a supervisor: they die, hang and stop, and everything goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from pgqueue_django import Enqueued, enqueue_many, transitions
from pgqueue_django.models import Job, Worker
from pgqueue_django.outcomes import Succeeded
from pgqueue_django.states import State
from pgqueue_django.worker import loop as loop_module
from pgqueue_django.worker import supervisor
from pgqueue_django.worker.board import PLACES, Board
from pgqueue_django.worker.executor import Attempt, lease_clock
from pgqueue_django.worker.loop import Loop, Options
from pgqueue_django.worker.probe import Health
from pgqueue_django.worker.supervisor import Supervisor
from tests.machine import handlers

from .test_timeouts import seconds_to_the_record
from .workers import (
    GRACE,
    REAL_DATABASE,
    ROOT,
    Process,
    Running,
    always,
    failure,
    job,
    notes,
    seconds,
    sessions,
    wait_for,
    wait_for_state,
)

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Gate = Callable[[], Any]


class Fleet:
    """A supervisor and its worker processes."""

    def __init__(self, supervisor: Process, count: int) -> None:
        self.supervisor = supervisor
        self._count = count

    def pids(self) -> set[int]:
        alive = set()
        for one in psutil.Process(self.supervisor.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() != psutil.STATUS_ZOMBIE:
                    alive.add(one.pid)
        return alive

    def ready(self) -> set[int]:
        """Wait until all of them have registered; their pids."""

        def registered() -> set[int]:
            assert self.supervisor.exit_code is None, self.supervisor.log
            pids = self.pids()
            known = set(Worker.objects.filter(pid__in=pids).values_list("pid", flat=True))
            return pids if len(pids) == self._count and known == pids else set()

        return wait_for(registered, 30)

    def replaced(self, pid: int, timeout: float) -> None:
        """Wait until another process has been started for this one."""
        wait_for(lambda: pid not in self.pids() and len(self.pids()) == self._count, timeout)


@pytest.fixture
def fleet(process: Start) -> Callable[..., Fleet]:
    def start(count: int, *arguments: str, **options: Any) -> Fleet:
        words = ["--processes", str(count), "--poll-interval", "0.1", *arguments]
        return Fleet(process(*words, **options), count)

    return start


def test_what_a_dead_process_held_is_given_back_at_once_and_another_one_is_there(
    fleet: Callable[..., Fleet], gate: Gate
) -> None:
    door = gate()
    running = fleet(1, "--concurrency", "1", "--lease", "60")
    (pid,) = running.ready()
    begun = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    # And one that it has claimed and not begun: the reply to that claim was lost, so to speak.
    worker = Worker.objects.get(pid=pid)
    claimed_only = handlers.write_job.using(queue_name="ahead").enqueue()
    transitions.claim("default", queue_name="ahead", slots=1, worker_id=worker.id, lease_seconds=60)
    door.open()  # for its next attempt
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    running.replaced(pid, 1.5)
    assert wait_for_state(begun, State.SUCCEEDED, timeout=10).result == 2
    entry = job(begun).history[-1]
    assert (entry["kind"], entry["attempt"]) == ("worker_lost", 1)
    assert wait_for_state(claimed_only, State.SUCCEEDED, timeout=10).attempts == 1
    assert job(claimed_only).history == []
    assert not Worker.objects.filter(pid=pid).exists()
    assert running.supervisor.stop() == 0


@pytest.mark.parametrize(
    "kills", [10, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])], ids="{} kills".format
)
def test_processes_that_are_killed_one_after_another_are_all_replaced(fleet: Callable[..., Fleet], kills: int) -> None:
    """Those that hold jobs, those that hold none, and those that have just been started; and nothing is lost."""
    running = fleet(2, "--concurrency", "2", "--lease", "60")
    running.ready()
    dice = random.Random(kills)
    jobs: list[Enqueued] = []
    replaced_after: list[float] = []

    def kill(pid: int, limit: float) -> None:
        os.kill(pid, signal.SIGKILL)
        replaced_after.append(seconds(lambda: running.replaced(pid, limit + GRACE)))

    while len(replaced_after) < kills:
        pids = running.ready()
        jobs += enqueue_many([handlers.sleep_and_tell.call(dice.choice([0, 0.3]))] * 4)
        wait_for(lambda: holders() & running.pids() or not unfinished(), 10)
        kill(dice.choice(sorted(holders() & pids) or sorted(pids)), 1)
        if len(replaced_after) % 5 == 2:
            # At whatever it is in the middle of: its start takes about a second. It has half a second to wait then.
            (new,) = running.pids() - pids
            born_at, age = psutil.Process(new).create_time(), dice.random()
            wait_for(lambda born_at=born_at, age=age: time.time() > born_at + age)
            kill(new, 1.5)
    print(f"{kills} kills, replaced after at most {max(replaced_after):.2f} s")
    for enqueued in jobs:
        row = wait_for_state(enqueued, State.SUCCEEDED, timeout=20)
        assert {entry["kind"] for entry in row.history} <= {"worker_lost"}
        assert row.attempts == len(row.history) + 1
    # Each attempt that was begun is one that ended or one that is in the history.
    begun, ended = Counter(id for id, _ in notes("begun")), Counter(id for id, _ in notes("ended"))
    assert set(begun) == set(ended) == {enqueued.id for enqueued in jobs}
    assert all(begun[enqueued.id] <= job(enqueued).attempts for enqueued in jobs)
    assert running.supervisor.stop() == 0


def unfinished() -> bool:
    return Job.objects.filter(finished_at=None).exists()


def holders() -> set[int]:
    """Pids of the workers that hold running jobs."""
    held = Job.objects.running().values_list("worker_id", flat=True)
    return set(Worker.objects.filter(pk__in=list(held)).values_list("pid", flat=True))


@pytest.mark.parametrize(
    ("poison", "how"),
    [
        (handlers.die, "was killed by SIGKILL"),
        (handlers.exit_at_once, "ended with exit code 1"),
        (handlers.segfault, "was killed by SIGSEGV"),
    ],
    ids=["SIGKILL", "os._exit", "segfault"],
)
def test_a_job_that_kills_its_process_is_dead_after_its_attempts_and_the_others_succeed(
    fleet: Callable[..., Fleet], poison: Any, how: str
) -> None:
    running = fleet(2, "--concurrency", "4", "--lease", "60")
    running.ready()
    innocent = enqueue_many([handlers.sleep_and_tell.call(0.3)] * 10)
    killer = poison.enqueue()
    innocent += enqueue_many([handlers.sleep_and_tell.call(0.3)] * 10)
    assert wait_for_state(killer, State.DEAD, timeout=30).attempts == 3
    assert [entry["kind"] for entry in job(killer).history] == ["worker_lost"] * 3
    assert running.supervisor.log.count(how) == 3
    for enqueued in innocent:
        wait_for_state(enqueued, State.SUCCEEDED, timeout=20)
        row = job(enqueued)
        assert [entry["kind"] for entry in row.history] == ["worker_lost"] * (row.attempts - 1)
    # Of those beside it, each time: three that ran, and as many whose outcomes were not in their rows yet.
    assert sum(job(enqueued).attempts - 1 for enqueued in innocent) <= 3 * (3 + 3)
    assert running.supervisor.stop() == 0


def test_jobs_that_kill_their_process_as_it_begins_its_first_one_do_not_end_the_supervisor(
    fleet: Callable[..., Fleet],
) -> None:
    """Whoever begins a job has looked for one: it is not a process that cannot start, however soon it is dead."""
    killers = enqueue_many([handlers.die.using(max_attempts=1).call()] * 7)
    running = fleet(1, "--concurrency", "1", "--lease", "60")
    for enqueued in killers:
        # Each has a process of its own, which takes about a second to start: five crashes in a row would be the end,
        # and four a pause of four seconds.
        assert [entry["kind"] for entry in wait_for_state(enqueued, State.DEAD, timeout=20).history] == ["worker_lost"]
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED)
    assert running.supervisor.stop() == 0


@pytest.mark.slow
def test_fifty_abrupt_ends_cost_no_other_job_more_than_an_attempt_each(fleet: Callable[..., Fleet]) -> None:
    running = fleet(2, "--concurrency", "4", "--lease", "60")
    running.ready()
    healthy = enqueue_many([handlers.sleep_and_tell.call(1)] * 7)
    poison = enqueue_many(
        task.using(max_attempts=1).call() for _ in range(25) for task in (handlers.exit_at_once, handlers.segfault)
    )
    for enqueued in poison:
        assert [entry["kind"] for entry in wait_for_state(enqueued, State.DEAD, timeout=90).history] == ["worker_lost"]
    for enqueued in healthy:
        row = wait_for_state(enqueued, State.SUCCEEDED, timeout=20)
        assert row.attempts - 1 == len(row.history) <= 50
    assert running.supervisor.stop() == 0


def test_a_job_that_takes_all_memory_is_dead_after_its_attempts_and_the_others_succeed(
    fleet: Callable[..., Fleet],
) -> None:
    running = fleet(2, "--concurrency", "4", "--lease", "60", started_by="ulimit -v 1500000; exec {}")
    running.ready()
    innocent = enqueue_many([handlers.sleep_and_tell.call(0.3)] * 10)
    hungry = handlers.take_all_memory.enqueue()
    innocent += enqueue_many([handlers.sleep_and_tell.call(0.3)] * 10)
    assert wait_for_state(hungry, State.DEAD, timeout=60).attempts == 3
    # It meets its own end, or that of its process.
    assert {entry["kind"] for entry in job(hungry).history} <= {"error", "worker_lost"}
    for enqueued in innocent:
        row = wait_for_state(enqueued, State.SUCCEEDED, timeout=30)
        assert row.attempts - 1 == len(row.history) <= 3
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED)
    assert running.supervisor.stop() == 0


def test_a_signal_to_the_whole_group_lets_all_jobs_finish_once(fleet: Callable[..., Fleet], gate: Gate) -> None:
    door = gate()
    running = fleet(2, "--concurrency", "2")
    pids = running.ready()
    jobs = enqueue_many(handlers.write_and_wait.call(str(door)) for _ in range(4))
    wait_for(lambda: len(notes("begun")) == 4)
    for pid in [*pids, running.supervisor.pid]:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: "stopping 2 processes" in running.supervisor.log)
    door.open()
    assert running.supervisor.wait() == 0
    assert {job(one).result for one in jobs} == {1}
    assert len(notes("ended")) == 4


def test_a_second_signal_ends_all_of_them_at_once(fleet: Callable[..., Fleet], gate: Gate) -> None:
    door = gate()
    running = fleet(2)
    pids = running.ready()
    enqueued = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    running.supervisor.signal(signal.SIGTERM)
    wait_for(lambda: "stopping 2 processes" in running.supervisor.log)
    began = running.supervisor.signal(signal.SIGINT)
    assert running.supervisor.wait() == 130
    assert time.monotonic() - began < 6 + GRACE
    assert not any(psutil.pid_exists(pid) for pid in pids)
    row = wait_for_state(enqueued, State.QUEUED, State.RETRYING)
    assert (row.state, row.attempts) in ((State.QUEUED, 0), (State.RETRYING, 1))


def test_processes_whose_supervisor_was_killed_finish_what_they_run_and_end(
    fleet: Callable[..., Fleet], gate: Gate
) -> None:
    door = gate()
    running = fleet(2)
    pids = running.ready()
    enqueued = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    running.supervisor.kill()
    wait_for(lambda: running.supervisor.log.count("the supervisor is gone") == 2)
    assert any(psutil.pid_exists(pid) for pid in pids)
    door.open()
    wait_for_state(enqueued, State.SUCCEEDED)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_quiet_processes_claim_nothing_more_nor_those_that_take_their_place(
    fleet: Callable[..., Fleet], gate: Gate
) -> None:
    door = gate()
    running = fleet(2)
    running.ready()
    begun = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    running.supervisor.signal(signal.SIGUSR1)
    wait_for(lambda: running.supervisor.log.count("quiet: ") == 2)
    worker = Worker.objects.get(pk=job(begun).worker_id)
    (idle,) = running.pids() - {worker.pid}
    os.kill(idle, signal.SIGKILL)
    running.replaced(idle, 1.5)
    wait_for(lambda: running.supervisor.log.count("quiet: ") == 3)
    left = handlers.write_job.enqueue()
    door.open()
    wait_for_state(begun, State.SUCCEEDED)
    running.supervisor.signal(signal.SIGUSR2)
    wait_for(lambda: running.supervisor.log.count(": quiet, 0 jobs held") == 2)
    assert job(left).state == State.QUEUED
    assert running.supervisor.stop() == 0


def test_a_process_that_answers_no_more_is_killed_and_replaced(fleet: Callable[..., Fleet], gate: Gate) -> None:
    door = gate()
    running = fleet(1, "--stall-timeout", "1", "--lease", "60")
    (pid,) = running.ready()
    enqueued = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    door.open()
    os.kill(pid, signal.SIGSTOP)
    running.replaced(pid, 4)
    wait_for_state(enqueued, State.SUCCEEDED, timeout=10)
    assert "has not answered for 1 s: killed" in running.supervisor.log


def test_a_supervisor_that_stood_still_itself_kills_nobody(fleet: Callable[..., Fleet]) -> None:
    running = fleet(1, "--stall-timeout", "1")
    (pid,) = running.ready()
    everybody = [running.supervisor.pid, pid]
    for one in everybody:
        os.kill(one, signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_for(lambda: time.monotonic() > stopped_at + 2)
    for one in everybody:
        os.kill(one, signal.SIGCONT)
    enqueued = handlers.pid.enqueue()
    assert wait_for_state(enqueued, State.SUCCEEDED, timeout=10).result == pid
    assert "killed" not in running.supervisor.log


@pytest.mark.parametrize("task", [handlers.overrun_in_a_pattern, handlers.overrun_stopped], ids=["pattern", "stopped"])
def test_the_timeout_of_a_process_that_cannot_record_it_is_recorded_for_it(
    fleet: Callable[..., Fleet], task: Any
) -> None:
    running = fleet(1, "--stall-timeout", "2", "--lease", "60")
    (pid,) = running.ready()
    late = task.using(max_attempts=1).enqueue()
    wait_for_state(late, State.DEAD, timeout=8 + GRACE)
    assert (failure(late)["kind"], failure(late)["error_type"]) == ("timeout", "JobTimeout")
    assert 0.4 <= seconds_to_the_record(late) <= 1.4 + GRACE
    running.replaced(pid, 8)
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=10)


@pytest.mark.parametrize(
    "call",
    [
        handlers.overrun_in_sleep.using(max_attempts=1).call(60),
        handlers.overrun_at_a_socket.using(max_attempts=1).call(),
        handlers.overrun_blocking_the_event_loop.using(max_attempts=1).call(),
    ],
    ids=["sleep", "socket", "event loop"],
)
def test_a_handler_that_nothing_stops_costs_its_process_and_no_other_job_an_attempt(
    fleet: Callable[..., Fleet], gate: Gate, call: Any
) -> None:
    door = gate()
    running = fleet(1, "--concurrency", "2", "--lease", "60")
    (pid,) = running.ready()
    (late,) = enqueue_many([call])
    other = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    wait_for_state(late, State.DEAD, timeout=3 + GRACE)
    assert seconds_to_the_record(late) <= 1.4 + GRACE
    wait_for(lambda: "to be replaced" in running.supervisor.log, 15)
    # It takes nothing new, and waits for the other one.
    next_one = handlers.pid.enqueue()
    assert psutil.pid_exists(pid)
    door.open()
    assert wait_for_state(other, State.SUCCEEDED).result == 1
    running.replaced(pid, 4)
    assert wait_for_state(next_one, State.SUCCEEDED, timeout=10).result != pid
    assert "ended with exit code 8" in running.supervisor.log


def test_without_a_supervisor_it_ends_with_8(process: Start) -> None:
    running = process("--concurrency", "2").wait_until_ready()
    handlers.overrun_in_sleep.enqueue(60)
    assert running.wait() == 8


def test_processes_that_die_before_they_look_for_jobs_are_tried_five_times(fleet: Callable[..., Fleet]) -> None:
    running = fleet(1, settings={"DIE": True})
    assert running.supervisor.wait(40) == 9
    assert running.supervisor.log.count("was killed by SIGKILL") == 5
    assert "giving up" in running.supervisor.log


def test_a_process_that_hangs_as_it_starts_is_killed_when_its_time_to_start_is_over(
    monkeypatch: pytest.MonkeyPatch, log: Callable[..., list[str]]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.machine.settings")
    monkeypatch.setenv("MACHINE_SETTINGS", json.dumps({"HANG": True}))
    command = [sys.executable, "-m", "testproject.manage", "pgqueue_worker", "--processes", "1"]
    options = supervisor.Options("default", 1, shutdown_timeout=0, stall_timeout=0.2, start_timeout=2)
    parent = Supervisor(options, command)
    running = threading.Thread(target=parent.run)
    running.start()
    try:
        wait_for(lambda: log("started"))
        started_at = time.monotonic()
        wait_for(lambda: log("has not answered for 2 s: killed"))
        assert 1.5 < time.monotonic() - started_at < 2 + GRACE
        wait_for(lambda: len(log("started")) == 2)
    finally:
        for _ in range(3):
            parent.stop(signal.SIGTERM)
        running.join(10)


def test_a_supervisor_imports_no_tasks(process: Callable[..., Process], tmp_path: Path) -> None:
    """What hangs as it is imported, or takes memory, is in processes that can be replaced; they check it, too."""
    imported = tmp_path / "imported"
    imported.mkdir()
    parent = process(
        *("--processes", "2"),
        settings={"APPS": ["tests.machine.imported"]},
        environment={"IMPORTED": str(imported)},
    )
    pids = wait_for(lambda: len(found := {int(path.name) for path in imported.iterdir()}) == 2 and found, 30)
    assert parent.pid not in pids
    assert parent.stop() == 0


@pytest.mark.parametrize("fails_first", [False, True])
def test_what_somebody_held_as_its_process_died_is_given_back_later(
    second_connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    log: Callable[..., list[str]],
    fails_first: bool,
) -> None:
    enqueued = handlers.write_job.enqueue()
    (held,) = transitions.claim("default", queue_name="default", slots=1, worker_id="w:1", lease_seconds=60)
    monkeypatch.setattr(supervisor, "_DISOWN_SECONDS", 0.2 if fails_first else 10.0)
    clerk = supervisor._Clerk("default")
    clerk.start()
    try:
        with second_connection.transaction(force_rollback=True):
            second_connection.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [enqueued.id])
            if fails_first:
                with second_connection.transaction(force_rollback=True):
                    second_connection.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
                    clerk.disown("w:1", [held.pair])
                    wait_for(lambda: log("supervisor: canceling statement due to lock timeout"))
                # It looks now, finds the row in somebody's hands, and its time would be over.
                wait_for(lambda: log("supervisor: works again"))
            else:
                clerk.disown("w:1", [held.pair])
                wait_for(lambda: sessions("query LIKE 'DELETE FROM pgqueue_worker%%'"))
            assert job(enqueued).state == State.RUNNING
        assert failure(wait_for_state(enqueued, State.RETRYING, timeout=2 + GRACE))["kind"] == "worker_lost"
    finally:
        clerk.finish(5)
    assert not clerk.is_alive()


def test_drain_ends_when_nothing_is_due(fleet: Callable[..., Fleet]) -> None:
    jobs = enqueue_many(handlers.do_nothing.call() for _ in range(200))
    running = fleet(2, "--drain")
    assert running.supervisor.wait(30) == 0
    assert Job.objects.filter(pk__in=[one.id for one in jobs], state=State.SUCCEEDED).count() == 200


def test_options_that_no_process_takes_end_the_supervisor(process: Start) -> None:
    running = process("--processes", "2", "--database", "nowhere")
    assert running.wait() == 2
    running = process("--processes", "2", "--concurrency", "100000")
    assert running.wait() == 2


# -- the board -------------------------------------------------------------------------------------------------


def test_a_board_shows_what_has_begun_until_it_ends() -> None:
    board = Board()
    other = Board(os.dup(board.fd))
    board.sign("worker-ä:12345678")
    first, second = board.begin((7, 3), None), board.begin((8, 1), 12.5)
    assert first is not None
    assert second is not None
    assert [tuple(begun) for begun in other.begun()] == [(7, 3, float("inf")), (8, 1, 12.5)]
    board.end(first)
    assert [begun.pair for begun in other.begun()] == [(8, 1)]
    assert board.begin((9, 9), None) == first
    assert (other.worker_id, other.ready_at, other.pulse) == ("worker-ä:12345678", 0.0, 0.0)
    board.ready()
    assert other.ready_at > 0
    board.over(second)
    assert [tuple(begun) for begun in other.begun()] == [(9, 9, float("inf")), (8, 1, float("inf"))]
    board.close()
    other.close()


def test_a_board_has_a_pulse_until_the_loop_is_stuck() -> None:
    board = Board()
    stuck = threading.Event()
    board.keep_pulse(lambda: Health(not stuck.is_set(), False, {}))
    first = wait_for(lambda: board.pulse)
    wait_for(lambda: board.pulse != first)
    stuck.set()
    wait_for(lambda: time.monotonic() > board.pulse + 1)
    board.close()


def test_a_loop_is_stuck_that_hangs_in_its_own_code_and_not_one_that_sleeps_or_waits_for_the_database(
    worker: Callable[..., Running], second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "LIVE_SECONDS", 1.0)
    running = worker(concurrency=1, poll_interval=3)
    wait_for_state(handlers.do_nothing.enqueue(), State.SUCCEEDED)
    always(lambda: not running.loop.is_stuck, lasting=3)  # asleep, for longer and longer

    with second_connection.transaction(force_rollback=True):
        second_connection.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        running.loop.inbox.put(loop_module._Woken(None))
        wait_for(lambda: sessions("application_name = 'pgqueue loop' AND wait_event_type = 'Lock'"))
        always(lambda: not running.loop.is_stuck, lasting=1.5)  # its own lock_timeout is two seconds

    # A log that takes no more, as a pipe that nobody reads.
    entered, open_again = threading.Event(), threading.Event()

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            open_again.wait(20)

    full = Full()
    logger = logging.getLogger("pgqueue_django.worker")
    logger.addHandler(full)
    try:
        running.loop.report()
        assert entered.wait(10)
        wait_for(lambda: running.loop.is_stuck, 1 + GRACE)
    finally:
        logger.removeHandler(full)
        open_again.set()
    wait_for(lambda: not running.loop.is_stuck)


def test_a_full_board_takes_no_more() -> None:
    board = Board()
    assert [board.begin((number + 1, 1), None) for number in range(PLACES)] == list(range(PLACES))
    assert board.begin((1, 2), None) is None
    board.end(5)
    assert board.begin((1, 2), None) == 5
    board.close()


def test_a_handler_that_ended_in_time_has_no_deadline_while_its_outcome_waits() -> None:
    """Otherwise the supervisor would record a timeout for a job that succeeded as the database went away."""
    board = Board()
    held = transitions.Claimed(7, 3, "t", "q", "[]", "{}", 1, 1, "{}", 0.0, 0, 0.0)
    attempt = Attempt(held, handlers.overrun_in_a_loop, lease_clock() + 60, board)
    assert attempt.begin()
    (begun,) = board.begun()
    assert begun.deadline == attempt.deadline
    Loop(Options(using="default"))._attempt_ended(attempt, Succeeded("null"))
    (begun,) = board.begun()
    assert begun.deadline == float("inf")
    attempt.forget()
    attempt.forget()
    assert list(board.begun()) == []
    board.close()
