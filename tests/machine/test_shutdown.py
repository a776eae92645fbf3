"""SIGTERM and SIGINT: finish what runs, give the rest back uncharged, and really end."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job, Worker
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Process, Running, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Gate = Callable[[], Any]

AT_ONCE = 0.5 + GRACE  # seconds within which a process ends that has nothing to wait for
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def end(process: Process, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
    """Its exit code, and the seconds that it took."""
    sent_at = process.signal(number)
    code = process.wait(45)
    return code, time.monotonic() - sent_at


def assert_given_back(*jobs: Any) -> None:
    for enqueued in jobs:
        row = job(enqueued)
        assert (row.state, row.attempts, row.history, row.lease_expires_at) == (State.QUEUED, 0, [], None)
        assert row.worker_id is None


def test_an_idle_worker_ends_at_once_whatever_it_waits_for(process: Start) -> None:
    later = {"CHORE_INTERVAL": 300, "POLL_INTERVAL": 60, "HEARTBEAT": 60, "LEASE": 180}
    started = [process(settings={"PGQUEUE": later}), process("--no-listen", settings={"PGQUEUE": later})]
    for one, number in zip(started, SIGNALS, strict=True):
        one.wait_until_ready()
        code, took = end(one, number)
        assert code == 0
        assert took < AT_ONCE
        assert "ended: no jobs" in one.log
    assert sessions() == 0
    assert not Worker.objects.exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_busy_worker_finishes_what_runs_and_claims_no_more(
    process: Start, gate: Gate, number: signal.Signals
) -> None:
    door = gate()
    running = [handlers.write_and_wait.enqueue(str(door)), handlers.write_and_await.enqueue(str(door))]
    started = process("--concurrency", "2")
    wait_for(lambda: len(notes("begun")) == 2, 20)
    started.signal(number)
    wait_for(lambda: "stopping: 2 jobs" in started.log)
    late = handlers.give.enqueue("late")
    door.open()
    assert started.wait() == 0
    assert [job(enqueued).state for enqueued in running] == [State.SUCCEEDED] * 2
    assert (job(late).state, job(late).fencing_token) == (State.QUEUED, 0)
    assert sessions() == 0


def test_what_was_claimed_ahead_goes_back_and_is_no_reason_for_7(process: Start, gate: Gate) -> None:
    jobs = enqueue_many(handlers.sleep.call(0.01) for _ in range(3_000))
    started = process("--concurrency", "2")
    wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() > 100, 20)
    code, took = end(started)
    assert (code, took < AT_ONCE) == (0, True)
    states = set(Job.objects.values_list("state", "attempts"))
    assert states == {(State.SUCCEEDED, 1), (State.QUEUED, 0)}
    assert Job.objects.count() == len(jobs)


def test_handlers_that_do_not_end_in_time_are_given_back_uncharged(process: Start) -> None:
    """On their only attempt: they are neither charged for it nor dead."""
    stubborn = [
        handlers.stubborn.enqueue(60),
        handlers.stubborn_async.enqueue(60),
        handlers.sleep_in_sql_for.enqueue(60),
        handlers.sleep_atomic.enqueue(60),
    ]
    started = process("--concurrency", "4", "--shutdown-timeout", "0.7")
    wait_for(lambda: Job.objects.running().count() == 4 and len(notes("begun")) == 2, 20)
    wait_for(lambda: sessions("state = 'active' AND query LIKE '%%for long%%'"))
    code, took = end(started)
    assert code == 7
    assert 0.7 <= took < 0.7 + GRACE
    assert_given_back(*stubborn)
    wait_for(lambda: sessions() == 0, 5 + GRACE)
    assert notes("slept") == []


def test_fifty_coroutines_that_do_not_end_are_given_back_uncharged(process: Start) -> None:
    stubborn = enqueue_many(
        task.call(60) for _ in range(25) for task in (handlers.stubborn_async, handlers.clean_up_for_long_async)
    )
    started = process("--concurrency", "50", "--shutdown-timeout", "1")
    wait_for(lambda: len(notes("begun")) == 50, 30)
    code, took = end(started)
    assert code == 7
    assert 1 <= took < 2 + GRACE
    assert_given_back(*stubborn)


def test_a_shutdown_timeout_of_0_gives_back_at_once(process: Start) -> None:
    stubborn = handlers.stubborn.enqueue(60)
    started = process("--shutdown-timeout", "0")
    wait_for(lambda: notes("begun"), 20)
    code, took = end(started)
    assert (code, took < AT_ONCE) == (7, True)
    assert_given_back(stubborn)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(process: Start, number: signal.Signals, expected: int) -> None:
    stubborn = [handlers.stubborn.enqueue(60), handlers.stubborn_async.enqueue(60)]
    started = process("--concurrency", "2", "--shutdown-timeout", "60")
    wait_for(lambda: len(notes("begun")) == 2, 20)
    started.signal(signal.SIGTERM)
    wait_for(lambda: "stopping: 2 jobs" in started.log)
    code, took = end(started, number)
    assert code == expected
    assert took < AT_ONCE
    assert_given_back(*stubborn)


def test_heartbeats_go_on_until_the_last_job_is_done(
    process: Start, worker: Callable[..., Running], gate: Gate
) -> None:
    door = gate()
    last = handlers.write_and_wait.enqueue(str(door))
    started = process("--lease", "0.9")
    wait_for(lambda: notes("begun"), 20)
    started.signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in started.log)
    worker(concurrency=1, queues=["none"])  # to reap
    stopped_at = time.monotonic()
    with connection.cursor() as cursor:
        while time.monotonic() - stopped_at < 2.7:
            cursor.execute("SELECT lease_expires_at > clock_timestamp() FROM pgqueue_job")
            assert cursor.fetchone() == (True,)
    door.open()
    assert started.wait() == 0
    assert (job(last).state, job(last).attempts) == (State.SUCCEEDED, 1)


def test_an_outcome_that_comes_in_time_is_recorded_while_others_are_given_back(process: Start, gate: Gate) -> None:
    door = gate()
    stubborn, quick = handlers.stubborn.enqueue(60), handlers.write_and_wait.enqueue(str(door))
    started = process("--concurrency", "2", "--shutdown-timeout", "3")
    wait_for(lambda: len(notes("begun")) == 2, 20)
    started.signal(signal.SIGTERM)
    wait_for(lambda: "stopping: 2 jobs" in started.log)
    door.open()
    wait_for_state(quick, State.SUCCEEDED, timeout=2.5)
    assert started.wait() == 7
    assert_given_back(stubborn)


@pytest.mark.parametrize("task", [handlers.leave_thread_behind, handlers.leave_plain_thread_behind])
def test_threads_that_handlers_left_behind_do_not_keep_the_process(process: Start, task: Any) -> None:
    enqueued = task.enqueue(60)
    started = process()
    wait_for_state(enqueued, State.SUCCEEDED, timeout=20)
    code, took = end(started)
    assert code == 0
    assert took < 0.5 + GRACE
    assert sessions() == 0


def test_drain_ends_although_a_handler_left_a_thread_behind(process: Start) -> None:
    handlers.leave_plain_thread_behind.enqueue(60)
    assert process("--drain").wait(15) == 0


# -- a database that is away -----------------------------------------------------------------------------------


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that nobody listens at: connections are refused at once."""
    with closing(socket.socket()) as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(20)
        yield listening.getsockname()[1]


