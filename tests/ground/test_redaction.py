"""What may be said to everybody of an error: words of a list, and nothing that stood in the message otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django import redaction

SHOWN = {*redaction.WORDS, redaction.LEFT_OUT}
# Texts of any kind, and those that a message is made of: words of the list beside what must not be seen.
MESSAGES = st.text() | st.lists(
    st.sampled_from(sorted(redaction.WORDS)) | st.text() | st.sampled_from([*"\"'`\u201c\u2018\n:()", "4711"])
).map(" ".join)


@given(MESSAGES)
def test_nothing_of_a_message_goes_out_but_listed_words(message: str) -> None:
    said = redaction.line(message)
    assert set(said.split()) <= SHOWN
    assert len(said) <= redaction.MAX_CHARACTERS
    assert not said or set(said.split()) & redaction.TELLING


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('connection to server at "10.0.0.5", port 5432 failed: Connection refused',
         "connection to server at … port … failed connection refused"),
        ("Card of Maria Kowalska declined", "… of … declined"),
        ("first line failed\nand the last one timed out\n\n", "and the last one timed out"),
        ("KeyError: 'password'", ""),
        ("'host' failed", "… failed"),
        ("couldn't read /etc/shadow: permission denied", "couldn't read … permission denied"),
        ("it's 'wrong failed' for user", "… for user"),
        ('closed "connection', "closed …"),
        ("a quotation `failed` \u201edenied\u201c \u2018lost\u2019 broken", "a … broken"),
        ("2026-11-30 402 4111 1111 1111 1111", ""),
        ("declined: ana@shop.example, +48 22 555 01 01, tok_live_51Hx, https://shop.example/a?b=c", "declined …"),
        ("the of and", ""),
        ("boom", ""),
        ("", ""),
        ("failed " * 60, " ".join(["failed"] * 28) + " …"),
    ],
)  # fmt: skip
def test_the_last_line_in_listed_words(message: str, said: str) -> None:
    assert redaction.line(message) == said


@given(st.text() | st.from_regex(r"[a-z]+(\.[A-Za-z_]+){1,3}"))
def test_of_a_path_there_is_a_name_or_nothing(path: str) -> None:
    name = redaction.name(path)
    assert name == "" or (name.isascii() and name.isidentifier() and path.endswith(name))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("shop.errors.CardError", "CardError"),
        ("ValueError", "ValueError"),
        ("shop.tasks.charge", "charge"),
        ("/srv/shop/secret", ""),
        ("shop.<locals>", ""),
        ("a" * 81, ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_name_of_a_task_or_an_error(path: str | None, name: str) -> None:
    assert redaction.name(path) == name


def test_a_worker_has_a_label_that_only_its_project_can_make(settings: Any) -> None:
    one = redaction.worker("web-1:77-0123abcd")
    assert one == redaction.worker("web-1:77-0123abcd")
    assert one != redaction.worker("web-1:77-0123abce")
    assert len(one) == 10
    settings.SECRET_KEY = "another"
    assert redaction.worker("web-1:77-0123abcd") != one
