"""At its deadline an attempt is recorded, whatever its handler does; and it takes nobody along."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, failure, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]
Gate = Callable[[], Any]


def seconds_to_the_record(job_id: Any) -> float:
    """From the claim until the failed attempt was in the row, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM (history->-1->>'ended_at')::timestamptz - started_at)::float8 "
            "FROM pgqueue_job WHERE id = %s",
            [job_id.id],
        )
        return float(cursor.fetchone()[0])


def slot_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pgqueue slot"]


def assert_timed_out(job_id: Any, timeout: float) -> None:
    row = wait_for_state(job_id, State.RETRYING, State.DEAD, timeout=5)
    assert (row.attempts, failure(job_id)["kind"], failure(job_id)["error_type"]) == (1, "timeout", "JobTimeout")
    assert f"{timeout:g} s" in failure(job_id)["message"]
    assert timeout <= seconds_to_the_record(job_id) <= timeout + 1 + GRACE


def test_an_async_handler_is_cancelled_at_its_deadline(worker: Worker) -> None:
    late = handlers.overrun_async.enqueue()
    running = worker(concurrency=1)
    assert_timed_out(late, 0.4)
    wait_for(lambda: notes("cancelled") == [(late.id, "cancelled")])
    # Its place is free again.
    wait_for_state(handlers.give_async.enqueue(1), State.SUCCEEDED)
    assert running.loop.counts == {State.RETRYING: 1, State.SUCCEEDED: 1}


@pytest.mark.parametrize(
    ("task", "mark"), [(handlers.overrun_in_sql, "overrun"), (handlers.overrun_async_in_sql, "async overrun")]
)
def test_a_statement_that_a_handler_waits_for_is_cancelled_on_the_server(
    worker: Worker, task: Any, mark: str, log: Callable[..., list[str]]
) -> None:
    late = task.enqueue()
    worker(concurrency=1)
    wait_for(lambda: sessions("state = 'active' AND query LIKE %s", f"%/* {mark} */%") == 1)
    assert_timed_out(late, 0.4)
    wait_for(lambda: sessions("state = 'active' AND query LIKE %s", f"%/* {mark} */%") == 0, 3)
    wait_for_state(handlers.write.enqueue("next"), State.SUCCEEDED)
    assert len(log(late)) == 1


def test_the_thread_and_the_connection_of_a_cancelled_statement_are_thrown_away(worker: Worker) -> None:
    worker(concurrency=1)
    before = wait_for_state(handlers.backend_pid.enqueue(), State.SUCCEEDED).result
    threads_before = slot_threads()
    assert_timed_out(handlers.overrun_in_sql.enqueue(), 0.4)
    after = wait_for_state(handlers.backend_pid.enqueue(), State.SUCCEEDED).result
    assert after != before
    assert sessions("pid = %s", before) == 0
    assert len(slot_threads()) == 1
    assert slot_threads() != threads_before


def test_an_atomic_handler_that_is_late_is_rolled_back(worker: Worker, gate: Gate) -> None:
    door = gate()
    in_sql, deaf = handlers.overrun_atomic.enqueue(), handlers.overrun_atomic_at.enqueue(str(door))
    running = worker(concurrency=2)
    assert_timed_out(in_sql, 0.4)
    assert_timed_out(deaf, 0.4)
    door.open()
    assert running.stop() == 0
    assert notes() == []
    assert set(Job.objects.values_list("state", "attempts")) == {(State.RETRYING, 1)}


