"""How a chart is drawn: scale, ticks, and each series as the data of an SVG path.

The page that the server sends and every later frame are drawn here, so the script has nothing to lay out. A tick is
a text in even steps from the top to the bottom, because a strict policy lets no place be written into the page. A
series has a gap wherever it has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from django.utils.formats import number_format
from django.utils.translation import gettext, pgettext

from pgqueue_django import stats

from .wording import length

HEIGHT = 200
"""Of the drawing, whose width is one unit for each step from one point to the next; the page stretches both."""

DECADES = 4
"""A logarithmic scale has at most so many steps of ticks, each of a factor of 10, or 100 and so on."""

NICE = (1, 2, 4, 6, 8, 10)
"""What a linear scale may end with: half of it is short to read, too."""

LEAST_SECONDS = 1e-6
"""What a logarithmic scale begins with at the earliest; what is less, zero included, is drawn there."""


class Series(TypedDict):
    """A line of a chart; None is a gap. The last point is the chart's ``ends_at``."""

    key: str
    label: str
    points: Sequence[float | None]


class Chart(TypedDict):
    """What is to be drawn. ``unit`` stands above; with "s" the numbers are lengths of time."""

    key: str
    label: str
    unit: str
    scale: Literal["linear", "log"]
    seconds_per_point: float
    ends_at: str
    series: Sequence[Series]


class Line(Series):
    """A series that is drawn: the path, and its last value in words."""

    path: str
    text: str


class Drawing(TypedDict):
    """A chart that is drawn."""

    key: str
    label: str
    unit: str
    scale: str
    seconds_per_point: float
    ends_at: str
    series: list[Line]
    box: str
    grid: str
    ticks: list[str]
    begins: str
    """When the chart begins, seen from its end."""
    about: str
    """The chart in a sentence, for whoever does not see it."""


def draw(chart: Chart) -> Drawing:
    """The chart with all that the page has to put into its places."""
    unit = chart["unit"]
    count = max((len(series["points"]) for series in chart["series"]), default=0)
    values = [value for series in chart["series"] for value in series["points"] if value is not None]
    place, ticks = _log(values) if chart["scale"] == "log" else _linear(values)
    width = max(count - 1, 1)
    lines = [
        Line(
            key=series["key"],
            label=series["label"],
            points=series["points"],
            path=_path(series["points"], count - len(series["points"]), place),
            text=next((_value(value, unit) for value in reversed(series["points"]) if value is not None), "-"),
        )
        for series in chart["series"]
    ]
    return Drawing(
        key=chart["key"],
        label=chart["label"],
        unit=unit,
        scale=chart["scale"],
        seconds_per_point=chart["seconds_per_point"],
        ends_at=chart["ends_at"],
        series=lines,
        box=f"0 0 {width} {HEIGHT}",
        grid="".join(f"M0 {round(HEIGHT * step / (len(ticks) - 1))}h{width}" for step in range(len(ticks))),
        ticks=[written(tick, unit) for tick in ticks],
        begins=gettext("%(time)s ago") % {"time": length(max(count, 1) * chart["seconds_per_point"])},
        about="; ".join(_about(line, unit) for line in lines) or pgettext("queue", "nothing to show"),
    )


def written(value: float, unit: str) -> str:
    """A value as people read it, to about three digits."""
    if unit == "s":
        if value >= 120:
            return length(value)
        return gettext("%(n)s s") % {"n": _number(value)} if value >= 1 else _milliseconds(value * 1000)
    return _number(value)


def measured(seconds: float, text: str) -> str:
    """``text``, which says how long; beyond the last bound of the histograms nobody knows how much longer it was."""
    return f"≥ {text}" if seconds >= stats.BOUNDS[-1] else text


def _value(value: float, unit: str) -> str:
    """A value of a series: lengths of time are those of histograms."""
    return measured(value, written(value, unit)) if unit == "s" else written(value, unit)


def _milliseconds(value: float) -> str:
    return gettext("%(n)s ms") % {"n": _number(value) if value >= 0.01 or not value else number_format(f"{value:g}")}


def _number(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    rounded = round(value, digits)
    return number_format(int(rounded) if rounded == int(rounded) else rounded, force_grouping=True)


def _linear(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """From 0 to a round number. The place is a part of the height, from below."""
    most = max(values, default=0)
    # Whole numbers have whole ticks.
    top = _round_up(max(most, 2 if all(value == int(value) for value in values) else 0))
    return (lambda value: value / top), [top, top / 2, 0]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1
    size = 10.0 ** math.floor(math.log10(value))
    top = next((size * nice for nice in NICE if size * nice >= value), size * 10)
    return int(top) if top == int(top) else top


def _log(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """From a power of 10 to another, in even steps."""
    seen = [max(value, LEAST_SECONDS) for value in values if value > 0]
    low = math.floor(math.log10(min(seen, default=0.001)))
    high = max(math.ceil(math.log10(max(seen, default=1.0))), low + 1)
    step = math.ceil((high - low) / DECADES)
    steps = math.ceil((high - low) / step)

    def place(value: float) -> float:
        return max(math.log10(max(value, LEAST_SECONDS)) - low, 0) / (step * steps)

    return place, [10.0 ** (low + step * number) for number in range(steps, -1, -1)]


def _path(points: Sequence[float | None], first: int, place: Callable[[float], float]) -> str:
    """One stroke for each run of values; a value between two gaps is a dot, by the round end of an empty line."""
    path, run = "", 0
    for at, value in enumerate(points, first):
        if value is None:
            path += "h0" if run == 1 else ""
            run = 0
            continue
        path += f"{' ' if run else 'M'}{at} {round(HEIGHT * (1 - place(value)))}"
        run += 1
    return path + ("h0" if run == 1 else "")


def _about(line: Line, unit: str) -> str:
    values = [value for value in line["points"] if value is not None]
    if not values:
        return gettext("%(series)s: no values") % {"series": line["label"]}
    return gettext("%(series)s: %(last)s, least %(least)s, most %(most)s") % {
        "series": line["label"],
        "last": line["text"],
        "least": _value(min(values), unit),
        "most": _value(max(values), unit),
    }
