"""``manage.py pgqueue_check``: whether a worker could work here, and whether some do."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.core.checks import ERROR, CheckMessage
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Q

from pgqueue_django import checks, conf, problems, snapshot
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.models import Worker
from pgqueue_django.problems import Severity
from pgqueue_django.snapshot import Snapshot
from pgqueue_django.tasks import declared_tasks
from pgqueue_django.worker.connections import describe, first_line

OK, WARNING, FAILED = "ok", "warning", "failed"
NOTHING_FAILED, SOMETHING_FAILED, NO_DATABASE, NOT_MIGRATED = 0, 1, 4, 5  # exit codes

_OLDEST = 150_000  # server_version_num
_SECONDS = 15.0  # for the database to answer everything
_SKEW_SECONDS = 5.0
_OWN = 4  # connections of a worker beside its slots'

_OLD_SNAPSHOT_SECONDS = 300.0
_OLDEST_SNAPSHOT = """
    SELECT who, seconds FROM (
        SELECT format('session %%s (%%s, %%s)', pid, usename, COALESCE(NULLIF(application_name, ''), 'no name')) AS who,
               EXTRACT(EPOCH FROM statement_timestamp() - xact_start)::float8 AS seconds
        FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND datname = current_database()
        UNION ALL
        SELECT format('prepared transaction %%s', gid), EXTRACT(EPOCH FROM statement_timestamp() - prepared)::float8
        FROM pg_prepared_xacts WHERE database = current_database()
    ) AS holder WHERE seconds > %s ORDER BY seconds DESC LIMIT 1
