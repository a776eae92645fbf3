"""LISTEN wakes an idle worker; without it, and whenever it fails, the worker polls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import transitions, wakeups
from pgqueue_django.models import Worker as WorkerRow
from pgqueue_django.states import State
from pgqueue_django.worker import supply
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, always, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]
LISTENS = "query = 'LISTEN pgqueue'"


def wait_until_idle(running: Running, seconds: float = 1.5) -> None:
    """Until it will not look for jobs by itself for so long."""
    wait_for(lambda: running.loop._supply.next_claim_at - time.monotonic() > seconds, 20)


def wait_until_it_hears(running: Running, of: int = 1) -> None:
    """Of a job that no poll finds in time. ``of``: sessions that listen."""
    wait_for(lambda: sessions(LISTENS) == of, 10)
    wait_until_idle(running, 2 * GRACE)
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=GRACE)


def insert_quietly(event: str) -> int:
    """As another program does with plain SQL: no notification."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task, args) VALUES (%s, jsonb_build_array(%s::text)) RETURNING id",
            [handlers.write_job.path, event],
        )
        return int(cursor.fetchone()[0])


def pickup_seconds(job_id: int) -> float:
    """From when it could run to what its handler wrote, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM note.at - GREATEST(job.enqueued_at, job.run_after))::float8 "
            "FROM machine_note note JOIN pgqueue_job job ON job.id = note.job_id WHERE job.id = %s",
            [job_id],
        )
        return float(cursor.fetchone()[0])


def test_an_idle_worker_picks_up_a_job_long_before_its_next_look(worker: Worker) -> None:
    running = worker(poll_interval=30, listen=True)
    wait_until_idle(running)
    first = handlers.write_job.enqueue()
    wait_for_state(first, State.SUCCEEDED, timeout=GRACE)
    times = []
    for _ in range(20):
        enqueued = handlers.write_job.enqueue()
        wait_for_state(enqueued, State.SUCCEEDED)
        times.append(pickup_seconds(enqueued.id))
    assert statistics.median(times) < 1
    # The control: without a notification it would have slept.
    wait_until_idle(running)
    quiet = insert_quietly("quiet")
    always(lambda: job(quiet).state == State.QUEUED, 0.5)


def test_an_idle_worker_hears_of_a_queue_that_it_has_never_seen(worker: Worker) -> None:
    running = worker(poll_interval=30, listen=True)
    wait_until_idle(running)
    wait_for_state(handlers.write_job.using(queue_name="never-seen").enqueue(), State.SUCCEEDED, timeout=GRACE)


@pytest.mark.parametrize("verb", ["requeue", "run_now", "release"])
def test_what_a_verb_makes_ready_wakes_a_worker(worker: Worker, verb: str) -> None:
    if verb == "run_now":
        enqueued = handlers.write_job.using(run_after=timedelta(hours=1)).enqueue()
    else:
        enqueued = handlers.write_job.enqueue()
    if verb == "requeue":
        transitions.cancel("default", [enqueued.id])
    claimed = transitions.claim("default", queue_name="default", slots=1, worker_id="other", lease_seconds=60)
    running = worker(poll_interval=30, listen=True)
    wait_until_idle(running)
    if verb == "release":
        transitions.release("default", [one.pair for one in claimed])
    else:
        getattr(transitions, verb)("default", [enqueued.id])
    wait_for_state(enqueued, State.SUCCEEDED, timeout=GRACE)


def test_without_listening_it_polls(worker: Worker) -> None:
    worker(listen=False, poll_interval=0.2)
    wait_for(lambda: sessions("application_name = 'pgqueue chores'"))
    assert sessions(LISTENS) == 0
    first = handlers.write_job.enqueue()
    wait_for_state(first, State.SUCCEEDED, timeout=1 + GRACE)
    assert pickup_seconds(first.id) < 1 + GRACE


def test_a_listener_that_lost_its_connection_listens_again(worker: Worker) -> None:
    running = worker(poll_interval=30, listen=True)
    for _ in range(2):
        wait_until_idle(running, 2)
        # As if its notification had come while nobody listened.
        quiet = insert_quietly("meanwhile")
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT pid, pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                f"WHERE datname = current_database() AND {LISTENS.replace('%%', '%')}"
            )
            ((pid, terminated),) = cursor.fetchall()
            assert terminated
        wait_for_state(quiet, State.SUCCEEDED, timeout=GRACE)
        assert sessions(LISTENS + " AND pid <> %s", pid) == 1
    wait_until_idle(running)
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=GRACE)


def test_a_job_that_is_due_before_the_next_look_at_waiting_ones_is_on_time(worker: Worker, settings: Any) -> None:
    settings.PGQUEUE = {"CHORE_INTERVAL": 20}
    running = worker(poll_interval=30, listen=True)
    wait_until_idle(running)
    enqueued = handlers.write_job.using(run_after=timedelta(milliseconds=200)).enqueue()
    assert job(enqueued).state == State.SCHEDULED
    wait_for_state(enqueued, State.SUCCEEDED, timeout=3)
    assert 0 <= pickup_seconds(enqueued.id) < GRACE


@pytest.mark.parametrize("listen", [True, False])
def test_a_short_retry_is_on_time(worker: Worker, settings: Any, listen: bool) -> None:
    settings.PGQUEUE = {"CHORE_INTERVAL": 20}
    running = worker(poll_interval=30, listen=listen)
    wait_until_idle(running)
    enqueued = handlers.fail_always.enqueue()
    if not listen:
        running.loop._heard(None)  # somebody has to tell it of the first attempt
    wait_for_state(enqueued, State.DEAD, timeout=1 + GRACE)


def test_jobs_that_have_become_ready_wake_their_worker(worker: Worker, settings: Any) -> None:
    settings.PGQUEUE = {"CHORE_INTERVAL": 0.3}
    running = worker(poll_interval=30, listen=False)
    wait_until_idle(running)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task, state, run_after) "
            "VALUES (%s, 'scheduled', statement_timestamp() + interval '0.2 s') RETURNING id",
            [handlers.write_job.path],
        )
        (id,) = cursor.fetchone()
    wait_for(lambda: notes("ran") == [(id, "ran")], 2 + GRACE)
    assert pickup_seconds(id) < 1 + GRACE


def with_others(running: Running, count: int) -> None:
    """So many other workers are alive, and this one has counted them at a heartbeat."""
    WorkerRow.objects.bulk_create(
        WorkerRow(id=f"other-{number}", name="other", host="h", pid=1, concurrency=1, lease_seconds=30)
        for number in range(count)
    )
    running.loop._heartbeat.nudge()
    wait_for(lambda: running.loop._heartbeat.others == count)


def come_in_vain(running: Running) -> None:
    """One notification for nothing, and the look that it causes."""
    wait_until_idle(running)
    wakeups.send("default", "default")
    wait_for(lambda: running.loop._supply._in_vain)


def test_among_many_workers_who_came_in_vain_comes_later_and_who_had_a_job_comes_at_once(
    worker: Worker, gate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "_CROWD_SECONDS", 60)
    running = worker(poll_interval=30, listen=True)
    with_others(running, 40)
    come_in_vain(running)
    late = handlers.write_job.enqueue()
    always(lambda: job(late).state == State.QUEUED, 0.5)
    running.loop._heard(None)  # something may have been missed: that is looked for at once
    wait_for_state(late, State.SUCCEEDED, timeout=GRACE)
    for _ in range(3):
        wait_until_idle(running)
        wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=GRACE)
    door = gate()
    busy = handlers.wait_unwritten.enqueue(str(door))
    wait_for_state(busy, State.RUNNING, timeout=GRACE)
    wait_until_idle(running)
    # Now those who have nothing to do are nearer.
    second = handlers.write_job.enqueue()
    always(lambda: job(second).state == State.QUEUED, 0.5)
    door.open()
    wait_for_state(busy, State.SUCCEEDED)


def test_a_job_that_nobody_comes_for_at_once_is_picked_up_by_one_of_the_many(worker: Worker) -> None:
    running = worker(poll_interval=30, listen=True)
    with_others(running, 60)
    come_in_vain(running)
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=GRACE)


def test_of_few_workers_each_comes_for_every_job(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "_CROWD_SECONDS", 60)
    running = worker(poll_interval=30, listen=True)
    with_others(running, 4)
    come_in_vain(running)
    wait_for_state(handlers.write_job.enqueue(), State.SUCCEEDED, timeout=GRACE)
