"""Tracebacks in parts: the project's own frames open, library frames folded, nothing lost, whatever the text."""

from __future__ import annotations

import json
import traceback
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django.dashboard.tracebacks import Part, fold, frames_of
from pgqueue_django.outcomes import is_library

OWN = '  File "/srv/shop/tasks.py", line 41, in charge\n    card.pay(invoice)\n    ~~~~~~~~^^^^^^^^^\n'
OTHER = '  File "/srv/shop/cards.py", line 9, in pay\n    post(self)\n'
PACKAGE = '  File "/srv/.venv/lib/python3.13/site-packages/requests/api.py", line 59, in post\n    return request()\n'
STANDARD = '  File "/usr/lib/python3.13/http/client.py", line 1300, in request\n    self._send_request(method)\n'
HEAD = "Traceback (most recent call last):\n"
END = "shop.CardError: declined\n"


@pytest.mark.parametrize(
    "path",
    [
        "/srv/.venv/lib/python3.13/site-packages/requests/api.py",
        "/usr/lib/python3/dist-packages/django/db/models/query.py",
        "/usr/lib/python3.11/json/decoder.py",
        "/usr/local/lib/python3.14t/json/decoder.py",
        "/Library/Frameworks/Python.framework/Versions/3.12/lib/python3.12/asyncio/tasks.py",
        r"C:\Users\ana\AppData\Local\Programs\Python\Python313\Lib\json\decoder.py",
        r"C:\shop\.venv\Lib\site-packages\requests\api.py",
        "<frozen importlib._bootstrap>",
        "/srv/checkout/pgqueue_django/worker/executor.py",
        "/srv/checkout/pgqueue_django/tasks.py",
    ],
)
def test_what_is_installed_standard_or_ours_is_a_library(path: str) -> None:
    assert is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        "/srv/shop/tasks.py",
        "/home/ana/python3.11/shop/tasks.py",
        "/home/ana/pgqueue_django/testproject/shop/tasks.py",
        "/srv/shop/lib/cards.py",
        r"C:\shop\tasks.py",
        "shop/tasks.py",
        "<string>",
        "",
    ],
)
def test_what_is_elsewhere_is_the_projects_own(path: str) -> None:
    assert not is_library(path)


def test_runs_of_library_frames_are_folded_and_counted() -> None:
    assert fold(HEAD + STANDARD + OWN + PACKAGE + STANDARD + END) == [
        Part(HEAD),
        Part(STANDARD, 1),
        Part(OWN),
        Part(PACKAGE + STANDARD, 2),
        Part(END),
    ]


def test_where_all_frames_are_of_libraries_the_innermost_is_open() -> None:
    assert fold(HEAD + PACKAGE + STANDARD + END) == [Part(HEAD), Part(PACKAGE, 1), Part(STANDARD + END)]


def test_frames_that_are_repeated_go_with_their_frame() -> None:
    repeated = PACKAGE * 3 + "  [Previous line repeated 975 more times]\n"
    assert fold(HEAD + OWN + repeated + END) == [Part(HEAD + OWN), Part(repeated, 3), Part(END)]


def chained() -> str:
    try:
        try:
            json.loads("{x")
        except ValueError as error:
            raise RuntimeError("не прочитать заказ\nwith nonsense") from error
    except RuntimeError as error:
        return "".join(traceback.format_exception(error))


def grouped() -> str:
    errors: list[Exception] = []
    for text in ("{", "["):
        try:
            json.loads(text)
        except ValueError as error:
            errors.append(error)
    try:
        raise ExceptionGroup("two of them", errors)
    except ExceptionGroup as error:
        return "".join(traceback.format_exception(error))


def test_both_tracebacks_of_a_chain_are_folded() -> None:
    parts = fold(chained())
    assert [bool(part.folded) for part in parts] == [False, True, False]
    assert parts[0].text.count("test_tracebacks.py") == 1
    assert parts[1].text.count('  File "') == parts[1].folded >= 2
    assert "JSONDecodeError" in parts[2].text
    assert "не прочитать заказ" in parts[2].text
    assert "The above exception was the direct cause" in parts[2].text


def test_frames_inside_an_exception_group_are_folded_behind_its_bars() -> None:
    parts = fold(grouped())
    folded = [part for part in parts if part.folded]
    assert len(folded) == 2
    for part in folded:
        assert all(line.startswith("    |") for line in part.text.splitlines())
        assert "json" in part.text
    shown = "".join(part.text for part in parts if not part.folded)
    assert shown.count("test_tracebacks.py") == 3
    assert shown.count("JSONDecodeError") == 2


def test_the_note_of_a_cut_traceback_is_open() -> None:
    text = HEAD + PACKAGE + "[… 12,345 characters left out …]\n" + PACKAGE + OWN + END
    assert [part.folded for part in fold(text)] == [0, 1, 0, 1, 0]


def test_what_went_the_same_way_has_equal_frames_whatever_was_said() -> None:
    one, other = HEAD + OWN + PACKAGE + "E: order 1\n", HEAD + OWN + PACKAGE + "E: order 2\nof many\n"
    assert frames_of(one) == frames_of(other) == OWN + PACKAGE
    assert frames_of(HEAD + OTHER + PACKAGE + END) != frames_of(one)
    assert frames_of("no traceback at all") == ""


LINES = st.sampled_from(
    [HEAD, OWN, OTHER, PACKAGE, STANDARD, END, "\n", '  |   File "', "  + ---\n", '  File "x", line 1, in ']
)
ANYTHING = st.lists(st.one_of(LINES, st.text(), st.sampled_from([chained(), grouped()]))).map("".join)


@given(ANYTHING)
def test_nothing_is_lost_whatever_the_text(text: str) -> None:
    parts = fold(text)
    assert "".join(part.text for part in parts) == text
    for before, after in pairwise(parts):
        assert bool(before.folded) != bool(after.folded)
    if text:
        assert any(not part.folded for part in parts), "something has to be open"
    assert len(frames_of(text)) <= len(text)
