"""Where a list goes on: a place in an index, signed, and good for the same filters only."""

from __future__ import annotations

from collections.abc import Mapping

from pgqueue_django import walks
from pgqueue_django.walks import Cut

from .errors import Problem

_SALT = "pgqueue_django.api.cursor"


def written(cut: Cut, filters: Mapping[str, str]) -> str:
    """``cut``, of pages that go forwards, as a text that only this project could have made."""
    return walks.written(cut.place, _SALT, filters)


def read(text: str, filters: Mapping[str, str]) -> Cut:
    """Raises Problem: 400 for a text that we did not make, or made for other filters."""
    try:
        return Cut(tuple(walks.read(text, _SALT, filters)), is_after=True)
    except ValueError:
        detail = "The cursor is not one of ours for these filters: take it from next of the page before."
        raise Problem(400, "cursor", detail) from None
