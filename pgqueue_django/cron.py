"""A schedule's line over croniter, in a time zone, with a rule for the days on which clocks change.

croniter reads the fields and walks over wall-clock times that know no time zone; what is added here is when such a time
really is. The rule, which is that of Vixie's cron:

* A line whose minute and hour are *fixed* (neither begins with ``*``) fires once for each wall-clock time of a local
  day: the first time that a repeated one comes round, and at the end of a gap for one that is skipped. Several that the
  same gap skips fire once, and a day that does not exist (Apia, 2011-12-30) has none.
* A *wildcard* line fires at every real moment whose wall-clock time matches: twice where it is repeated, not at all
  where it is skipped.

croniter alone (7.0.0) fires ``30 1 * * *`` in New_York twice when summer time ends, and skips an hour in Lord_Howe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

from croniter import croniter
from croniter.croniter import CroniterError
from django.utils.translation import gettext_noop as _

from .exceptions import InvalidSchedule

MAX_LENGTH = 200
"""Characters of a line."""

_NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = ("minute", "hour", "day of month", "month", "day of week", "second")
_ALLOWED = re.compile(r"[0-9A-Za-z*,/#?-]+")
# R draws lots at each look and H depends on who asks: neither says when it fires.
_DRAWN = re.compile(r"(^|,)[RH]($|[(/,])", re.I)

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
# Wall-clock times have no time zone here.
_BEGIN, _END = datetime(2024, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001


@dataclass(frozen=True)
class Line:
    """``Line("0 3 * * *", "Europe/Warsaw")``: five fields, or six with seconds as the last, or a name as ``@daily``.

    Raises InvalidSchedule: it cannot be read, it can never fire, or there is no such time zone.
    """

    text: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) > MAX_LENGTH:
            raise InvalidSchedule(_("A schedule's line is a text of at most %(most)s characters."), most=MAX_LENGTH)
        _tz(self.zone)
        fields = self._fields
        if len(fields) not in (5, 6):
            names = ", ".join(sorted(_NAMES))
            raise InvalidSchedule(
                _(
                    "%(line)r has %(count)s fields. Give five (minute hour day-of-month month day-of-week), six "
                    "with seconds as the last, or one of %(names)s."
                ),
                line=self.text,
                count=len(fields),
                names=names,
            )
        for name, field in zip(_FIELDS, fields, strict=False):
            said = {"line": self.text, "value": field, "field": name}
            if _DRAWN.search(field):
                raise InvalidSchedule(
                    _("%(line)r: %(value)r is drawn by lot (R) or hashed (H); give a %(field)s."), **said
                )
            if not _ALLOWED.fullmatch(field):
                raise InvalidSchedule(_("%(line)r: %(value)r is no %(field)s."), **said)
        try:
            croniter(self._line, _BEGIN).get_next(datetime)
        except CroniterError as error:
            if "failed to find" in str(error):
                raise InvalidSchedule(_("%(line)r: no date ever matches it."), line=self.text) from error
            raise InvalidSchedule("%(line)r: %(why)s.", line=self.text, why=error) from error
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            # It does not check everything that it reads.
            raise InvalidSchedule(_("%(line)r is no schedule: %(why)s."), line=self.text, why=error) from error

    @cached_property
    def _line(self) -> str:
        return " ".join(self._fields)

    @property
    def _fields(self) -> list[str]:
        text = self.text.strip()
        return _NAMES.get(text.lower(), text).split()

    @cached_property
    def is_fixed(self) -> bool:
        """Whether its minute and hour are fixed ones: they come once on each local day."""
        minute, hour = self._fields[:2]
        return not (minute.startswith("*") or hour.startswith("*"))

    def next_after(self, moment: datetime) -> datetime | None:
        """The first tick after ``moment``, both aware, in UTC. None: there is none before the year 2200."""
        if moment.tzinfo is None:
            raise ValueError("next_after() takes an aware datetime.")
        tz = _tz(self.zone)
        moment = moment.astimezone(UTC)
        return self._next_fixed(moment, tz) if self.is_fixed else self._next_wildcard(moment, tz)

    def wall(self, moment: datetime) -> datetime:
        """What the clocks of its time zone say at ``moment``."""
        return moment.astimezone(_tz(self.zone)).replace(tzinfo=None)

    def ticks(self, after: datetime, count: int) -> list[datetime]:
        """The next ``count`` ticks."""

        found: list[datetime] = []
        while len(found) < count and (after_last := self.next_after(found[-1] if found else after)) is not None:
            found.append(after_last)
        return found

    def _next_wall(self, wall: datetime) -> datetime | None:
        """The first wall-clock time after this one that matches."""
        try:
            found: datetime = croniter(self._line, wall).get_next(datetime)
        except CroniterError:
            return None  # within croniter's fifty years
        return found if found < _END else None

    def _next_fixed(self, moment: datetime, tz: tzinfo) -> datetime | None:
        # What a repeated hour shows for the second time is earlier, and passed over.
        wall = _floor(moment.astimezone(tz))
        while (found := self._next_wall(wall)) is not None:
            real = _first(found, tz)
            if real is not None and real > moment:
                return real
            wall = found
        return None

    def _next_wildcard(self, moment: datetime, tz: tzinfo) -> datetime | None:
        """From one change of the clocks to the next: in between wall-clock time and real time differ by a constant."""
        at, offset = moment, _offset(moment.astimezone(tz))
        wall = _floor(_wall(at, offset))
        while (found := self._next_wall(wall)) is not None:
            real = found.replace(tzinfo=UTC) - offset
            change = _next_change(at, real, tz)
            if change is None:
                return real
            at, before = change, offset
            offset = _offset(change.astimezone(tz))
            # What was found may lie in the gap, or come later than what is repeated.
            again = _wall(change, offset) - _SECOND
            wall = again if offset < before or found <= again else found - _SECOND
        return None


@lru_cache(maxsize=512)
def _tz(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError) as error:  # not found, a path, no text, a folder
        raise InvalidSchedule(_("%(zone)r is no time zone; give a name as in Europe/Warsaw."), zone=name) from error


def _floor(moment: datetime) -> datetime:
    return moment.replace(microsecond=0, tzinfo=None, fold=0)


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)


def _wall(moment: datetime, offset: timedelta) -> datetime:
    return (moment + offset).replace(tzinfo=None)


def _first(wall: datetime, tz: tzinfo) -> datetime | None:
    """When this wall-clock time is there for the first time; at the end of the gap that skips it. None: no such day."""
    early, late = wall.replace(tzinfo=tz, fold=0), wall.replace(tzinfo=tz, fold=1)
    real = wall.replace(tzinfo=UTC) - _offset(early)
    if _offset(early) >= _offset(late):
        return real
    change = _change(wall.replace(tzinfo=UTC) - _offset(late), real, tz)
    there = (change.astimezone(tz).date(), (change - _SECOND).astimezone(tz).date())
    return change if wall.date() in there else None


def _change(low: datetime, high: datetime, tz: tzinfo) -> datetime:
    """When the offset changes between these two moments, which have different ones; to the second."""
    before = _offset(low.astimezone(tz))
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        if _offset(middle.astimezone(tz)) == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)  # a change is at a whole second, and one second has one of them


def _next_change(low: datetime, high: datetime, tz: tzinfo) -> datetime | None:
    """The first change of the offset after ``low``, up to ``high``."""
    for year in range(low.year, high.year + 1):
        for change in _changes(tz, year):
            if low < change <= high:
                return change
    return None


@lru_cache(maxsize=4096)
def _changes(tz: tzinfo, year: int) -> tuple[datetime, ...]:
    """All changes of a year (UTC); looked for day by day, so not two of them within one."""
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    found = []
    before = _offset(day.astimezone(tz))
    while day < end:
        following = min(day + _DAY, end)
        after = _offset(following.astimezone(tz))
        if after != before:
            found.append(_change(day, following, tz))
        day, before = following, after
    return tuple(found)
