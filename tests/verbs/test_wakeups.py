"""Wake-ups: after the commit, never in the caller's transaction, never in anybody's way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from pgqueue_django import transitions, wakeups
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Retried, Succeeded
from pgqueue_django.wakeups import CANCELLED, CHANNEL, DUE

from .rows import BOOM, DB, WORKER, held_by, make_job, new, settle

pytestmark = pytest.mark.django_db(transaction=True)

Heard = Callable[[], list[str]]


@pytest.fixture
def heard(second_connection: psycopg.Connection[Any]) -> Heard:
    """What has been notified since the last call. The server delivers to a listener what was committed before."""
    second_connection.execute(f"LISTEN {CHANNEL}")

    def listen() -> list[str]:
        second_connection.execute("SELECT 1")
        return [notification.payload for notification in second_connection.notifies(timeout=0)]

    return listen


def forget() -> None:
    """The limiter's memory: what was sent a moment ago is sent again."""
    wakeups._spent.clear()
    wakeups._pace.clear()


# -- when ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_new_job_wakes_its_queue_after_the_commit_and_not_before(heard: Heard, count: int) -> None:
    with CaptureQueriesContext(connection) as captured:
        with transaction.atomic():
            if count > 1:
                transitions.enqueue_many(DB, [new(queue_name="mail") for _ in range(count)])
            else:
                transitions.enqueue(DB, new(queue_name="mail"))
            assert heard() == []
    assert heard() == ["mail"]
    sent = [query["sql"] for query in captured]
    committed = next(place for place, sql in enumerate(sent) if sql.startswith("COMMIT"))
    assert not any("notify" in sql.lower() for sql in sent[:committed])
    assert [("pg_notify" in sql) for sql in sent[committed + 1 :]] == [True]


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_job_and_the_longest_name_of_a_queue_wake_it_too(heard: Heard, count: int) -> None:
    """The payload of a notification may have 8,000 bytes: nothing of the job is in it."""
    name = "q" * 63
    transitions.enqueue_many(DB, [new(queue_name=name, args=["x" * 1_000_000]) for _ in range(count)])
    assert heard() == [name]


def test_in_autocommit_it_is_sent_at_once(heard: Heard) -> None:
    transitions.enqueue(DB, new(queue_name="mail"))
    assert heard() == ["mail"]


def test_nothing_is_sent_after_a_rollback(heard: Heard) -> None:
    with transaction.atomic():
        transitions.enqueue(DB, new())
        transaction.set_rollback(True)
    assert heard() == []


def test_nothing_is_sent_for_a_savepoint_that_was_rolled_back(heard: Heard) -> None:
    with transaction.atomic():
        transitions.enqueue(DB, new(queue_name="kept"))
        with transaction.atomic():
            transitions.enqueue(DB, new(queue_name="undone"))
            transaction.set_rollback(True)
    assert heard() == ["kept"]


def test_a_key_that_is_taken_wakes_nobody(heard: Heard) -> None:
    transitions.enqueue(DB, new(idempotency_key="k"))
    heard()
    forget()
    transitions.enqueue(DB, new(idempotency_key="k"))
    transitions.enqueue_many(DB, [new(idempotency_key="k")])
    assert heard() == []


# -- which verbs -----------------------------------------------------------------------------------------------


Scene = Callable[[], Job | None]
Act = Callable[[Any], object]


def scene(state: str, **columns: Any) -> Scene:
    return lambda: make_job(state, queue_name="q", **columns)


def pair(job: Job) -> tuple[int, int]:
    return job.pk, job.fencing_token


def later(*seconds: float) -> list[transitions.NewJob]:
    return [new(run_after=timedelta(seconds=length)) for length in seconds]


RUNNING, NOTHING = scene("running"), lambda: None

