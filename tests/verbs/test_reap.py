"""reap: running, lease expired -> retrying or dead; the attempt stays charged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from pgqueue_django import transitions
from pgqueue_django.models import Job, Stat
from pgqueue_django.outcomes import Succeeded
from pgqueue_django.states import State

from .rows import (
    DB,
    WORKER,
    claim,
    held_by,
    locked_elsewhere,
    make_job,
    move_clock,
    new,
    row,
    seconds_from_now,
    settle,
    state_of,
)

pytestmark = pytest.mark.django_db


def reap(**options: Any) -> int:
    return transitions.reap(DB, by="reaper", **options)


def expired(count: int, **columns: Any) -> list[int]:
    transitions.enqueue_many(DB, [new(**columns) for _ in range(count)])
    ids = [held.id for held in claim(count)]
    move_clock(ids, "lease_expires_at", -1)
    return ids


def test_only_expired_leases_are_reaped() -> None:
    fresh, stale = make_job("running"), make_job("running", expired=True)
    before = row(fresh.pk)
    assert reap() == 1
    assert state_of(stale.pk) == State.RETRYING
    assert row(fresh.pk) == before


def test_the_attempt_stays_charged_and_is_remembered() -> None:
    job = make_job("running", expired=True)
    reap()
    job.refresh_from_db()
    assert (job.state, job.attempts, job.fencing_token) == (State.RETRYING, 1, 1)
    (entry,) = job.history
    assert (entry["attempt"], entry["worker"], entry["kind"]) == (1, WORKER, "lease_expired")
    assert datetime.fromisoformat(entry["started_at"]) < datetime.fromisoformat(entry["ended_at"])


def test_overdue_attempts_are_given_up_before_their_leases_end_and_no_others() -> None:
    overdue, other, stale = make_job("running"), make_job("running"), make_job("running", expired=True)
    before = row(other.pk)
    assert reap(overdue=[(overdue.pk, overdue.fencing_token), (other.pk, other.fencing_token - 1)]) == 1
    assert (row(other.pk), state_of(stale.pk)) == (before, State.RUNNING)
    overdue.refresh_from_db()
    assert (overdue.state, overdue.attempts) == (State.RETRYING, 1)
    assert [(entry["kind"], entry["error_type"]) for entry in overdue.history] == [("timeout", "JobTimeout")]
    assert reap(overdue=[(overdue.pk, overdue.fencing_token)]) == 0


def test_what_was_given_up_is_no_longer_parked() -> None:
    job = make_job("scheduled", parked=True, due=True, max_attempts=1)
    transitions.promote(DB)
    claim()
    move_clock(job.pk, "lease_expires_at", -1)
    assert reap() == 1
    job.refresh_from_db()
    assert (job.state, job.parked_at) == (State.DEAD, None)


def test_a_reaped_job_backs_off_by_the_numbers_in_its_row() -> None:
    job = make_job("running", expired=True, backoff={"base": 100, "factor": 1, "cap": 100})
    reap()
    job.refresh_from_db()
    assert 49 < seconds_from_now(job.run_after) <= 100


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_job_that_kills_its_worker_is_dead_after_exactly_max_attempts(attempts: int) -> None:
    job = make_job(max_attempts=attempts)
    states = []
    for _ in range(attempts):
        assert len(claim()) == 1
        move_clock(job.pk, "lease_expires_at", -1)
        reap()
        states.append(state_of(job.pk))
        transitions.run_now(DB, [job.pk])
    job.refresh_from_db()
    assert states == [State.RETRYING] * (attempts - 1) + [State.DEAD]
    assert [entry["attempt"] for entry in job.history] == list(range(1, attempts + 1))
    assert claim() == []
    assert job.prune_after is not None


def test_what_was_reaped_can_no_longer_be_settled() -> None:
    job = make_job("running", expired=True)
    reap()
    before = row(job.pk)
    assert settle(held_by(job), Succeeded("1")).gone == {job.pk: State.RETRYING}
    assert row(job.pk) == before


@pytest.mark.parametrize(
    "numbers",
    [
        *("null", "[]", '"x"', "{}", '{"base": -1}', '{"base": "x"}', '{"bse": 1}', '{"cap": 1e400}', '{"factor": 0}'),
        *('{"base": 1e5000}', "[" * 3000 + "]" * 3000),
    ],
    ids=lambda text: text[:16],
)
def test_backoff_numbers_that_somebody_broke_do_not_stop_the_reaper(numbers: str) -> None:
    broken, healthy = expired(2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET backoff = %s::jsonb WHERE id = %s", [numbers, broken])
    assert reap() == 2
    assert [state_of(broken), state_of(healthy)] == [State.RETRYING] * 2
    assert 0 < seconds_from_now(Job.objects.defer("backoff").get(pk=broken).run_after) <= 2


def test_a_round_is_bounded() -> None:
    expired(5)
    assert [reap(limit=2), reap(limit=2), reap(limit=2), reap(limit=2)] == [2, 2, 1, 0]


def test_a_round_is_never_more_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    expired(5)
    monkeypatch.setattr(transitions, "BATCH", 3)
    assert reap(limit=100) == 3


@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_is_passed_over(second_connection: psycopg.Connection[Any]) -> None:
    ids = expired(5)
    with locked_elsewhere(second_connection, ids[0]):
        assert reap() == 4
    assert state_of(ids[0]) == State.RUNNING
    assert reap() == 1


# -- a row that cannot be written ------------------------------------------------------------------------------


@contextmanager
def trigger(body: str) -> Iterator[None]:
    """Somebody's trigger, before each row that changes."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION test_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER test_trigger BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION test_trigger()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION test_trigger CASCADE")


@pytest.mark.django_db(transaction=True)
def test_a_row_that_a_trigger_refuses_does_not_stop_the_other_499(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pgqueue_django").propagate = True
    ids = expired(500, max_attempts=1)
    refused = ids[250]
    with trigger(f"IF NEW.id = {refused} AND NEW.state <> 'running' THEN RAISE 'not this one'; END IF;"):
        assert reap() == 499
        assert state_of(refused) == State.RUNNING
        assert Job.objects.filter(state=State.DEAD).count() == 499
        assert f"#{refused}" in caplog.text
        assert sum(Stat.objects.values_list("dead", flat=True)) == 499
        assert reap() == 0
    assert reap() == 1
    assert state_of(refused) == State.DEAD


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rows_before", [0, 7, 19])
def test_a_connection_that_breaks_is_no_bad_row(caplog: pytest.LogCaptureFixture, rows_before: int) -> None:
    logging.getLogger("pgqueue_django").propagate = True
    ids = expired(20)
    with trigger(f"IF NEW.id = {ids[rows_before]} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"):
        with pytest.raises(OperationalError):
            reap()
        connection.close()
    assert "cannot be given up" not in caplog.text
    assert {state_of(id) for id in ids} == {State.RUNNING}
    assert reap() == 20


def test_reaping_needs_nothing_but_the_row() -> None:
    job = make_job("running", expired=True, task="no.such.module.task", backoff=json.dumps({"base": 1, "cap": 1}))
    assert reap() == 1
    assert state_of(job.pk) == State.RETRYING
