"""Schedules and pruning, done by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import schedules, transitions
from pgqueue_django.models import Job, Schedule
from pgqueue_django.states import State
from pgqueue_django.worker import chores
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, wait_for

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]


@pytest.mark.parametrize("listen", [True, False])
def test_a_tick_a_second_is_a_job_a_second_over_several_workers(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, listen: bool
) -> None:
    monkeypatch.setattr(schedules, "_declared", {})
    schedules.periodic("* * * * * *", name="each second", args=["tick"])(handlers.write)
    for _ in range(3):
        worker(listen=listen)
    jobs = Job.objects.filter(task=handlers.write.path).order_by("id")
    wait_for(lambda: jobs.filter(state=State.SUCCEEDED).count() >= 4)
    ticks = [key.removeprefix("schedule:each second:") for key in jobs.values_list("idempotency_key", flat=True)]
    assert len(set(ticks)) == len(ticks)
    assert ticks == sorted(ticks)
    row = Schedule.objects.get()
    assert row.late_seconds is not None
    assert 0 <= row.late_seconds < GRACE


def test_a_row_that_a_session_holds_keeps_no_other_from_firing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, second_connection: Any
) -> None:
    monkeypatch.setattr(schedules, "_declared", {})
    schedules.periodic("0 3 * * *", name="a held one")(handlers.do_nothing)
    schedules.declare("default")
    schedules.periodic("* * * * * *", name="each second", args=["tick"])(handlers.write)
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_schedule WHERE name = 'a held one' FOR UPDATE")
        worker()
        wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() >= 2)


def test_a_tick_is_on_time_although_the_next_look_at_the_chores_is_far(
    worker: Worker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PGQUEUE = {"CHORE_INTERVAL": 20}
    monkeypatch.setattr(schedules, "_declared", {})
    schedules.periodic("*/1 * * * * */2", args=["tick"])(handlers.write)
    worker(poll_interval=30, listen=True)
    wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() >= 3, 6 + GRACE)


def test_workers_prune_what_is_due_in_batches_and_nothing_else(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(35):
        handlers.do_nothing.enqueue()
    transitions.cancel("default", list(Job.objects.values_list("id", flat=True)))
    kept = handlers.do_nothing.enqueue()
    young = handlers.do_nothing.enqueue()
    transitions.cancel("default", [young.id])
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET prune_after = statement_timestamp() - interval '1 s' WHERE id < %s", [kept.id]
        )
    monkeypatch.setattr(transitions, "BATCH", 10)
    worker(queues=["none"])
    wait_for(lambda: Job.objects.count() == 2, 4 * chores._PRUNE_AGAIN_SECONDS + 4 + GRACE)
    assert set(Job.objects.values_list("id", flat=True)) == {kept.id, young.id}


def test_workers_keep_no_more_finished_jobs_than_they_are_told(worker: Worker, settings: Any) -> None:
    settings.PGQUEUE = {"MAX_FINISHED": 5}
    for _ in range(12):
        handlers.do_nothing.enqueue()
    transitions.cancel("default", list(Job.objects.values_list("id", flat=True)))
    worker(queues=["none"])
    wait_for(lambda: Job.objects.count() == 5)