WAKING: dict[str, tuple[Scene, Act, str | None]] = {
    "enqueue, far ahead": (NOTHING, lambda _: transitions.enqueue(DB, *later(3600)), None),
    "enqueue, due soon": (NOTHING, lambda _: transitions.enqueue(DB, *later(0.5)), DUE),
    "enqueue_many, far ahead": (NOTHING, lambda _: transitions.enqueue_many(DB, later(900, 3600)), None),
    "enqueue_many, one due soon": (NOTHING, lambda _: transitions.enqueue_many(DB, later(900, 0.5)), DUE),
    "enqueue_many, fifty far ahead": (NOTHING, lambda _: transitions.enqueue_many(DB, later(*[900] * 50)), None),
    "enqueue_many, one of fifty due soon": (
        NOTHING,
        lambda _: transitions.enqueue_many(DB, later(*[900] * 49, 0.5)),
        DUE,
    ),
    "retry, due soon": (RUNNING, lambda job: settle(held_by(job), Retried(BOOM, 0.1)), DUE),
    "retry, far ahead": (RUNNING, lambda job: settle(held_by(job), Retried(BOOM, 60)), None),
    "success": (RUNNING, lambda job: settle(held_by(job), Succeeded("1")), None),
    "release": (RUNNING, lambda job: transitions.release(DB, [pair(job)]), "q"),
    "release, unknown": (RUNNING, lambda job: transitions.release(DB, [pair(job)], unknown=[job.pk]), None),
    "disown, not begun": (RUNNING, lambda job: transitions.disown(DB, WORKER, by="w"), "q"),
    "disown, begun, due soon": (
        scene("running", backoff={"base": 0.1, "factor": 1, "cap": 1}),
        lambda job: transitions.disown(DB, WORKER, begun=[pair(job)], by="w"),
        DUE,
    ),
    "disown, begun, far ahead": (RUNNING, lambda job: transitions.disown(DB, WORKER, begun=[pair(job)], by="w"), None),
    "promote": (scene("scheduled", due=True), lambda job: transitions.promote(DB), "q"),
    "adopt": (scene("scheduled", parked=True), lambda job: transitions.adopt(DB, [job.task]), None),
    "requeue": (scene("dead"), lambda job: transitions.requeue(DB, [job.pk]), "q"),
    "run_now": (scene("scheduled"), lambda job: transitions.run_now(DB, [job.pk]), "q"),
    "cancel, running": (RUNNING, lambda job: transitions.cancel(DB, [job.pk]), CANCELLED),
    "cancel, queued": (scene("queued"), lambda job: transitions.cancel(DB, [job.pk]), None),
}


@pytest.mark.parametrize(("make", "act", "hint"), WAKING.values(), ids=WAKING)
def test_a_verb_wakes_the_workers_when_they_have_to_know(heard: Heard, make: Scene, act: Act, hint: str | None) -> None:
    job = make()
    heard()
    forget()
    with transaction.atomic():
        act(job)
        assert heard() == []
    assert heard() == ([hint] if hint else [])


def test_a_requeue_that_has_to_wait_wakes_nobody(heard: Heard) -> None:
    job = make_job("running")
    transitions.cancel(DB, [job.pk])
    heard()
    forget()
    transitions.requeue(DB, [job.pk])
    assert heard() == []


# -- nobody's way ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken_notify(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise psycopg.OperationalError("no NOTIFY today")

    monkeypatch.setattr(wakeups, "send", fail)
    return


