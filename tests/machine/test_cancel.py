"""A person cancels a running job: the handler hears of it, and what it still brings is void."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from verbs import rows

from pgqueue_django import transitions
from pgqueue_django.models import Stat
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]
Gate = Callable[[], Any]
Log = Callable[..., list[str]]
ENDED = (State.SUCCEEDED, State.CANCELLED)


def cancel(job_id: Any) -> None:
    assert transitions.cancel("default", [job_id.id]) == {job_id.id}


def wait_until_begun(job_id: Any) -> None:
    wait_for(lambda: (job_id.id, "begun") in notes())


# With LISTEN at once: the heartbeat is a minute away. Without it: within one heartbeat.
WAYS = [{"listen": True, "lease": 180.0}, {"listen": False, "lease": 1.5}]


@pytest.fixture(params=WAYS, ids=["wake-up", "heartbeat"])
def way(request: pytest.FixtureRequest, settings: Any) -> dict[str, Any]:
    settings.PGQUEUE = {"LEASE": 180, "HEARTBEAT": 60}
    return dict(request.param)


def test_a_plain_handler_sees_it_in_its_context(worker: Worker, way: dict[str, Any], log: Log) -> None:
    cancelled = handlers.wait_until_cancelled.enqueue()
    running = worker(concurrency=1, **way)
    wait_until_begun(cancelled)
    began = time.monotonic()
    cancel(cancelled)
    wait_for(lambda: notes("noticed"))
    assert time.monotonic() - began < 0.5 + GRACE
    assert running.stop() == 0
    assert job(cancelled).state == State.CANCELLED
    assert len(log(cancelled)) == 1
    assert len(log(f"#{cancelled.id} was cancelled while it ran")) == 1
    assert running.loop.counts == {}
    assert not Stat.objects.exists()


def test_an_async_handler_is_cancelled(worker: Worker, way: dict[str, Any], gate: Gate, log: Log) -> None:
    cancelled = handlers.write_and_await.enqueue(str(gate()))
    running = worker(concurrency=1, **way)
    wait_until_begun(cancelled)
    began = time.monotonic()
    cancel(cancelled)
    wait_for(lambda: notes("cancelled"))
    assert time.monotonic() - began < 0.5 + GRACE
    assert running.stop() == 0
    assert job(cancelled).state == State.CANCELLED
    assert len(log(cancelled)) == 1


def test_a_statement_that_a_handler_waits_for_is_cancelled(worker: Worker, way: dict[str, Any], log: Log) -> None:
    cancelled = handlers.sleep_in_sql_for.enqueue(60)
    running = worker(concurrency=1, **way)
    wait_for(lambda: sessions("state = 'active' AND query LIKE '%%for long%%'") == 1)
    began = time.monotonic()
    cancel(cancelled)
    wait_for(lambda: sessions("state = 'active' AND query LIKE '%%for long%%'") == 0)
    assert time.monotonic() - began < 0.5 + GRACE
    # Its place is free, on a new connection.
    wait_for_state(handlers.write.enqueue("next"), State.SUCCEEDED)
    assert running.stop() == 0
    assert job(cancelled).state == State.CANCELLED
    assert (job(cancelled).history, job(cancelled).result) == ([], None)
    assert len(log(cancelled)) == 1


@pytest.mark.parametrize("task", [handlers.clean_up_when_cancelled, handlers.clean_up_when_cancelled_async])
def test_a_handler_has_the_time_and_the_database_to_clean_up(worker: Worker, task: Any) -> None:
    cancelled = task.enqueue()
    worker(concurrency=1, listen=True)
    wait_until_begun(cancelled)
    cancel(cancelled)
    wait_for(lambda: notes("cleaned up") == [(cancelled.id, "cleaned up")], 5)


def test_a_late_success_of_a_cancelled_job_is_void(worker: Worker, gate: Gate, log: Log) -> None:
    door = gate()
    cancelled = handlers.write_and_wait_deaf.enqueue(str(door))
    running = worker(concurrency=1)  # heartbeat in 10 s: the settle finds out
    wait_until_begun(cancelled)
    cancel(cancelled)
    door.open()
    wait_for(lambda: log(f"#{cancelled.id}: outcome succeeded dropped, the job is cancelled now"))
    assert running.stop() == 0
    assert (job(cancelled).state, job(cancelled).result) == (State.CANCELLED, None)
    assert len(log(cancelled)) == 1
    assert running.loop.counts == {}


def test_a_job_that_is_cancelled_before_it_began_never_begins(worker: Worker, gate: Gate) -> None:
    """Claimed ahead of a free slot and cancelled there, before its 200 ms were over."""
    running = worker(concurrency=1, listen=True)
    held, cancelled = running.loop.held, set[int]()
    for _ in range(20):
        quick = [handlers.write_and_wait.enqueue(str(gate_that_is_open(gate))) for _ in range(20)]
        wait_for(lambda quick=quick: all(job(one).state == State.SUCCEEDED for one in quick))
        door = gate()
        blocked = [handlers.write_and_wait.enqueue(str(door)) for _ in range(10)]
        # The only slot has begun one, so that none of the others begins.
        wait_for(lambda blocked=blocked: any(one.id in held and held[one.id].begun_at is not None for one in blocked))
        waiting = {id: attempt for id, attempt in list(held.items()) if attempt.begun_at is None}
        cancelled = transitions.cancel("default", waiting)
        wait_for(lambda waiting=waiting, ids=cancelled: all(waiting[id].void.is_set() for id in ids))
        door.open()
        wait_for(lambda blocked=blocked: all(job(one).state in ENDED for one in blocked))
        if cancelled:
            break
    assert cancelled, "it claimed nothing ahead"
    assert {job(id).state for id in cancelled} == {State.CANCELLED}
    assert not cancelled & {id for id, _ in notes("begun")}


def gate_that_is_open(gate: Gate) -> Any:
    door = gate()
    door.open()
    return door


def requeue_at_once(job_id: Any) -> None:
    cancel(job_id)
    rows.move_clock(job_id.id, "run_after", -1)
    assert transitions.requeue("default", [job_id.id]) == {job_id.id}


def test_a_requeued_job_may_run_again_beside_its_old_handler(worker: Worker, gate: Gate, log: Log) -> None:
    door = gate()
    twice = handlers.write_and_wait_deaf.enqueue(str(door))
    running = worker(concurrency=2, listen=True)
    wait_until_begun(twice)
    cancel(twice)
    wait_for(lambda: log(f"#{twice.id} was cancelled while it ran"))
    rows.move_clock(twice.id, "run_after", -1)
    transitions.requeue("default", [twice.id])
    wait_for(lambda: len(notes("begun")) == 2)
    assert [attempt.job.fencing_token for attempt in running.loop.held.values()] == [2]
    door.open()
    row = wait_for_state(twice, State.SUCCEEDED)
    assert (row.attempts, row.fencing_token, row.history) == (1, 2, [])
    wait_for(lambda: len(notes("ended")) == 2)
    assert running.stop() == 0
    assert running.loop.counts == {State.SUCCEEDED: 1}
    assert len(log(f"#{twice.id} succeeded")) == 1
    assert not running.loop.held


def test_an_attempt_whose_cancel_was_not_heard_is_void_once_the_same_worker_claims_its_job_again(
    worker: Worker, gate: Gate, log: Log, second_connection: psycopg.Connection[Any]
) -> None:
    """Both outcomes go into one settle, since the one before it hangs."""
    door, hanging_door = gate(), gate()
    twice = handlers.wait_unwritten.enqueue(str(door))
    hanging = handlers.wait_unwritten.enqueue(str(hanging_door))
    running = worker(concurrency=3)  # heartbeat in 10 s
    wait_for_state(twice, State.RUNNING)
    wait_for_state(hanging, State.RUNNING)
    requeue_at_once(twice)
    wait_for(lambda: (job(twice).state, job(twice).fencing_token) == (State.RUNNING, 2))
    with second_connection.transaction():
        second_connection.execute("LOCK TABLE pgqueue_stat IN EXCLUSIVE MODE")
        hanging_door.open()
        wait_for(lambda: sessions("wait_event_type = 'Lock' AND query LIKE '%%pgqueue_stat%%'"))
        door.open()
        wait_for(lambda: running.loop._slots.load == 0)
    row = wait_for_state(twice, State.SUCCEEDED)
    assert (row.attempts, row.fencing_token) == (1, 2)
    assert running.stop() == 0
    assert running.loop.counts == {State.SUCCEEDED: 2}
    assert len(log(f"#{twice.id} succeeded")) == 1
    assert sum(stat.succeeded for stat in Stat.objects.all()) == 2


@pytest.mark.parametrize("own", [True, False], ids=["the same worker", "another worker"])
def test_a_late_success_is_void_although_the_job_succeeded_meanwhile(
    worker: Worker, gate: Gate, log: Log, own: bool
) -> None:
    """The row says what the late one wants to write; it is another attempt's."""
    slow, quick = gate(), gate()
    lost = handlers.wait_unwritten.enqueue(str(slow))
    first = worker(concurrency=2 if own else 1)
    wait_for_state(lost, State.RUNNING)
    with rows.connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET args = jsonb_build_array(%s::text) WHERE id = %s", [str(quick), lost.id])
    requeue_at_once(lost)
    second = first if own else worker(concurrency=1)
    wait_for(lambda: (job(lost).state, job(lost).fencing_token) == (State.RUNNING, 2))
    quick.open()
    wait_for_state(lost, State.SUCCEEDED)
    slow.open()
    wait_for(lambda: first.loop._slots.load == 0)
    wait_for(lambda: not first.loop.held)
    assert first.stop() == 0
    if not own:
        assert second.stop() == 0
        assert first.loop.counts == {}
    assert second.loop.counts == {State.SUCCEEDED: 1}
    assert len(log(f"#{lost.id} succeeded")) == 1


def test_a_plain_handler_that_computes_is_interrupted(worker: Worker) -> None:
    cancelled = handlers.spin_and_tell.enqueue()
    running = worker(concurrency=1, listen=True)
    wait_for(lambda: notes("begun"))
    transitions.cancel("default", [cancelled.id])
    wait_for(lambda: notes("JobCancelled") == [(cancelled.id, "JobCancelled")], 3)
    wait_for(lambda: running.loop._slots.load == 0)
    assert running.loop.counts == {}


def test_a_plain_handler_whose_lease_is_lost_is_interrupted(worker: Worker) -> None:
    lost = handlers.spin_and_tell.enqueue()
    running = worker(concurrency=1)
    wait_for(lambda: notes("begun"))
    rows.move_clock(lost.id, "lease_expires_at", -60)
    transitions.reap("default", by="another")
    running.loop._heartbeat.nudge()
    wait_for(lambda: notes("LeaseLost") == [(lost.id, "LeaseLost")], 3)
