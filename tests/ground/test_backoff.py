"""Backoff: half fixed, half random, never beyond the cap, and never an error."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django.backoff import Backoff
from pgqueue_django.exceptions import MAX_DELAY, InvalidOption

bases = st.floats(min_value=1e-9, max_value=MAX_DELAY, exclude_min=True)
factors = st.floats(min_value=1, max_value=1000) | st.integers(1, 1000)
attempts = st.integers(min_value=-5, max_value=10_000) | st.just(10**9)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base, cap = sorted([draw(bases), draw(bases)])
    return Backoff(base, draw(factors), cap)


def full(backoff: Backoff, attempt: int) -> float:
    """What the delay would be without chance, worked out in logarithms."""
    exponent = math.log(backoff.base) + (max(attempt, 1) - 1) * math.log(backoff.factor)
    return backoff.cap if exponent > math.log(backoff.cap) else math.exp(exponent)


@given(backoffs(), attempts)
def test_the_delay_is_between_half_and_full_whatever_the_numbers(backoff: Backoff, attempt: int) -> None:
    delay = backoff.delay(attempt)
    assert math.isfinite(delay)
    assert full(backoff, attempt) / 2 * (1 - 1e-6) <= delay <= full(backoff, attempt) * (1 + 1e-6)
    assert delay <= backoff.cap


@given(backoffs(), st.integers(1, 200))
def test_the_next_delay_is_never_shorter_without_chance(backoff: Backoff, attempt: int) -> None:
    chance = random.random
    try:
        random.random = lambda: 1.0
        shorter, longer = backoff.delay(attempt), backoff.delay(attempt + 1)
    finally:
        random.random = chance
    assert shorter <= longer * (1 + 1e-9)


def test_it_does_not_overflow_at_attempt_10000_and_factor_1000() -> None:
    assert 1800 <= Backoff(base=2, factor=1000, cap=3600).delay(10_000) <= 3600
    assert MAX_DELAY / 2 <= Backoff(base=1e-9, factor=1.0000001, cap=MAX_DELAY).delay(10**12) <= MAX_DELAY


@pytest.mark.parametrize(("attempt", "expected"), [(0, 2), (1, 2), (2, 6), (3, 18), (4, 50), (99, 50)])
def test_it_grows_by_its_factor_up_to_its_cap(attempt: int, expected: float) -> None:
    delays = [Backoff(base=2, factor=3, cap=50).delay(attempt) for _ in range(500)]
    assert expected / 2 <= min(delays) < expected * 0.6
    assert expected * 0.9 < max(delays) <= expected


def test_factor_1_is_a_constant_delay() -> None:
    assert 5 <= Backoff(base=10, factor=1, cap=10).delay(10_000) <= 10


@pytest.mark.parametrize(
    "numbers",
    [
        {"base": 0},
        {"base": -1},
        {"base": 10, "cap": 9},
        {"cap": MAX_DELAY + 1},
        {"factor": 0.99},
        {"factor": 1001},
        {"base": math.nan},
        {"factor": math.nan},
        {"cap": math.inf},
        {"base": "2"},
        {"factor": None},
        {"cap": True},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused_with_what_is_allowed(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"base|numbers"):
        Backoff(**numbers)


@given(backoffs())
def test_the_numbers_in_the_row_give_the_same_backoff(backoff: Backoff) -> None:
    assert Backoff.from_numbers(json.loads(json.dumps(backoff.numbers()))) == backoff


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["base", "factor", "cap", "x"]), inner),
    max_leaves=6,
)


@given(json_values)
def test_whatever_stands_in_the_row_gives_a_backoff(found: object) -> None:
    assert Backoff.from_numbers(found).delay(3) > 0


@pytest.mark.parametrize("found", [None, [], "x", {"base": -1}, {"bse": 1}, {"base": "x"}, {"cap": 10**400}])
def test_broken_numbers_give_the_default(found: object) -> None:
    assert Backoff.from_numbers(found) == Backoff()
