"""What is set once and may be waited for."""

from __future__ import annotations

import threading
import time

from pgqueue_django.context import Latch


def test_a_latch_that_is_set_lets_through_at_once_and_for_ever() -> None:
    latch = Latch()
    assert not latch.is_set()
    assert not latch.wait(0.001)
    latch.set()
    latch.set()
    assert latch.is_set()
    assert latch.wait(0.0)
    unwaited = Latch()
    unwaited.set()
    assert unwaited.wait(0.0)


def test_whoever_waits_is_let_through_whenever_it_is_set() -> None:
    """Set at about the moment when the waiting begins: before, within, after."""
    for _ in range(300):
        latch, answers = Latch(), list[bool]()
        waiter = threading.Thread(target=lambda latch=latch, answers=answers: answers.append(latch.wait(20)))
        began = time.monotonic()
        waiter.start()
        latch.set()
        waiter.join()
        assert answers == [True]
        assert time.monotonic() - began < 10
