"""release: running -> queued, or scheduled where the task is unknown; the attempt refunded."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.transitions import Claimed

from .rows import DB, claim, locked_elsewhere, make_job, move_clock, new, row, seconds_from_now, state_of, statements

pytestmark = pytest.mark.django_db


@pytest.fixture
def held() -> Claimed:
    make_job()
    return claim()[0]


def release(*held: Claimed, unknown: bool = False) -> transitions.Fenced:
    return transitions.release(DB, [job.pair for job in held], unknown=[job.id for job in held] if unknown else [])


def test_the_attempt_is_refunded_and_the_token_is_not(held: Claimed) -> None:
    assert release(held).moved == {held.id}
    job = Job.objects.get(pk=held.id)
    assert (job.state, job.attempts, job.fencing_token) == (State.QUEUED, 0, 1)
    assert (job.worker_id, job.lease_expires_at, job.started_at) == (None, None, None)
    (again,) = claim()
    assert (again.attempt, again.fencing_token) == (1, 2)


def test_the_job_keeps_its_place() -> None:
    first, second = (transitions.enqueue(DB, new()).id for _ in range(2))
    before = Job.objects.get(pk=first).run_after
    release(*claim(1))
    assert Job.objects.get(pk=first).run_after == before
    assert [held.id for held in claim(2)] == [first, second]


def test_a_job_that_is_released_for_ever_is_never_dead() -> None:
    job = make_job(max_attempts=1)
    for _ in range(20):
        release(*claim())
    job.refresh_from_db()
    assert (job.state, job.attempts, job.history, job.fencing_token) == (State.QUEUED, 0, [], 20)


def test_any_number_of_jobs_is_one_statement() -> None:
    transitions.enqueue_many(DB, [new() for _ in range(100)])
    held = claim(100)
    with statements() as sent:
        assert len(transitions.release(DB, [job.pair for job in held], unknown=[held[0].id]).moved) == 100
    assert len(sent) == 1
    assert [state_of(job.id) for job in held[:2]] == [State.SCHEDULED, State.QUEUED]


# -- tasks that nobody here knows ------------------------------------------------------------------------------


def test_a_job_with_an_unknown_task_is_parked_uncharged(held: Claimed) -> None:
    assert release(held, unknown=True).moved == {held.id}
    job = Job.objects.get(pk=held.id)
    assert (job.state, job.attempts, job.history) == (State.SCHEDULED, 0, [])
    assert job.parked_at is not None
    assert 0.75 * 1800 - 61 < seconds_from_now(job.run_after) <= 1.25 * 1800


@pytest.mark.parametrize(("parked_for", "delay"), [(10, 1800), (3000, 3000), (100_000, 7200)])
def test_its_delay_grows_with_the_time_that_it_has_been_parked(parked_for: int, delay: int) -> None:
    job = make_job("scheduled", parked=True)
    move_clock(job.pk, "parked_at", -parked_for)
    since = Job.objects.get(pk=job.pk).parked_at
    transitions.run_now(DB, [job.pk])
    release(*claim(), unknown=True)
    job.refresh_from_db()
    assert job.parked_at == since
    assert 0.75 * delay - 61 < seconds_from_now(job.run_after) <= 1.25 * delay + 1


def test_the_delays_of_jobs_parked_together_are_spread() -> None:
    transitions.enqueue_many(DB, [new() for _ in range(50)])
    release(*claim(50), unknown=True)
    delays = [seconds_from_now(moment) for moment in Job.objects.values_list("run_after", flat=True)]
    assert max(delays) - min(delays) > 5


# -- the fence -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [True, False])
def test_a_stale_token_writes_nothing(held: Claimed, unknown: bool) -> None:
    release(held)
    claim(worker_id="w2")
    before = row(held.id)
    assert release(held, unknown=unknown).gone == {held.id: State.RUNNING}
    assert row(held.id) == before


def test_a_job_is_refunded_once(held: Claimed) -> None:
    release(held)
    assert release(held).gone == {held.id: State.QUEUED}
    assert Job.objects.get(pk=held.id).attempts == 0


def test_a_lease_that_expired_but_was_not_reaped_is_released(held: Claimed) -> None:
    move_clock(held.id, "lease_expires_at", -1000)
    assert release(held).moved == {held.id}


@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_is_busy(second_connection: psycopg.Connection[Any]) -> None:
    transitions.enqueue_many(DB, [new(), new()])
    ours, busy = claim(2)
    with locked_elsewhere(second_connection, busy.id):
        fenced = release(ours, busy)
    assert (fenced.moved, fenced.busy, fenced.gone) == ({ours.id}, {busy.id}, {})
