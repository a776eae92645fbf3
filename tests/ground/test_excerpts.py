"""Stored JSON as people read it: indented, exact, cut, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django.dashboard.excerpts import count, pretty

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_it_is_indented_as_python_does_it(value: Any) -> None:
    stored = json.dumps(value, separators=(",", ":"))
    shown, is_whole = pretty(stored, 10**6)
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    assert shown == expected.encode("utf-8", "backslashreplace").decode()
    assert is_whole


@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES))
def test_elements_are_counted(value: Any) -> None:
    assert count(json.dumps(value)) == len(value)


@given(VALUES, st.integers(0, 200), st.integers(0, 200))
def test_a_beginning_is_shown_as_far_as_it_goes(value: Any, read: int, limit: int) -> None:
    stored = json.dumps(value)
    shown, is_whole = pretty(stored[:read], limit)
    assert len(shown) <= limit * 10  # of a lone surrogate six characters are shown
    whole, _ = pretty(stored, 10**6)
    if read >= len(stored):
        assert is_whole == (len(whole) <= limit)
        assert whole.startswith(shown)


@given(st.text() | st.text('[]{},:"\\\\u0d8 1a'))
def test_whatever_plain_sql_has_written_is_no_error(text: str) -> None:
    shown, _ = pretty(text, 500)
    shown.encode()
    count(text)


@pytest.mark.parametrize(
    "number", ["12345678901234567890123456789", "0.1000000000000000055511151231257827", "1e400", "-0", "1.10"]
)
def test_numbers_keep_every_digit(number: str) -> None:
    assert pretty(f'[{{"n":{number}}}]', 100)[0] == f'[\n  {{\n    "n": {number}\n  }}\n]'


def test_escaped_letters_are_letters_and_what_cannot_be_shown_is_escaped() -> None:
    assert pretty(r'["\u4e2d","\ud800","\u0000"]', 100)[0] == '[\n  "中",\n  "\\ud800",\n  "\\u0000"\n]'


def test_a_million_brackets_are_no_page_of_blanks() -> None:
    shown, is_whole = pretty("[" * 1_000_000, 8192)
    assert (len(shown), is_whole) == (8192, False)
    assert shown.count("[") > 110
