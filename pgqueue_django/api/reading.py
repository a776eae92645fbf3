"""What a client sends, read strictly: bodies of JSON, their fields, and parameters of the query.

Limits come before work: a body is refused by its announced length, and while it is read. What JSON leaves open is
refused: keys that are there twice, NaN, numbers that Python would not read back. An unknown field or parameter is an
error, since it is a typo that would go unnoticed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, UnreadablePostError

from pgqueue_django import conf, payload
from pgqueue_django.exceptions import InvalidPayload

from .errors import Problem, Wrong, invalid, pointer

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_ERRORS = 100
"""How much of what is wrong with a body is told."""
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(?:([Zz])|([+-]\d\d:\d\d))", re.ASCII)


def body(request: HttpRequest, raw: bytes, *, optional: bool = False) -> dict[str, Any]:
    """The object in the request's body; an empty one where there is none and ``optional``. Raises Problem."""
    if optional and not raw:
        return {}
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    if request.content_type != "application/json" or charset not in ("utf-8", "utf8"):
        raise Problem(415, "unsupported_media_type", "Send application/json, in UTF-8.")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Problem(415, "unsupported_media_type", "Send the body as it is, without a Content-Encoding.")
    found = _parsed(raw)
    if not isinstance(found, dict):
        raise invalid([Wrong("", "type", "The body is an object.")])
    return found


def raw(request: HttpRequest) -> bytes:
    """The bytes of the body, at most ``MAX_BYTES`` and what the project allows. Raises Problem."""
    most = int(min(MAX_BYTES, conf.upload_limit()))
    too_large = Problem(413, "too_large", f"At most {most:,} bytes are taken.")
    length = request.META.get("CONTENT_LENGTH") or ""
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    if not length and request.headers.get("Transfer-Encoding") and isinstance(request, WSGIRequest):
        # Django reads nothing of such a body there.
        raise Problem(411, "length_required", "Send a Content-Length.")
    try:
        found: bytes = request.read(most + 1)
    except UnreadablePostError as error:
        raise Problem(400, "unreadable", "The body did not arrive.") from error
    if len(found) > most:
        raise too_large
    return found


def _parsed(raw: bytes) -> Any:
    try:
        found = document(raw.decode("utf-8-sig"))
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also of bytes that are no UTF-8, and of integers with thousands of digits
        text = "It is no UTF-8." if isinstance(error, UnicodeDecodeError) else f"{error}"
        raise Problem(400, "malformed", f"The body is no JSON that is taken here: {text}") from None
    if _depth(found) > MAX_DEPTH:
        raise _too_deep()
    return found


def document(text: str) -> Any:
    """What the text says, read strictly. Raises ValueError, or RecursionError."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)


def _too_deep() -> Problem:
    return Problem(400, "malformed", f"The body is nested deeper than {MAX_DEPTH} levels.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {payload.storable_text(twice, 100)!r} is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is larger than a number can be")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def unknown(given: Mapping[str, Any], known: Collection[str], at: str = "") -> Iterator[Wrong]:
    """The fields of an object that it does not have; the first ``MAX_ERRORS``, since a body has room for 100,000."""
    message = f"There is no such field; there are {', '.join(known)}."
    for name in islice((name for name in given if name not in known), MAX_ERRORS):
        yield Wrong(at + pointer(payload.storable_text(name, 100)), "unknown", message)


def moment(value: object) -> datetime | None:
    """A moment of RFC 3339, which has an offset, in UTC: PostgreSQL takes no offset over 16 hours. None: it is none."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    date, time, fraction, _, offset = found.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{time}.{(fraction or '0').ljust(6, '0')}{offset or '+00:00'}")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def whole(value: Any) -> Any:
    """6 for 6.0: in JSON both are the same number, and some write it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_text(value: object, most: int) -> bool:
    """Whether it is a text of at most so many characters that PostgreSQL can store."""
    if not isinstance(value, str) or len(value) > most:
        return False
    try:
        payload.dump(value, where="text", limit=None)
    except InvalidPayload:
        return False
    return True


def query(request: HttpRequest, known: Collection[str]) -> dict[str, str]:
    """The parameters of the URL, each at most once. Raises Problem."""
    found = {}
    for name, values in request.GET.lists():
        if name not in known:
            text = payload.storable_text(name, 100)
            raise Problem(400, "parameter", f"There is no parameter {text!r}; there are {', '.join(known) or 'none'}.")
        if len(values) > 1:
            raise Problem(400, "parameter", f"{name} is there twice.")
        if "\0" in values[0]:
            raise Problem(400, "parameter", f"{name} holds a NUL.")
        found[name] = values[0]
    return found
