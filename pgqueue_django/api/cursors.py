"""Where a list goes on: a place in an index, signed, and good for the same filters only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.core import signing

from .errors import Problem

_SALT = "pgqueue_django.api.cursor"


def written(place: list[Any], filters: Mapping[str, str]) -> str:
    """``place`` as a text that only this project could have made."""
    return signing.dumps(place, salt=_salt(filters))


def read(text: str, filters: Mapping[str, str]) -> list[Any]:
    """The place. Raises Problem: 400 for a text that we did not make, or made for other filters."""
    try:
        place: list[Any] = signing.loads(text, salt=_salt(filters))
    except (signing.BadSignature, ValueError):
        detail = "The cursor is not one of ours for these filters: take it from next of the page before."
        raise Problem(400, "cursor", detail) from None
    return place


def _salt(filters: Mapping[str, str]) -> str:
    return _SALT + json.dumps(filters, sort_keys=True)
