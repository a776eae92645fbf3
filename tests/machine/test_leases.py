"""A lease lives as long as its worker, whatever its handlers do; and when it has ended, its attempt is void."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from chaos.proxy import Proxy
from django.db import connection
from verbs import rows

from pgqueue_django import Enqueued, enqueue_many, transitions
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Released
from pgqueue_django.states import State
from pgqueue_django.tasks import resolve
from pgqueue_django.worker import executor
from tests.machine import handlers

from .workers import (
    GRACE,
    POOL_OF_ONE,
    REAL_DATABASE,
    Process,
    Running,
    always,
    database_url,
    failure,
    job,
    notes,
    wait_for,
    wait_for_state,
)

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]
Start = Callable[..., Process]
Gate = Callable[[], Any]


def least_lease(excluded: int = 0) -> float | None:
    """Seconds that the shortest lease has left."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM min(lease_expires_at) - clock_timestamp())::float8 FROM pgqueue_job "
            "WHERE state = 'running' AND id <> %s",
            [excluded],
        )
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def assert_leases_are_kept(jobs: Sequence[Enqueued], running: Process, lease: float) -> None:
    """While they run for three leases, and somebody reaps all the time."""
    ids, least = [enqueued.id for enqueued in jobs], lease
    wait_for(lambda: Job.objects.running().filter(pk__in=ids).count() == len(ids), 20)
    deadline = time.monotonic() + 10 * lease
    while Job.objects.running().filter(pk__in=ids).exists():
        assert time.monotonic() < deadline
        assert transitions.reap("default", by="reaper") == 0
        least = min(least, least_lease() or least)
    for row in Job.objects.filter(pk__in=ids):
        assert (row.state, row.attempts, row.history) == (State.SUCCEEDED, 1, [])
    assert "lost its lease" not in running.log
    print(f"least time left of a lease of {lease:g} s: {least:.2f} s")
    assert least > 0.2


@pytest.mark.parametrize("busy", [handlers.block_event_loop, handlers.keep_gil_busy, handlers.sleep_in_sql_for])
def test_a_handler_that_is_busy_for_three_leases_keeps_its_lease(process: Start, busy: Any) -> None:
    running = process("--lease", "1.2", "--concurrency", "2").wait_until_ready()
    assert_leases_are_kept(enqueue_many([busy.call(3.6)]), running, 1.2)


def test_who_keeps_the_event_loop_to_himself_is_named_once(
    worker: Worker, gate: Gate, log: Callable[..., list[str]]
) -> None:
    door = gate()
    worker(concurrency=5)
    innocent = enqueue_many([handlers.write_and_await.call(str(door)), handlers.write_and_wait.call(str(door))])
    wait_for(lambda: len(notes("begun")) == 2)
    first, second = (handlers.block_event_loop.enqueue(2.5) for _ in range(2))
    for enqueued in (first, second):
        wait_for_state(enqueued, State.SUCCEEDED)
    wait_for_state(handlers.block_event_loop_in_child.enqueue(2.5), State.SUCCEEDED)
    named, child = log("has kept the event loop")
    assert named.startswith(tuple(f"{handlers.__name__}.block_event_loop #{one.id} has" for one in (first, second)))
    assert "careless_child" in child
    door.open()
    for enqueued in innocent:
        wait_for_state(enqueued, State.SUCCEEDED)


def test_handlers_that_wait_for_the_last_connection_of_a_pool_keep_their_leases(process: Start) -> None:
    pytest.importorskip("psycopg_pool")
    running = process("--lease", "1.2", "--concurrency", "3", settings=POOL_OF_ONE).wait_until_ready()
    # One after the other.
    assert_leases_are_kept(enqueue_many([handlers.sleep_in_sql_for.call(1.8)] * 3), running, 1.2)


def test_two_hundred_jobs_behind_a_slow_line_keep_their_leases(process: Start) -> None:
    with Proxy.before(database_url()) as proxy:
        proxy.latency = 0.1
        running = process(
            *("--lease", "2", "--concurrency", "200", "--poll-interval", "0.1"),
            environment={"DATABASE_URL": proxy.url(database_url())},
        ).wait_until_ready()
        assert_leases_are_kept(enqueue_many([handlers.sleep_async.call(6)] * 200), running, 2)


