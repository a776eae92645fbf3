"""Tracebacks as people read them: the project's own frames open, runs of library frames folded.

Only what is written in the text is known: the attempt may have run on another host, with other code. It never raises,
and the parts put together are the text again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pgqueue_django.outcomes import is_library

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# Of an exception group, too, where frames stand behind bars.
_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<path>[^"\n]*)", line \d+, in ')
_MARGIN = re.compile(r"[ |]*")
_REPEATED = "[Previous line repeated "


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    folded: int = 0
    """Library frames that it has, when it is to be folded; 0: it is open."""


@dataclass(slots=True)
class _Piece:
    """One frame with its lines of code, or lines that are no frame."""

    text: str
    path: str | None = None
    margin: int = 0

    def takes(self, line: str) -> bool:
        """Whether the line belongs to this frame: it stands further in."""
        margin = len(_MARGIN.match(line)[0])  # type: ignore[index]  # it matches anything
        return margin > self.margin or (margin == self.margin and line.startswith(_REPEATED, margin))


def fold(text: str) -> list[Part]:
    """The text in parts. Where all frames are of libraries the last one is open, since something has to be."""
    pieces = list(_pieces(text))
    frames = [piece for piece in pieces if piece.path is not None]
    folded = [piece for piece in frames if is_library(piece.path or "")]
    if len(folded) == len(frames):
        folded = folded[:-1]
    hidden = {id(piece) for piece in folded}
    parts: list[Part] = []
    for piece in pieces:
        count = 1 if id(piece) in hidden else 0
        if parts and bool(parts[-1].folded) == bool(count):
            parts[-1] = Part(parts[-1].text + piece.text, parts[-1].folded + count)
        else:
            parts.append(Part(piece.text, count))
    return parts


def frames_of(text: str) -> str:
    """Its frames alone, without what the exceptions say: equal for errors that went the same way."""
    return "".join(piece.text for piece in _pieces(text) if piece.path is not None)


def _pieces(text: str) -> Iterator[_Piece]:
    piece: _Piece | None = None
    for line in _LINE.findall(text):
        frame = _FRAME.match(line)
        if frame is None and piece is not None and (piece.path is None or piece.takes(line)):
            piece.text += line
            continue
        if piece is not None:
            yield piece
        piece = _Piece(line, frame["path"], len(frame["margin"])) if frame else _Piece(line)
    if piece is not None:
        yield piece
