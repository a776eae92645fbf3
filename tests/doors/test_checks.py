"""System checks: ``manage.py check`` in projects that are set up wrongly, one thing at a time."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from machine.pooler import PROGRAM, Pooler
from machine.workers import GRACE, database_url, seconds
from psycopg.conninfo import make_conninfo

from pgqueue_django import checks
from pgqueue_django.checks import SECONDS
from testproject.localdb import fresh
from testproject.settings import database

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])
ROOT = Path(__file__).resolve().parents[2]
needs_pooler = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")

_SETTINGS = """
SECRET_KEY = "of this test"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "pgqueue_django", "site_app"]
DATABASES = {{"default": {default!r}}}
"""
_TASKS = """
from pgqueue_django import periodic, task

@periodic("0 3 * * *")
@task
def sweep() -> None: ...
"""
_ROUTER = """
class Router:
    def db_for_write(self, model, **hints):
        return "queue" if model._meta.app_label == "pgqueue_django" else None
"""


class Project:
    """A project in a directory, whose settings are right but for what one test adds to them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = database_url()
        (directory / "site_app").mkdir()
        self.write("site_app/__init__.py", "")
        self.write("site_app/tasks.py", _TASKS)
        self.write("routers.py", _ROUTER)

    def write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def run(self, *words: str, settings: str = "", environment: dict[str, str] | None = None) -> tuple[int, str]:
        """``manage.py`` with these words; the exit code, and what it said. No traceback, whatever it was."""
        self.write("settings_of_test.py", _SETTINGS.format(default=database(self.url)) + settings)
        done = subprocess.run(
            [sys.executable, "-m", "django", *words, "--settings", "settings_of_test"],
            cwd=self._directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def check(self, *words: str, **options: Any) -> tuple[list[str], str]:
        """Which of ours ``manage.py check`` finds, sorted, and its words. Errors, and they alone, end it with 1."""
        code, told = self.run("check", *words, **options)
        assert "Traceback" not in told, told
        found = sorted(re.findall(r"^\?: \(pgqueue\.([EW]\d{3})\)", told, re.M))
        assert code == (1 if any(one.startswith("E") for one in found) else 0), told
        assert told.count("HINT: ") >= len(found), told
        return found, told

    def ask(self, **options: Any) -> tuple[list[str], str]:
        """With what the database says."""
        return self.check("--database", "default", **options)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_where_all_is_well_nothing_is_found(project: Project) -> None:
    assert project.check()[0] == []
    found, told = project.ask()
    assert found == []
    assert "no issues" in told


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        (
            'DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}',
            ["E001"],
            "in database default, which is SQLite: they need PostgreSQL",
        ),
        (
            'DATABASE_ROUTERS = ["routers.Router"]',
            ["E001"],
            "The router gives jobs to queue, which is not in DATABASES",
        ),
        ('import psycopg\npsycopg.__version__ = "3.2.3"', ["E002"], "psycopg 3.2.3 loses notifications"),
        ('PGQUEUE = {"LEES": 3, "POLL": 1}', ["E003", "E003"], "unknown LEES.\n\tHINT: Did you mean LEASE?"),
        ('PGQUEUE = {"LEASE": "30", "CONCURRENCY": 0}', ["E004", "E004"], "[\"LEASE\"] is '30'"),
        ("PGQUEUE = []", ["E004"], "settings.PGQUEUE is no dict"),
        (
            'DATABASES["queue"] = DATABASES["default"]; DATABASE_ROUTERS = ["routers.Router"]',
            ["W002"],
            "Jobs are in database queue, not in",
        ),
        (
            'from psycopg import IsolationLevel\nDATABASES["default"]["OPTIONS"]["isolation_level"] = '
            "IsolationLevel.REPEATABLE_READ",
            ["W003"],
            "are REPEATABLE READ",
        ),
        ('DATABASES["default"]["OPTIONS"]["pool"] = True', ["W004"], "has 4 connections, a worker 8 slots"),
        ('DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 2}', ["W004"], "has 2 connections"),
        ('DATABASES["default"]["OPTIONS"]["pool"] = {"max_size": 7}', ["W004"], "has 7 connections"),
    ],
)
def test_what_the_settings_have_wrong_is_said_with_its_remedy(
    project: Project, changes: str, expected: list[str], words: str
) -> None:
    found, told = project.check(settings=changes)
    assert found == expected
    assert words in told
    assert project.ask(settings=changes)[0] == expected


