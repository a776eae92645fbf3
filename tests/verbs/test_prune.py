"""prune: finished jobs whose prune_after has come -> gone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED, State

from .rows import DB, locked_elsewhere, make_job, move_clock, row

pytestmark = pytest.mark.django_db


def test_jobs_go_when_their_moment_has_come_and_not_before() -> None:
    old = [make_job(state, prunable=True) for state in FINISHED]
    kept = [make_job(state) for state in FINISHED]
    assert transitions.prune(DB) == len(old)
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in kept}
    assert transitions.prune(DB) == 0


def test_what_is_kept_for_ever_stays(settings: Any) -> None:
    settings.PGQUEUE = {"RETENTION": {"dead": None, "succeeded": 0}}
    dead = make_job("dead")
    make_job("succeeded")
    assert transitions.prune(DB) == 1
    assert row(dead.pk) is not None


def test_a_requeued_job_is_not_pruned() -> None:
    job = make_job("succeeded", prunable=True)
    transitions.requeue(DB, [job.pk])
    assert transitions.prune(DB) == 0


def test_the_oldest_go_first_and_a_round_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_job("succeeded", prunable=True) for _ in range(3)]
    move_clock(jobs[2].pk, "prune_after", -100)
    assert transitions.prune(DB, limit=1) == 1
    assert row(jobs[2].pk) is None
    monkeypatch.setattr(transitions, "BATCH", 1)
    assert [transitions.prune(DB, limit=100) for _ in range(3)] == [1, 1, 0]


@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_is_left_to_the_next_round(second_connection: psycopg.Connection[Any]) -> None:
    held, free = make_job("succeeded", prunable=True), make_job("dead", prunable=True)
    with locked_elsewhere(second_connection, held.pk):
        assert transitions.prune(DB) == 1
    assert (row(held.pk) is None, row(free.pk) is None) == (False, True)
    assert transitions.prune(DB) == 1


# -- by age ----------------------------------------------------------------------------------------------------


def older(states: Any = FINISHED, seconds: float = 0, *, dry_run: bool = False) -> int:
    count = 0
    after: int | None = 0
    while after is not None:
        moved, after = transitions.prune_older(DB, states, older_seconds=seconds, after=after, dry_run=dry_run)
        count += moved
    return count


def test_by_age_only_what_was_asked_for_goes() -> None:
    jobs = {state: make_job(state) for state in State}
    assert older([State.DEAD], dry_run=True) == 1
    assert row(jobs[State.DEAD].pk) is not None
    assert older([State.DEAD], 3600) == 0
    assert older([State.DEAD]) == 1
    move_clock(jobs[State.FAILED].pk, "finished_at", -7200)
    assert older(seconds=3600) == 1
    assert set(Job.objects.values_list("state", flat=True)) == set(State) - {State.DEAD, State.FAILED}
    # What has not ended is never asked for.
    assert older(list(State)) == 2
    assert not Job.objects.filter(state__in=FINISHED).exists()


def test_by_age_a_key_is_kept_for_its_time(settings: Any) -> None:
    settings.PGQUEUE = {"IDEMPOTENCY_RETENTION": 3600}
    keyed, keyless = make_job("succeeded", idempotency_key="a"), make_job("succeeded")
    for job in (keyed, keyless):
        move_clock(job.pk, "finished_at", -1800)
    assert older(seconds=60) == 1
    assert row(keyed.pk) is not None
    move_clock(keyed.pk, "finished_at", -7200)
    assert older(seconds=60) == 1


def test_by_age_each_step_is_bounded_and_gaps_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "PRUNE_SPAN", 10)
    first = make_job("succeeded")
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('pgqueue_job_id_seq', (SELECT last_value + 100000000 FROM pgqueue_job_id_seq))")
    rest = [make_job("succeeded") for _ in range(25)]
    steps: list[int] = []
    after: int | None = 0
    while after is not None:
        moved, after = transitions.prune_older(DB, FINISHED, older_seconds=0, after=after)
        steps.append(moved)
    assert steps == [1, 10, 10, 5]
    assert row(first.pk) is row(rest[-1].pk) is None


@pytest.mark.django_db(transaction=True)
def test_by_age_a_row_that_someone_holds_is_passed_over(second_connection: psycopg.Connection[Any]) -> None:
    held, free = make_job("succeeded"), make_job("dead")
    with locked_elsewhere(second_connection, held.pk):
        assert older() == 1
    assert (row(held.pk) is None, row(free.pk) is None) == (False, True)


# -- by number -------------------------------------------------------------------------------------------------


def test_by_number_those_go_that_would_go_first_and_what_has_not_ended_does_not_count() -> None:
    jobs = [make_job(state) for state in (*FINISHED, "queued", "running", "scheduled")]
    for place, job in enumerate(jobs[:4]):
        move_clock(job.pk, "prune_after", 1000 * (place + 1))
    assert transitions.prune_beyond(DB, 4) == 0
    assert transitions.prune_beyond(DB, 3, limit=1) == 1
    assert row(jobs[0].pk) is None
    assert transitions.prune_beyond(DB, 1) == 2
    assert row(jobs[3].pk) is not None
    assert transitions.prune_beyond(DB, 0) == 1
    assert Job.objects.count() == 3


def test_by_number_those_that_ended_at_one_moment_do_not_all_go() -> None:
    jobs = [make_job("queued") for _ in range(6)]
    transitions.cancel(DB, [job.pk for job in jobs])
    assert transitions.prune_beyond(DB, 4) == 2
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in jobs[2:]}


def test_by_number_keys_and_what_is_kept_for_ever_stay(settings: Any) -> None:
    settings.PGQUEUE = {"RETENTION": {"dead": None}}
    make_job("dead")
    keyed = make_job("succeeded", idempotency_key="a")
    assert transitions.prune_beyond(DB, 0) == 0
    move_clock(keyed.pk, "finished_at", -2 * 86_400)
    assert transitions.prune_beyond(DB, 0) == 1
