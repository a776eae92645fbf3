"""Errors that look alike have one fingerprint, others have not."""

from __future__ import annotations

import traceback

import pytest

from pgqueue_django.outcomes import Failure, Kind

LIBRARY = (
    '  File "/usr/lib/python3.13/json/decoder.py", line 355, in raw_decode\n    obj, end = self.scan_once(s, idx)\n'
)
OWN = '  File "/srv/shop/tasks.py", line 41, in charge\n    card.pay(invoice)\n'
OTHER = '  File "/srv/shop/tasks.py", line 12, in refund\n    card.pay(-invoice)\n'
PACKAGE = '  File "/srv/lib/python3.13/site-packages/cards.py", line 9, in pay\n    raise CardError\n'


def fingerprint(message: str = "declined", error_type: str = "shop.CardError", frames: str = OWN) -> str:
    text = f"Traceback (most recent call last):\n{frames}{error_type}: {message}\n"
    return Failure(Kind.ERROR, error_type, message, text).fingerprint


def test_it_is_sixteen_hex_digits_and_the_same_each_time() -> None:
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 16
    assert int(fingerprint(), 16)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 is unknown", "order 4711 is unknown"),
        ("<Invoice object at 0x7f3a2c10>", "<Invoice object at 0x55aa0012ff>"),
        ("key 3f2b8c1e-0000-4abc-9def-001122334455 is gone", "key 00000000-1111-2222-3333-444455556666 is gone"),
        ("blob deadbeef01 is broken", "blob 0badc0de99 is broken"),
        ("timeout after 1.5 s", "timeout after 22.75 s"),
        ("declined\nrequest 1: a", "declined\nwhatever"),
        ("x" * 300 + "a", "x" * 300 + "b"),
    ],
)
def test_numbers_and_ids_in_the_message_do_not_matter(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("declined", "expired"), ("a decade ago", "a facade ago"), ("card declined", "card declined by bank")],
)
def test_other_words_are_another_error(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_another_type_or_place_is_another_error() -> None:
    found = {fingerprint(), fingerprint(error_type="shop.Other"), fingerprint(frames=OTHER), fingerprint(frames="")}
    assert len(found) == 4


def test_the_place_is_the_innermost_frame_of_ones_own_without_its_line() -> None:
    moved = OWN.replace("41", "97")
    assert fingerprint(frames=OWN) == fingerprint(frames=moved) == fingerprint(frames=OWN + PACKAGE + LIBRARY)
    assert fingerprint(frames=OTHER + OWN) != fingerprint(frames=OWN + OTHER)
    assert fingerprint(frames=LIBRARY) != fingerprint(frames=PACKAGE), "where all are of libraries it is the last one"


def test_real_tracebacks_of_one_line_are_one_error() -> None:
    found = set()
    for number in (1, 22):
        try:
            int(f"no number {number}")
        except ValueError as error:
            text = "".join(traceback.format_exception(error))
            found.add(Failure(Kind.ERROR, "ValueError", str(error), text).fingerprint)
    assert len(found) == 1


def test_of_a_failure_without_a_traceback_the_type_and_message_are_enough() -> None:
    lost = Failure(Kind.LEASE_EXPIRED, "LeaseExpired", "The lease expired.")
    assert lost.fingerprint != Failure(Kind.WORKER_LOST, "WorkerLost", "The lease expired.").fingerprint


def test_it_is_not_in_the_history() -> None:
    assert "fingerprint" not in Failure(Kind.ERROR, "E", "m").entry()
