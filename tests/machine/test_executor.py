"""What a handler does becomes a value: results, errors of every kind, and what the row keeps of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import enqueue_many, task_by_name
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import executor
from tests.machine import handlers

from .workers import REAL_DATABASE, Process, Running, failure, job, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
ONE = {"concurrency": 1}


@pytest.mark.parametrize("give", [handlers.give, handlers.give_async])
@pytest.mark.parametrize("value", [None, True, 0, -1.5, "ü☃", [], {}, {"a": [1, {"b": None}]}, [[[]]]])
def test_what_a_handler_returns_is_the_result_of_its_job(drain: Drain, give: Any, value: Any) -> None:
    done = give.enqueue(value)
    drain()
    row = job(done)
    assert (row.state, row.attempts, row.history) == (State.SUCCEEDED, 1, [])
    assert row.result == value
    assert row.finished_at is not None
    assert row.lease_expires_at is None


@pytest.mark.parametrize("give", [handlers.give_unstorable, handlers.give_unstorable_async])
def test_a_result_that_cannot_be_stored_is_a_failed_attempt_of_its_own_kind(drain: Drain, give: Any) -> None:
    kinds = [kind for kind in handlers.UNSTORABLE if kind != "hostile dict"]
    jobs = dict(zip(kinds, enqueue_many(give.call(kind) for kind in kinds), strict=True))
    good = handlers.give.enqueue("good")
    drain()
    for kind, enqueued in jobs.items():
        row = job(enqueued)
        assert row.state == State.RETRYING, kind
        assert row.attempts == 1, kind
        assert row.result is None, kind
        assert [entry["kind"] for entry in row.history] == ["result"], kind
        assert failure(enqueued)["message"], kind
        assert "result" in failure(enqueued)["message"], kind
    assert job(good).result == "good"


def test_a_result_that_defends_itself_is_a_failed_attempt_too(drain: Drain) -> None:
    hostile, good = handlers.give_unstorable.enqueue("hostile dict"), handlers.give.enqueue(1)
    drain(**ONE)
    assert job(hostile).state in (State.RETRYING, State.SUCCEEDED)
    assert job(good).state == State.SUCCEEDED


EXPECTED_TYPES = {
    "exception": "ValueError",
    "system exit": "SystemExit",
    "keyboard interrupt": "KeyboardInterrupt",
    "generator exit": "GeneratorExit",
    "cancelled": "asyncio.exceptions.CancelledError",
    "base exception": "tests.machine.handlers.Sudden",
    "memory": "MemoryError",
    "recursion": "RecursionError",
    "group": "BaseExceptionGroup",
    "invalid payload": "pgqueue_django.exceptions.InvalidPayload",
}


@pytest.mark.parametrize("fail", [handlers.fail, handlers.fail_async, handlers.fail_in_child])
def test_every_error_is_a_failed_attempt_and_the_worker_lives_on(drain: Drain, fail: Any) -> None:
    kinds = [kind for kind in handlers.ERRORS if kind != "permanent"]
    jobs = dict(zip(kinds, enqueue_many(fail.call(kind) for kind in kinds), strict=True))
    good = [handlers.give.enqueue(1), handlers.give_async.enqueue(1)]
    running = drain(concurrency=2)
    for kind, enqueued in jobs.items():
        row = job(enqueued)
        assert (row.state, row.attempts) == (State.RETRYING, 1), (kind, row.state, row.history)
        if kind in EXPECTED_TYPES:
            assert failure(enqueued)["error_type"] == EXPECTED_TYPES[kind]
        expected = "retry" if "retry" in kind else "error"
        assert failure(enqueued)["kind"] == expected, kind
    assert [job(enqueued).state for enqueued in good] == [State.SUCCEEDED] * 2
    assert running.loop.counts == {State.RETRYING: len(kinds), State.SUCCEEDED: 2}


@pytest.mark.parametrize("fail", [handlers.fail, handlers.fail_async, handlers.fail_in_child])
def test_a_process_that_met_every_error_still_works_and_ends_on_sigterm(
    process: Callable[..., Process], fail: Any
) -> None:
    kinds = ["system exit", "keyboard interrupt", "generator exit", "cancelled", "base exception", "deadly text"]
    jobs = enqueue_many(fail.call(kind) for kind in kinds)
    started = process("--concurrency", "2").wait_until_ready()
    for enqueued in jobs:
        wait_for_state(enqueued, State.RETRYING)
    later = [handlers.give.enqueue("later"), handlers.give_async.enqueue("later")]
    for enqueued in later:
        wait_for_state(enqueued, State.SUCCEEDED)
    assert started.stop() == 0
    assert "Traceback" not in started.log


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_a_handler_that_exits_is_its_own_affair(drain: Drain) -> None:
    done = handlers.exit_in_thread.enqueue()
    drain()
    assert job(done).state == State.SUCCEEDED


@pytest.mark.parametrize(
    ("kind", "text"),
    [("nul", "a\\x00b"), ("surrogate", "a\\udc80b"), ("no text", "__str__"), ("deadly text", "__str__")],
)
def test_a_text_that_postgresql_refuses_is_still_recorded(drain: Drain, kind: str, text: str) -> None:
    failed = handlers.fail.enqueue(kind)
    drain()
    entry = failure(failed)
    assert text in entry["message"]
    assert "handlers.py" in entry["traceback"]


def test_texts_of_errors_are_bounded_and_keep_their_beginning_and_end(drain: Drain) -> None:
    long, deep = handlers.fail.enqueue("long"), handlers.fail_deeply.enqueue(500)
    drain()
    entry = failure(long)
    assert 1_500 < len(entry["message"]) <= executor.MAX_MESSAGE
    assert 5_000 < len(entry["traceback"]) <= executor.MAX_TRACEBACK
    assert "characters left out" in entry["message"]
    entry = failure(deep)
    assert len(entry["traceback"]) <= executor.MAX_TRACEBACK
    assert entry["traceback"].rstrip().endswith("ValueError: at the bottom")


def test_a_failed_attempt_leaves_a_complete_entry_in_the_history(drain: Drain, worker: Drain) -> None:
    failed = handlers.fail_always.enqueue()
    running = worker()
    row = wait_for_state(failed, State.DEAD)
    running.stop()
    assert row.attempts == row.max_attempts == 3
    assert [entry["attempt"] for entry in row.history] == [1, 2, 3]
    for entry in row.history:
        assert set(entry) == {
            *("attempt", "worker", "started_at", "ended_at"),
            *("kind", "error_type", "message", "traceback"),
        }
        assert entry["worker"] == running.loop.worker_id
        assert (entry["kind"], entry["error_type"], entry["message"]) == ("error", "ValueError", "always")
        assert entry["started_at"] <= entry["ended_at"]
        assert entry["traceback"].startswith("Traceback (most recent call last):")
        assert "in fail_always" in entry["traceback"]
        # Ours says nothing to whoever wrote the handler.
        assert "executor.py" not in entry["traceback"]


def test_a_retry_waits_as_long_as_it_says(drain: Drain) -> None:
    failed = handlers.retry_in.enqueue(1234)
    drain()
    row = job(failed)
    assert (row.state, row.attempts) == (State.RETRYING, 1)
    ended_at = Job.objects.raw("SELECT id, (history->0->>'ended_at')::timestamptz AS ended FROM pgqueue_job")[0].ended
    assert abs((row.run_after - ended_at).total_seconds() - 1234) < 0.001
    assert failure(failed)["kind"] == "retry"
    assert failure(failed)["message"] == "not yet"


def test_a_retry_on_the_last_attempt_is_dead(drain: Drain) -> None:
    failed = handlers.retry_in.using(max_attempts=1).enqueue(0)
    drain()
    row = job(failed)
    assert (row.state, row.attempts) == (State.DEAD, 1)
    assert failure(failed)["kind"] == "retry"


def test_a_permanent_error_is_failed_at_once(drain: Drain) -> None:
    jobs = [handlers.fail.enqueue("permanent"), handlers.fail_async.enqueue("permanent")]
    drain()
    for failed in jobs:
        row = job(failed)
        assert (row.state, row.attempts) == (State.FAILED, 1)
        assert failure(failed)["kind"] == "permanent"
        assert failure(failed)["message"] == "declined for good"


def test_a_payload_that_no_longer_fits_is_failed_and_one_that_the_handler_calls_invalid_is_not(drain: Drain) -> None:
    path = handlers.takes_number.path
    strangers = [
        task_by_name(path).enqueue(),
        task_by_name(path).enqueue(1, 2),
        task_by_name(path).enqueue(number=1, colour="red"),
        task_by_name(handlers.give_async.path).enqueue(),
    ]
    by_hand = []
    for args, kwargs in [("{}", "{}"), ("[1]", "[]"), ("[1]", '{"a": 1e400}')]:
        by_hand.append(task_by_name(path).enqueue(1))
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgqueue_job SET args = %s::jsonb, kwargs = %s::jsonb WHERE id = %s",
                [args, kwargs, by_hand[-1].id],
            )
    mine = handlers.fail.enqueue("invalid payload")
    good = handlers.takes_number.enqueue(7)
    drain(**ONE)
    for enqueued in [*strangers, *by_hand]:
        row = job(enqueued)
        assert (row.state, row.attempts, failure(enqueued)["kind"]) == (State.FAILED, 1, "payload"), row.history
    assert job(mine).state == State.RETRYING
    assert failure(mine)["kind"] == "error"
    assert job(good).result == 7


@pytest.mark.parametrize(
    "backoff", ["[" * 3_000 + "]" * 3_000, '{"base": 1e400}', '"soon"', '{"base": -1, "factor": 2, "cap": 3}', "null"]
)
@pytest.mark.parametrize("fail", [handlers.fail, handlers.fail_async, handlers.overrun_async])
def test_backoff_numbers_that_somebody_broke_do_not_lose_the_attempt(drain: Drain, fail: Any, backoff: str) -> None:
    failed = fail.enqueue(*[] if fail is handlers.overrun_async else ["exception"])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET backoff = %s::jsonb WHERE id = %s", [backoff, failed.id])
    drain(**ONE)
    row = job(failed)
    assert row.state == State.RETRYING
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM run_after - statement_timestamp())::float8 FROM pgqueue_job")
        assert 0.5 < cursor.fetchone()[0] < 2.1


def test_a_worker_stopped_in_the_middle_of_failures_ends_clean(worker: Drain) -> None:
    jobs = enqueue_many(handlers.fail.call("system exit") for _ in range(50))
    running = worker(concurrency=4)
    wait_for_state(jobs[0], State.RETRYING)
    running.loop.stop(signal.SIGTERM)
    assert running.join() == 0
    assert not Job.objects.running().exists()
    assert set(Job.objects.values_list("state", "attempts")) <= {(State.RETRYING, 1), (State.QUEUED, 0)}
