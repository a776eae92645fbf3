"""What a person does: cancel, requeue, run_now, delete. They wait for a held row; the others never do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqueue_django import transitions
from pgqueue_django.exceptions import InvalidOption
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Succeeded
from pgqueue_django.states import FINISHED, State

from .rows import DB, claim, heartbeat, held_by, make_job, move_clock, row, seconds_from_now, settle, state_of

pytestmark = pytest.mark.django_db

Verb = Callable[[str, list[int]], set[int]]
BY_HAND = [transitions.cancel, transitions.requeue, transitions.run_now, transitions.delete]


@pytest.mark.parametrize("verb", BY_HAND)
def test_the_ids_that_moved_come_back_and_the_others_are_untouched(verb: Verb) -> None:
    jobs = [make_job(state) for state in State]
    jobs.sort(key=lambda job: job.state == State.QUEUED)
    before = {job.pk: row(job.pk) for job in jobs}
    moved = verb(DB, [*before, 10**12])
    assert moved
    assert moved == {job_id for job_id in before if row(job_id) != before[job_id]}


@pytest.mark.parametrize("verb", BY_HAND)
def test_more_than_one_batch_is_refused_before_anything_moves(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    with pytest.raises(InvalidOption, match="at most 2"):
        verb(DB, [1, 2, 3])


@pytest.mark.parametrize("verb", BY_HAND)
def test_no_ids_move_nothing(verb: Verb) -> None:
    assert verb(DB, []) == set()


# -- cancel ----------------------------------------------------------------------------------------------------


def test_a_cancelled_job_never_runs() -> None:
    job = make_job()
    transitions.cancel(DB, [job.pk])
    assert claim() == []
    job.refresh_from_db()
    assert (job.state, job.attempts) == (State.CANCELLED, 0)


def test_cancelling_a_running_job_voids_its_outcome() -> None:
    job = make_job("running")
    transitions.cancel(DB, [job.pk])
    before = row(job.pk)
    assert heartbeat(held_by(job)).gone == {job.pk: State.CANCELLED}
    assert settle(held_by(job), Succeeded("1")).gone == {job.pk: State.CANCELLED}
    assert row(job.pk) == before


def test_a_running_job_that_was_cancelled_does_not_run_again_before_its_lease_would_have_ended() -> None:
    job = make_job("running")
    transitions.cancel(DB, [job.pk])
    assert Job.objects.get(pk=job.pk).run_after == job.lease_expires_at
    assert transitions.requeue(DB, [job.pk]) == {job.pk}
    again = Job.objects.get(pk=job.pk)
    assert (again.state, again.run_after) == (State.SCHEDULED, job.lease_expires_at)
    assert transitions.promote(DB) == 0
    assert claim() == []


def test_after_that_moment_a_requeue_is_ready_at_once() -> None:
    job = make_job("running", expired=True)
    transitions.cancel(DB, [job.pk])
    transitions.requeue(DB, [job.pk])
    assert state_of(job.pk) == State.QUEUED


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
def test_a_waiting_job_that_was_cancelled_and_requeued_waits_for_its_moment_still(state: State) -> None:
    job = make_job(state)
    transitions.cancel(DB, [job.pk])
    transitions.requeue(DB, [job.pk])
    again = Job.objects.get(pk=job.pk)
    assert (again.state, again.run_after) == (State.SCHEDULED, job.run_after)


def test_a_parked_job_that_was_cancelled_and_requeued_is_no_longer_parked() -> None:
    job = make_job("scheduled", parked=True)
    transitions.cancel(DB, [job.pk])
    transitions.requeue(DB, [job.pk])
    assert transitions.adopt(DB, [job.task]) == 0


# -- requeue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", FINISHED)
def test_a_requeued_job_starts_over_with_its_history_and_token(state: State) -> None:
    job = make_job(state)
    transitions.requeue(DB, [job.pk])
    again = Job.objects.get(pk=job.pk)
    assert (again.state, again.attempts) == (State.QUEUED, 0)
    assert (again.finished_at, again.prune_after, again.result, again.progress) == (None, None, None, None)
    assert (again.history, again.fencing_token) == (job.history, job.fencing_token)
    assert -5 < seconds_from_now(again.run_after) <= 0, "the later of itself and now: it goes to the end of the queue"
    (held,) = claim()
    assert (held.attempt, held.fencing_token) == (1, job.fencing_token + 1)


def test_a_running_job_is_not_requeued_under_its_holder() -> None:
    job = make_job("running", expired=True)
    assert transitions.requeue(DB, [job.pk]) == set()
    assert heartbeat(held_by(job)).moved == {job.pk}


# -- run_now ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
def test_run_now_does_not_wait(state: State) -> None:
    job = make_job(state)
    transitions.run_now(DB, [job.pk])
    again = Job.objects.get(pk=job.pk)
    assert again.state == State.QUEUED
    assert -5 < seconds_from_now(again.run_after) <= 0
    assert (again.attempts, again.history) == (job.attempts, job.history)
    (held,) = claim()
    assert held.pickup_seconds < 5


def test_run_now_does_not_send_a_due_job_to_the_end() -> None:
    job = make_job("scheduled", due=True)
    move_clock(job.pk, "run_after", -100)
    transitions.run_now(DB, [job.pk])
    assert seconds_from_now(Job.objects.get(pk=job.pk).run_after) < -99


# -- delete ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
def test_only_finished_jobs_are_deleted(state: State, django_assert_num_queries: Any) -> None:
    job = make_job(state)
    assert transitions.delete(DB, [job.pk]) == ({job.pk} if state in FINISHED else set())
    assert (row(job.pk) is None) == (state in FINISHED)
