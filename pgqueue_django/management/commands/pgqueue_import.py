"""``manage.py pgqueue_import``: what waits in another queue's table of the same database becomes jobs here.

A row is deleted there and its job made here in one commit, a bounded batch at a time: whenever it is stopped, each row
is in one of the two places. Rows that somebody holds are passed over, so the other queue's workers may run beside; what
they have begun, or finished, is theirs. A row that cannot be a job here is named and stays where it is.

Knows the other's table, not its package: that need not be installed any more.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from pgqueue_django import payload
from pgqueue_django.exceptions import PgQueueError, TaskNotFound
from pgqueue_django.management import arguments, selection
from pgqueue_django.options import MAX_PRIORITY
from pgqueue_django.tasks import Call, enqueue_many, resolve, task_by_name

_TELL_SECONDS = 10.0
_SPAN = 50_000  # rows whose places are in memory


class _Row(NamedTuple):
    """A row of the other queue; moments as text, since it may hold some that Python cannot."""

    id: str
    task: str
    queue_name: str
    priority: int
    args: str | None  # JSON text
    kwargs: str | None  # JSON text
    run_after: str | None
    lock: str | None
    queueing_lock: str | None


@dataclass(frozen=True)
class _Source:
    """Another queue: its table, which columns that needs, and where a ``_Row`` is in it."""

    table: str
    columns: str
    statuses: Sequence[str]  # the first one: waits, and nobody has begun it
    needs: str  # what has such a table
    row: str  # the select list of a _Row
    id_type: str
    order: Sequence[tuple[str, str]]  # first in, first out: columns and their types


_SOURCES = {
    "django-tasks-db": _Source(
        table="django_tasks_database_dbtaskresult",
        columns="id status enqueued_at args_kwargs priority task_path queue_name run_after",
        statuses=("READY", "RUNNING", "SUCCESSFUL", "FAILED"),
        needs="django-tasks-db 0.12 or later",
        # It writes the first day of the year 9999, in the project's zone, for "at once".
        row="""
            id::text, task_path, queue_name, priority, (args_kwargs -> 'args')::text, (args_kwargs -> 'kwargs')::text,
            CASE WHEN run_after NOT BETWEEN '9998-12-30' AND '9999-01-03' THEN to_json(run_after) #>> '{}' END,
            NULL, NULL
        """,
        id_type="uuid",
        order=(("enqueued_at", "timestamptz"), ("id", "uuid")),
    ),
    "procrastinate": _Source(
        table="procrastinate_jobs",
        columns="id queue_name task_name priority lock queueing_lock args status scheduled_at",
        statuses=("todo", "doing", "succeeded", "failed", "cancelled", "aborting", "aborted"),
        needs="Procrastinate 2.1 or later",
        row="""
            id::text, task_name, queue_name, priority, '[]', args::text, to_json(scheduled_at) #>> '{}',
            lock, queueing_lock
        """,
        id_type="bigint",
        order=(("id", "bigint"),),
    ),
}


def _mapping(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ArgumentTypeError(f"{text!r}: give OLD=NEW, the name over there and the import path here")
    return old, new


class _Left(Exception):
    """Why rows of one task stay where they are."""


@dataclass
class _Report:
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)  # name there, path here
    left: Counter[tuple[str, str]] = field(default_factory=Counter)  # name there, why
    refused: int = 0
    clamped: int = 0
    queueing_locks: int = 0
    others: int = 0  # wait there still, and were not seen
    unknown: dict[str, str] = field(default_factory=dict)  # path here: why


class Command(arguments.SuggestingCommand):
    help = (
        "Move what waits in django-tasks-db's or Procrastinate's table of this database into our queues, each row "
        "exactly once. It may be stopped and started again at any time, and their workers may go on meanwhile. Exit "
        "codes: 0, 1 if some rows were left, 2 wrong options or no such table."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("source", choices=sorted(_SOURCES))
        parser.add_argument("--queue", action="append", help="only this queue of theirs (may be repeated)")
        parser.add_argument(
            "--map",
            action="append",
            type=_mapping,
            default=[],
            metavar="OLD=NEW",
            help="a task's name over there, and its import path here (may be repeated)",
        )
        parser.add_argument("--unknown", action="store_true", help="move rows of tasks whose code is elsewhere, too")
        parser.add_argument(
            "--ignore-locks",
            action="store_true",
            help="move rows with a Procrastinate lock, too; here nothing keeps it",
        )
        parser.add_argument("--batch", type=arguments.whole(1), default=500, metavar="ROWS", help="in one commit (500)")
        parser.add_argument("--dry-run", action="store_true", help="show what would be moved, and move nothing")
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        source = _SOURCES[given["source"]]
        with connections[using].cursor() as cursor:
            _check_table(cursor, using, source)
        given["map"] = dict(given["map"])
        for path in [] if given["unknown"] else given["map"].values():
            try:
                resolve(path)
            except TaskNotFound as error:
                raise CommandError(
                    f"--map …={path}: {error} (--unknown moves its rows all the same.)", returncode=2
                ) from error
        report = _Report()
        place: Sequence[str] = ()
        tell_at = time.monotonic() + _TELL_SECONDS
        while span := _span(using, source, place, given):
            place = span[-1]
            ids = [row[-1] for row in span]
            for start in range(0, len(ids), given["batch"]):
                self._step(using, source, ids[start : start + given["batch"]], given, report)
                if time.monotonic() >= tell_at:
                    tell_at = time.monotonic() + _TELL_SECONDS
                    self.stderr.write(f"{report.moved.total():,} so far")
        if not given["dry_run"]:
            with connections[using].cursor() as cursor:
                where, params = _waiting(source, given)
                cursor.execute(f"SELECT count(*) FROM {source.table} WHERE {where}", params)
                report.others = max(0, cursor.fetchone()[0] - report.left.total() - report.refused)
        self._tell(report, given)
        if report.left or report.refused or report.others:
            sys.exit(1)

    def _step(self, using: str, source: _Source, ids: Sequence[str], given: Mapping[str, Any], report: _Report) -> None:
        """Moves those of one batch that wait and that nobody holds."""
        calls: list[Call] = []
        taken: list[_Row] = []
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            for row in _read(cursor, source, ids, given):
                try:
                    call = _call(using, row, given, report)
                except _Left as why:
                    report.left[row.task, str(why)] += 1
                except Exception as error:  # the project's own classes of arguments may raise anything
                    report.refused += 1
                    self.stderr.write(f"left {row.id} of {row.task}: {error}")
                else:
                    calls.append(replace(call, job=call.job._replace(label=f"{given['source']} {row.id}")))
                    taken.append(row)
            if taken and not given["dry_run"]:
                _delete(cursor, source, taken)
                enqueue_many(calls)
        for row, call in zip(taken, calls, strict=True):
            report.moved[row.task, call.job.task] += 1
            report.clamped += call.job.priority != row.priority
            report.queueing_locks += row.queueing_lock is not None

    def _tell(self, report: _Report, given: Mapping[str, Any]) -> None:
        for (name, path), count in sorted(report.moved.items()):
            self.stdout.write(f"{count:>9,}  {name}" + ("" if path == name else f" -> {path}"))
        self.stdout.write(f"{report.moved.total():>9,}  " + ("would be moved" if given["dry_run"] else "moved"))
        if report.clamped:
            self.stdout.write(f"{report.clamped:>9,}  of them had a priority beyond ±{MAX_PRIORITY}: the nearest now")
        if report.queueing_locks:
            self.stdout.write(f"{report.queueing_locks:>9,}  of them had a queueing_lock, which ends with the move")
        for (name, why), count in sorted(report.left.items()):
            self.stdout.write(f"{count:>9,}  left of {name}: {why}")
        if report.refused:
            self.stdout.write(f"{report.refused:>9,}  left, each named above with the reason")
        if report.others:
            self.stdout.write(
                f"{report.others:>9,}  wait there: somebody held them, or they came meanwhile. Run it again"
            )


def _call(using: str, row: _Row, given: Mapping[str, Any], report: _Report) -> Call:
    """The row as a call of ours. Raises _Left, or what ``Task.using`` and ``Task.call`` raise."""
    if row.lock is not None and not given["ignore_locks"]:
        raise _Left("they have a lock, which nothing keeps here: let their workers end them, or --ignore-locks")
    path = given["map"].get(row.task, row.task)
    try:
        task = resolve(path)
    except TaskNotFound as error:
        if not given["unknown"]:
            # The first time it says why; and rows are told by this text.
            why = report.unknown.setdefault(path, str(error))
            raise _Left(f"{why} (--map {row.task}=…, or --unknown)") from error
        task = task_by_name(path)
    task = task.using(
        database=using,
        queue_name=row.queue_name,
        priority=max(-MAX_PRIORITY, min(row.priority, MAX_PRIORITY)),
        run_after=_moment(row.run_after),
    )
    args, kwargs = payload.load(row.args or "null", row.kwargs or "null")
    return task.call(*args, **kwargs)


def _check_table(cursor: CursorWrapper, using: str, source: _Source) -> None:
    """Raises CommandError, exit code 2."""
    cursor.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        [source.table],
    )
    columns = {column for (column,) in cursor.fetchall()}
    if not columns:
        raise CommandError(f"There is no table {source.table} in the database {using!r}.", returncode=2)
    if missing := sorted(set(source.columns.split()) - columns):
        raise CommandError(
            f"{source.table} has no {', '.join(missing)}: it is another version's. Migrate it to {source.needs}.",
            returncode=2,
        )
    cursor.execute(
        f"SELECT status::text FROM {source.table} WHERE status::text <> ALL(%s) LIMIT 1", [list(source.statuses)]
    )
    if row := cursor.fetchone():
        raise CommandError(
            f"{source.table} has rows that are {row[0]!r}: it is another version's. Migrate it to {source.needs}.",
            returncode=2,
        )


def _span(using: str, source: _Source, place: Sequence[str], given: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The places of the next rows that wait, behind ``place``, as text; the last part of each is its id.

    Many at once: the table of django-tasks-db has no index in this order, so each look sorts all that waits.
    """
    # With the table's name: ORDER BY takes a name alone for that of the output, which is text.
    columns = ", ".join(f"{source.table}.{column}" for column, _ in source.order)
    where, params = _waiting(source, given)
    if place:
        where += f" AND ({columns}) > ({', '.join(f'%s::{kind}' for _, kind in source.order)})"
        params += place
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"""
            SELECT {", ".join(f"{column}::text" for column, _ in source.order)} FROM {source.table}
            WHERE {where} ORDER BY {columns} LIMIT %s
            """,
            [*params, _SPAN],
        )
        return [tuple(row) for row in cursor.fetchall()]