@pytest.mark.parametrize("atomic", [True, False])
def test_a_failing_notify_does_not_reach_the_caller(
    broken_notify: None, atomic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("django").propagate = True
    if atomic:
        with transaction.atomic():
            transitions.enqueue(DB, new())
    else:
        transitions.enqueue(DB, new())
    assert Job.objects.count() == 1
    assert "no NOTIFY today" in caplog.text


def test_a_failing_notify_does_not_keep_the_other_hooks_from_running(broken_notify: None) -> None:
    ran = []
    with transaction.atomic():
        transitions.enqueue(DB, new())
        transaction.on_commit(lambda: ran.append(1))
    assert ran == [1]


def test_under_manual_transactions_the_job_waits_for_a_poll(heard: Heard) -> None:
    transaction.set_autocommit(False)
    try:
        transitions.enqueue(DB, new())
        transaction.commit()
        assert connection.run_on_commit == []
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert heard() == []
    assert Job.objects.count() == 1


def test_an_atomic_block_under_manual_transactions_leaves_nothing_behind(heard: Heard) -> None:
    # Django runs the hooks of such a block when autocommit comes back, which is never: they would pile up.
    transaction.set_autocommit(False)
    try:
        with transaction.atomic():
            transitions.enqueue(DB, new())
        transaction.commit()
        assert connection.run_on_commit == []
    finally:
        connection.run_on_commit.clear()
        transaction.rollback()
        transaction.set_autocommit(True)


# -- the limiter -----------------------------------------------------------------------------------------------


class Clock:
    """Time that passes when the test says so, and while a NOTIFY is under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.now, self.cost, self.sent = 1000.0, cost, 0
        forget()
        monkeypatch.setattr(wakeups.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(wakeups, "send", self._send)

    def _send(self, using: str, hint: str) -> None:
        self.now += self.cost
        self.sent += 1

    def send(self, hint: str = "q") -> int:
        wakeups.send_limited(DB, hint)
        return self.sent


@pytest.mark.parametrize(("cost", "pause"), [(0.0001, 0.005), (0.001, 0.005), (0.02, 0.34), (0.1, 1.86)])
def test_the_next_one_comes_no_sooner_than_5_ms_and_when_its_share_allows_it(
    cost: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 times its cost, which began with it, at most two seconds; 40 ms in advance."""
    clock = Clock(monkeypatch, cost)
    assert clock.send() == 1
    clock.now += pause * 0.99
    assert clock.send() == 1
    clock.now += pause * 0.02
    assert clock.send() == 2


def test_one_that_hung_does_not_silence_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 30.0)
    clock.send()
    clock.now += 2.0
    assert clock.send() == 2


def test_threads_add_up_what_they_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them sends for 20 ms, another one for 10 of these."""
    clock = Clock(monkeypatch, 0.01)
    send = clock._send

    def send_and_be_met(using: str, hint: str) -> None:
        monkeypatch.setattr(wakeups, "send", send)
        clock.now += 0.006
        wakeups.send_limited(using, hint)
        clock.now += 0.004
        clock.sent += 1

    monkeypatch.setattr(wakeups, "send", send_and_be_met)
    assert clock.send() == 2
    spent = 20 * (0.02 + 0.01)
    clock.now = 1000.0 + spent - 0.05
    assert clock.send() == 2
    clock.now = 1000.0 + spent
    assert clock.send() == 3


def test_queues_do_not_use_up_each_others_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.001)
    assert [clock.send(name) for name in ("a", "b", "a", "b", DUE)] == [1, 2, 2, 2, 3]


def test_a_producer_of_a_hundred_jobs_a_second_is_never_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.0003)
    for number in range(100):
        # Now and then the database is busy.
        clock.cost = 0.0015 if number % 40 == 20 else 0.0003
        clock.send()
        clock.now += 0.01
    assert clock.sent == 100


def test_a_process_spends_at_most_a_twentieth_of_its_time_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.002)
    while clock.now < 1010:
        clock.send()
        clock.now += 0.0001
    assert 0.3 < clock.sent * clock.cost <= (10 + 0.04) / 20 + clock.cost


def test_where_many_compete_each_spends_an_eighth_of_that_and_all_of_it_again_when_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, 0.001)
    clock.send()
    clock.cost = 0.02
    share_of(clock, 30)
    assert 0.003 < share_of(clock, 60) < 0.015
    clock.cost = 0.001
    share_of(clock, 10)
    assert 0.035 < share_of(clock, 60) < 0.055


def share_of(clock: Clock, seconds: float) -> float:
    """Of the time that goes into NOTIFYs while jobs are enqueued without a pause."""
    began, before = clock.now, clock.sent
    while clock.now < began + seconds:
        clock.send()
        clock.now += 0.001
    return (clock.sent - before) * clock.cost / seconds


def test_threads_that_come_together_send_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.001)
    monkeypatch.setattr(wakeups, "send", lambda using, hint: (clock._send(using, hint), clock.send(hint)))
    clock.send()
    assert clock.sent == 1
