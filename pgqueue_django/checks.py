"""System checks: what is wrong with how a project is set up, and the remedy.

``manage.py check`` runs those that need no database, ``manage.py check --database default`` all of them, and
``pgqueue_check`` shows what they find. What is wrong with a database is a warning, never an error: ``migrate``, which
asks it first, refuses to begin where a check has found an error. docs/checks.md lists them all.

What needs psycopg 3 is imported where it is used: that it is missing has to be said here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeVar

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist
from django.utils.module_loading import import_string, module_has_submodule

from . import conf
from .exceptions import InvalidPayload, InvalidSchedule, TaskNotFound
from .models import Job, Schedule

T = TypeVar("T")

TAG = "pgqueue"
SECONDS = 5.0
"""For the database to answer everything."""
_SCHEDULES = 100
_OLDEST_PSYCOPG = (3, 2, 4)
_DEFAULT_POOL = 4  # psycopg's own

_imports_tasks = ContextVar("imports_tasks", default=True)


@contextmanager
def without_tasks() -> Iterator[None]:
    """No modules with tasks are imported, nor judged: for a process that is not to have them."""
    token = _imports_tasks.set(False)
    try:
        yield
    finally:
        _imports_tasks.reset(token)


def _error(number: str, problem: str, remedy: str) -> Error:
    return Error(problem, remedy, id=f"pgqueue.{number}")


def _warning(number: str, problem: str, remedy: str) -> Warning:
    return Warning(problem, remedy, id=f"pgqueue.{number}")


@register(TAG)
def check_project(**_: Any) -> list[CheckMessage]:
    """What can be seen without a database."""
    using = router.db_for_write(Job)
    if found := list(engine(using)):
        return found
    if found := list(settings()):
        return found
    declared = tasks() if _imports_tasks.get() else ()
    return [*authenticators(), *declared, *atomicity(using), *isolation(using), *pools()]


@register(TAG, Tags.database)
def check_database(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """What the jobs' database says. Nothing unless it is one of those that are asked for."""
    using = router.db_for_write(Job)
    if using not in (databases or ()) or any(engine(using)) or conf.mistakes():
        return []

    def look() -> Iterator[CheckMessage]:
        yield from durability(using)
        yield from default_isolation(using)
        if missing := list(migrations(using)):
            yield from missing
        else:
            yield from schedules(using)
        yield from pooler(using)  # last: where a pooler has no session left it waits

    found, error = in_time(using, look, SECONDS)
    if error is not None:
        from .worker.connections import first_line

        problem = f"Database {using} could not be asked: {first_line(error)}."
        found.append(_warning("W005", problem, "Check it again when it is there: manage.py pgqueue_check."))
    return found