def _read(cursor: CursorWrapper, source: _Source, ids: Sequence[str], given: Mapping[str, Any]) -> list[_Row]:
    """Those of these rows that still wait; locked, but for a dry run."""
    # || '': with the status in plain sight it may walk over all that waits instead of looking up these.
    cursor.execute(
        f"""
        SELECT {source.row} FROM {source.table}
        WHERE id = ANY(%s::{source.id_type}[]) AND status::text || '' = '{source.statuses[0]}'
        ORDER BY {", ".join(f"{source.table}.{column}" for column, _ in source.order)}
        {"" if given["dry_run"] else "FOR UPDATE SKIP LOCKED"}
        """,
        [list(ids)],
    )
    return [_Row(*row) for row in cursor.fetchall()]


def _waiting(source: _Source, given: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """What is asked for, in SQL, and its parameters."""
    where = f"status = '{source.statuses[0]}'"
    return (f"{where} AND queue_name = ANY(%s)", [given["queue"]]) if given["queue"] else (where, [])


def _delete(cursor: CursorWrapper, source: _Source, rows: Sequence[_Row]) -> None:
    cursor.execute(
        f"DELETE FROM {source.table} WHERE id = ANY(%s::{source.id_type}[])",
        [[row.id for row in rows]],
    )
    if cursor.rowcount != len(rows):  # or both queues would have them
        raise CommandError(
            f"{source.table} keeps rows that are deleted (a trigger, or row-level security): nothing was moved."
        )


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:  # infinity, or beyond Python's years
        raise PgQueueError(f"{text} is no moment that a job can wait for.") from error
