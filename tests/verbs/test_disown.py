"""disown: rows of a worker that is dead, or that it does not hold: charged if begun, refunded if not."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.transitions import Claimed

from .rows import DB, claim, locked_elsewhere, make_job, new, row, state_of

pytestmark = pytest.mark.django_db


def hold(count: int, worker_id: str = "dead", **columns: Any) -> list[Claimed]:
    transitions.enqueue_many(DB, [new(**columns) for _ in range(count)])
    return claim(count, worker_id=worker_id)


def disown(**options: Any) -> int:
    return transitions.disown(DB, "dead", by="supervisor", **options)


def test_what_had_begun_is_charged_at_once_and_what_had_not_is_refunded() -> None:
    begun, waiting = hold(2)
    assert disown(begun=[begun.pair]) == 2
    charged, refunded = Job.objects.get(pk=begun.id), Job.objects.get(pk=waiting.id)
    assert (charged.state, charged.attempts) == (State.RETRYING, 1)
    assert [entry["kind"] for entry in charged.history] == ["worker_lost"]
    assert (refunded.state, refunded.attempts, refunded.history) == (State.QUEUED, 0, [])


def test_what_had_begun_its_last_attempt_is_dead() -> None:
    (begun,) = hold(1, max_attempts=1)
    disown(begun=[begun.pair])
    assert state_of(begun.id) == State.DEAD


def test_what_the_worker_holds_is_left_alone() -> None:
    kept, unheard_of = hold(2)
    before = row(kept.id)
    assert disown(keep=[kept.pair], begun=[kept.pair]) == 1
    assert row(kept.id) == before
    assert state_of(unheard_of.id) == State.QUEUED


def test_other_workers_rows_are_left_alone() -> None:
    make_job("running", worker_id="alive")
    assert disown() == 0


def test_a_claim_without_a_reply_is_handed_back_although_an_earlier_attempt_is_kept() -> None:
    (earlier,) = hold(1)
    transitions.release(DB, [earlier.pair])
    claim(worker_id="dead")  # its COMMIT got no reply: the worker knows the earlier pair only
    assert disown(keep=[earlier.pair]) == 1
    assert state_of(earlier.id) == State.QUEUED


@pytest.mark.parametrize("newer_first", [True, False])
def test_a_worker_that_holds_two_attempts_of_a_job_keeps_the_newer(newer_first: bool) -> None:
    (earlier,) = hold(1)
    transitions.release(DB, [earlier.pair])
    (newer,) = claim(worker_id="dead")
    pairs = [newer.pair, earlier.pair]
    assert disown(keep=pairs if newer_first else pairs[::-1]) == 0


def test_an_earlier_attempt_that_had_begun_does_not_charge_the_next() -> None:
    (earlier,) = hold(1)
    transitions.release(DB, [earlier.pair])
    claim(worker_id="dead")
    assert disown(begun=[earlier.pair]) == 1
    job = Job.objects.get(pk=earlier.id)
    assert (job.state, job.attempts) == (State.QUEUED, 0)


def test_the_disowned_attempt_can_no_longer_write() -> None:
    held = hold(2)
    disown(begun=[held[0].pair])
    fenced = transitions.heartbeat(DB, [job.pair for job in held], lease_seconds=30)
    assert fenced.gone == {held[0].id: State.RETRYING, held[1].id: State.QUEUED}


@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_is_left_to_the_next_call(second_connection: psycopg.Connection[Any]) -> None:
    held = hold(5)
    with locked_elsewhere(second_connection, held[0].id):
        assert disown(begun=[held[0].pair, held[1].pair]) == 4
    assert disown(begun=[held[0].pair]) == 1


def test_a_call_is_bounded_and_is_repeated_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(5)
    monkeypatch.setattr(transitions, "BATCH", 2)
    assert [disown(), disown(), disown(), disown()] == [2, 2, 1, 0]
