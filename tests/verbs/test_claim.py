"""claim: queued -> running, with a lease, the next fencing token and the attempt charged."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State

from .rows import DB, Rival, claim, locked_elsewhere, make_job, move_clock, new, seconds_from_now, state_of, statements

pytestmark = pytest.mark.django_db


def ready(*options: dict[str, Any]) -> list[int]:
    return [made.id for made in transitions.enqueue_many(DB, [new(**given) for given in options])]


def ids(held: list[transitions.Claimed]) -> list[int]:
    return [job.id for job in held]


def test_the_row_says_who_runs_it_and_until_when() -> None:
    job = make_job(args=[1], kwargs={"a": 2}, max_attempts=3)
    (held,) = claim(worker_id="w", lease=40)
    job.refresh_from_db()
    assert (job.state, job.worker_id, job.fencing_token, job.attempts) == (State.RUNNING, "w", 1, 1)
    assert 39 < seconds_from_now(job.lease_expires_at) <= 40
    assert job.lease_expires_at - job.started_at == timedelta(seconds=40)
    assert held.pair == (job.pk, 1)
    assert (held.task, held.queue_name, held.args, held.kwargs) == (job.task, "default", "[1]", '{"a": 2}')
    assert (held.attempt, held.max_attempts) == (1, 3)


def test_the_token_grows_at_every_claim_whatever_comes_between() -> None:
    job = make_job()
    tokens = []
    for give_back in (
        lambda held: transitions.release(DB, [held.pair]),
        lambda held: transitions.cancel(DB, [held.id]) and move_clock(held.id, "run_after", -1),
        lambda held: move_clock(held.id, "lease_expires_at", -1) or transitions.reap(DB, by="w"),
        lambda held: transitions.disown(DB, "worker-1", by="w"),
        lambda held: None,
    ):
        (held,) = claim()
        tokens.append(held.fencing_token)
        give_back(held)
        transitions.requeue(DB, [job.pk])
        transitions.run_now(DB, [job.pk])
    assert tokens == [1, 2, 3, 4, 5]


def test_a_claim_can_go_on_behind_the_place_where_one_has_ended() -> None:
    """To the microsecond; of the same priority alone."""
    made = ready(*[{"priority": priority} for priority in (1, 0, 1, 1, 0, 1)])
    with connection.cursor() as cursor:
        for number, id in enumerate(made):
            # A microsecond apart, and two of them at the same moment.
            moment = min(number, 4)
            cursor.execute(
                "UPDATE pgqueue_job SET run_after = '2026-01-02 03:04:05.123456+00'::timestamptz "
                "+ make_interval(secs => %s * 0.000001) WHERE id = %s",
                [moment, id],
            )
    (first,) = claim()
    assert first.id == made[0]
    assert first.place == (1, 1767323045.123456, made[0])
    assert ids(claim(5, after=(1, 1767323045.123458, made[2]))) == [made[3], made[5]]
    assert ids(claim(5, after=first.place)) == [made[2]]
    assert ids(claim(5, after=(0, 1767323045.123460, made[4] - 1))) == [made[4]]
    assert ids(claim(5)) == [made[1]]


def test_jobs_are_claimed_by_priority_then_by_moment_then_by_id() -> None:
    made = ready({"priority": -5}, {}, {}, {}, {"priority": 100})
    move_clock(made, "run_after", -10)
    move_clock([made[0], made[3]], "run_after", -20)
    assert ids(claim(5)) == [made[4], made[3], made[1], made[2], made[0]]


def test_the_head_of_the_queue_is_taken_when_there_are_more_jobs_than_slots() -> None:
    made = ready(*({"priority": n % 7} for n in range(100)))
    best = sorted(made, key=lambda id: (-(made.index(id) % 7), id))
    assert ids(claim(10)) == best[:10]
    assert ids(claim(10)) == best[10:20]


def test_only_ready_jobs_of_that_queue_are_taken() -> None:
    for state in State:
        if state != State.QUEUED:
            make_job(state)
    make_job(queue_name="other")
    assert claim(20, 20) == []


@pytest.mark.parametrize(("slots", "prefetch", "taken"), [(0, 0, 0), (3, 0, 3), (3, 2, 5), (0, 4, 4), (50, 50, 10)])
def test_no_more_than_slots_and_prefetch_are_taken(slots: int, prefetch: int, taken: int) -> None:
    ready(*[{}] * 10)
    assert len(claim(slots, prefetch)) == taken
    assert Job.objects.filter(state=State.RUNNING).count() == taken


def test_a_claim_takes_at_most_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 3)
    for _ in range(5):
        make_job()
    assert len(claim(100)) == 3


def test_a_claim_is_one_statement() -> None:
    ready(*[{}] * 10)
    with statements() as sent:
        claim(5)
    assert len(sent) == 1


def test_pickup_counts_from_when_the_job_could_have_run() -> None:
    job = make_job("scheduled", due=True)
    move_clock(job.pk, "run_after", -50)
    transitions.promote(DB)
    (held,) = claim()
    assert held.pickup_seconds < 10, "from enqueued_at, because run_after was earlier"
    job = make_job()
    move_clock(job.pk, "enqueued_at", -100)
    move_clock(job.pk, "run_after", -50)
    (held,) = claim()
    assert 50 <= held.pickup_seconds < 60


# -- last attempts ---------------------------------------------------------------------------------------------

LAST, FIRST = {"max_attempts": 1}, {"max_attempts": 5}


def test_a_last_attempt_is_never_taken_beyond_the_free_slots() -> None:
    made = ready(LAST, LAST, LAST)
    assert ids(claim(2, 10)) == made[:2]


def test_the_walk_is_cut_at_the_first_last_attempt_beyond_the_slots_not_filtered() -> None:
    made = ready(FIRST, FIRST, LAST, FIRST, FIRST)
    assert ids(claim(1, 4)) == made[:2]


def test_a_last_attempt_within_the_slots_does_not_end_the_walk() -> None:
    made = ready(LAST, FIRST, FIRST)
    assert ids(claim(1, 2)) == made


def test_a_last_attempt_is_the_one_after_which_the_job_would_be_dead() -> None:
    made = ready(FIRST, {"max_attempts": 2})
    assert ids(claim(1, 1)) == made
    transitions.release(DB, [(id, 1) for id in made])
    for held in claim(2):
        move_clock(held.id, "lease_expires_at", -1)
    assert transitions.reap(DB, by="w") == 2
    transitions.run_now(DB, made)
    assert len(claim(0, 5)) == 1


# -- rivals ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_rows_that_someone_else_has_locked_are_passed_over(second_connection: psycopg.Connection[Any]) -> None:
    made = ready(*[{}] * 5)
    with locked_elsewhere(second_connection, made[0], made[2]):
        assert ids(claim(2)) == [made[1], made[3]]
    assert ids(claim(5)) == [made[0], made[2], made[4]]


@pytest.mark.django_db(transaction=True)
def test_eight_workers_take_every_job_exactly_once() -> None:
    made = ready(*[{}] * 400)
    together = threading.Barrier(8)

    def work(name: str) -> list[int]:
        together.wait(10)
        mine: list[int] = []
        while taken := claim(3, worker_id=name):
            assert len(taken) <= 3
            mine += ids(taken)
        return mine

    rivals = [Rival(lambda name=f"w{n}": work(name)) for n in range(8)]
    taken = [id for rival in rivals for id in rival.result(30)]
    assert sorted(taken) == made


@pytest.mark.django_db(transaction=True)
def test_a_bad_plan_cannot_make_a_claim_take_more_than_its_limit() -> None:
    # Statistics of an empty table, and little more than nested loops left.
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgqueue_job")
        ready(*[{}] * 300)
        for method in ("hashjoin", "mergejoin", "material", "hashagg", "memoize", "sort", "indexscan", "bitmapscan"):
            cursor.execute(f"SET enable_{method} = off")
        try:
            with transaction.atomic():
                cursor.execute(
                    "UPDATE pgqueue_job SET priority = 1 WHERE id IN "
                    "(SELECT id FROM pgqueue_job WHERE state = 'queued' LIMIT 2 FOR UPDATE SKIP LOCKED)"
                )
                assert cursor.rowcount > 2, "the plan is not bad enough to show anything"
                transaction.set_rollback(True)
            for round_number in range(1, 21):
                assert len(claim(2)) == 2
                assert Job.objects.filter(state=State.RUNNING).count() == 2 * round_number
        finally:
            cursor.execute("RESET ALL")
            connection.close()  # RESET ALL took Django's own settings of the session with it


# -- readings --------------------------------------------------------------------------------------------------


def test_ready_queues_are_those_with_ready_jobs_in_alphabetical_order() -> None:
    for name in ("b", "a", "c", "a"):
        make_job(queue_name=name)
    make_job("scheduled", queue_name="d")
    make_job("succeeded", queue_name="e")
    assert transitions.ready_queues(DB) == ["a", "b", "c"]


def test_a_claimed_job_is_running_and_a_second_claim_does_not_see_it() -> None:
    job = make_job()
    claim()
    assert state_of(job.pk) == State.RUNNING
    assert claim() == []


@pytest.mark.django_db(transaction=True)
def test_a_claim_works_on_the_alias_that_it_was_told() -> None:
    job = make_job()
    connections["second"] = connections.create_connection(DB)
    try:
        held = transitions.claim("second", queue_name="default", slots=1, worker_id="w", lease_seconds=30)
        assert ids(held) == [job.pk]
    finally:
        connections["second"].close()
        del connections["second"]