def test_a_worker_that_stood_still_loses_its_job_and_what_it_brings_later_is_void(
    worker: Worker, process: Start, gate: Gate
) -> None:
    door = gate()
    lost = handlers.write_and_wait.enqueue(str(door))
    stalled = process("--lease", "1", "--concurrency", "1").wait_until_ready()
    wait_for(lambda: notes("begun"))
    stalled.signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    other = worker(concurrency=1)
    wait_for(lambda: len(notes("begun")) == 2, 10)
    assert time.monotonic() - stopped_at < 1 + 2
    assert failure(lost)["kind"] == "lease_expired"
    assert job(lost).worker_id == other.loop.worker_id
    door.open()
    row = wait_for_state(lost, State.SUCCEEDED)
    assert (row.attempts, row.fencing_token, row.result) == (2, 2, 2)
    assert other.stop() == 0
    stalled.signal(signal.SIGCONT)
    wait_for(lambda: len(notes("ended")) == 2)
    wait_for(lambda: f"#{lost.id} " in stalled.log or f"#{lost.id}:" in stalled.log)
    # It works on.
    wait_for_state(handlers.give.enqueue(1), State.SUCCEEDED)
    assert (job(lost).attempts, job(lost).result) == (2, 2)
    assert stalled.stop() == 0
    assert stalled.log.count(f"#{lost.id}") == 1, stalled.log
    assert f"#{lost.id} succeeded" not in stalled.log


def test_what_a_worker_had_claimed_ahead_when_it_stood_still_never_starts_there(
    worker: Worker, process: Start, gate: Gate
) -> None:
    stalled = process("--lease", "1", "--concurrency", "1").wait_until_ready()
    for _ in range(15):
        door, quick_door = gate(), gate()
        quick_door.open()
        quick = enqueue_many(handlers.write_and_wait.call(str(quick_door)) for _ in range(30))
        wait_for(lambda quick=quick: all(job(one).state == State.SUCCEEDED for one in quick))
        blocked = enqueue_many(handlers.write_and_wait.call(str(door)) for _ in range(10))
        ids = [one.id for one in blocked]
        wait_for(lambda ids=ids: any(id in ids for id, _ in notes("begun")))
        stalled.signal(signal.SIGSTOP)
        ahead = Job.objects.running().filter(pk__in=ids).count() - 1
        if ahead > 0:
            break
        stalled.signal(signal.SIGCONT)
        door.open()
        wait_for(lambda blocked=blocked: all(job(one).state == State.SUCCEEDED for one in blocked))
    assert ahead > 0, "it claimed nothing ahead"
    other = worker(concurrency=20)
    # All of them begin elsewhere, and one of them twice.
    wait_for(lambda: len(other.loop.held) == 10, 15)
    stalled.signal(signal.SIGCONT)
    door.open()
    for enqueued in blocked:
        wait_for_state(enqueued, State.SUCCEEDED)
    assert stalled.stop() == 0
    begun = [id for id, _ in notes("begun") if id in ids]
    assert len(begun) == 11
    assert len(set(begun)) == 10


def test_an_attempt_whose_lease_has_ended_does_not_start() -> None:
    handlers.write.enqueue("started")
    handlers.do_nothing_async.enqueue()
    for held in transitions.claim("default", queue_name="default", slots=2, worker_id="w", lease_seconds=30):
        attempt = executor.Attempt(held, resolve(held.task), executor.lease_clock() - 0.001)
        if attempt.task.is_async:
            import asyncio

            outcome = asyncio.run(executor.run_async(attempt, "default"))
        else:
            outcome = executor.run(attempt, "default", [])
        assert outcome == Released()
        assert attempt.begun_at is None
    assert notes() == []


def test_a_job_that_kills_its_process_is_dead_after_exactly_max_attempts(process: Start) -> None:
    killer = handlers.kill_process.enqueue()
    innocent = enqueue_many(handlers.give.call(number) for number in range(20))
    killed = 0
    for _ in range(6):
        started = process("--lease", "0.5", "--concurrency", "2", "--poll-interval", "0.1")
        wait_for(lambda started=started: started.exit_code is not None or job(killer).state == State.DEAD, 25)
        if started.exit_code is None:
            break
        assert started.exit_code == 9
        killed += 1
    row = job(killer)
    assert (killed, row.state, row.attempts) == (3, State.DEAD, 3)
    assert len(notes("begun")) == 3
    assert [entry["kind"] for entry in row.history] == ["lease_expired"] * 3
    assert [entry["attempt"] for entry in row.history] == [1, 2, 3]
    for enqueued in innocent:
        # Killed with it, perhaps, but never for it.
        assert wait_for_state(enqueued, State.SUCCEEDED, timeout=20).attempts <= 4
    assert started.stop() == 0


