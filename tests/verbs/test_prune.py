"""prune: finished jobs whose prune_after has come -> gone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED

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
