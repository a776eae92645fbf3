"""What a handler that asks for its context learns, and what it can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from verbs import rows

from pgqueue_django.states import State
from tests.machine import handlers

from .workers import REAL_DATABASE, Running, job, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]


def test_a_handler_learns_of_its_job_attempt_and_deadline(drain: Drain) -> None:
    enqueued = handlers.tell_context.enqueue("more")
    other = handlers.tell_context.enqueue(extra="by name")
    drain()
    told = job(enqueued).result
    assert (told["job_id"], told["attempt"], told["max_attempts"]) == (enqueued.id, 1, 4)
    assert told["cancelled"] is False
    assert told["extra"] == "more"
    assert 25 < told["remaining"] <= 30
    assert abs(told["remaining"] - told["ahead"]) < 0.1
    assert job(other).result["job_id"] == other.id


def test_the_attempt_grows_with_each_try(worker: Worker) -> None:
    retried = handlers.write_atomic_and_fail.enqueue(2)
    worker()
    row = wait_for_state(retried, State.SUCCEEDED)
    assert (row.attempts, [entry["attempt"] for entry in row.history]) == (3, [1, 2])


def test_without_a_timeout_there_is_no_deadline(drain: Drain) -> None:
    enqueued = handlers.tell_context_async.enqueue()
    drain()
    assert job(enqueued).result == {"job_id": enqueued.id, "deadline": None, "remaining": None}


def test_a_timeout_in_the_settings_is_the_deadline_of_tasks_that_name_none(drain: Drain, settings: Any) -> None:
    settings.PGQUEUE = {"TIMEOUT": 20}
    enqueued, own = handlers.tell_context_async.enqueue(), handlers.tell_context.enqueue("")
    drain()
    assert 15 < job(enqueued).result["remaining"] <= 20
    assert 25 < job(own).result["remaining"] <= 30


def test_progress_is_written_by_the_heartbeat(worker: Worker, gate: Callable[[], Any], settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": 3, "HEARTBEAT": 0.1}
    doors = [gate() for _ in range(3)]
    enqueued = handlers.show_progress.enqueue([str(one) for one in doors])
    worker(lease=3.0)
    for step, one in enumerate(doors):
        expected = {"fraction": (step + 1) / 4, "message": f"step {step}"}
        wait_for(lambda expected=expected: job(enqueued).progress == expected)
        one.open()
    wait_for_state(enqueued, State.SUCCEEDED)


def test_progress_that_met_a_held_row_is_not_lost(
    worker: Worker, gate: Callable[[], Any], settings: Any, second_connection: psycopg.Connection[Any]
) -> None:
    settings.PGQUEUE = {"LEASE": 3, "HEARTBEAT": 0.1}
    first, second = gate(), gate()
    enqueued = handlers.show_progress.enqueue([str(first), str(second)])
    running = worker(lease=3.0)
    wait_for(lambda: job(enqueued).progress)
    with rows.locked_elsewhere(second_connection, enqueued.id):
        first.open()
        (attempt,) = running.loop.held.values()
        # Taken for a heartbeat, and given back by it.
        wait_for(lambda: attempt._progress is not None)
        wait_for(lambda: attempt._progress is None)
        wait_for(lambda: attempt._progress is not None)
        assert job(enqueued).progress["message"] == "step 0"
    wait_for(lambda: job(enqueued).progress["message"] == "step 1")
    second.open()
    wait_for_state(enqueued, State.SUCCEEDED)


def test_progress_that_cannot_be_stored_is_refused_where_it_is_told(drain: Drain) -> None:
    enqueued = handlers.show_bad_progress.enqueue()
    drain()
    row = job(enqueued)
    assert row.state == State.SUCCEEDED, row.history
    assert len(row.result) == 6
    assert row.progress is None