def test_a_row_that_a_session_holds_costs_no_other_lease(
    worker: Worker, gate: Gate, second_connection: psycopg.Connection[Any]
) -> None:
    door = gate()
    jobs = enqueue_many(handlers.await_unwritten.call(str(door)) for _ in range(200))
    running = worker(concurrency=200, lease=1.5)
    wait_for(lambda: len(running.loop.held) == 200)
    worker(concurrency=1, queues=["none"])  # to reap
    locked = jobs[0].id
    with rows.locked_elsewhere(second_connection, locked):
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            left = least_lease(excluded=locked)
            assert left is not None
            assert left > 0
    assert set(Job.objects.exclude(pk=locked).values_list("state", "attempts")) == {(State.RUNNING, 1)}
    door.open()
    for enqueued in jobs[1:]:
        assert wait_for_state(enqueued, State.SUCCEEDED).attempts == 1
    wait_for_state(locked, State.SUCCEEDED, State.RETRYING)


# -- heartbeats that do not come through -----------------------------------------------------------------------


@pytest.fixture
def no_heartbeats() -> Iterator[Callable[[], None]]:
    """From now on no lease is renewed, and none reaped; calling it ends that."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION refuse_renewal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF current_setting('application_name') IN ('pgqueue heartbeat', 'pgqueue chores') THEN
                    RAISE 'not now' USING ERRCODE = 'lock_not_available';
                END IF;
                RETURN NULL;
            END $$;
            -- Of the statement: a renewal that moves no row, because a reaper holds it just now, is refused, too.
            CREATE TRIGGER refuse_renewal BEFORE UPDATE ON pgqueue_job
                FOR EACH STATEMENT EXECUTE FUNCTION refuse_renewal();
            """
        )

    def end() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION IF EXISTS refuse_renewal CASCADE")

    yield end
    end()


def test_a_worker_whose_heartbeats_fail_for_a_lease_begins_nothing_and_tells_its_handlers(
    worker: Worker, gate: Gate, no_heartbeats: Callable[[], None]
) -> None:
    door = gate()
    told = [
        handlers.wait_until_cancelled.using(max_attempts=1).enqueue(),
        handlers.wait_until_cancelled_async.using(max_attempts=1).enqueue(),
        handlers.write_until_cancelled_atomic.using(max_attempts=1).enqueue(),
    ]
    # It does not ask, and nobody takes its job: its outcome counts.
    deaf = handlers.write_and_wait.enqueue(str(door))
    running = worker(concurrency=8, lease=1.0)
    wait_for(lambda: len([event for _, event in notes() if event == "begun"]) >= 3)
    for enqueued in told:
        row = wait_for_state(enqueued, State.DEAD, timeout=1 + GRACE)
        assert (row.attempts, failure(enqueued)["kind"], failure(enqueued)["error_type"]) == (
            *(1, "lease_expired"),
            "pgqueue_django.exceptions.LeaseLost",
        )
    assert notes("rolled back") == []
    wait_for(lambda: not running.loop._heartbeat.is_in_time)
    late = handlers.do_nothing.enqueue()
    always(lambda: job(late).fencing_token == 0, 0.5)
    door.open()
    assert wait_for_state(deaf, State.SUCCEEDED).attempts == 1
    no_heartbeats()
    assert wait_for_state(late, State.SUCCEEDED, timeout=1 + GRACE).attempts == 1
    assert running.stop() == 0


def test_who_was_told_that_the_lease_has_ended_is_told_so_ever_after() -> None:
    handlers.write.enqueue("never")
    (held,) = transitions.claim("default", queue_name="default", slots=1, worker_id="w", lease_seconds=30)
    attempt = executor.Attempt(held, resolve(held.task), executor.lease_clock() + 60)
    context = attempt.context()
    assert not context.cancelled
    attempt.lease_until = executor.lease_clock() - 1
    assert context.cancelled
    # A heartbeat came through after all: what the handler has left undone since stays undone.
    attempt.lease_until = executor.lease_clock() + 60
    assert context.cancelled
