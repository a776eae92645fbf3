"""Every two verbs that may move the same row, at the same time, in both orders: one of them moves it.

The first runs in a transaction that stays open, the second on a thread with a connection of its own. A worker's
verb must come back at once and say that it moved nothing; a person's verb must wait, and see what became of it.
Nothing sleeps: who waits is asked of the server.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import TRANSITIONS, State

from .drivers import SKIPPING_VERBS, assert_lawful, driver, make_ripe, rivals
from .rows import DB, Rival, ending, held_by, new, row, settle

# Only our tables are emptied after each test: there are hundreds of them.
pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])

RACES = [pytest.param(*race, id=f"{race[0]}: {race[1]}, {race[2]}") for race in rivals()]


def _state(found: dict[str, Any] | None) -> State | None:
    return State(found["state"]) if found else None


@pytest.mark.parametrize(("state", "first", "second"), RACES)
def test_the_second_of_two_verbs_loses_or_moves_the_result_of_the_first(state: State, first: str, second: str) -> None:
    job = make_ripe(state)
    with transaction.atomic():
        assert driver(first).run(job)
        rival = Rival(lambda: driver(second).run(job))
        if second in SKIPPING_VERBS:
            assert not rival.result(), "it says that it moved a row that the first had locked"
        else:
            rival.wait_until_blocked()
    settled = row(job.pk) if second in SKIPPING_VERBS else None
    moved = driver(second).run(job) if second in SKIPPING_VERBS else rival.result()

    after = row(job.pk)
    assert_lawful(after)
    target = driver(first).target
    if target not in TRANSITIONS[second].sources:
        assert not moved, "both say that they moved it"
        assert _state(after) == target
    if second not in SKIPPING_VERBS:
        # A person's verb asks for nothing but the state, so the table predicts it.
        assert moved == (target in TRANSITIONS[second].sources)
    elif not moved:
        assert after == settled
    if moved:
        assert _state(after) == driver(second).target


@pytest.mark.parametrize(("state", "first", "second"), RACES)
def test_a_verb_that_is_rolled_back_leaves_the_row_to_the_other(state: State, first: str, second: str) -> None:
    job = make_ripe(state)
    before = row(job.pk)
    with transaction.atomic():
        assert driver(first).run(job)
        rival = Rival(lambda: driver(second).run(job))
        if second in SKIPPING_VERBS:
            assert not rival.result()
        else:
            rival.wait_until_blocked()
        transaction.set_rollback(True)
    if second in SKIPPING_VERBS:
        assert row(job.pk) == before
        assert driver(second).run(job)
    else:
        assert rival.result()
    assert _state(row(job.pk)) == driver(second).target
    assert_lawful(row(job.pk))


@pytest.mark.parametrize("verb", ["heartbeat", "settle", "release"])
def test_a_fenced_verb_says_busy_while_the_row_is_held_and_gone_after_it_moved_on(verb: str) -> None:
    job = make_ripe(State.RUNNING)
    calls = {
        "heartbeat": lambda: transitions.heartbeat(DB, [(job.pk, job.fencing_token)], lease_seconds=30),
        "release": lambda: transitions.release(DB, [(job.pk, job.fencing_token)]),
        "settle": lambda: _settle(job),
    }
    with transaction.atomic():
        assert driver("cancel").run(job)
        fenced = Rival(calls[verb]).result()
        assert (fenced.moved, fenced.busy, fenced.gone) == (frozenset(), {job.pk}, {})
    fenced = calls[verb]()
    assert (fenced.moved, fenced.busy, fenced.gone) == (frozenset(), frozenset(), {job.pk: State.CANCELLED})


def _settle(job: Job) -> transitions.Fenced:
    return settle(held_by(job), ending(State.SUCCEEDED))


# -- enqueue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("first", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize("second", ["enqueue", "enqueue_many"])
def test_a_key_waits_for_the_transaction_that_took_it(first: str, second: str, commits: bool) -> None:
    def make(verb: str) -> transitions.Enqueued:
        job = new(idempotency_key="k")
        return transitions.enqueue(DB, job) if verb == "enqueue" else transitions.enqueue_many(DB, [job])[0]

    with transaction.atomic():
        winner = make(first)
        rival = Rival(lambda: make(second))
        rival.wait_until_blocked()
        transaction.set_rollback(not commits)
    answer = rival.result()
    if commits:
        assert answer == transitions.Enqueued(winner.id, created=False)
    else:
        assert answer.created
        assert answer.id != winner.id
    assert list(Job.objects.values_list("pk", flat=True)) == [answer.id]


def test_bulks_with_the_same_keys_in_opposite_order_do_not_deadlock() -> None:
    keys = [f"key-{number}" for number in range(40)]
    for round_number in range(20):
        together = threading.Barrier(2)

        def bulk(order: list[str], together: threading.Barrier = together, n: int = round_number) -> list[int]:
            together.wait(5)
            jobs = [new(f"task-{n}", idempotency_key=key) for key in order]
            return [made.id for made in transitions.enqueue_many(DB, jobs)]

        one, other = Rival(lambda: bulk(keys)), Rival(lambda: bulk(keys[::-1]))
        assert one.result() == other.result()[::-1]
    assert Job.objects.count() == 20 * len(keys)


def test_bulks_of_several_statements_take_their_keys_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 7)
    test_bulks_with_the_same_keys_in_opposite_order_do_not_deadlock()
