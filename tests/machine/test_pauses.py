"""A paused queue: nothing of it is claimed by anybody, and its jobs wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import enqueue_many, queues
from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Running, always, job, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]
Drain = Callable[..., Running]


@pytest.mark.parametrize("named", [[], ["mail", "default"]], ids=["all queues", "named queues"])
def test_workers_heed_a_pause_within_a_second_and_keep_the_jobs(worker: Worker, named: list[str]) -> None:
    enqueue_many(handlers.sleep.using(queue_name="mail").call(0.02) for _ in range(2_000))
    for _ in range(2):
        worker(concurrency=2, queues=named, poll_interval=30, listen=True)
    done = Job.objects.filter(queue_name="mail", state=State.SUCCEEDED)
    wait_for(lambda: done.count() > 20)
    queues.pause("default", "mail", reason="provider down")
    running = Job.objects.filter(queue_name="mail", state=State.RUNNING)
    wait_for(lambda: not running.exists(), 1 + GRACE)
    count = done.count()
    assert count < 2_000
    # Others go on.
    wait_for_state(handlers.do_nothing.enqueue(), State.SUCCEEDED)
    always(lambda: done.count() == count, 0.5)
    assert set(Job.objects.filter(queue_name="mail").values_list("state", flat=True)) == {"queued", "succeeded"}
    queues.resume("default", "mail")
    wait_for(lambda: done.count() > count, GRACE)


def test_a_pause_that_ends_by_itself_needs_nobody(worker: Worker) -> None:
    queues.pause("default", "default", until=datetime.now(UTC) + timedelta(hours=1))
    waiting = handlers.do_nothing.enqueue()
    worker(poll_interval=0.2)
    always(lambda: job(waiting).fencing_token == 0, 0.5)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_queue SET resume_at = statement_timestamp() + interval '100 ms'")
    wait_for_state(waiting, State.SUCCEEDED, timeout=1.3 + GRACE)


def test_a_drain_does_not_wait_for_what_is_paused(drain: Drain) -> None:
    queues.pause("default", "mail")
    waiting = handlers.do_nothing.using(queue_name="mail").enqueue()
    other = handlers.do_nothing.enqueue()
    drain()
    assert (job(waiting).state, job(other).state) == (State.QUEUED, State.SUCCEEDED)


def test_a_claim_of_a_worker_costs_one_look_at_the_pauses_a_second(
    drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    paused = queues.paused
    monkeypatch.setattr(queues, "paused", lambda using: looks.append(1) or paused(using))
    enqueue_many(handlers.do_nothing.call() for _ in range(2_000))
    running = drain(concurrency=2)
    assert running.loop.counts == {State.SUCCEEDED: 2_000}
    assert len(looks) <= 2 + GRACE