@pytest.mark.parametrize(
    "changes",
    [
        'DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 2, "max_size": 8}',
        'DATABASES["default"]["OPTIONS"]["pool"] = {"max_size": 3}; PGQUEUE = {"CONCURRENCY": 3}',
        'from psycopg import IsolationLevel\nDATABASES["default"]["OPTIONS"]["isolation_level"] = '
        "IsolationLevel.READ_COMMITTED",
        'DATABASES = {"default": {}, "queue": DATABASES["default"]}; DATABASE_ROUTERS = ["routers.Router"]',
    ],
)
def test_what_is_enough_is_not_complained_of(project: Project, changes: str) -> None:
    assert project.check(settings=changes)[0] == []


def test_wrong_settings_do_not_keep_modules_with_tasks_from_being_imported(project: Project) -> None:
    """Else the check that says what is wrong would never be run."""
    project.write("site_app/models.py", "from . import tasks")
    project.write("site_app/tasks.py", f"{_TASKS}\n@task(atomic=True, timeout=1)\ndef atomic() -> None: ...\n")
    assert project.check(settings='PGQUEUE = {"LEES": 3}')[0] == ["E003"]


def test_a_worker_does_not_begin_where_a_check_has_found_an_error(project: Project) -> None:
    code, told = project.run("pgqueue_worker", "--drain", settings='PGQUEUE = {"LEES": 3}')
    assert code == 1
    assert "(pgqueue.E003)" in told
    assert "Traceback" not in told
    assert project.run("pgqueue_worker", "--drain", settings='PGQUEUE = {"LEASE": 3}')[0] == 0


def test_a_module_of_tasks_that_cannot_be_imported_is_named_and_stops_nothing(project: Project) -> None:
    """A web process may lack what only the workers have: an error would keep ``migrate`` from running there."""
    project.write("site_app/tasks.py", "import torch_that_only_workers_have")
    found, told = project.check()
    assert found == ["W001"]
    assert "site_app.tasks cannot be imported here: ModuleNotFoundError" in told


@pytest.mark.parametrize("line", ["0 3 31 2 *", "61 * * * *"])
def test_a_schedule_in_the_code_that_can_never_fire_is_said(project: Project, line: str) -> None:
    project.write("site_app/tasks.py", _TASKS.replace("0 3 * * *", line))
    found, told = project.check()
    assert found == ["E006"]
    assert "A schedule of site_app.tasks cannot fire" in told


def test_a_schedule_of_a_task_that_no_worker_would_find_is_said(project: Project) -> None:
    project.write("site_app/tasks.py", f"{_TASKS}\nnightly, sweep = sweep, None\n")
    found, told = project.check()
    assert found == ["E005", "E006"]
    assert "The schedule site_app.tasks.sweep cannot fire" in told


@pytest.mark.skipif(importlib.util.find_spec("psycopg2") is None, reason="psycopg2-binary is not installed")
def test_psycopg_2_is_said_to_be_too_old(project: Project) -> None:
    """psycopg 3 without its libpq cannot be imported; Django then takes psycopg 2, if that is there."""
    found, told = project.check(environment={"PSYCOPG_IMPL": "none"})
    assert found == ["E002"]
    assert "Django uses psycopg 2" in told
    assert project.ask(environment={"PSYCOPG_IMPL": "none"})[0] == ["E002"]


