"""Chores: taken by whoever is there, never behind one who froze, and no faster for rows that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgqueue_django import transitions
from pgqueue_django.models import AuditEntry, Chore, Job, Stat
from pgqueue_django.models import Worker as WorkerRow
from pgqueue_django.states import State
from pgqueue_django.worker import loop
from pgqueue_django.worker.chores import Chores
from pgqueue_django.worker.connections import own_connection
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, notes, seconds, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]


def chores() -> Chores:
    made = Chores(
        "default", worker_id="w", interval=1.0, adopt_at_once=100, queues=(), excluded=(), promoted=lambda: None
    )
    made.look()
    return made


def test_a_chore_that_this_version_does_not_know_makes_nobody_hurry() -> None:
    mine = chores()
    mine.look()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_chore VALUES ('of_the_future', statement_timestamp() - interval '1 day')")
    assert mine.look() > 0.5


def test_one_who_froze_with_the_chores_in_hand_stops_nobody(second_connection: psycopg.Connection[Any]) -> None:
    mine = chores()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_chore SET due_at = statement_timestamp() - interval '1 second'")
    with second_connection.transaction(force_rollback=True):
        second_connection.execute("SELECT FROM pgqueue_chore FOR UPDATE")
        assert seconds(mine.look) < 1 + GRACE
    mine.look()
    assert not Chore.objects.filter(due_at__lte=_now()).exists()


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, ["399 days"]), ({"AUDIT_RETENTION": 86_400}, []), ({"AUDIT_RETENTION": None}, ["399 days", "401 days"])],
)
def test_the_audit_log_is_pruned_in_steps_by_the_chore_that_prunes_jobs(
    given: dict[str, Any], kept: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "BATCH", 3)
    settings.PGQUEUE = {**settings.PGQUEUE, **given}
    mine = chores()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_audit (at, actor, action, target) SELECT statement_timestamp() - age::interval, "
            "'ann', 'cancel', age FROM unnest(ARRAY['399 days', '401 days']) AS age, generate_series(1, 4)"
        )

    def look() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pgqueue_chore SET due_at = statement_timestamp() WHERE name = 'prune'")
        mine.look()
        return sorted(AuditEntry.objects.values_list("target", flat=True))

    def is_soon() -> bool:
        return Chore.objects.filter(name="prune", due_at__lt=_now() + timedelta(seconds=50)).exists()

    gone = 8 - 4 * len(kept)
    for step in range(1, gone // 3 + 1):
        assert len(look()) == 8 - 3 * step
        assert is_soon(), "while there is more"
    assert look() == sorted(kept * 4)
    assert not is_soon()


def _now() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return cursor.fetchone()[0]


def test_the_server_ends_a_session_of_ours_that_froze_in_a_transaction() -> None:
    with own_connection("default", "test") as own:
        with own.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("5s",)
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("2s",)
            cursor.execute("SHOW default_transaction_isolation")
            assert cursor.fetchone() == ("read committed",)


def test_statistics_that_are_an_hour_old_are_rolled_up() -> None:
    counts = [0] * 16
    for age in (2, 3):
        Stat.objects.create(
            minute=_now() - timedelta(hours=age),
            worker_id="w",
            queue_name="q",
            task="t",
            succeeded=age,
            pickup_counts=counts,
            run_counts=counts,
        )
    mine = chores()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_chore SET due_at = statement_timestamp() - interval '1 second'")
    mine.look()
    assert list(Stat.objects.values_list("worker_id", "succeeded")) == [("", 5)]


def test_jobs_that_a_lost_reply_left_are_given_back_although_somebody_held_them_first(
    worker: Worker, second_connection: psycopg.Connection[Any]
) -> None:
    """The first look for them passes over the row; the lease would end it after a minute."""
    running = worker(lease=60.0, concurrency=1, queues=["mine"])
    enqueued = handlers.write.using(queue_name="lost").enqueue("ran")
    (lost,) = transitions.claim(
        "default", queue_name="lost", slots=1, worker_id=running.loop.worker_id, lease_seconds=60
    )
    with second_connection.transaction(force_rollback=True):
        second_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [lost.id])
        wait_for(_break_the_loops_connection)
        done = handlers.write.using(queue_name="mine").enqueue("ran")
        wait_for_state(done.id, State.SUCCEEDED)  # so it is back, and has looked
    wait_for(lambda: Job.objects.get(pk=enqueued.id).state == State.QUEUED, 10)
    assert Job.objects.get(pk=enqueued.id).attempts == 0


def _break_the_loops_connection() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name = 'pgqueue loop' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


# -- the registry ----------------------------------------------------------------------------------------------


def test_a_worker_says_who_it_is_and_how_it_is(worker: Worker) -> None:
    running = worker(concurrency=3, name="web-1", queues=["a", "b"], lease=3.0)
    row = wait_for(lambda: WorkerRow.objects.filter(pk=running.loop.worker_id).first())
    assert (row.name, row.queues, row.concurrency, row.version) == ("web-1", ["a", "b"], 3, loop._version())
    assert handlers.give.path in row.tasks
    assert row.memory_bytes > 10_000_000
    assert abs(row.skew_seconds) < 2


def test_workers_of_one_name_do_not_get_into_each_others_way(worker: Worker, gate: Callable[[], Any]) -> None:
    """As when a pod comes back under its name while the old one still runs."""
    door = gate()
    held = handlers.write_and_wait.enqueue(str(door))
    first = worker(concurrency=1, name="web-1")
    wait_for(lambda: notes("begun"))
    second = worker(concurrency=1, name="web-1")
    wait_for(lambda: WorkerRow.objects.filter(name="web-1").count() == 2)
    assert second.stop() == 0
    assert list(WorkerRow.objects.values_list("id", flat=True)) == [first.loop.worker_id]
    door.open()
    assert wait_for_state(held, State.SUCCEEDED).attempts == 1
