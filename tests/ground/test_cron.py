"""A schedule's line: what it may be, and when it fires, judged by a brute-force walk over every minute.

The oracle reads the fields itself and knows nothing of croniter: it looks at each real minute (UTC), asks the time zone
for the wall clock, and applies the rule as it is stated.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from pgqueue_django.cron import Line
from pgqueue_django.exceptions import InvalidSchedule

MINUTE, QUARTER, DAY = timedelta(minutes=1), timedelta(minutes=15), timedelta(days=1)

LINES = [
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 * * * *",
    "15,45 */2 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "0,30 1-3 * * *",
    "10 3 * * 0",
    "0 20 * * 1-5",
    "*/15 1 * * *",
    "0 6 1 * *",
    "59 23 28-31 * *",
    "0 12 13 * 5",
]
ZONES = [
    "UTC",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Europe/Warsaw",
    "Europe/London",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Beirut",
]


# -- the oracle ------------------------------------------------------------------------------------------------


def values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, last = (low, high) if span == "*" else (int(span.partition("-")[0]), int(span.rpartition("-")[2]))
        found |= set(range(first, last + 1, int(step or 1)))
    return found


class Oracle:
    def __init__(self, line: str, zone: str) -> None:
        minute, hour, day, month, weekday = line.split()
        self._tz = ZoneInfo(zone)
        self._is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        self._minutes, self._hours = values(minute, 0, 59), values(hour, 0, 23)
        self._days, self._months = values(day, 1, 31), values(month, 1, 12)
        self._weekdays = {value % 7 for value in values(weekday, 0, 7)}
        self._any_day, self._any_weekday = day == "*", weekday == "*"

    def _hour_matches(self, wall: datetime) -> bool:
        if wall.hour not in self._hours or wall.month not in self._months:
            return False
        by_day, by_weekday = wall.day in self._days, wall.isoweekday() % 7 in self._weekdays
        if self._any_day or self._any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def ticks(self, begin: datetime, end: datetime) -> list[datetime]:
        """All of them from ``begin`` (inclusive) to ``end``, full hours that are not near a change of the clocks.

        The time zone is asked each quarter of an hour: since 1990 no clocks changed at another minute.
        """
        found = []
        seen: set[datetime] = set()  # wall-clock times of a fixed line that have fired
        at, last = begin, (begin - QUARTER).astimezone(self._tz).replace(tzinfo=None, fold=0)
        while at < end:
            wall = at.astimezone(self._tz).replace(tzinfo=None, fold=0)
            if self._is_fixed and wall - last > QUARTER and any(map(self._matches, self._skipped(last, wall))):
                found.append(at)
            if self._hour_matches(wall):
                for number in range(15):
                    minute = wall + number * MINUTE
                    if minute.minute in self._minutes and not (self._is_fixed and minute in seen):
                        seen.add(minute)
                        found.append(at + number * MINUTE)
            last = wall
            at += QUARTER
        return list(dict.fromkeys(found))

    def _matches(self, wall: datetime) -> bool:
        return wall.minute in self._minutes and self._hour_matches(wall)

    def _skipped(self, last: datetime, wall: datetime) -> list[datetime]:
        days: set[date] = {last.date(), wall.date()}
        count = int((wall - last) / MINUTE)
        return [one for number in range(15, count) if (one := last + number * MINUTE).date() in days]


def check(line: str, zone: str, begin: datetime, end: datetime) -> None:
    expected = Oracle(line, zone).ticks(begin, end)
    at, found, parsed = begin - timedelta(seconds=1), [], Line(line, zone)
    while (following := parsed.next_after(at)) is not None and following < end:
        assert following > at
        found.append(at := following)
    assert found == expected, (line, zone, sorted(set(found) ^ set(expected))[:3])


def check_from_anywhere(line: str, zone: str, change: datetime) -> None:
    """Not only from tick to tick: whoever asks in the middle of a repeated hour gets the same answer."""
    expected = Oracle(line, zone).ticks(change.replace(minute=0) - DAY, change.replace(minute=0) + 2 * DAY)
    for number in range(-8, 16):
        moment = change + number * QUARTER + timedelta(seconds=7)
        if following := next((tick for tick in expected if tick > moment), None):
            assert Line(line, zone).next_after(moment) == following, (line, zone, moment)


def changes(zone: str, first: int, last: int) -> list[datetime]:
    """When the clocks of a zone change, to the hour."""
    tz, at, found = ZoneInfo(zone), datetime(first, 1, 1, tzinfo=UTC), []
    while at.year <= last:
        following = at + timedelta(hours=1)
        if at.astimezone(tz).utcoffset() != following.astimezone(tz).utcoffset():
            found.append(at)
        at = following
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_two_days_around_each_change_of_the_clocks_are_as_the_rule_says(zone: str) -> None:
    first, last = (2011, 2012) if zone == "Pacific/Apia" else (2023, 2024) if zone != "Asia/Beirut" else (2022, 2023)
    around = changes(zone, first, last) or [datetime(2024, 3, 31, tzinfo=UTC)]
    for change in around:
        begin = (change - timedelta(days=1)).replace(minute=0)
        for line in LINES:
            check(line, zone, begin, begin + timedelta(days=2))
            check_from_anywhere(line, zone, change)


@pytest.mark.parametrize("line", ["0,30 1-3 * * *", "*/15 1 * * *", "0 12 13 * 5"])
@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe"])
def test_a_whole_year_is_as_the_rule_says(line: str, zone: str) -> None:
    check(line, zone, datetime(2025, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("line", LINES)
def test_ten_years_are_as_the_rule_says(line: str, zone: str) -> None:
    """Every tick that the oracle finds; of a line with very many all within a day of a change, and every fiftieth."""
    first = 2008 if zone == "Pacific/Apia" else 2016
    begin, end = datetime(first, 1, 15, tzinfo=UTC), datetime(first + 10, 1, 15, tzinfo=UTC)
    expected, parsed = Oracle(line, zone).ticks(begin, end), Line(line, zone)
    near = {change + number * DAY for change in (one.replace(hour=0) for one in changes(zone, first, first + 10))
            for number in (-1, 0, 1)}  # fmt: skip
    for place, (tick, following) in enumerate(pairwise(expected)):
        if len(expected) < 20_000 or place % 50 == 0 or tick.replace(hour=0, minute=0) in near:
            assert parsed.next_after(tick) == following, (line, zone, tick)


# -- examples, one for each report -----------------------------------------------------------------------------


def ticks(line: str, zone: str, begin: str, count: int) -> list[str]:
    return [f"{one:%m-%d %H:%M}" for one in Line(line, zone).ticks(datetime.fromisoformat(begin), count)]


def test_a_fixed_time_that_comes_twice_fires_the_first_time() -> None:
    """croniter 7.0.0 itself: twice on 2025-11-02."""
    assert ticks("30 1 * * *", "America/New_York", "2025-11-01T12:00Z", 3) == [
        "11-02 05:30",
        "11-03 06:30",
        "11-04 06:30",
    ]


def test_a_fixed_time_that_is_skipped_fires_when_the_gap_ends() -> None:
    assert ticks("30 2 * * *", "America/New_York", "2026-03-07T12:00Z", 2) == ["03-08 07:00", "03-09 06:30"]
    assert ticks("0,15,30 2 * * *", "America/New_York", "2026-03-07T12:00Z", 2) == ["03-08 07:00", "03-09 06:00"]


def test_steps_go_on_through_a_repeated_hour() -> None:
    """croniter #56: an hour skipped, or the clock going back."""
    found = Line("*/5 * * * *", "Europe/Zurich").ticks(datetime(2026, 10, 24, 23, tzinfo=UTC), 48)
    assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=5)}