def test_a_handler_that_nothing_stops_is_recorded_in_time_and_its_late_outcome_is_void(
    worker: Worker, gate: Gate, log: Callable[..., list[str]]
) -> None:
    door = gate()
    late, last = handlers.overrun_at.enqueue(str(door)), handlers.overrun_on_the_last_attempt.enqueue(str(door))
    running = worker(concurrency=3)
    assert_timed_out(late, 0.4)
    assert_timed_out(last, 0.4)
    assert (job(late).state, job(last).state) == (State.RETRYING, State.DEAD)
    # The third place works on.
    wait_for_state(handlers.give.enqueue(1), State.SUCCEEDED)
    door.open()
    wait_for(lambda: running.loop._slots.load == 0)
    assert (job(late).state, job(last).state) == (State.RETRYING, State.DEAD)
    assert len(log(late)) == len(log(last)) == 1
    # And its place is back: three at the same time.
    doors = [gate() for _ in range(3)]
    jobs = [handlers.write_and_wait.enqueue(str(one)) for one in doors]
    wait_for(lambda: len(notes("begun")) == 3)
    for one in doors:
        one.open()
    for enqueued in jobs:
        wait_for_state(enqueued, State.SUCCEEDED)


def test_a_handler_that_ends_before_its_deadline_is_left_alone(drain: Drain) -> None:
    jobs = enqueue_many(handlers.just_in_time.call() for _ in range(20))
    drain()
    assert {job(enqueued).state for enqueued in jobs} == {State.SUCCEEDED}


def test_two_hundred_timeouts_hit_no_other_job(drain: Drain) -> None:
    calls = []
    for _ in range(200):
        calls += [handlers.overrun_in_sql_soon.call(), handlers.sleep_in_sql_for.call(0.002)]
        calls += [handlers.write.call("fast")]
    jobs = enqueue_many(calls)
    running = drain(concurrency=16, timeout=90)
    late, slept, wrote = jobs[::3], jobs[1::3], jobs[2::3]
    states = dict(Job.objects.values_list("id", "state"))
    assert {states[enqueued.id] for enqueued in late} == {State.RETRYING}
    assert {states[enqueued.id] for enqueued in slept + wrote} == {State.SUCCEEDED}
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert len(notes("fast")) == 200
    assert running.loop.counts == {State.RETRYING: 200, State.SUCCEEDED: 400}
    kinds = {entry["kind"] for history in Job.objects.values_list("history", flat=True) for entry in history}
    assert kinds == {"timeout"}
    wait_for(lambda: sessions("query LIKE '%%overrun%%'") == 0, 5 + GRACE)


@pytest.mark.parametrize(
    "task",
    [handlers.overrun_in_a_loop, handlers.overrun_although_errors_are_caught, handlers.overrun_in_finally],
    ids=["loop", "errors caught", "finally"],
)
def test_a_plain_handler_is_interrupted_and_its_place_is_free_again(worker: Worker, task: Any) -> None:
    late = task.enqueue()
    running = worker(concurrency=1)
    assert_timed_out(late, 0.4)
    # In its finally it has two seconds to clean up, and is then interrupted again.
    wait_for(lambda: running.loop._slots.load == 0, 4)
    assert notes("caught") == []
    wait_for_state(handlers.give.enqueue(1), State.SUCCEEDED)
    assert running.stop() == 0


def test_a_plain_handler_may_catch_its_timeout_to_clean_up(worker: Worker) -> None:
    late = handlers.overrun_and_clean_up.enqueue()
    worker(concurrency=1)
    assert_timed_out(late, 0.4)
    wait_for(lambda: notes("cleaned up") == [(late.id, "cleaned up")])


def test_a_handler_that_nothing_stops_ends_its_worker_with_8(worker: Worker, gate: Gate) -> None:
    door = gate()
    late = handlers.overrun_at.enqueue(str(door))
    running = worker(concurrency=2)
    assert_timed_out(late, 0.4)
    left = handlers.write_and_wait.enqueue(str(door))
    wait_for(lambda: notes("begun"))
    wait_for(lambda: running.loop._worn_out, 10)
    next_one = handlers.give.enqueue(1)
    assert running.is_alive
    door.open()
    assert running.join() == 8
    assert (job(left).state, job(next_one).state) == (State.SUCCEEDED, State.QUEUED)