def in_time(using: str, look: Callable[[], Iterable[T]], seconds: float) -> tuple[list[T], Exception | None]:
    """What ``look`` finds over a connection of its own; and why that is not all, if it is not.

    A server that takes the connection and never answers must not keep whoever asks, a monitor perhaps.
    """
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        from .worker.connections import own_connection

        try:
            with own_connection(using, "check"):
                for one in look():
                    found.append(one)  # noqa: PERF402 (what there is when the time is over counts)
        except Exception as error:  # of a thread nobody would hear it
            failed.append(error)

    thread = threading.Thread(target=run, name="pgqueue check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return list(found), TimeoutError(f"no answer within {seconds:g} s")
    return found, failed[0] if failed else None


# -- without a database ----------------------------------------------------------------------------------------


def engine(using: str) -> Iterator[CheckMessage]:
    """Jobs need PostgreSQL, over psycopg 3."""
    try:
        wrapper = connections[using]
    except ConnectionDoesNotExist:
        remedy = f"Let db_for_write give one of DATABASES ({', '.join(connections)})."
        yield _error("E001", f"The router gives jobs to {using}, which is not in DATABASES.", remedy)
        return
    if wrapper.vendor != "postgresql":
        yield _error(
            "E001",
            f"Jobs are in database {using}, which is {wrapper.display_name}: they need PostgreSQL.",
            "Make that database a PostgreSQL, or let a router's db_for_write lead the models of pgqueue_django to one.",
        )
        return
    from django.db.backends.postgresql.base import psycopg_version
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if not is_psycopg3:
        yield _error(
            "E002",
            "Django uses psycopg 2, since psycopg 3 cannot be imported here: jobs need 3.",
            'pip install "psycopg[binary]>=3.2.4"; python -c "import psycopg" says what is wrong with it.',
        )
        return
    if (version := psycopg_version()) < _OLDEST_PSYCOPG:
        problem = f"psycopg {'.'.join(map(str, version))} loses notifications that come between two waits."
        yield _error("E002", problem, 'pip install "psycopg[binary]>=3.2.4"')


def settings() -> Iterator[CheckMessage]:
    """One for each key of settings.PGQUEUE that is unknown or has a value that it may not have."""
    for mistake in conf.mistakes():
        remedy = mistake.remedy[:1].upper() + mistake.remedy[1:]
        yield _error("E003" if mistake.is_unknown else "E004", f"{mistake.problem}.", remedy)


def authenticators() -> Iterator[CheckMessage]:
    """Those of API_AUTH that cannot be imported: every request would be a 500."""
    for name in conf.current().API_AUTH:
        try:
            found = import_string(name) if isinstance(name, str) else name
        except Exception as error:  # whatever a module raises at import
            problem = f'settings.PGQUEUE["API_AUTH"]: {name} cannot be imported: {type(error).__name__}: {error}.'
            yield _error("E007", problem, "Name a function (request) -> Actor | None, as pgqueue_django.access.token.")
            continue
        if not callable(found):
            problem = f'settings.PGQUEUE["API_AUTH"]: {name} is no function.'
            yield _error("E007", problem, "Name a function (request) -> Actor | None, as pgqueue_django.access.token.")


def tasks() -> Iterator[CheckMessage]:
    """What a worker would not find: in the modules that it imports, and in what this process has imported."""
    from .schedules import declared_schedules
    from .tasks import declared_tasks, resolve

    # As autodiscover_modules does it; but that stops at the first and does not say which.
    broken = set()
    for app in apps.get_app_configs():
        if app.module is None or not module_has_submodule(app.module, "tasks"):
            continue
        try:
            import_module(f"{app.name}.tasks")
        except InvalidSchedule as error:
            broken.add(f"{app.name}.tasks")
            yield _error("E006", f"A schedule of {app.name}.tasks cannot fire: {error}", "Correct its @periodic.")
        except (Exception, SystemExit) as error:
            # No error: a module may need what only the workers have.
            broken.add(f"{app.name}.tasks")
            yield _warning(
                "W001",
                f"{app.name}.tasks cannot be imported here: {type(error).__name__}: {error}",
                "A worker that has the same code and packages ends as it starts. Correct the module, or silence this "
                "where only workers have what it needs.",
            )
    missing = {}
    for path in declared_tasks():
        if path.rpartition(".")[0] in broken:
            continue
        try:
            resolve(path)
        except TaskNotFound as error:
            missing[path] = str(error)
            remedy = "Define it as a function of its own name in a module that workers can import."
            yield _error("E005", f"{path}: a worker would not find it: {error}", remedy)
    for name, path in declared_schedules():
        if path in missing:
            problem = f"The schedule {name} cannot fire: a worker would not find {path}."
            yield _error("E006", problem, "Put @periodic above a task that workers can import.")


def atomicity(using: str) -> Iterator[CheckMessage]:
    """Whether ``enqueue`` is in the transaction of whoever calls it."""
    if using == "default" or connections["default"].vendor == "unknown":  # no engine: all is routed
        return
    yield _warning(
        "W002",
        f'Jobs are in database {using}, not in "default": enqueue is in no transaction of what is written there, and a '
        "job may exist although its caller rolled back.",
        "Enqueue with transaction.on_commit(), or keep the jobs in the database that the project writes to. If it is "
        'meant to be so: SILENCED_SYSTEM_CHECKS = ["pgqueue.W002"].',
    )


_ISOLATION_REMEDY = (
    "Use READ COMMITTED. Else an idempotency key that was taken since the transaction began is a serialization "
    "failure, and whoever enqueues with one has to try his transaction again. Workers use READ COMMITTED in any case."
)


def isolation(using: str) -> Iterator[CheckMessage]:
    """The isolation level that the settings ask for."""
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    level = connections[using].settings_dict["OPTIONS"].get("isolation_level")
    if level is not None and IsolationLevel(level) > IsolationLevel.READ_COMMITTED:
        name = IsolationLevel(level).name.replace("_", " ")
        yield _warning("W003", f"Transactions on database {using} are {name}.", _ISOLATION_REMEDY)


def pools() -> Iterator[CheckMessage]:
    """Django's pools: each slot of a worker may want a connection of each database at the same time."""
    slots = conf.current().CONCURRENCY
    for alias in connections:
        options = connections[alias].settings_dict["OPTIONS"]
        if connections[alias].vendor != "postgresql" or not (pool := options.get("pool")):
            continue
        given = pool if isinstance(pool, dict) else {}
        most = given.get("max_size") or given.get("min_size", _DEFAULT_POOL)
        if most < slots:
            yield _warning(
                "W004",
                f"The pool of database {alias} has {most} connections, a worker {slots} slots: handlers wait for each "
                "other's, and those that wait too long fail.",
                f'Give OPTIONS["pool"]["max_size"] at least {slots}, or workers fewer slots (PGQUEUE["CONCURRENCY"], '
                "--concurrency). The worker's own connections are in no pool.",
            )


# -- over a connection of one's own ----------------------------------------------------------------------------


def durability(using: str) -> Iterator[CheckMessage]:
    """Whether a job that was enqueued is still there after a crash of the server."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
            "current_setting('synchronous_commit')"
        )
        fsync, full_page_writes, synchronous_commit = cursor.fetchone()
    for name, value in (("fsync", fsync), ("full_page_writes", full_page_writes)):
        if value == "off":
            yield _warning(
                "W007",
                f"{name} is off on the server of database {using}: a crash may leave it damaged, jobs and all.",
                f"Set {name} = on in postgresql.conf, and reload it.",
            )
    if synchronous_commit == "off":
        yield _warning(
            "W008",
            f"synchronous_commit is off on database {using}: a crash of the server loses jobs that were enqueued, and "
            "runs some a second time that were done.",
            "Leave it on for the role of the project: ALTER ROLE ... SET synchronous_commit = on.",
        )


def default_isolation(using: str) -> Iterator[CheckMessage]:
    """The isolation level of those who ask for none."""
    if connections.settings[using].get("OPTIONS", {}).get("isolation_level") is not None:
        return  # Django asks for it in each transaction
    with connections[using].cursor() as cursor:
        # As the session began: our own have set it since.
        cursor.execute("SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'")
        (level,) = cursor.fetchone()
    if level in ("repeatable read", "serializable"):
        problem = f"default_transaction_isolation of database {using} is {level}."
        yield _warning("W003", problem, _ISOLATION_REMEDY)


def migrations(using: str) -> Iterator[CheckMessage]:
    """Those of this package that the database has not had."""
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connections[using])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "pgqueue_django"]
    names = [migration.name for migration, _ in executor.migration_plan(targets) if migration is not None]
    if names:
        problem = f"Migrations of pgqueue_django are not applied to database {using}: {', '.join(names)}."
        yield _warning("W006", problem, "Run manage.py migrate.")


def schedules(using: str) -> Iterator[CheckMessage]:
    """Schedules in the table that do not fire, of the first hundred that are due."""
    for row in Schedule.objects.using(using).planned()[:_SCHEDULES]:
        if why := row.error or ("" if row.is_code else _why_not(row)):
            remedy = "Correct it in the admin, or switch it off there."
            yield _warning("W010", f"The schedule {row.name} in database {using} cannot fire: {why}", remedy)


def _why_not(row: Schedule) -> str:
    from .cron import Line
    from .tasks import resolve

    try:
        Line(row.line, row.zone)
        resolve(row.task).call(*row.args, **row.kwargs)
    except (InvalidSchedule, TaskNotFound, TypeError, InvalidPayload) as error:
        return str(error)
    return ""


def pooler(using: str) -> Iterator[CheckMessage]:
    """Whether LISTEN would hear anything."""
    from .worker.connections import own_connection
    from .worker.listener import ADVICE

    settings = conf.current()
    if not settings.LISTEN:
        return
    alias = settings.LISTEN_DATABASE or using
    with own_connection(alias, "check") as wrapper:
        session = _session(wrapper)
        if session == wrapper.connection.info.backend_pid:
            return
        # A pooler tells its clients another number. Of which mode it is, is only asked where workers would try.
        if settings.LISTEN_DATABASE is None:
            yield _warning("W009", f"Database {alias} is behind a pooler: workers only poll.", f"{ADVICE}.")
        elif _gives_away(wrapper, session):
            yield _warning(
                "W009", f"LISTEN_DATABASE {alias} is a pooler in transaction mode: workers poll.", f"{ADVICE}."
            )


def _session(wrapper: BaseDatabaseWrapper) -> int:
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _gives_away(wrapper: BaseDatabaseWrapper, session: int) -> bool:
    """Whether this client's session goes to another client while this one is idle. Leaves nothing behind in it."""
    from django.db import transaction

    from .worker.connections import own_connection

    with own_connection(wrapper.alias, "check") as other, transaction.atomic(using=wrapper.alias):
        return _session(other) == session or _session(wrapper) != session