@pytest.mark.parametrize("module", ["pgqueue_django", "pgqueue_django.models"])
def test_an_app_that_is_not_installed_is_said_to_be_missing(project: Project, module: str) -> None:
    project.write("site_app/models.py", f"from {module} import {'task' if module == 'pgqueue_django' else 'Job'}")
    code, told = project.run("check", settings='INSTALLED_APPS.remove("pgqueue_django")')
    assert code == 1
    last = told.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured: pgqueue_django is not installed")
    assert "INSTALLED_APPS" in last


# -- what the database says ------------------------------------------------------------------------------------


def test_a_database_that_is_away_is_one_warning(project: Project) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        project.url = f"postgresql://nobody:topsecret@127.0.0.1:{reserved.getsockname()[1]}/nothing"
        found, told = project.ask()
    assert found == ["W005"]
    assert "refused" in told
    assert "topsecret" not in told


def test_a_database_that_takes_the_connection_and_says_nothing_is_waited_for_five_seconds(project: Project) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        project.url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        answers: list[tuple[list[str], str]] = []
        took = seconds(lambda: answers.append(project.ask()))
    assert answers[0][0] == ["W005"]
    assert f"no answer within {SECONDS:g} s" in answers[0][1]
    assert SECONDS < took < SECONDS + 2 * GRACE


def test_a_database_is_left_alone_unless_it_is_asked_for(project: Project) -> None:
    project.url = "postgresql://nobody@127.0.0.1:1/nothing"
    other = f'DATABASES["other"] = {database(database_url())!r}'
    assert project.check("--database", "other", settings=other)[0] == []


def test_migrations_that_are_not_applied_are_named(project: Project) -> None:
    """A warning: with an error ``migrate`` could not begin."""
    project.url = make_conninfo(project.url, dbname="postgres")
    found, told = project.ask()
    assert found == ["W006"]
    assert "not applied to database default: 0001_initial, 0002" in told


@pytest.mark.parametrize(
    ("option", "expected", "words"),
    [
        ("synchronous_commit=off", ["W008"], "synchronous_commit is off on database default"),
        ("synchronous_commit=local", [], "no issues"),
        ("default_transaction_isolation=serializable", ["W003"], "of database default is serializable"),
        ("default_transaction_isolation=read\\ committed", [], "no issues"),
    ],
)
def test_what_sessions_of_the_project_begin_with_is_looked_at(
    project: Project, option: str, expected: list[str], words: str
) -> None:
    settings = f'DATABASES["default"]["OPTIONS"]["options"] = {"-c " + option!r}'
    found, told = project.ask(settings=settings)
    assert found == expected
    assert words in told


def test_a_server_that_does_not_wait_for_its_disk_is_said_to_lose_jobs(project: Project) -> None:
    with fresh() as server:
        with psycopg.connect(server.url(), autocommit=True) as session:
            session.execute("ALTER SYSTEM SET fsync = off")
            session.execute("ALTER SYSTEM SET full_page_writes = off")
        server.restart()
        project.url = server.url()
        found, told = project.ask()
    assert found == ["W006", "W007", "W007"]
    assert "fsync is off on the server" in told
    assert "full_page_writes is off on the server" in told


