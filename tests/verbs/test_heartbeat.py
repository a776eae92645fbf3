"""heartbeat: running -> running, the lease extended; moved, busy and gone told apart."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.transitions import Claimed

from .rows import DB, GRACE, Rival, claim, heartbeat, locked_elsewhere, make_job, move_clock, new, row, seconds_from_now
from .rows import statements as captured

pytestmark = pytest.mark.django_db


@pytest.fixture
def held() -> Claimed:
    make_job()
    return claim()[0]


def hold(count: int) -> list[Claimed]:
    transitions.enqueue_many(DB, [new() for _ in range(count)])
    return claim(count)


def lease_left(job_id: int) -> float:
    moment = Job.objects.get(pk=job_id).lease_expires_at
    assert moment is not None
    return seconds_from_now(moment)


def test_the_lease_counts_from_now(held: Claimed) -> None:
    move_clock(held.id, "lease_expires_at", 3)
    assert heartbeat(held, lease=40).moved == {held.id}
    assert 39 < lease_left(held.id) <= 40


def test_nothing_but_the_lease_changes(held: Claimed) -> None:
    before = row(held.id)
    heartbeat(held, lease=100)
    after = row(held.id)
    assert before is not None
    assert after is not None
    assert after.pop("lease_expires_at") > before.pop("lease_expires_at")
    assert after == before


def test_progress_goes_with_it_and_stays_until_there_is_new(held: Claimed) -> None:
    heartbeat(held, progress={held.id: '{"fraction": 0.5, "message": "half"}'})
    heartbeat(held)
    assert Job.objects.get(pk=held.id).progress == {"fraction": 0.5, "message": "half"}
    heartbeat(held, progress={held.id: '{"fraction": 1}', 999: '{"fraction": 0}'})
    assert Job.objects.get(pk=held.id).progress == {"fraction": 1}


def test_any_number_of_jobs_is_one_statement() -> None:
    held = hold(200)
    with captured() as sent:
        assert len(heartbeat(*held).moved) == 200
    assert len(sent) == 1


def test_no_jobs_are_no_harm() -> None:
    assert heartbeat().moved == frozenset()


def test_a_lease_that_expired_but_was_not_reaped_is_extended(held: Claimed) -> None:
    move_clock(held.id, "lease_expires_at", -1000)
    assert heartbeat(held).moved == {held.id}
    assert transitions.reap(DB, by="w") == 0


def test_a_reaped_job_is_gone_and_not_taken_back(held: Claimed) -> None:
    move_clock(held.id, "lease_expires_at", -1)
    transitions.reap(DB, by="w")
    before = row(held.id)
    fenced = heartbeat(held)
    assert (fenced.moved, fenced.gone) == (set(), {held.id: State.RETRYING})
    assert row(held.id) == before


def test_a_stale_token_does_not_extend_the_lease_of_the_next_attempt(held: Claimed) -> None:
    transitions.release(DB, [held.pair])
    (newer,) = claim(worker_id="w2")
    before = row(held.id)
    fenced = heartbeat(held, progress={held.id: '"stale"'})
    assert (fenced.moved, fenced.gone) == (set(), {held.id: State.RUNNING})
    assert row(held.id) == before
    assert heartbeat(newer).moved == {held.id}


@pytest.mark.parametrize("newer_first", [True, False])
def test_of_two_attempts_of_one_job_the_newer_is_extended(held: Claimed, newer_first: bool) -> None:
    transitions.release(DB, [held.pair])
    (newer,) = claim()
    pair = (newer, held) if newer_first else (held, newer)
    assert heartbeat(*pair).moved == {held.id}


@pytest.mark.django_db(transaction=True)
def test_one_row_in_an_open_session_does_not_cost_the_leases_of_the_others(
    second_connection: psycopg.Connection[Any],
) -> None:
    held = hold(200)
    move_clock([job.id for job in held], "lease_expires_at", 1)
    locked = held[100]
    with locked_elsewhere(second_connection, locked.id):
        began = time.monotonic()
        fenced = heartbeat(*held)
        assert time.monotonic() - began < GRACE
        assert fenced.busy == {locked.id}
        assert fenced.moved == {job.id for job in held} - {locked.id}
        assert fenced.gone == {}
    assert min(lease_left(job.id) for job in held if job != locked) > 20


@pytest.mark.django_db(transaction=True)
def test_moved_busy_and_gone_are_told_apart(second_connection: psycopg.Connection[Any]) -> None:
    ours, busy, cancelled, deleted = hold(4)
    transitions.cancel(DB, [cancelled.id, deleted.id])
    transitions.delete(DB, [deleted.id])
    with locked_elsewhere(second_connection, busy.id):
        fenced = heartbeat(deleted, cancelled, busy, ours)
    assert (fenced.moved, fenced.busy) == ({ours.id}, {busy.id})
    assert fenced.gone == {cancelled.id: State.CANCELLED, deleted.id: None}


@pytest.mark.django_db(transaction=True)
def test_a_busy_row_is_extended_at_the_next_heartbeat(second_connection: psycopg.Connection[Any]) -> None:
    (held,) = hold(1)
    with locked_elsewhere(second_connection, held.id):
        assert heartbeat(held).busy == {held.id}
    assert heartbeat(held).moved == {held.id}


@pytest.mark.django_db(transaction=True)
def test_a_reference_to_the_job_from_elsewhere_does_not_make_it_busy(
    second_connection: psycopg.Connection[Any],
) -> None:
    (held,) = hold(1)
    with second_connection.transaction(force_rollback=True):
        # What inserting a row with a foreign key to the job takes.
        second_connection.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR KEY SHARE", [held.id])
        assert heartbeat(held).moved == {held.id}


@pytest.mark.django_db(transaction=True)
def test_no_index_keeps_heartbeats_from_being_hot() -> None:
    held = hold(200)
    # Room on every page, so that only an index could be in the way.
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = 'pgqueue_job'::regclass")
        (options,) = cursor.fetchone()
        cursor.execute("ALTER TABLE pgqueue_job SET (fillfactor = 40)")
        cursor.execute("VACUUM FULL pgqueue_job")
        cursor.execute(f"ALTER TABLE pgqueue_job SET ({', '.join(options)})")
    before = _updates()
    assert len(heartbeat(*held, progress={job.id: '{"fraction": 0.1}' for job in held}).moved) == 200
    after = _updates()
    assert [after[0] - before[0], after[1] - before[1]] == [200, 200], "(updates, HOT updates)"


@pytest.mark.django_db(transaction=True)
def test_the_table_as_migrated_leaves_room_for_heartbeats() -> None:
    held = hold(200)
    for _ in range(3):  # the first ones use up what the claims have left
        before = _updates()
        heartbeat(*held)
        after = _updates()
    assert [after[0] - before[0], after[1] - before[1]] == [200, 200], "(updates, HOT updates)"


def _updates() -> tuple[int, int]:
    """Updates of the table and HOT updates among them, as the cumulative statistics have them."""

    def flushed() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'pgqueue_job'")
            return cursor.fetchone()  # type: ignore[no-any-return]

    flushed()  # a flush happens at the end of the statement that asked for it
    return flushed()


@pytest.mark.django_db(transaction=True)
def test_two_heartbeats_of_the_same_jobs_do_not_wait_for_each_other() -> None:
    held = hold(50)
    rivals = [Rival(lambda jobs=jobs: heartbeat(*jobs)) for jobs in (held, held[::-1]) for _ in range(5)]
    answers = [rival.result() for rival in rivals]
    assert all(answer.moved | answer.busy == {job.id for job in held} for answer in answers)
