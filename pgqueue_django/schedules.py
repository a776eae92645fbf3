"""Schedules: fire what is due, exactly once per tick, over any number of workers and without a leader.

A tick is one transaction: the schedule's row is locked, the job is enqueued under a key made of the schedule and the
tick, and the row moves on to the next tick. Whoever comes second finds the row locked or moved on; and if all of that
were to fail, the key is taken. All moments are the database's; only what comes after what is computed here.

A tick that has come is *due*; it is *missed* only when a later one is due, too. A schedule that cannot fire says why
in its row and keeps nobody else from firing. What the code of one version declares another version never fires: it may
have another line, and its function may take other arguments.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from . import conf, logs, payload
from .cron import Line
from .exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from .models import Job, Schedule
from .states import FINISHED
from .tasks import Task, is_django, of_django, resolve

logger = logging.getLogger("pgqueue_django.worker")

P = ParamSpec("P")
R = TypeVar("R")

BATCH = 100
"""Schedules that one call fires."""
_FIRE_SECONDS = 1.0  # and then others of a worker's chores have their turn
RETIRE_SECONDS = 600.0
"""A schedule from code that no worker has declared for so long is retired. Workers declare theirs each minute."""
ABANDONED_SECONDS = 180.0
"""One of another version of which nobody has said so for so long is for those who have one of its name."""

_declared: dict[str, _Declared] = {}


@dataclass(frozen=True)
class _Declared:
    name: str
    task: str
    line: Line
    args: str  # JSON text
    kwargs: str  # JSON text
    missed: Schedule.Missed
    overlap: Schedule.Overlap


def periodic(
    line: str,
    *,
    tz: str | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    missed: str = "one",
    overlap: str = "allow",
) -> Callable[[Task[P, R]], Task[P, R]]:
    """Enqueue the task at each tick of ``line``: ``@periodic("0 3 * * *", tz="Europe/Warsaw")`` above ``@task``.

    Ours, or Django's own where its backend is ours.

    ``tz``: whose clocks, else ``settings.TIME_ZONE``. ``name``: in the table and in the jobs' keys, else the task's
    path; a second schedule of one task needs one. ``args`` and ``kwargs`` of the call. ``missed="one"`` makes up once
    for the ticks that passed while no worker ran, if later ones are due, too; ``"none"`` leaves them out.
    ``overlap="skip"`` leaves a tick out while the job of the one before is unfinished.

    Raises InvalidSchedule; TypeError or InvalidPayload when the task does not take such a call.
    """

    def decorate(decorated: Task[P, R]) -> Task[P, R]:
        task = of_django(decorated) if is_django(decorated) else decorated
        if not isinstance(task, Task):
            raise InvalidSchedule("@periodic stands above @task.")
        called = name or task.path
        if not 0 < len(called) <= 100 or not called.isprintable():
            raise InvalidSchedule(
                f"{called[:120]!r}: a schedule's name has 1 to 100 printable characters; give one with name=."
            )
        if missed not in Schedule.Missed.values or overlap not in Schedule.Overlap.values:
            raise InvalidSchedule(f"{called}: missed is none or one, overlap is allow or skip.")
        encode = payload.untyped if task.signature is None else task.signature.encode
        args_json, kwargs_json = encode(tuple(args), dict(kwargs or {}), limit=conf.before_checks().MAX_PAYLOAD_BYTES)
        made = _Declared(
            called,
            task.path,
            Line(line, tz or conf.time_zone()),
            args_json,
            kwargs_json,
            Schedule.Missed(missed),
            Schedule.Overlap(overlap),
        )
        if _declared.setdefault(called, made) != made:
            raise InvalidSchedule(f"There is a schedule {called!r} already; give this one its own name=.")
        return decorated

    return decorate


def declared_schedules() -> list[tuple[str, str]]:
    """Name and task of the schedules whose modules this process has imported."""
    return sorted((one.name, one.task) for one in _declared.values())


# Whoever declares the same line again changes nothing: ten workers that start at a tick must not move it.
_DECLARE = """
    INSERT INTO pgqueue_schedule AS old (name, is_code, task, line, zone, args, kwargs, missed, overlap, is_enabled,
                                         skip_next, next_at, declared_at, error)
    VALUES (%s, true, %s, %s, %s, %s::json, %s::json, %s, %s, true, false, %s, statement_timestamp(), '')
    ON CONFLICT (name) DO UPDATE SET
        task = excluded.task, line = excluded.line, zone = excluded.zone, args = excluded.args,
        kwargs = excluded.kwargs, missed = excluded.missed, overlap = excluded.overlap,
        declared_at = statement_timestamp(), retired_at = NULL,
        next_at = CASE WHEN (old.line, old.zone) = (excluded.line, excluded.zone) AND old.retired_at IS NULL
                       AND old.next_at IS NOT NULL THEN old.next_at ELSE excluded.next_at END,
        error = CASE WHEN (old.task, old.line, old.zone, old.args::text, old.kwargs::text)
                          = (excluded.task, excluded.line, excluded.zone, excluded.args::text, excluded.kwargs::text)
                     THEN old.error ELSE '' END
    WHERE old.is_code
