"""How charts are drawn: where values land, where lines break, and what the scale says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django.dashboard import charts
from pgqueue_django.dashboard.charts import HEIGHT, draw, written

Points = Sequence[float | None]


def chart(*lines: Points, scale: str = "linear", unit: str = "", seconds: float = 1) -> Any:
    series = [{"key": f"s{n}", "label": f"S{n}", "points": points} for n, points in enumerate(lines)]
    return {
        "key": "it",
        "label": "It",
        "unit": unit,
        "scale": scale,
        "seconds_per_point": seconds,
        "ends_at": "2026-11-30T10:00:00+00:00",
        "series": series,
    }


def strokes(path: str) -> list[list[tuple[int, int]]]:
    """The path as a browser reads it: each M begins a stroke, further pairs are lines, h0 is a dot."""
    assert re.fullmatch(r"(M-?\d+ -?\d+( -?\d+ -?\d+)*(h0)?)*", path), path
    found = []
    for stroke in path.split("M")[1:]:
        numbers = [int(number) for number in re.findall(r"-?\d+", stroke.replace("h0", ""))]
        found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def place(value: float, **options: Any) -> int:
    """How high one value stands above the bottom, drawn beside 0 and 100."""
    [[*_, (_, y)]] = strokes(draw(chart([1, 100, value], **options))["series"][0]["path"])
    return HEIGHT - y


def test_a_line_goes_from_the_first_point_to_the_last() -> None:
    drawing = draw(chart([0, 5, 10]))
    assert drawing["box"] == f"0 0 2 {HEIGHT}"
    assert strokes(drawing["series"][0]["path"]) == [[(0, HEIGHT), (1, HEIGHT // 2), (2, 0)]]


def test_where_there_is_no_value_there_is_no_line() -> None:
    [line] = draw(chart([None, 1, 2, None, None, 4, None, 2, 2]))["series"]
    assert [[x for x, _ in stroke] for stroke in strokes(line["path"])] == [[1, 2], [5], [7, 8]]


@pytest.mark.parametrize("points", [[None, 3, None], [3], [None, 3]])
def test_a_value_between_gaps_is_a_dot(points: Points) -> None:
    # A line without a length is drawn, as its round ends; a move alone is not.
    [line] = draw(chart(points))["series"]
    assert line["path"].count("h0") == 1
    assert [len(stroke) for stroke in strokes(line["path"])] == [1]


def test_lines_of_unequal_length_end_at_the_same_moment() -> None:
    long, short = draw(chart([1, 1, 1, 1], [2, 2]))["series"]
    assert strokes(long["path"])[0][-1][0] == strokes(short["path"])[0][-1][0] == 3


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("lines", [[], [[]], [[None, None]], [[], [None]]])
def test_nothing_to_draw_is_drawn_as_nothing(lines: list[Points], scale: str) -> None:
    drawing = draw(chart(*lines, scale=scale, unit="s"))
    assert all(line["path"] == "" and line["text"] == "-" for line in drawing["series"])
    assert len(drawing["ticks"]) > 1
    assert drawing["about"]
    assert not drawing["box"].startswith("0 0 0")


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, ["2", "1", "0"]),
        (1, ["2", "1", "0"]),
        (3, ["4", "2", "0"]),
        (0.03, ["0.04", "0.02", "0"]),
        (41.2, ["60", "30", "0"]),
        (48_217, ["60,000", "30,000", "0"]),
        (100, ["100", "50", "0"]),
    ],
)
def test_a_linear_scale_ends_with_a_round_number(most: float, ticks: list[str]) -> None:
    assert draw(chart([0, most]))["ticks"] == ticks


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([0.006, 0.022], ["100 ms", "10 ms", "1 ms"]),
        ([0.5], ["1 s", "100 ms"]),
        ([1], ["10 s", "1 s"]),
        ([0.001, 400], ["17 min", "10 s", "100 ms", "1 ms"]),
        ([0.0002], ["1 ms", "0.1 ms"]),
    ],
)
def test_a_logarithmic_scale_has_even_steps(points: Points, ticks: list[str]) -> None:
    assert draw(chart(points, scale="log", unit="s"))["ticks"] == ticks


def test_a_tick_for_each_line_of_the_grid() -> None:
    for points in ([0.006, 0.022], [1e-6, 1e6]):
        drawing = draw(chart(points, scale="log", unit="s"))
        heights = [int(y) for y in re.findall(r"M0 (\d+)h1", drawing["grid"])]
        assert len(heights) == len(drawing["ticks"]) <= charts.DECADES + 2
        assert (heights[0], heights[-1]) == (0, HEIGHT)
        steps = [after - before for before, after in itertools.pairwise(heights)]
        assert max(steps) - min(steps) <= 1, "the page puts its ticks at even steps"


def test_ten_times_as_much_is_one_step_higher_on_a_logarithmic_scale() -> None:
    steps = [place(value, scale="log") for value in (1, 10, 100)]
    assert steps == [0, HEIGHT // 2, HEIGHT]
    assert place(0, scale="log") == 0, "below the scale is at its bottom"


@given(
    st.lists(
        st.lists(st.none() | st.floats(0, 1e9, allow_nan=False) | st.integers(0, 10**9), max_size=130), max_size=6
    ),
    st.sampled_from(["linear", "log"]),
)
def test_no_line_leaves_the_drawing(lines: list[Points], scale: str) -> None:
    drawing = draw(chart(*lines, scale=scale, unit="s"))
    width = int(drawing["box"].split()[2])
    for line in drawing["series"]:
        drawn = [point for stroke in strokes(line["path"]) for point in stroke]
        assert len(drawn) == sum(value is not None for value in line["points"])
        assert all(0 <= x <= width and 0 <= y <= HEIGHT for x, y in drawn)


@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=2, max_size=30), st.sampled_from(["linear", "log"]))
def test_more_is_never_lower(values: list[float], scale: str) -> None:
    [line] = draw(chart(sorted(values), scale=scale))["series"]
    heights = [y for _, y in strokes(line["path"])[0]]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 ms"),
        (0.00038, "s", "0.38 ms"),
        (0.0224, "s", "22.4 ms"),
        (0.999, "s", "999 ms"),
        (1.4, "s", "1.4 s"),
        (119, "s", "119 s"),
        (150, "s", "2 min"),
        (41.23, "attempts/s", "41.2"),
        (0.333, "", "0.33"),
        (48_217, "jobs", "48,217"),
    ],
)
def test_a_value_is_written_to_about_three_digits(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_numbers_are_written_in_the_language_of_who_looks() -> None:
    with translation.override("de"):
        assert written(1.5, "") == "1,5"
        assert re.fullmatch(r"M\d+ \d+( \d+ \d+)*", draw(chart([0.5, 1.5, 2.5]))["series"][0]["path"])


def test_the_chart_says_in_words_what_it_shows() -> None:
    drawing = draw(chart([3, 4, None, 2, 2.5, None], [None], unit="jobs", seconds=60))
    assert drawing["series"][0]["text"] == "2.5", "the last that is known"
    assert drawing["about"] == "S0: 2.5, least 2, most 4; S1: no values"
    assert drawing["begins"] == "6 min ago", "a point is the time that ends with it"


def test_what_the_script_needs_is_left_as_it_was() -> None:
    given = chart([1, None, 3], unit="jobs", seconds=5)
    drawing: Any = draw(given)
    for name in ("key", "label", "unit", "scale", "seconds_per_point", "ends_at"):
        assert drawing[name] == given[name]
    assert drawing["series"][0]["points"] == [1, None, 3]
