"""Where attempts wait and who begins first: places go in the order in which attempts were offered."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgqueue_django.outcomes import Outcome
from pgqueue_django.transitions import Claimed
from pgqueue_django.worker.executor import Attempt, lease_clock
from pgqueue_django.worker.slots import Slots
from tests.machine import handlers

from .workers import REAL_DATABASE, wait_for

pytestmark = REAL_DATABASE
Gate = Callable[[], Any]


@pytest.fixture
def ended() -> list[int]:
    return []


@pytest.fixture
def slots(worker: object, ended: list[int]) -> Iterator[Slots]:
    def hear(attempt: Attempt, outcome: Outcome) -> None:
        ended.append(attempt.job.id)

    made = Slots(2, "default", hear, lambda attempt: None)
    yield made
    made.close()


def attempt(id: int, task: Any, *args: str) -> Attempt:
    arguments = "[" + ", ".join(f'"{argument}"' for argument in args) + "]"
    job = Claimed(id, 1, task.path, "default", arguments, "{}", 1, 5, "{}", 0.0, 0, 0.0)
    return Attempt(job, task, lease_clock() + 60)


def test_places_go_in_order_whether_plain_or_async(slots: Slots, gate: Gate, ended: list[int]) -> None:
    door = gate()
    plain = attempt(1, handlers.wait_unwritten, str(door))
    coroutine = attempt(2, handlers.await_unwritten, str(door))
    slots.offer([plain, coroutine, attempt(3, handlers.do_nothing)])
    assert (slots.load, slots.waiting) == (3, 1)
    wait_for(lambda: plain.begun_at and coroutine.begun_at)
    assert [one.job.id for one in slots.take_back()] == [3]
    door.open()
    wait_for(lambda: sorted(ended) == [1, 2])
    assert slots.load == 0


def test_attempts_that_wait_for_something_fill_all_places_at_once(slots: Slots, gate: Gate, ended: list[int]) -> None:
    """However they came: nobody but the first thread is called for those that are offered together."""
    door = gate()
    together = [attempt(id, handlers.wait_unwritten, str(door)) for id in (1, 2)]
    slots.offer(together)
    wait_for(lambda: all(one.begun_at for one in together))
    door.open()
    wait_for(lambda: sorted(ended) == [1, 2])


def test_handlers_that_wait_for_nothing_are_left_to_few_threads(worker: object) -> None:
    """Threads that compete for the interpreter cost more than they bring."""
    by_thread: Counter[int] = Counter()
    slots = Slots(
        32, "default", lambda attempt, outcome: by_thread.update([threading.get_ident()]), lambda attempt: None
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as in a worker
    try:
        slots.offer([attempt(id, handlers.do_nothing) for id in range(5000)])
        wait_for(lambda: by_thread.total() == 5000)
    finally:
        sys.setswitchinterval(interval)
        slots.close()
    assert sum(count for _, count in by_thread.most_common(4)) > 4000


def test_a_system_without_threads_loses_no_attempt(
    slots: Slots, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        slots.offer([attempt(1, handlers.do_nothing), attempt(2, handlers.do_nothing_async)])
    assert slots.oldest_wait() is not None
    assert sorted(one.job.id for one in slots.take_back()) == [1, 2]
    assert slots.load == 0
    slots.offer([attempt(3, handlers.do_nothing), attempt(4, handlers.do_nothing_async)])
    wait_for(lambda: sorted(ended) == [3, 4])


def test_a_process_that_stood_still_itself_blames_no_task(
    slots: Slots, gate: Gate, log: Callable[..., list[str]]
) -> None:
    door = gate()
    blocking = attempt(1, handlers.block_event_loop_at, str(door))
    slots.offer([blocking])
    wait_for(lambda: blocking.begun_at)
    slots.look_at_event_loop()
    looked_at = time.monotonic()
    wait_for(lambda: time.monotonic() > looked_at + 1.2)
    slots.look_at_event_loop()
    assert log("has kept the event loop") == []
    wait_for(lambda: slots.look_at_event_loop() or log("has kept the event loop"))  # type: ignore[func-returns-value]
    assert time.monotonic() > looked_at + 1.2 + 0.4


def test_many_short_attempts_on_few_places_all_end(slots: Slots, ended: list[int]) -> None:
    for start in range(0, 400, 8):
        slots.offer(
            [
                attempt(id, handlers.do_nothing if id % 3 else handlers.do_nothing_async)
                for id in range(start, start + 8)
            ]
        )
    wait_for(lambda: len(ended) == 400, 20)
    assert slots.load == 0
