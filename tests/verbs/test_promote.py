"""promote: scheduled, retrying -> queued when their time has come; adopt: parked jobs of known tasks -> queued."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State

from .rows import DB, claim, locked_elsewhere, make_job, move_clock, new, row, state_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
def test_a_job_is_promoted_when_its_time_has_come_and_not_before(state: State) -> None:
    job = make_job(state)
    assert transitions.promote(DB) == 0
    move_clock(job.pk, "run_after", -1)
    before = row(job.pk)
    assert transitions.promote(DB) == 1
    assert before is not None
    assert row(job.pk) == {**before, "state": State.QUEUED}


def test_the_earliest_go_first() -> None:
    late, early = make_job("scheduled", due=True), make_job("retrying", due=True)
    move_clock(early.pk, "run_after", -100)
    assert transitions.promote(DB, limit=1) == 1
    assert [state_of(early.pk), state_of(late.pk)] == [State.QUEUED, State.SCHEDULED]


def test_a_round_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    transitions.enqueue_many(DB, [new(run_after=timedelta(hours=1)) for _ in range(5)])
    move_clock(list(Job.objects.values_list("pk", flat=True)), "run_after", -1)
    monkeypatch.setattr(transitions, "BATCH", 2)
    assert [transitions.promote(DB, limit=100) for _ in range(4)] == [2, 2, 1, 0]


def test_a_promoted_job_keeps_its_moment_and_so_its_place() -> None:
    waited = make_job("scheduled", due=True)
    move_clock(waited.pk, "run_after", -100)
    fresh = make_job()
    transitions.promote(DB)
    assert [held.id for held in claim(2)] == [waited.pk, fresh.pk]


@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_does_not_keep_the_others_waiting(
    second_connection: psycopg.Connection[Any],
) -> None:
    held, free = make_job("scheduled", due=True), make_job("retrying", due=True)
    parked = make_job("scheduled", parked=True)
    with locked_elsewhere(second_connection, held.pk, parked.pk):
        assert transitions.promote(DB) == 1
        assert transitions.adopt(DB, [parked.task]) == 0
    assert state_of(free.pk) == State.QUEUED
    assert transitions.adopt(DB, [parked.task]) == 1


# -- adopt -----------------------------------------------------------------------------------------------------


def test_only_parked_jobs_of_the_tasks_that_one_knows_are_adopted() -> None:
    known = make_job("scheduled", parked=True, task="known")
    unknown = make_job("scheduled", parked=True, task="unknown")
    ahead = make_job("scheduled", task="known")
    assert transitions.parked_tasks(DB) == ["known", "unknown"]
    assert transitions.adopt(DB, ["known", "third"]) == 1
    assert [state_of(job.pk) for job in (known, unknown, ahead)] == ["queued", "scheduled", "scheduled"]
    assert transitions.parked_tasks(DB) == ["unknown"]


def test_adopted_jobs_run_with_all_their_attempts() -> None:
    job = make_job("scheduled", parked=True, max_attempts=1)
    transitions.adopt(DB, [job.task])
    (held,) = claim()
    assert held.attempt == 1


def test_adoption_is_bounded() -> None:
    transitions.enqueue_many(DB, [new() for _ in range(5)])
    held = claim(5)
    transitions.release(DB, [job.pair for job in held], unknown=[job.id for job in held])
    assert [transitions.adopt(DB, [held[0].task], limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_jobs_are_adopted_only_from_the_queues_that_one_works_on() -> None:
    job = make_job("scheduled", parked=True, queue_name="mail")
    assert transitions.adopt(DB, [job.task], queues=["other"]) == 0
    assert transitions.adopt(DB, [job.task], excluded=["mail"]) == 0
    assert transitions.adopt(DB, [job.task], queues=["mail", "other"], excluded=["third"]) == 1