"""


def declare(using: str, names: Collection[str] | None = None) -> bool:
    """Write the schedules of this process's code into the table, or those of these names: once, at its start.

    A line that has changed begins anew from now; one that has not keeps its next tick. False: somebody holds a row of
    theirs; it was passed over.
    """
    now = _now(using)
    wanted = sorted(set(_declared) if names is None else set(names) & set(_declared))
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        rows = Schedule.objects.using(using).filter(name__in=wanted).order_by("name")
        free = set(rows.select_for_update(skip_locked=True).values_list("name", flat=True))
        held = set(rows.values_list("name", flat=True)) - free
        for one in (_declared[name] for name in wanted if name not in held):
            cursor.execute(
                _DECLARE,
                [
                    *(one.name, one.task, one.line.text, one.line.zone),
                    *(one.args, one.kwargs, str(one.missed), str(one.overlap)),
                    one.line.next_after(now),
                ],
            )
            if not cursor.rowcount:
                logger.error(
                    "schedule %s: a person has made one of this name; the one in the code does not fire",
                    one.name,
                    extra=logs.event("schedule.failing", schedule=one.name),
                )
    return not held


def keep(using: str, *, may_retire: bool = True) -> None:
    """Each minute: say that these are still in the code, and retire those of which nobody has said so for long.

    Not by who has just come: after an outage of all workers, others that have them in their code may be coming, too.
    """
    rows = Schedule.objects.using(using).filter(is_code=True)
    mine = rows.filter(name__in=list(_declared))
    # Passing over what somebody holds: it must keep no other from firing.
    with transaction.atomic(using=using):
        kept = [row.pk for row in mine.filter(retired_at=None).select_for_update(skip_locked=True) if _is_ours(row)]
        Schedule.objects.using(using).filter(pk__in=kept).update(declared_at=Now())
    # Those of another version are that version's to keep. When its workers are gone, or have retired one while this
    # one could not say anything, nobody else would ever fire it.
    abandoned = mine.filter(declared_at__lt=Now() - timedelta(seconds=ABANDONED_SECONDS))
    if names := set(abandoned.values_list("name", flat=True)):
        declare(using, names)
    if not may_retire:
        return
    gone = rows.filter(retired_at=None, declared_at__lt=Now() - timedelta(seconds=RETIRE_SECONDS))
    with transaction.atomic(using=using):
        for row in gone.exclude(name__in=list(_declared)).select_for_update(skip_locked=True):
            Schedule.objects.using(using).filter(pk=row.pk).update(retired_at=Now(), next_at=None)
            logger.warning(
                "schedule %s is in no worker's code any more: retired",
                row.name,
                extra=logs.event("schedule.retired", schedule=row.name),
            )


def _is_ours(row: Schedule) -> bool:
    mine = _declared.get(row.name)
    return (
        mine is not None
        and (mine.task, mine.line.text, mine.line.zone) == (row.task, row.line, row.zone)
        and (json.loads(mine.args), json.loads(mine.kwargs)) == (row.args, row.kwargs)
    )


class Fired(NamedTuple):
    jobs: int
    more: bool  # others may be due


def fire(using: str, *, limit: int = BATCH) -> Fired:
    """Enqueue a job for each tick that is due, each schedule in a transaction of its own."""
    # Hundreds of another version's that are due must not keep ours from being looked at.
    rows = Schedule.objects.using(using).due().filter(Q(is_code=False) | Q(name__in=list(_declared)))
    ids = list(rows.values_list("id", flat=True)[:limit])
    jobs, until = 0, time.monotonic() + _FIRE_SECONDS
    for number, id in enumerate(ids, 1):
        try:
            with transaction.atomic(using=using):
                jobs += _fire_one(using, id)
        except Exception as error:  # whatever it is: the others are due, too
            if connections[using].connection is None or connections[using].connection.closed:
                raise
            text = str(error).strip().partition("\n")[0]
            is_said = isinstance(error, DatabaseError | InterfaceError) and text
            _say(using, id, text if is_said else f"{type(error).__name__}: {text}")
        if number < len(ids) and time.monotonic() > until:
            return Fired(jobs, more=jobs > 0)  # none: what fails need not be tried again at once
    return Fired(jobs, more=len(ids) == limit and jobs > 0)


def _fire_one(using: str, id: int) -> int:
    row = Schedule.objects.using(using).due().select_for_update(skip_locked=True).filter(pk=id).first()
    if row is None:
        return 0  # somebody else has fired it, or has it
    if row.is_code and not _is_ours(row):
        return 0  # another version's, or removed from this one
    try:
        line = Line(row.line, row.zone)
    except InvalidSchedule as error:
        # Nobody can read it. Mending it is a person's part, and enabling it again.
        _say(using, id, str(error), is_enabled=False)
        return 0
    tick, now = _moments(using, id)
    ticks, following = due_ticks(line, tick, now, row.missed)
    if row.skip_next:
        ticks = ticks[1:]
    if row.overlap == Schedule.Overlap.SKIP:
        ticks = [] if _is_unfinished(using, row.last_job_id) else ticks[-1:]
    try:
        task = resolve(row.task)
        fired = [_enqueue(using, task, row, tick) for tick in ticks]
    except TaskNotFound:
        # A worker that has the task may come. In the same words each time, or the log would fill.
        _say(using, id, f"the task {row.task} cannot be imported by those that looked")
        return 0
    except (TypeError, InvalidPayload) as error:
        # In a rolling deploy another version's function may take them.
        _say(using, id, f"{type(error).__name__}: {error}")
        return 0
    changes: dict[str, Any] = {"next_at": following, "skip_next": False, "error": ""}
    if fired:
        changes |= {"last_tick": ticks[-1], "last_fired_at": now, "last_job_id": fired[-1]}
    Schedule.objects.using(using).filter(pk=id).update(**changes)
    return len(fired)


def due_ticks(line: Line, tick: datetime, now: datetime, missed: str) -> tuple[list[datetime], datetime | None]:
    """The ticks to fire when ``tick`` is due at ``now``, and the one after them.

    One, if no later one is due. Else the newest, and with ``missed="one"`` one more for all that were missed: never one
    for each, after an outage of days.
    """
    following = line.next_after(tick)
    if following is None or following > now:
        return [tick], following
    before, newest = _newest_two(line, tick, now)
    return ([before, newest] if missed == Schedule.Missed.ONE else [newest]), line.next_after(newest)


def _newest_two(line: Line, first: datetime, now: datetime) -> tuple[datetime, datetime]:
    """The last two ticks up to ``now``, where at least two are. Looked for from behind: there may be a million.

    ``first`` is one of them in any case: by the rules for clocks of today it may be none any more.
    """
    reach = timedelta(seconds=1)
    while True:
        begin = max(first, now - reach)
        found = [first] if begin == first else []
        at = line.next_after(begin)
        while at is not None and at <= now:
            found = [*found[-1:], at]
            at = line.next_after(at)
        if len(found) == 2:
            return found[0], found[1]
        reach *= 4


def _is_unfinished(using: str, job_id: int | None) -> bool:
    if job_id is None:
        return False
    return Job.objects.using(using).filter(pk=job_id).exclude(state__in=FINISHED).exists()


def _enqueue(using: str, task: Task[Any, Any], row: Schedule, tick: datetime) -> int:
    key = f"schedule:{row.name}:{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return task.using(database=using, idempotency_key=key).enqueue(*row.args, **row.kwargs).id


def run_now(using: str, id: int) -> int:
    """Enqueue its job once, beside its ticks. Raises TaskNotFound, TypeError or InvalidPayload."""
    row = Schedule.objects.using(using).get(pk=id)
    return resolve(row.task).using(database=using).enqueue(*row.args, **row.kwargs).id


def plan(using: str, row: Schedule) -> None:
    """Set the next tick of a schedule that a person has made or changed, before it is saved."""
    row.next_at = Line(row.line, row.zone).next_after(_now(using))
    row.error = ""


def next_seconds(using: str) -> float | None:
    """Until the next tick of any schedule that works; None: there is none."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM min(next_at) - statement_timestamp())::float8 FROM pgqueue_schedule "
            "WHERE is_enabled AND retired_at IS NULL AND error = '' AND next_at > statement_timestamp()"
        )
        (seconds,) = cursor.fetchone()
    return None if seconds is None else float(seconds)


def _say(using: str, id: int, error: str, **changes: Any) -> None:
    """Once: a schedule that goes on failing for the same reason is one line in the log."""
    error = error[:500]
    if Schedule.objects.using(using).filter(pk=id).exclude(error=error).update(error=error, **changes):
        name = Schedule.objects.using(using).values_list("name", flat=True).get(pk=id)
        logger.error("schedule %s does not fire: %s", name, error, extra=logs.event("schedule.failing", schedule=name))


def _moments(using: str, id: int) -> tuple[datetime, datetime]:
    """Its next tick, and now. Without USE_TZ Django's moments know no zone: one hour a year comes twice."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM next_at)::float8, EXTRACT(EPOCH FROM statement_timestamp())::float8 "
            "FROM pgqueue_schedule WHERE id = %s",
            [id],
        )
        tick, now = cursor.fetchone()
        return datetime.fromtimestamp(tick, UTC), datetime.fromtimestamp(now, UTC)


def _now(using: str) -> datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM statement_timestamp())::float8")
        return datetime.fromtimestamp(cursor.fetchone()[0], UTC)