def test_a_daily_time_is_that_of_the_local_clock_before_and_after_a_change() -> None:
    """django-q2 #44, celery #1604: an hour off after the change."""
    assert ticks("0 6 * * *", "Europe/Berlin", "2026-10-24T00:00Z", 3) == ["10-24 04:00", "10-25 05:00", "10-26 05:00"]


def test_a_shift_by_half_an_hour_skips_no_hour() -> None:
    """croniter 7.0.0 itself, in Lord_Howe."""
    found = ticks("0 * * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", 5)
    assert found == ["04-04 13:00", "04-04 14:00", "04-04 15:30", "04-04 16:30", "04-04 17:30"]


def test_a_day_that_does_not_exist_has_no_ticks() -> None:
    assert ticks("0 3 * * *", "Pacific/Apia", "2011-12-29T00:00Z", 3) == ["12-29 13:00", "12-30 13:00", "12-31 13:00"]


def test_what_croniter_has_beyond_the_five_fields() -> None:
    assert ticks("0 0 L 2 *", "UTC", "2028-01-01T00:00Z", 1) == ["02-29 00:00"]
    assert ticks("0 9 15W 8 *", "UTC", "2026-01-01T00:00Z", 1) == ["08-14 09:00"]
    assert ticks("0 9 * * 1#2", "UTC", "2026-01-01T00:00Z", 2) == ["01-12 09:00", "02-09 09:00"]
    assert ticks("0 9 * * L5", "UTC", "2026-01-01T00:00Z", 1) == ["01-30 09:00"]
    assert ticks("0 9 * jan mon", "UTC", "2026-01-01T00:00Z", 1) == ["01-05 09:00"]
    seconds = Line("30 6 * * * 10,20").ticks(datetime(2026, 1, 1, tzinfo=UTC), 3)
    assert [f"{one:%d %H:%M:%S}" for one in seconds] == ["01 06:30:10", "01 06:30:20", "02 06:30:10"]


