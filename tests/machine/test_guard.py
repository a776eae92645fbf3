"""An exception that is raised in another thread stays inside the call that it is meant for."""

from __future__ import annotations

import contextlib
import gc
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from pgqueue_django.exceptions import Interrupt, JobCancelled, JobTimeout
from pgqueue_django.worker import guard as guard_module
from pgqueue_django.worker.guard import Guard


@pytest.fixture(autouse=True)
def threads_that_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.00002)
    yield
    sys.setswitchinterval(before)


def spin(seconds: float) -> str:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return "returned"


def own_code() -> int:
    """What a thread does between two handlers; an exception that comes late would be raised here."""
    return sum(number for number in range(50))


@pytest.mark.parametrize("swallow", [False, True])
def test_ten_thousand_interrupts_at_random_moments_hit_their_call_and_nothing_else(swallow: bool) -> None:
    calls = 10_000
    chosen = random.Random(1)
    lengths = [chosen.random() * 0.0003 for _ in range(calls)]
    moments = [chosen.random() * 0.0006 for _ in range(calls)]
    guards: queue.SimpleQueue[Guard | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[None] = queue.SimpleQueue()  # so that neither falls behind
    outcomes: Counter[str] = Counter()
    stray: list[BaseException] = []

    def handler(guard: Guard, seconds: float) -> str:
        try:
            guards.put(guard)  # in here, as the executor does: from now on it may be interrupted
            return spin(seconds)
        except Interrupt:
            if not swallow:
                raise
            return "swallowed"

    def run() -> None:
        try:
            for length in lengths:
                guard = Guard()
                try:
                    outcomes[guard.call(partial(handler, guard, length))] += 1
                except JobTimeout:
                    outcomes["interrupted"] += 1
                own_code()
                done.get(timeout=60)
        except BaseException as error:
            stray.append(error)
        finally:
            guards.put(None)

    def interrupt() -> None:
        chosen = iter(moments)
        while (guard := guards.get()) is not None:
            spin(next(chosen))
            guard.interrupt(JobTimeout)
            if swallow:
                guard.interrupt(JobTimeout)  # again at once
            done.put(None)

    threads = [threading.Thread(target=run), threading.Thread(target=interrupt)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert stray == []
    assert outcomes.total() == calls
    # It was tried from both sides of the end.
    assert outcomes["returned"] > 500
    assert outcomes["swallowed" if swallow else "interrupted"] > 500


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """Python prints what is raised inside of one, and goes on: one exception that is sent once would be lost there."""
    gc.disable()
    yield
    gc.enable()


def test_what_is_raised_is_what_was_asked_for_and_a_call_that_is_over_is_left_alone(no_finalizers: None) -> None:
    guard = Guard()

    def interrupted() -> None:
        # From in here: before the call has begun there is nothing to interrupt.
        threading.Timer(0.01, guard.interrupt, [JobCancelled]).start()
        spin(30)

    with pytest.raises(JobCancelled):
        guard.call(interrupted)
    guard.interrupt(JobTimeout)
    assert own_code() == 1225
    assert guard.call(lambda: 1) == 1


def test_an_error_of_the_handler_goes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        Guard().call(lambda: 1 // 0)


def test_one_that_is_being_sent_while_the_call_ends_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender has seen the call, and the call is over before it has sent."""
    sending, go_on = threading.Event(), threading.Event()
    send = guard_module._raise_in

    def slowly(thread: int, why: type[Interrupt]) -> None:
        sending.set()
        assert go_on.wait(30)
        send(thread, why)

    monkeypatch.setattr(guard_module, "_raise_in", slowly)
    guards: queue.SimpleQueue[Guard] = queue.SimpleQueue()
    stray: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            guard = Guard()
            guards.put(guard)
            with contextlib.suppress(JobTimeout):
                guard.call(partial(sending.wait, 30))
            is_over.set()
            spin(0.05)
        except BaseException as error:
            stray.append(error)

    victim = threading.Thread(target=run)
    victim.start()
    sender = threading.Thread(target=guards.get().interrupt, args=[JobTimeout])
    sender.start()
    assert sending.wait(30)
    assert not is_over.wait(0.2)
    go_on.set()
    victim.join(30)
    sender.join(30)
    assert is_over.is_set()
    assert stray == []
