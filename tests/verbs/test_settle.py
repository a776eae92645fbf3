"""settle: running -> succeeded, retrying, failed or dead, fenced by (id, token)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from pgqueue_django import transitions
from pgqueue_django.conf import DAY
from pgqueue_django.models import Job, Stat
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind, Retried, Succeeded
from pgqueue_django.states import State
from pgqueue_django.transitions import Claimed, Settlement

from .rows import (
    BOOM,
    DB,
    WORKER,
    claim,
    ending,
    held_by,
    locked_elsewhere,
    make_job,
    move_clock,
    new,
    row,
    seconds_from_now,
    settle,
    state_of,
    statements,
)

pytestmark = pytest.mark.django_db

FINAL = (State.SUCCEEDED, State.FAILED, State.DEAD)


@pytest.fixture
def held() -> Claimed:
    make_job()
    return claim()[0]


def hold(count: int) -> list[Claimed]:
    transitions.enqueue_many(DB, [new() for _ in range(count)])
    return claim(count)


# -- what becomes of the row -----------------------------------------------------------------------------------


def test_a_success_leaves_its_result(held: Claimed) -> None:
    assert settle(held, Succeeded('{"paid": [1, null]}')).moved == {held.id}
    job = Job.objects.get(pk=held.id)
    assert (job.state, job.result, job.history) == (State.SUCCEEDED, {"paid": [1, None]}, [])
    assert job.lease_expires_at is None
    assert job.finished_at is not None
    assert job.started_at is not None
    assert job.started_at <= job.finished_at


def test_a_handler_that_returned_nothing_leaves_a_null_and_a_failed_one_nothing() -> None:
    succeeded, failed = hold(2)
    settle(succeeded, Succeeded("null"))
    settle(failed, Failed(BOOM))
    with connection.cursor() as cursor:
        cursor.execute("SELECT result::text FROM pgqueue_job ORDER BY id")
        assert cursor.fetchall() == [("null",), (None,)]


def test_a_retry_waits_for_its_delay_on_the_databases_clock(held: Claimed) -> None:
    move_clock(held.id, "run_after", -1000)
    settle(held, Retried(BOOM, 60))
    job = Job.objects.get(pk=held.id)
    assert (job.state, job.attempts, job.finished_at, job.prune_after) == (State.RETRYING, 1, None, None)
    assert 59 < seconds_from_now(job.run_after) <= 60


@pytest.mark.parametrize("outcome", [Failed(BOOM), DeadLettered(BOOM)])
def test_a_job_without_further_attempts_is_finished(held: Claimed, outcome: Failed | DeadLettered) -> None:
    before = Job.objects.get(pk=held.id)
    settle(held, outcome)
    job = Job.objects.get(pk=held.id)
    assert job.state == outcome.state
    assert job.finished_at is not None
    assert (job.attempts, job.result, job.run_after) == (1, None, before.run_after)


def test_a_failed_attempt_is_remembered(held: Claimed) -> None:
    settle(held, Retried(BOOM, 60))
    job = Job.objects.get(pk=held.id)
    (entry,) = job.history
    began, ended = (datetime.fromisoformat(entry.pop(name)) for name in ("started_at", "ended_at"))
    assert began == job.started_at
    assert began < ended
    assert entry == {
        "attempt": 1,
        "worker": WORKER,
        "kind": "error",
        "error_type": "ValueError",
        "message": "boom",
        "traceback": "Traceback ...",
    }


def test_the_newest_error_is_in_columns_until_an_attempt_succeeds(held: Claimed) -> None:
    def error() -> tuple[str | None, str | None]:
        job = Job.objects.get(pk=held.id)
        return job.error_type, job.error_fingerprint

    other = Failure(Kind.ERROR, "shop.CardError", "declined")
    settle(held, Retried(BOOM, 0))
    assert error() == ("ValueError", BOOM.fingerprint)
    transitions.run_now(DB, [held.id])
    settle(claim()[0], Failed(other))
    assert error() == ("shop.CardError", other.fingerprint)
    transitions.requeue(DB, [held.id])
    assert error() == ("shop.CardError", other.fingerprint)
    settle(claim()[0], Succeeded("1"))
    assert error() == (None, None)


def test_an_attempt_that_was_given_up_has_its_error_in_columns() -> None:
    job = make_job("running", expired=True, max_attempts=1)
    transitions.reap(DB, by="reaper")
    job.refresh_from_db()
    assert job.error_type == "LeaseExpired"
    assert len(job.error_fingerprint or "") == 16


def test_a_success_keeps_the_failures_before_it(held: Claimed) -> None:
    settle(held, Retried(BOOM, 0))
    transitions.run_now(DB, [held.id])
    settle(claim()[0], Succeeded("1"))
    assert [entry["attempt"] for entry in Job.objects.get(pk=held.id).history] == [1]


def test_the_first_and_the_newest_failures_are_kept_and_no_more(settings: Any) -> None:
    settings.PGQUEUE = {"MAX_HISTORY": 3}
    job = make_job(max_attempts=10)
    lengths = []
    for _ in range(6):
        settle(claim()[0], Retried(BOOM, 60))
        transitions.run_now(DB, [job.pk])
        job.refresh_from_db()
        lengths.append(len(job.history))
    assert lengths == [1, 2, 3, 3, 3, 3]
    assert [entry["attempt"] for entry in job.history] == [1, 5, 6]


def test_a_known_task_is_no_longer_parked() -> None:
    job = make_job("scheduled", parked=True)
    transitions.adopt(DB, [job.task])
    settle(claim()[0], Retried(BOOM, 60))
    found = row(job.pk)
    assert found is not None
    assert found["parked_at"] is None


# -- retention -------------------------------------------------------------------------------------------------


def age(state: State, **columns: Any) -> float | None:
    job = make_job(state, **columns)
    assert job.finished_at is not None
    return None if job.prune_after is None else (job.prune_after - job.finished_at).total_seconds()


def test_finished_jobs_are_kept_as_long_as_their_state_says() -> None:
    assert [age(state) for state in FINAL] == [7 * DAY, 30 * DAY, 30 * DAY]
    assert age(State.CANCELLED) == 7 * DAY


def test_the_settings_say_how_long_and_none_is_for_ever(settings: Any) -> None:
    settings.PGQUEUE = {"RETENTION": {"succeeded": 0, "failed": 60, "dead": None, "cancelled": None}}
    assert [age(state) for state in FINAL] == [0, 60, None]
    assert age(State.CANCELLED) is None
    assert age(State.DEAD, idempotency_key="k") is None
    assert age(State.CANCELLED, idempotency_key="other") is None


@pytest.mark.parametrize("state", [*FINAL, State.CANCELLED])
def test_a_job_with_a_key_is_kept_at_least_as_long_as_keys_are(settings: Any, state: State) -> None:
    settings.PGQUEUE = {"RETENTION": dict.fromkeys(("succeeded", "failed", "dead", "cancelled"), 60)}
    assert age(state) == 60
    assert age(state, idempotency_key="k") == DAY
    settings.PGQUEUE = {**settings.PGQUEUE, "IDEMPOTENCY_RETENTION": 5}
    assert age(state, idempotency_key="other") == 60


# -- the fence -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*FINAL, State.RETRYING])
def test_a_stale_token_writes_nothing(held: Claimed, state: State) -> None:
    move_clock(held.id, "lease_expires_at", -1)
    transitions.reap(DB, by="w")
    transitions.run_now(DB, [held.id])
    claim()
    before = row(held.id)
    fenced = settle(held, ending(state))
    assert (fenced.moved, fenced.busy, fenced.gone) == (set(), set(), {held.id: State.RUNNING})
    assert row(held.id) == before


def test_a_lease_that_expired_but_was_not_reaped_still_settles(held: Claimed) -> None:
    move_clock(held.id, "lease_expires_at", -1000)
    assert settle(held, Succeeded("1")).moved == {held.id}


def test_after_a_lost_reply_the_row_says_that_it_was_ours(held: Claimed) -> None:
    settle(held, Succeeded("1"))
    before = row(held.id)
    fenced = settle(held, Succeeded("1"))
    assert (fenced.moved, fenced.gone) == (set(), {held.id: State.SUCCEEDED})
    assert row(held.id) == before


def test_a_deleted_row_is_gone(held: Claimed) -> None:
    transitions.cancel(DB, [held.id])
    transitions.delete(DB, [held.id])
    assert settle(held, Succeeded("1")).gone == {held.id: None}


@pytest.mark.django_db(transaction=True)
def test_moved_busy_and_gone_are_told_apart(second_connection: psycopg.Connection[Any]) -> None:
    ours, busy, gone = hold(3)
    transitions.cancel(DB, [gone.id])
    settlements = [Settlement(job, Succeeded("1")) for job in (gone, busy, ours)]
    with locked_elsewhere(second_connection, busy.id):
        fenced = transitions.settle(DB, settlements, worker_id=WORKER)
    assert (fenced.moved, fenced.busy, fenced.gone) == ({ours.id}, {busy.id}, {gone.id: State.CANCELLED})
    assert [state_of(job.id) for job in (ours, busy, gone)] == ["succeeded", "running", "cancelled"]
    assert settle(busy, Succeeded("1")).moved == {busy.id}


@pytest.mark.parametrize("newer_first", [True, False])
def test_of_two_attempts_of_one_job_in_a_flush_the_newer_one_is_written(held: Claimed, newer_first: bool) -> None:
    move_clock(held.id, "lease_expires_at", -1)
    transitions.reap(DB, by="w")
    transitions.run_now(DB, [held.id])
    (newer,) = claim()
    both = [Settlement(newer, Succeeded('"newer"')), Settlement(held, Succeeded('"older"'))]
    fenced = transitions.settle(DB, both if newer_first else both[::-1], worker_id=WORKER)
    assert fenced.moved == {held.id}
    assert Job.objects.get(pk=held.id).result == "newer"


# -- one flush -------------------------------------------------------------------------------------------------


def test_any_number_of_outcomes_is_one_statement_and_one_for_the_counters() -> None:
    outcomes = [Succeeded("1"), Retried(BOOM, 60), Failed(BOOM), DeadLettered(BOOM)]
    settlements = [Settlement(job, outcomes[n % 4]) for n, job in enumerate(hold(100))]
    with statements() as sent:
        fenced = transitions.settle(DB, settlements, worker_id=WORKER)
    assert len(fenced.moved) == 100
    assert len(sent) == 2
    assert [Job.objects.filter(state=item.state).count() for item in outcomes] == [25] * 4


def test_nothing_to_settle_is_no_statement() -> None:
    with statements() as sent:
        assert transitions.settle(DB, [], worker_id=WORKER).moved == frozenset()
    assert sent == []


# -- inside the handler's transaction --------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_settle_inside_commits_with_the_handlers_writes(held: Claimed) -> None:
    with transaction.atomic():
        other = make_job("scheduled")
        assert transitions.settle_inside(DB, Settlement(held, Succeeded("1"))).moved == {held.id}
    assert [state_of(held.id), state_of(other.pk)] == [State.SUCCEEDED, State.SCHEDULED]
    assert not Stat.objects.exists(), "its counters ride in the worker's next flush"


@pytest.mark.django_db(transaction=True)
def test_settle_inside_is_undone_with_the_handlers_writes(held: Claimed) -> None:
    with transaction.atomic():
        transitions.settle_inside(DB, Settlement(held, Succeeded("1")))
        transaction.set_rollback(True)
    assert state_of(held.id) == State.RUNNING
    assert settle(held, Succeeded("1")).moved == {held.id}


def test_settle_inside_says_that_the_lease_was_lost(held: Claimed) -> None:
    transitions.cancel(DB, [held.id])
    assert transitions.settle_inside(DB, Settlement(held, Succeeded("1"))).gone == {held.id: State.CANCELLED}


def test_a_person_who_requeues_starts_the_attempts_over_but_not_the_history() -> None:
    job = make_job("dead", max_attempts=1)
    transitions.requeue(DB, [job.pk])
    (held,) = claim()
    settle(held, DeadLettered(BOOM))
    job.refresh_from_db()
    assert [entry["attempt"] for entry in job.history] == [1, 1]
    assert job.fencing_token == 2


def test_held_by_is_what_the_claim_said(held: Claimed) -> None:
    assert held_by(Job.objects.get(pk=held.id)) == held._replace(pickup_seconds=0.0)


def test_finished_at_is_the_databases_clock(held: Claimed) -> None:
    settle(held, Succeeded("1"))
    job = Job.objects.get(pk=held.id)
    assert job.finished_at is not None
    assert timedelta(0) <= timedelta(seconds=-seconds_from_now(job.finished_at)) < timedelta(seconds=5)


@pytest.mark.django_db(transaction=True)
def test_whether_a_transaction_has_committed_can_be_asked() -> None:
    with connection.cursor() as cursor:
        with transaction.atomic():
            cursor.execute("SELECT pg_current_xact_id()::text")
            (id,) = cursor.fetchone()
            assert transitions.has_committed(DB, id) is None
        assert transitions.has_committed(DB, id) is True
        with transaction.atomic():
            cursor.execute("SELECT pg_current_xact_id()::text")
            (id,) = cursor.fetchone()
            transaction.set_rollback(True)
        assert transitions.has_committed(DB, id) is False


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_this_server_never_had_has_not_committed() -> None:
    """After a failover to a standby that lacked it."""
    assert transitions.has_committed(DB, str(2**40)) is False