"""


class Finding(NamedTuple):
    level: str
    subject: str
    text: str
    code: int = SOMETHING_FAILED  # of a failed one


class Command(SuggestingCommand):
    help = (
        "Check the settings, the tasks, the database, the migrations and the workers, and tell what is wrong with the "
        "queue. Exit codes: 0 nothing failed (there may be warnings), 1 something did, 2 bad options, 4 no database, "
        "5 migrations missing."
    )
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--worker", metavar="NAME", help="fail unless a worker of this name, or host, is alive")
        parser.add_argument(
            "--problems", action="store_true", help="fail when jobs that should run do not; else these are warnings"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object")
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        found = [*_settings(), *_tasks(), *_in_time(using, given["worker"], given["problems"])]
        if given["json"]:
            self.stdout.write(json.dumps([one._asdict() for one in found]))
        else:
            styles = {OK: self.style.SUCCESS, WARNING: self.style.WARNING, FAILED: self.style.ERROR}
            for one in found:
                self.stdout.write(f"{styles[one.level](one.level.ljust(8))} {one.subject:<11} {one.text}")
        failed = [one.code for one in found if one.level == FAILED]
        if failed:
            # The database first: what else fails may follow from it.
            raise CommandError(f"{len(failed)} of {len(found)} checks failed.", returncode=max(failed))


def _told(subject: str, messages: Iterable[CheckMessage], code: int = SOMETHING_FAILED) -> Iterator[Finding]:
    """What the system checks say of it, but for those that the project has silenced."""
    for one in messages:
        if one.is_silenced():
            continue
        yield Finding(FAILED if one.level >= ERROR else WARNING, subject, f"{one.msg} {one.hint} ({one.id})", code)


def _settings() -> Iterator[Finding]:
    if wrong := list(checks.settings()):
        yield from _told("settings", wrong)
        return
    settings = conf.current()
    listen = "LISTEN" if settings.LISTEN else "polling only"
    yield Finding(OK, "settings", f"{settings.CONCURRENCY} slots, lease {settings.LEASE:g} s, {listen}")


def _tasks() -> Iterator[Finding]:
    if wrong := list(checks.tasks()):
        yield from _told("tasks", wrong)
        return
    if paths := declared_tasks():
        yield Finding(OK, "tasks", f"{len(paths)} declared")
    else:
        yield Finding(WARNING, "tasks", "none declared in a module tasks.py of an installed app")


def _in_time(using: str, worker: str | None, fails: bool) -> list[Finding]:
    if any(wrong := list(checks.engine(using))):
        return list(_told("database", wrong))
    found, error = checks.in_time(using, lambda: _database(using, worker, fails), _SECONDS)
    if error is None:
        return found
    if isinstance(error, DatabaseError | InterfaceError | TimeoutError):
        return [*found, Finding(FAILED, "database", f"{using}: {first_line(error)}", NO_DATABASE)]
    return [*found, Finding(FAILED, "database", f"{using}: {type(error).__name__}: {error}")]


def _database(using: str, worker: str | None, fails: bool) -> Iterator[Finding]:
    with connections[using].cursor() as cursor:
        began = time.monotonic()
        # Not by pg_stat_activity, which does not say of others' sessions what they are.
        cursor.execute(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int, "
            "current_setting('transaction_read_only') = 'on', EXTRACT(EPOCH FROM clock_timestamp())::float8, "
            "current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int "
            "- (SELECT sum(numbackends)::int FROM pg_stat_database)"
        )
        version, number, read_only, now, free = cursor.fetchone()
        took = time.monotonic() - began
    place = f"{using} ({describe(connections[using])}): PostgreSQL {version}"
    if number < _OLDEST:
        yield Finding(FAILED, "database", f"{place} is too old: 15 or newer is needed")
    elif read_only:
        yield Finding(FAILED, "database", f"{place} takes no writes: a replica, or default_transaction_read_only")
    else:
        yield Finding(OK, "database", f"{place}, answers in {took * 1000:.1f} ms")
    yield from _told("database", checks.atomicity(using))
    if not any(conf.mistakes()):
        slots = conf.current().CONCURRENCY
        level = OK if free >= slots + _OWN else WARNING
        yield Finding(level, "connections", f"{free} free; a worker of {slots} slots takes up to {slots + _OWN}")
        yield from _told("connections", checks.pools())
        yield from _told("listen", checks.pooler(using))
    yield from _told("isolation", [*checks.isolation(using), *checks.default_isolation(using)])
    yield from _told("durability", checks.durability(using))
    if abs(skew := time.time() - now) > _SKEW_SECONDS:
        text = f"this machine is {skew:+.0f} s off the database's, which is the one that counts"
        yield Finding(WARNING, "clock", text)
    if missing := list(checks.migrations(using)):
        yield from (Finding(FAILED, "migrations", f"{one.msg} {one.hint}", NOT_MIGRATED) for one in missing)
        return
    yield Finding(OK, "migrations", "all applied")
    yield from _told("schedules", checks.schedules(using))
    taken = snapshot.take(using)
    yield from _table(using, taken)
    yield from _workers(using, taken, worker)
    if not any(conf.mistakes()):
        yield from _problems(taken, fails)


def _table(using: str, taken: Snapshot) -> Iterator[Finding]:
    """How large it is, and whoever keeps vacuum from taking dead rows away."""
    with connections[using].cursor() as cursor:
        cursor.execute(_OLDEST_SNAPSHOT, [_OLD_SNAPSHOT_SECONDS])
        holder = cursor.fetchone()
    table = taken.table
    when = "not vacuumed yet" if table.vacuumed_seconds is None else f"vacuumed {table.vacuumed_seconds:,.0f} s ago"
    yield Finding(OK, "table", f"about {table.live_rows:,} jobs, {table.dead_rows:,} dead rows, {when}")
    if holder is not None:
        who, seconds = holder
        yield Finding(WARNING, "snapshot", f"held for {seconds:,.0f} s by {who}: dead rows since then stay")


def _workers(using: str, taken: Snapshot, wanted: str | None) -> Iterator[Finding]:
    yield Finding(OK if taken.workers else WARNING, "workers", f"{taken.workers} alive")
    if wanted is not None:
        alive = Worker.objects.using(using).alive().filter(Q(name=wanted) | Q(host=wanted))
        if not alive.exists():
            yield Finding(FAILED, "workers", f"none of the name or host {wanted}")


def _problems(taken: Snapshot, fails: bool) -> Iterator[Finding]:
    for problem in problems.find(taken):
        level = FAILED if fails and problem.severity == Severity.ERROR else WARNING
        yield Finding(level, "queue", f"{problem.text} ({problem.rule})")