@pytest.mark.parametrize(
    ("name", "line"), [("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), (" @weekly ", "0 0 * * 0")]
)
def test_names_stand_for_lines(name: str, line: str) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert Line(name).ticks(begin, 5) == Line(line).ticks(begin, 5)


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0 0 30 2 *", "no date ever matches it"),
        ("0 0 31 4 *", "no date ever matches it"),
        ("0 0 31 2,4,6,9,11 *", "no date ever matches it"),
        ("60 * * * *", "out of range"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("", "has 0 fields"),
        ("@reboot", "has 1 fields"),
        ("R * * * *", "drawn by lot"),
        ("0 R(1-3) * * *", "drawn by lot"),
        ("H * * * *", "hashed"),
        ("1,h/2 * * * *", "hashed"),
        ("0 0 1--100000000 * *", "1--100000000"),
        ("*/0 * * * *", "step"),
        ("é * * * *", "is no minute"),
        ("0 0 * * *; DROP", "has 6 fields|is no"),
        ("a * * * *", "a"),
        ("0" * 201, "at most 200"),
    ],
)
def test_a_line_that_cannot_be_is_refused_and_says_why(line: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        Line(line)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", "\0", None])
def test_a_time_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="is no time zone"):
        Line("* * * * *", zone)


def test_a_naive_moment_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        Line("* * * * *").next_after(datetime(2026, 1, 1))


# -- always ----------------------------------------------------------------------------------------------------


def test_what_comes_next_is_always_later_whatever_the_line_zone_and_moment() -> None:
    """django-q #128: a next run in the past, every minute."""
    draw = random.Random(5)
    parsed = [Line(line, zone) for line in LINES for zone in ZONES]
    begin = datetime(2009, 1, 1, tzinfo=UTC)
    for _ in range(10_000):
        at = begin + timedelta(seconds=draw.randrange(20 * 365 * 86_400), microseconds=draw.randrange(1_000_000))
        following = draw.choice(parsed).next_after(at)
        assert following is not None
        assert following > at


def test_the_next_tick_is_there_in_no_time() -> None:
    """A goal of 5 ms for each; here so much that no loop over minutes or days could be that fast."""
    began = time.perf_counter()
    for line in ("0 0 29 2 *", "0 0 L 12 *", "30 1 * * *", "*/5 * * * *"):
        parsed = Line(line, "America/New_York")
        at = datetime(2026, 3, 1, tzinfo=UTC)
        for _ in range(10):
            following = parsed.next_after(at)
            assert following is not None
            at = following
    assert time.perf_counter() - began < 2 + 40 * 0.02
