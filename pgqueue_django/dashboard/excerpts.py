"""Stored JSON as people read it: its beginning, indented, however long or odd the rest is.

Worked on as text, so that a number keeps every digit and a beginning need not be whole. It never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pgqueue_django.payload import storable_text

_LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{},:]|[^\s"\[\]{},:]+', re.S)
_DEEPEST = 40  # beyond this nothing is indented further: 8,000 brackets would be megabytes of blanks


def pretty(text: str, limit: int) -> tuple[str, bool]:
    """The text indented, at most ``limit`` characters of it, and whether that is all of it."""
    pieces, size = [], 0
    for piece in _pieces(text):
        if size + len(piece) > limit:
            pieces.append(piece[: limit - size])
            return storable_text("".join(pieces)), False
        pieces.append(piece)
        size += len(piece)
    return storable_text("".join(pieces)), True


def count(text: str) -> int:
    """How many elements a whole array, or an object, has."""
    depth = commas = lexemes = 0
    for lexeme in _LEXEME.findall(text):
        lexemes += 1
        depth += (lexeme in "[{") - (lexeme in "]}")
        commas += lexeme == "," and depth == 1
    return commas + 1 if lexemes > 2 else 0


def _pieces(text: str) -> Iterator[str]:
    depth, has_just_opened = 0, False
    for match in _LEXEME.finditer(text):
        lexeme = match[0]
        if lexeme in "]}":
            depth = max(0, depth - 1)
            yield lexeme if has_just_opened else _line(depth) + lexeme
            has_just_opened = False
            continue
        before = _line(depth) if has_just_opened else ""
        has_just_opened = lexeme in "[{"
        depth += has_just_opened
        if lexeme == ",":
            lexeme += _line(depth)
        elif lexeme == ":":
            lexeme = ": "
        elif lexeme.startswith('"'):
            lexeme = _readable(lexeme)
        yield before + lexeme


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def _readable(string: str) -> str:
    """Without the escapes that other programs write for letters; one that is cut off stays as it is."""
    try:
        return json.dumps(json.loads(string), ensure_ascii=False)
    except ValueError:
        return string
