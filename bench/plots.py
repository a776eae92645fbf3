"""Plots as SVG, drawn with the standard library: bars with whiskers, and lines over a few places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.record import short

COLOURS = ("#1f6f8b", "#e07a3f", "#7a9e3b", "#8c5fa8", "#b8902f", "#5d6d7e")
OURS = "#1f6f8b"
_FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'


@dataclass(frozen=True)
class Point:
    """A median with its least and most; None: not measured."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point | None]


class _Canvas:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" {_FONT}>',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]
        self.text(16, 26, title, size=16, weight="600")

    def text(
        self, x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#222222",
        weight: str = "400",
    ) -> None:  # fmt: skip
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> None:
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0, width):.1f}" height="{height:.1f}" fill="{colour}"/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _ticks(most: float) -> list[float]:
    """Four to eight round values from 0 to a little above ``most``."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most))
    for factor in (1, 0.5, 0.2, 0.1):
        if most / (step * factor) >= 4:
            step *= factor
            break
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _legend(canvas: _Canvas, series: Sequence[Series], y: float) -> None:
    x = 16.0
    for place, one in enumerate(series):
        canvas.box(x, y - 9, 11, 11, COLOURS[place % len(COLOURS)])
        canvas.text(x + 16, y + 1, one.name)
        x += 30 + 7.2 * len(one.name)


def bars(title: str, unit: str, groups: Sequence[str], series: Sequence[Series], *, ours: str = "") -> str:
    """Horizontal bars, a group of them for each name; the whisker is from the least run to the most."""
    left, right, top, height = 190, 110, 62, 15
    gap = 10
    rows = len(groups) * (len(series) * height + gap)
    canvas = _Canvas(760, top + rows + 40, title)
    _legend(canvas, series, 46)
    most = max((point.high for one in series for point in one.points if point), default=1.0)
    ticks = _ticks(most)
    scale = (canvas.width - left - right) / max(ticks[-1], 1e-9)
    for tick in ticks:
        x = left + tick * scale
        canvas.line(x, top, x, top + rows, "#dddddd")
        canvas.text(x, top + rows + 16, short(tick) if tick else "0", size=11, anchor="middle", colour="#555555")
    canvas.text(canvas.width - 16, top + rows + 32, unit, size=11, anchor="end", colour="#555555")
    y = float(top + gap / 2)
    for place, group in enumerate(groups):
        middle = y + len(series) * height / 2 + 4
        canvas.text(left - 8, middle, group, anchor="end", weight="700" if group == ours else "400")
        for number, one in enumerate(series):
            point = one.points[place]
            if point is None:
                canvas.text(left + 4, y + 11, "not measured", size=10, colour="#999999")
            else:
                canvas.box(left, y + 1, point.median * scale, height - 3, COLOURS[number % len(COLOURS)])
                centre = y + height / 2
                canvas.line(left + point.low * scale, centre, left + point.high * scale, centre, "#222222", 1.2)
                canvas.text(left + point.high * scale + 6, y + 11, short(point.median), size=11)
            y += height
        y += gap
    return canvas.done()


def lines(title: str, unit: str, places: Sequence[str], series: Sequence[Series], *, axis: str = "") -> str:
    """Lines over a few named places (1, 2, 4 …), equally far apart; whiskers from the least run to the most."""
    left, right, top, bottom = 70, 30, 66, 56
    canvas = _Canvas(760, 400, title)
    _legend(canvas, series, 46)
    most = max((point.high for one in series for point in one.points if point), default=1.0)
    ticks = _ticks(most)
    height = canvas.height - top - bottom
    scale = height / max(ticks[-1], 1e-9)
    for tick in ticks:
        y = canvas.height - bottom - tick * scale
        canvas.line(left, y, canvas.width - right, y, "#dddddd")
        canvas.text(left - 8, y + 4, short(tick) if tick else "0", size=11, anchor="end", colour="#555555")
    step = (canvas.width - left - right) / max(1, len(places))
    xs = [left + step * (number + 0.5) for number in range(len(places))]
    for x, name in zip(xs, places, strict=True):
        canvas.text(x, canvas.height - bottom + 18, name, anchor="middle")
    canvas.text((left + canvas.width - right) / 2, canvas.height - 14, axis, size=12, anchor="middle", colour="#555555")
    canvas.text(16, top - 4, unit, size=11, colour="#555555")
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        found = [(x, point) for x, point in zip(xs, one.points, strict=True) if point]
        canvas.path([(x, canvas.height - bottom - point.median * scale) for x, point in found], colour)
        for x, point in found:
            y = canvas.height - bottom
            canvas.line(x, y - point.low * scale, x, y - point.high * scale, colour, 1.2)
            canvas.dot(x, y - point.median * scale, colour)
    return canvas.done()