def at_port(port: int) -> dict[str, str]:
    return {"DATABASE_URL": f"postgresql://nobody@127.0.0.1:{port}/nothing"}


def test_a_worker_that_starts_while_the_database_is_down_waits_for_it_and_ends_when_told(
    process: Start, refusing: int
) -> None:
    started = process(environment=at_port(refusing))
    wait_for(lambda: started.log.count("trying again") >= 3, 20)
    assert started.exit_code is None
    code, took = end(started)
    assert code == 0
    assert took < AT_ONCE
    assert "Traceback" not in started.log


@pytest.mark.parametrize("second", [False, True])
def test_a_worker_whose_database_does_not_answer_ends_all_the_same(process: Start, silent: int, second: bool) -> None:
    started = process("--shutdown-timeout", "0.5", environment=at_port(silent))
    wait_for(lambda: "worker " in started.log, 20)
    if second:
        started.signal(signal.SIGTERM)
    code, took = end(started, signal.SIGINT if second else signal.SIGTERM)
    # Both are heard at once, and the lower number first.
    assert code in ((130, 143) if second else (0, 7))
    assert took < 0.5 + 2 + GRACE


def test_a_worker_that_cannot_record_its_outcomes_ends_in_time(process: Start, gate: Gate) -> None:
    """The table is locked by somebody: what it holds is left to its lease."""
    door = gate()
    lost = handlers.wait_unwritten.enqueue(str(door))
    started = process("--shutdown-timeout", "0.5")
    wait_for_state(lost, State.RUNNING, timeout=20)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        try:
            door.open()
            code, took = end(started)
        finally:
            cursor.execute("ROLLBACK")
    assert code == 7
    assert took < 0.5 + 2 + GRACE
    assert job(lost).state == State.RUNNING
    assert job(lost).lease_expires_at is not None
