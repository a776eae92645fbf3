"""What handlers do to their connections, and ``@task(atomic=True)``: writes and outcome are one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from verbs import rows

from pgqueue_django import enqueue_many, transitions
from pgqueue_django.models import Job, Stat
from pgqueue_django.models import Worker as WorkerRow
from pgqueue_django.outcomes import Retried
from pgqueue_django.states import State
from pgqueue_django.worker import executor, heartbeat
from pgqueue_django.worker.executor import Attempt, lease_clock
from tests.machine import handlers

from .workers import REAL_DATABASE, Process, Running, failure, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]


@pytest.mark.parametrize("how", handlers.LEAVES_OPEN)
@pytest.mark.parametrize("leave_open", [handlers.leave_open, handlers.leave_open_async])
def test_a_handler_that_leaves_a_transaction_open_fails_and_the_next_jobs_writes_stay(
    drain: Drain, leave_open: Any, how: str
) -> None:
    left = leave_open.enqueue(how)
    next_ones = enqueue_many(handlers.write.call("kept") for _ in range(3))
    running = drain(concurrency=1)
    assert job(left).state == State.RETRYING
    assert failure(left)["kind"] == "transaction", failure(left)
    assert "open" in failure(left)["message"]
    assert "default" in failure(left)["message"]
    assert [job(enqueued).state for enqueued in next_ones] == [State.SUCCEEDED] * 3
    assert notes("kept") == [(0, "kept")] * 3
    assert notes("lost") == []
    assert running.loop.counts == {State.RETRYING: 1, State.SUCCEEDED: 3}


def test_the_error_of_a_handler_says_more_than_the_transaction_that_it_left(drain: Drain) -> None:
    left = handlers.leave_open_and_fail.enqueue("atomic entered")
    kept = handlers.write.enqueue("kept")
    drain(concurrency=1)
    assert (failure(left)["kind"], failure(left)["message"]) == ("error", "and failed")
    assert job(kept).state == State.SUCCEEDED
    assert notes() == [(0, "kept")]


@pytest.mark.parametrize("how", handlers.BREAKS)
def test_a_handler_that_breaks_its_connection_costs_the_next_job_nothing(drain: Drain, how: str) -> None:
    broken = handlers.break_connection.enqueue(how)
    again = handlers.break_connection.enqueue(how)
    kept = [handlers.write.enqueue("kept"), handlers.write_atomic.enqueue("kept, too")]
    drain(concurrency=1)
    for enqueued in (broken, again):
        assert (job(enqueued).state, job(enqueued).attempts) in [(State.SUCCEEDED, 1), (State.RETRYING, 1)]
    assert [job(enqueued).state for enqueued in kept] == [State.SUCCEEDED] * 2
    assert [event for _, event in notes()] == ["kept", "kept, too"]


@pytest.mark.parametrize("caught", [False, True])
def test_an_integrity_error_in_a_handler_does_not_disturb_its_recording(drain: Drain, caught: bool) -> None:
    bad, kept = handlers.violate_integrity.enqueue(caught), handlers.write.enqueue("kept")
    drain(concurrency=1)
    if caught:
        assert job(bad).state == State.SUCCEEDED
    else:
        assert failure(bad)["error_type"] == "django.db.utils.IntegrityError"
        assert failure(bad)["kind"] == "error"
    assert job(kept).state == State.SUCCEEDED
    assert [event for _, event in notes()] == ["before", "kept"]


def test_an_error_that_comes_only_at_commit_is_a_failed_attempt(drain: Drain) -> None:
    bad, kept = handlers.deferred_violation.enqueue(), handlers.write.enqueue("kept")
    drain(concurrency=1)
    assert failure(bad)["error_type"] == "django.db.utils.IntegrityError"
    assert job(kept).state == State.SUCCEEDED


def test_connections_that_the_server_ended_between_jobs_are_replaced(worker: Worker) -> None:
    running = worker(concurrency=1)
    first = wait_for_state(handlers.backend_pid.enqueue(), State.SUCCEEDED).result
    with psycopg.connect(**_parameters(), autocommit=True) as session:
        session.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    kept = enqueue_many(handlers.write.call("kept") for _ in range(5))
    for enqueued in kept:
        wait_for_state(enqueued, State.SUCCEEDED, State.RETRYING)
    # At most the job in flight fails.
    assert sum(job(enqueued).state == State.RETRYING for enqueued in kept) <= 1
    assert running.is_alive


def _parameters() -> dict[str, Any]:
    return psycopg.conninfo.conninfo_to_dict(_url())


def _url() -> str:
    from .workers import database_url

    return database_url()


# -- atomic=True -----------------------------------------------------------------------------------------------


def test_an_atomic_handlers_writes_and_its_outcome_commit_together(
    worker: Worker, gate: Callable[[], Any], second_connection: psycopg.Connection[Any]
) -> None:
    door = gate()
    done = handlers.write_atomic_and_wait.enqueue(str(door))
    worker(concurrency=1)
    wait_for(Path(f"{door}.begun").exists)
    assert (notes(), job(done).state) == ([], State.RUNNING)
    door.open()
    seen = set()

    def look() -> bool:
        # One statement, one snapshot: either both or neither.
        row = second_connection.execute(
            "SELECT state, (SELECT count(*) FROM machine_note) FROM pgqueue_job WHERE id = %s", [done.id]
        ).fetchone()
        seen.add(row)
        return row == ("succeeded", 1)

    wait_for(look)
    assert seen <= {("running", 0), ("succeeded", 1)}


def test_an_atomic_success_is_counted_and_logged_like_any_other(drain: Drain, log: Callable[..., list[str]]) -> None:
    done = handlers.write_atomic.enqueue()
    running = drain()
    assert job(done).result == 1
    assert running.loop.counts == {State.SUCCEEDED: 1}
    assert len(log(f"#{done.id} succeeded, attempt 1/5, ran")) == 1
    assert [(stat.succeeded, stat.task) for stat in Stat.objects.all()] == [(1, handlers.write_atomic.path)]


def test_an_atomic_handler_that_fails_leaves_nothing(drain: Drain) -> None:
    failed = handlers.write_atomic_and_fail.using(max_attempts=1).enqueue(9)
    drain()
    assert job(failed).state == State.DEAD
    assert failure(failed)["kind"] == "error"
    assert notes() == []


@pytest.mark.parametrize("loss", ["lease", "cancel"])
def test_an_atomic_handler_that_lost_its_job_is_rolled_back(
    worker: Worker,
    gate: Callable[[], Any],
    log: Callable[..., list[str]],
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "_FIRST_SECONDS", ())
    door = gate()
    lost = handlers.write_atomic_and_wait.enqueue(str(door))
    # No wake-up and no heartbeat in time: the settle itself must find out.
    first = worker(concurrency=1)
    wait_for(Path(f"{door}.begun").exists)
    if loss == "lease":
        rows.move_clock(lost.id, "lease_expires_at", -1)
        wait_for_state(lost, State.RETRYING, State.QUEUED)
        second = worker(concurrency=1)
        wait_for(lambda: job(lost).worker_id == second.loop.worker_id)
    else:
        assert transitions.cancel("default", [lost.id]) == {lost.id}
    door.open()
    if loss == "lease":
        row = wait_for_state(lost, State.SUCCEEDED)
        assert (row.attempts, row.fencing_token) == (2, 2)
        assert notes() == [(lost.id, "written")]
    assert first.stop() == 0
    assert notes() == ([(lost.id, "written")] if loss == "lease" else [])
    if loss == "cancel":
        assert job(lost).state == State.CANCELLED
    assert first.loop.counts == {}
    assert len(log(f"#{lost.id}: outcome retrying dropped")) == 1


def test_a_row_that_a_session_holds_makes_an_atomic_settle_wait_and_not_fail(
    worker: Worker, gate: Callable[[], Any], second_connection: psycopg.Connection[Any]
) -> None:
    door = gate()
    done = handlers.write_atomic_and_wait.enqueue(str(door))
    worker(concurrency=1)
    wait_for(Path(f"{door}.begun").exists)
    with rows.locked_elsewhere(second_connection, done.id):
        door.open()
        # It asks again and again, in its one transaction.
        wait_for(
            lambda: sessions("state LIKE 'idle in transaction%%' AND query LIKE '%%fencing_token, lease_expires%%'")
        )
        assert job(done).state == State.RUNNING
        assert notes() == []
    row = wait_for_state(done, State.SUCCEEDED)
    assert (row.attempts, row.history) == (1, [])
    assert notes() == [(done.id, "written")]


def test_an_on_commit_hook_that_fails_does_not_undo_what_was_committed(
    drain: Drain, log: Callable[..., list[str]]
) -> None:
    done, kept = handlers.atomic_with_failing_hook.enqueue(), handlers.write.enqueue("kept")
    running = drain(concurrency=1)
    assert (job(done).state, job(done).result) == (State.SUCCEEDED, "done")
    assert [event for _, event in notes()] == ["written", "kept"]
    assert running.loop.counts == {State.SUCCEEDED: 2}
    assert len(log("on_commit")) == 1
    assert job(kept).state == State.SUCCEEDED


@pytest.mark.parametrize("task", [handlers.atomic_that_needs_rollback, handlers.atomic_that_swallows_an_error])
def test_an_atomic_handler_that_spoils_its_transaction_is_a_failed_attempt(drain: Drain, task: Any) -> None:
    failed, kept = task.enqueue(), handlers.write.enqueue("kept")
    drain(concurrency=1)
    assert (job(failed).state, job(failed).attempts) == (State.RETRYING, 1)
    assert job(kept).state == State.SUCCEEDED
    assert notes() == [(0, "kept")]


def test_an_atomic_handler_that_commits_behind_our_back_harms_only_itself(drain: Drain) -> None:
    handlers.atomic_that_ends_its_transaction.enqueue()
    kept = handlers.write_atomic.enqueue("kept")
    drain(concurrency=1)
    assert job(kept).state == State.SUCCEEDED
    assert (kept.id, "kept") in notes()


def test_a_project_that_works_above_read_committed_has_a_worker_that_works(process: Callable[..., Process]) -> None:
    plain = handlers.show_isolation.enqueue()
    atomic = handlers.show_isolation_atomic.enqueue()
    # Heartbeats touch its row while it runs.
    long = handlers.sleep_atomic.enqueue(1.0)
    many = enqueue_many(handlers.write_atomic.call() for _ in range(100))
    # Two, so that claims meet.
    arguments = ("--drain", "--lease", "0.6", "--concurrency", "4", "--no-listen")
    started = [process(*arguments, settings={"ISOLATION": "REPEATABLE_READ"}) for _ in range(2)]
    assert [one.wait(30) for one in started] == [0, 0]
    assert job(plain).result == "repeatable read"
    assert job(atomic).result == "read committed"
    assert (job(long).state, job(long).attempts) == (State.SUCCEEDED, 1)
    assert {(job(enqueued).state, job(enqueued).attempts) for enqueued in many} == {(State.SUCCEEDED, 1)}
    assert "serialize" not in started[0].log + started[1].log


def test_what_atomic_jobs_write_is_written_exactly_once_whatever_happens(
    worker: Worker, second_connection: psycopg.Connection[Any]
) -> None:
    calls = [handlers.write_atomic_and_fail.call(number % 3) for number in range(60)]
    jobs = enqueue_many(calls)
    workers = [worker(concurrency=4) for _ in range(2)]
    deadline = time.monotonic() + 20
    stolen = 0
    while not all(job(enqueued).state == State.SUCCEEDED for enqueued in jobs):
        assert time.monotonic() < deadline
        # Leases are lost at any moment: some attempts have written, some are about to commit.
        stolen += second_connection.execute(
            "UPDATE pgqueue_job SET lease_expires_at = now() - interval '1 s' WHERE id = ("
            "SELECT id FROM pgqueue_job WHERE state = 'running' AND attempts < 3 ORDER BY random() LIMIT 1 "
            "FOR UPDATE SKIP LOCKED)"
        ).rowcount
        transitions.reap("default", by="test")
    assert stolen > 0
    for running in workers:
        assert running.stop() == 0
    assert sorted(notes()) == sorted((enqueued.id, "written") for enqueued in jobs)


def test_hooks_after_an_atomic_success_are_left_alone_by_the_heartbeat(
    worker: Worker, gate: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    door = gate()
    running = worker(lease=1.5, concurrency=1)
    made = handlers.atomic_with_slow_hook.enqueue(str(door))
    wait_for_state(made.id, State.SUCCEEDED)
    beat = WorkerRow.objects.get(pk=running.loop.worker_id).heartbeat_at
    wait_for(lambda: WorkerRow.objects.get(pk=running.loop.worker_id).heartbeat_at > beat + timedelta(seconds=0.9))
    door.open()
    running.stop()
    assert running.loop.counts == {State.SUCCEEDED: 1}
    assert Stat.objects.get().succeeded == 1
    assert "void" not in caplog.text


def test_atomic_needs_autocommit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it atomic() commits nothing, and the success would be recorded without the writes."""
    made = handlers.write_atomic.enqueue()
    (job,) = transitions.claim("default", queue_name="default", slots=1, worker_id="w", lease_seconds=60)
    attempt = Attempt(job, handlers.write_atomic, lease_clock() + 60)
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
        connection.close()
        outcome = executor.run(attempt, "default", [connection])
        connection.close()
    assert isinstance(outcome, Retried)
    assert "autocommit" in outcome.failure.message
    assert Job.objects.get(pk=made.id).state == State.RUNNING