def test_rows_of_schedules_that_cannot_fire_are_named(project: Project) -> None:
    rows = [
        ("well", "site_app.tasks.sweep", "0 3 * * *", "[]", "", True),
        ("of no task", "site_app.tasks.gone", "0 3 * * *", "[]", "", True),
        ("of a line", "site_app.tasks.sweep", "0 3 31 2 *", "[]", "", True),
        ("of a call", "site_app.tasks.sweep", "0 3 * * *", "[1]", "", True),
        ("of its past", "site_app.tasks.sweep", "0 3 * * *", "[]", "the INSERT was refused", True),
        ("off", "site_app.tasks.gone", "0 3 * * *", "[]", "", False),
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO pgqueue_schedule (name, task, line, args, kwargs, error, is_enabled, missed, overlap, "
            "skip_next, next_at) VALUES (%s, %s, %s, %s, '{}', %s, %s, 'one', 'allow', false, now())",
            rows,
        )
    found, told = project.ask()
    assert found == ["W010"] * 4
    for name, why in {
        "of no task": "site_app.tasks.gone",
        "of a line": "0 3 31 2",
        "of a call": "argument",
        "of its past": "the INSERT was refused",
    }.items():
        assert re.search(rf"The schedule {name} in database default cannot fire: .*{why}", told), told


# -- pgqueue_check ---------------------------------------------------------------------------------------------


def test_pgqueue_check_tells_the_same(project: Project) -> None:
    settings = (
        'DATABASES["default"]["OPTIONS"]["options"] = "-c synchronous_commit=off"\n'
        'DATABASES["default"]["OPTIONS"]["pool"] = True\n'
        'DATABASES["queue"] = DATABASES["default"]; DATABASE_ROUTERS = ["routers.Router"]'
    )
    code, told = project.run("pgqueue_check", settings=settings)
    assert code == 0, told
    for subject, number in {"durability": "W008", "connections": "W004", "database": "W002"}.items():
        assert re.search(rf"^warning +{subject} .*\(pgqueue\.{number}\)$", told, re.M), told
    code, told = project.run("pgqueue_check", settings=f'{settings}; SILENCED_SYSTEM_CHECKS = ["pgqueue.W002"]')
    assert "W002" not in told
    assert "W008" in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ('DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}', "(pgqueue.E001)"),
        ('PGQUEUE = {"LEES": 3}', "(pgqueue.E003)"),
    ],
)
def test_pgqueue_check_fails_where_a_check_is_an_error(project: Project, changes: str, words: str) -> None:
    code, told = project.run("pgqueue_check", settings=changes)
    assert code == 1
    assert words in told
    assert "Traceback" not in told


# -- poolers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[Pooler]:
    with Pooler(database_url()) as one:
        yield one


@needs_pooler
def test_listen_through_a_pooler_is_said_to_be_polling(project: Project, pooler: Pooler) -> None:
    project.url = pooler.url
    found, told = project.ask()
    assert found == ["W009"]
    assert "Database default is behind a pooler: workers only poll" in told
    assert 'PGQUEUE["LISTEN_DATABASE"]' in told
    direct = f'DATABASES["direct"] = {database(database_url())!r}; PGQUEUE = {{"LISTEN_DATABASE": "direct"}}'
    assert project.ask(settings=direct)[0] == []
    assert project.ask(settings='PGQUEUE = {"LISTEN": False}')[0] == []


@needs_pooler
def test_an_alias_for_listen_that_is_such_a_pooler_itself_is_found_out(project: Project, pooler: Pooler) -> None:
    project.url = pooler.url
    found, told = project.ask(settings='PGQUEUE = {"LISTEN_DATABASE": "default"}')
    assert found == ["W009"]
    assert "LISTEN_DATABASE default is a pooler in transaction mode" in told
    left = pooler.in_every_session("SELECT count(*) FROM pg_listening_channels()")
    assert set(left) == {(0,)}


@needs_pooler
def test_one_in_session_mode_may_be_named(project: Project) -> None:
    with Pooler(database_url(), mode="session") as pooler:
        project.url = pooler.url
        assert project.ask(settings='PGQUEUE = {"LISTEN_DATABASE": "default"}')[0] == []


# -- the list --------------------------------------------------------------------------------------------------


def test_every_check_is_in_the_list_and_nothing_else_is() -> None:
    package = Path(checks.__file__).parent
    code = set(re.findall(r'"([EW]\d{3})"', (package / "checks.py").read_text()))
    code |= set(re.findall(r'id="pgqueue\.([EW]\d{3})"', (package / "backend.py").read_text()))
    listed = re.findall(r"^\| `pgqueue\.([EW]\d{3})` \|", (ROOT / "docs" / "checks.md").read_text(), re.M)
    assert sorted(listed) == sorted(code)
