"""How many jobs run at the same time, in which order, and where those wait that cannot run yet."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pgqueue_django import enqueue_many, transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import loop, supply
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, always, job, notes, seconds, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]
Gate = Callable[[], Any]


@pytest.fixture(autouse=True)
def empty_handlers() -> None:
    handlers.order.clear()
    handlers.peak = 0


def opened(gate: Gate) -> str:
    door = gate()
    door.open()
    return str(door)


def all_succeeded(jobs: list[Any]) -> bool:
    return Job.objects.filter(pk__in=[one.id for one in jobs], state=State.SUCCEEDED).count() == len(jobs)


def test_threads_and_coroutines_together_never_exceed_the_concurrency(drain: Drain) -> None:
    calls = [task.call(0.004) for _ in range(60) for task in (handlers.count_at_once, handlers.count_at_once_async)]
    jobs = enqueue_many(calls)
    drain(concurrency=4)
    assert all_succeeded(jobs)
    assert handlers.peak == 4


def test_a_worker_of_one_slot_runs_threads_and_coroutines_one_by_one(drain: Drain) -> None:
    jobs = enqueue_many(
        [task.call(0.002) for _ in range(30) for task in (handlers.count_at_once_async, handlers.count_at_once)]
    )
    drain(concurrency=1)
    assert all_succeeded(jobs)
    assert handlers.peak == 1


def test_jobs_run_by_priority_and_then_in_the_order_of_their_enqueueing(drain: Drain) -> None:
    chosen = random.Random(7)
    priorities = [chosen.choice([-100, -5, 0, 5, 100]) for _ in range(60)]
    enqueue_many(
        handlers.append.using(priority=priority).call([priority, place]) for place, priority in enumerate(priorities)
    )
    drain(concurrency=1)
    expected = sorted(enumerate(priorities), key=lambda pair: (-pair[1], pair[0]))
    assert handlers.order == [[priority, place] for place, priority in expected]


def test_slow_claims_go_on_where_the_last_one_ended_and_look_at_the_head_again(
    drain: Drain, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Any] = []

    def watched(*args: Any, **kwargs: Any) -> list[transitions.Claimed]:
        places.append(kwargs["after"])
        return claim(*args, **kwargs)

    claim = transitions.claim
    monkeypatch.setattr(transitions, "claim", watched)
    monkeypatch.setattr(loop, "_SLOW_CLAIM_SECONDS", 60.0)
    jobs = enqueue_many(handlers.do_nothing.call() for _ in range(100))
    drain(concurrency=2)
    assert all_succeeded(jobs)
    assert set(places) == {None}
    # From here on every claim counts as slow.
    monkeypatch.setattr(loop, "_SLOW_CLAIM_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_SLOW_JOB_SECONDS", 0.0)
    # 10 ms each, so that there are many claims.
    jobs = enqueue_many(handlers.sleep.using(priority=n % 3).call(0.01) for n in range(150))
    places.clear()
    drain(concurrency=2)
    assert all_succeeded(jobs)
    assert any(places)
    # After one that went on and was slow all the same the next begins at the head.
    assert all(one is None or other is None for one, other in pairwise(places))
    # No wake-up tells of what comes meanwhile; walks that go on are not slow here.
    monkeypatch.setattr(loop, "_SLOW_CLAIM_SECONDS", 60.0)
    walked = supply.Supply.walked

    def first_is_slow(self: Any, name: str, place: Any, *, resumed: bool, slow: bool) -> None:
        walked(self, name, place, resumed=resumed, slow=not resumed)

    monkeypatch.setattr(supply.Supply, "walked", first_is_slow)
    backlog = enqueue_many(handlers.sleep.call(0.01) for _ in range(1_000))
    worker(concurrency=1, listen=False)
    places.clear()
    wait_for(lambda: len([one for one in places if one]) > 5)
    urgent = handlers.do_nothing.using(priority=1).enqueue()
    wait_for_state(urgent, State.SUCCEEDED, timeout=2.5)
    assert not all_succeeded(backlog)


def test_two_long_jobs_never_sit_on_one_worker_of_two(worker: Worker, gate: Gate) -> None:
    pair = [worker(concurrency=1), worker(concurrency=1)]
    for _ in range(5):
        door = gate()
        jobs = [handlers.write_and_wait.enqueue(str(door)) for _ in range(2)]
        wait_for(lambda jobs=jobs: {(one.id, "begun") for one in jobs} <= set(notes()), 5)
        assert {job(one).worker_id for one in jobs} == {running.loop.worker_id for running in pair}
        door.open()
        wait_for(lambda jobs=jobs: all_succeeded(jobs))
        # They have got to know the task as a short one.
        quick = enqueue_many(handlers.write_and_wait.call(opened(gate)) for _ in range(30))
        wait_for(lambda quick=quick: all_succeeded(quick))


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known to be long"])
def test_a_job_is_not_claimed_ahead_of_a_slot_while_its_task_is(worker: Worker, gate: Gate, known: bool) -> None:
    worker(concurrency=1)
    if known:
        door = gate()
        before = handlers.wait_unwritten.enqueue(str(door))
        wait_for_state(before, State.RUNNING)
        always(lambda: True, 0.06)
        door.open()
        wait_for_state(before, State.SUCCEEDED)
    door = gate()
    first = handlers.wait_unwritten.enqueue(str(door))
    wait_for_state(first, State.RUNNING)
    second = handlers.wait_unwritten.enqueue(str(door))
    always(lambda: (job(second).state, job(second).fencing_token) == (State.QUEUED, 0), 0.4)
    door.open()
    wait_for_state(second, State.SUCCEEDED)


def test_long_jobs_behind_short_ones_are_given_back_within_300_milliseconds(worker: Worker, gate: Gate) -> None:
    door, quick_door = gate(), opened(gate)
    quick = enqueue_many(handlers.wait_unwritten.call(quick_door) for _ in range(2_000))
    # The same task: nothing tells beforehand that these are long.
    long = enqueue_many(handlers.wait_unwritten.call(str(door)) for _ in range(40))
    ids = [one.id for one in long]
    places = dict(Job.objects.filter(pk__in=ids).values_list("id", "run_after"))
    workers = [worker(concurrency=2, poll_interval=0.05) for _ in range(2)]
    claimed = Job.objects.filter(pk__in=ids, state=State.RUNNING)
    wait_for(lambda: sum(running.loop._slots.load >= 2 for running in workers) == 2 and claimed.count() >= 4, 30)
    began = time.monotonic()
    wait_for(lambda: claimed.count() == 4, 5)
    assert time.monotonic() - began < 0.3 + GRACE
    assert all_succeeded(quick)
    # And nothing is taken any more that cannot begin.
    always(lambda: claimed.count() == 4, 0.5)
    assert sorted(len(running.loop.held) for running in workers) == [2, 2]
    waiting = Job.objects.filter(pk__in=ids, state=State.QUEUED)
    assert set(waiting.values_list("attempts", "worker_id", "started_at")) == {(0, None, None)}
    assert all(places[id] == run_after for id, run_after in waiting.values_list("id", "run_after"))
    # They were claimed and given back, so this has shown something.
    assert waiting.filter(fencing_token__gt=0).exists()
    # Idle workers have them.
    others = worker(concurrency=36)
    wait_for(lambda: len(others.loop.held) == 36, 5)
    door.open()
    wait_for(lambda: all_succeeded(long))
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}


def test_nothing_is_claimed_ahead_of_slots_that_have_ended_nothing_for_a_while(worker: Worker, gate: Gate) -> None:
    """Whatever the mean of before says: what another worker has given back would wait here for as long again."""
    door, quick_door = gate(), opened(gate)
    running = worker(concurrency=2)
    quick = enqueue_many(handlers.wait_unwritten.call(quick_door) for _ in range(300))
    wait_for(lambda: all_succeeded(quick))
    for _ in range(2):
        handlers.wait_unwritten.enqueue(str(door))
    wait_for(lambda: len([one for one in running.loop.held.values() if one.begun_at]) == 2)
    begun = max(one.begun_at or 0.0 for one in list(running.loop.held.values()))
    wait_for(lambda: time.monotonic() > begun + 0.1)
    # As if its last claim had been a full one.
    running.loop._prefetch._short = False
    assert running.loop._prefetch.ahead(busy=False) > 0
    late = enqueue_many(handlers.wait_unwritten.call(quick_door) for _ in range(20))
    ids = [one.id for one in late]
    always(lambda: not Job.objects.filter(pk__in=ids, fencing_token__gt=0).exists(), 0.5)
    door.open()
    wait_for(lambda: all_succeeded(late))


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_last_attempt_is_never_claimed_ahead_of_a_free_slot(worker: Worker, gate: Gate, max_attempts: int) -> None:
    worker(concurrency=1)
    tokens = set()
    for _ in range(4):
        door, quick_door = gate(), opened(gate)
        quick = enqueue_many(handlers.wait_unwritten.call(quick_door) for _ in range(100))
        first = handlers.wait_unwritten.enqueue(str(door))
        last = enqueue_many(
            handlers.wait_unwritten.using(max_attempts=max_attempts).call(quick_door) for _ in range(20)
        )
        ids = [one.id for one in last]
        wait_for_state(first, State.RUNNING)
        wait_for(lambda quick=quick: all_succeeded(quick))

        def look(ids: list[int] = ids) -> bool:
            tokens.update(Job.objects.filter(pk__in=ids).values_list("fencing_token", flat=True))
            return True

        always(look, 0.3)
        door.open()
        wait_for(lambda last=last: all_succeeded(last))
        if max_attempts > 1 and tokens != {0}:
            break
    # The control: with an attempt to spare they are taken ahead, and given back.
    assert (tokens == {0}) == (max_attempts == 1)
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}


def test_a_last_attempt_waits_for_its_slot_and_runs(drain: Drain) -> None:
    jobs = enqueue_many(task.call() for _ in range(100) for task in (handlers.do_nothing, handlers.do_nothing_once))
    took = seconds(lambda: drain(concurrency=2))
    assert all_succeeded(jobs)
    # A claim that was cut short by one of them is not the end of the queue: no pause follows it.
    assert took < 5 + GRACE


# -- queues ----------------------------------------------------------------------------------------------------


def enqueue_in(queues: str, each: int) -> None:
    enqueue_many(handlers.append.using(queue_name=name).call(name) for _ in range(each) for name in queues)


def test_named_queues_are_taken_in_their_order_and_no_other(drain: Drain) -> None:
    enqueue_in("abc", 20)
    drain(concurrency=1, queues=["b", "a"])
    assert handlers.order == ["b"] * 20 + ["a"] * 20
    assert Job.objects.filter(queue_name="c", state=State.QUEUED, fencing_token=0).count() == 20


def test_excluded_queues_are_left_alone(drain: Drain) -> None:
    enqueue_in("abc", 10)
    drain(concurrency=1, excluded=["b"])
    assert sorted(handlers.order) == ["a"] * 10 + ["c"] * 10
    assert Job.objects.filter(queue_name="b", state=State.QUEUED, fencing_token=0).count() == 10
    drain(concurrency=1, queues=["a", "b"], excluded=["b"])
    assert len(handlers.order) == 20


def test_an_excluded_queue_does_not_wake_its_worker_nor_keep_it_from_ending(worker: Worker) -> None:
    running = worker(concurrency=1, excluded=["b"])
    enqueue_in("b", 3)
    always(lambda: not handlers.order, 0.3)
    enqueue_in("a", 3)
    wait_for(lambda: handlers.order == ["a"] * 3)
    assert running.stop() == 0


@pytest.mark.parametrize("missed", [False, True], ids=["undisturbed", "after each job something may have been missed"])
def test_all_queues_take_turns_and_none_starves(worker: Worker, gate: Gate, missed: bool) -> None:
    doors: dict[str, Any] = {}
    for name in "abcd":
        for number in range(10):
            doors[f"{name}{number}"] = gate()
            handlers.append_and_wait.using(queue_name=name).enqueue(f"{name}{number}", str(doors[f"{name}{number}"]))
    running = worker(concurrency=1)
    for step in range(8):
        wait_for(lambda step=step: len(handlers.order) == step + 1)
        # Not so short that it would claim ahead, several of one queue in one turn.
        always(lambda: True, 0.06)
        if missed:
            # As when a listener comes back, or jobs are promoted.
            running.loop._heard(None)
        doors[handlers.order[-1]].open()
    served = [item[0] for item in handlers.order]
    assert set(served[:4]) == set("abcd")
    assert set(served[4:8]) == set("abcd")


def test_a_queue_that_appears_while_others_are_full_gets_its_turn(worker: Worker) -> None:
    enqueue_many(handlers.sleep.using(queue_name="full").call(0.005) for _ in range(2_000))
    worker(concurrency=1)
    wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() > 5)
    late = handlers.append.using(queue_name="late").enqueue("late")
    # The list of queues is believed for a second.
    wait_for_state(late, State.SUCCEEDED, timeout=3)
    assert Job.objects.filter(queue_name="full", state=State.QUEUED).exists()


# -- queues with a limit of their own --------------------------------------------------------------------------


def running_in(name: str) -> int:
    return Job.objects.filter(queue_name=name, state=State.RUNNING).count()


def test_a_queue_with_a_limit_leaves_the_other_slots_to_the_next_ones(worker: Worker, gate: Gate) -> None:
    """Plain and async handlers together; and who had to wait comes as soon as one of its own has ended."""
    doors = [gate() for _ in range(10)]
    billing = [
        (handlers.write_and_wait if number % 2 else handlers.write_and_await).using(queue_name="billing")
        for number in range(10)
    ]
    for task, door in zip(billing, doors, strict=True):
        task.enqueue(str(door))
    other = gate()
    enqueue_many(handlers.wait_unwritten.call(str(other)) for _ in range(10))
    # Nothing else wakes it: no notifications, and a look is half a minute away.
    running = worker(concurrency=8, queues=["billing", "default"], caps={"billing": 2}, poll_interval=30)
    wait_for(lambda: running_in("default") == 6)
    for ended in range(4):
        wait_for(lambda ended=ended: len(notes("begun")) == 2 + ended)
        # Longer than what any is claimed ahead of.
        always(lambda: (running_in("billing"), running_in("default")) == (2, 6), 0.6)
        running.loop._supply.next_claim_at = time.monotonic() + 60  # a look that nobody asks for is far away
        doors[ended].open()
    for door in (*doors, other):
        door.open()
    wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() == 20)
    assert running.stop() == 0


def test_a_handler_that_goes_on_after_its_time_still_counts_for_its_queues_limit(worker: Worker, gate: Gate) -> None:
    door = gate()
    late = handlers.overrun_at.using(queue_name="billing", max_attempts=1).enqueue(str(door))
    running = worker(concurrency=4, queues=["billing"], caps={"billing": 1})
    wait_for_state(late, State.DEAD)
    second = handlers.do_nothing.using(queue_name="billing").enqueue()
    always(lambda: job(second).fencing_token == 0, 0.3)
    assert running.loop._slots.load == 1
    door.open()
    wait_for_state(second, State.SUCCEEDED)


@pytest.mark.parametrize("most", [1, 3])
def test_a_limit_loses_no_job_of_a_drain(drain: Drain, most: int) -> None:
    enqueue_many(handlers.append.using(queue_name=name).call(name) for _ in range(300) for name in "ab")
    drain(concurrency=4, queues=["a", "b"], caps={"a": most})
    assert sorted(handlers.order) == ["a"] * 300 + ["b"] * 300
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}


def test_what_is_given_back_unbegun_makes_room_again() -> None:
    caps = supply.Caps({"a": 2})
    caps.took("a")
    caps.took("a")
    assert (caps.room("a", 5), caps.room("b", 5)) == (0, 5)
    assert caps.gave("a")
    assert not caps.gave("a")
    assert not caps.gave("b")
    assert caps.room("a", 5) == 2
