"""``pgqueue_check``: what it finds where something is wrong, and its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from psycopg.conninfo import make_conninfo
from verbs import rows
from verbs.rows import make_job, wait_for

from pgqueue_django import schedules, tasks
from pgqueue_django.management.commands import pgqueue_check
from pgqueue_django.models import Job, Worker

from .test_commands import Answer

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])
ROOT = Path(__file__).resolve().parents[2]
Register = Callable[..., Worker]


@pytest.fixture(autouse=True)
def tasks_of_no_other_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test modules declare tasks that no worker would find."""
    found = ["testproject.shop.tasks.charge_card"]
    monkeypatch.setattr(tasks, "declared_tasks", lambda: found)
    monkeypatch.setattr(pgqueue_check, "declared_tasks", lambda: found)
    monkeypatch.setattr(schedules, "_declared", {})


@pytest.fixture
def register() -> Register:
    def make(**columns: Any) -> Worker:
        values = {"id": "web-1:00000000", "name": "web-1", "host": "web", "pid": 1, "concurrency": 8}
        return Worker.objects.create(**{**values, "lease_seconds": 30, **columns})

    return make


def found(*words: str) -> tuple[int | str | None, dict[str, list[str]]]:
    """The exit code, and ``level subject`` with the texts."""
    answer = Answer("pgqueue_check", "--json", *words)
    told: dict[str, list[str]] = {}
    for one in json.loads(answer.out):
        told.setdefault(f"{one['level']} {one['subject']}", []).append(one["text"])
    return answer.code, told


def test_where_all_is_well_it_says_so(register: Register, settings: Any) -> None:
    settings.PGQUEUE = {"PROBLEMS": {"dead_rows": 10**9}}  # what other tests have left in this table
    register()
    code, told = found()
    assert code == 0
    assert set(told) == {
        f"ok {name}" for name in ("settings", "tasks", "database", "connections", "migrations", "table", "workers")
    }
    assert told["ok workers"] == ["1 alive"]
    assert "PostgreSQL " in told["ok database"][0]
    assert connections["default"].get_connection_params()["password"] not in str(told)
    answer = Answer("pgqueue_check")
    assert (answer.code, len(answer.lines)) == (0, 7)
    assert answer.lines[0].startswith("ok       settings ")


def test_workers_that_are_not_there_are_missed(register: Register) -> None:
    code, told = found()
    assert (code, told["warning workers"]) == (0, ["0 alive"])
    code, told = found("--worker", "web-1")
    assert (code, told["failed workers"]) == (1, ["none of the name or host web-1"])
    register()
    assert found("--worker", "web-1")[0] == found("--worker", "web")[0] == 0
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_worker SET heartbeat_at = now() - interval '31 s'")
    assert found("--worker", "web-1")[0] == 1


def test_a_role_that_sees_no_other_sessions_counts_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def free() -> int:
        (text,) = found()[1]["ok connections"]
        return int(text.split()[0])

    there = connections.settings["default"]
    with connection.cursor() as cursor, contextlib.ExitStack() as open_ones:
        cursor.execute("CREATE ROLE plain_of_check")
        try:
            for _ in range(20):
                open_ones.enter_context(rows.connect())
            before = free()
            options = {**there["OPTIONS"], "options": "-c role=plain_of_check"}
            monkeypatch.setitem(connections.settings, "default", {**there, "OPTIONS": options})
            assert abs(free() - before) < 10
        finally:
            cursor.execute("DROP ROLE plain_of_check")


def test_due_jobs_that_no_worker_takes_are_a_problem(register: Register) -> None:
    rows.move_clock(make_job("queued", queue_name="mail").pk, "run_after", -90)
    Job.objects.update(enqueued_at=rows.database_now() - timedelta(seconds=90))
    register(queues=["billing"])
    code, told = found()
    (text,) = told["warning queue"]
    assert (code, text.partition(";")[0]) == (0, "Queue mail: no live worker takes it")
    assert text.endswith("(queue_without_worker)")
    register(id="w2", queues=[])
    assert "warning queue" not in found()[1]


def test_who_asks_for_problems_is_failed_by_errors_and_not_by_warnings(register: Register, settings: Any) -> None:
    settings.PGQUEUE = {"PROBLEMS": {"dead_rows": 10**9}}
    register()
    assert found("--problems")[0] == 0
    register(id="late", queues=[])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_worker SET heartbeat_at = now() - interval '40 s' WHERE id = 'late'")
    code, told = found("--problems")
    assert (code, [text.rpartition("(")[2] for text in told["warning queue"]]) == (0, ["worker_late)"])
    rows.move_clock(make_job("queued").pk, "run_after", -400)
    Job.objects.update(enqueued_at=rows.database_now() - timedelta(seconds=400))
    code, told = found("--problems")
    assert (code, [text.rpartition("(")[2] for text in told["failed queue"]]) == (1, ["oldest_due)"])
    assert found()[0] == 0


def test_wrong_settings_are_said(settings: Any) -> None:
    settings.PGQUEUE = {"LEES": 3}
    code, told = found()
    assert code == 1
    assert "unknown LEES" in told["failed settings"][0]


def test_a_task_that_a_worker_would_not_find_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "declared_tasks", lambda: ["nowhere.at_all"])
    code, told = found()
    assert code == 1
    assert told["failed tasks"][0].startswith("nowhere.at_all: a worker would not find it")


def test_a_server_that_takes_no_writes_is_said() -> None:
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            code, told = found()
        finally:
            cursor.execute("SET transaction_read_only = off")
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert code == 1
    assert "takes no writes" in told["failed database"][0]


def in_a_process(url: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "testproject.manage", "pgqueue_check"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_a_database_that_is_away_ends_it_with_4() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        code, told = in_a_process(f"postgresql://nobody@127.0.0.1:{reserved.getsockname()[1]}/nothing")
    assert code == 4
    assert "refused" in told


def test_a_database_that_never_answers_ends_it_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgqueue_check, "_SECONDS", 0.3)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        try:
            code, told = found()
        finally:
            cursor.execute("ROLLBACK")
    assert (code, told["failed database"]) == (4, ["default: no answer within 0.3 s"])


def test_tables_that_are_missing_end_it_with_5() -> None:
    parameters = connections["default"].get_connection_params()
    names = ("host", "port", "user", "password")
    url = make_conninfo(**{name: parameters[name] for name in names if parameters.get(name)}, dbname="postgres")
    code, told = in_a_process(url)
    assert code == 5
    assert "not applied to database default: 0001_initial, 0002" in told
    assert "Run manage.py migrate" in told


def test_who_keeps_dead_rows_from_being_taken_away_is_named(
    monkeypatch: pytest.MonkeyPatch, second_connection: Any
) -> None:
    monkeypatch.setattr(pgqueue_check, "_OLD_SNAPSHOT_SECONDS", 0.05)
    with second_connection.transaction():
        second_connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        second_connection.execute("SET LOCAL application_name = 'a report'")
        second_connection.execute("SELECT FROM pgqueue_job")
        told: list[str] = wait_for(lambda: found()[1].get("warning snapshot"))
        pid = second_connection.info.backend_pid
    assert f"by session {pid} (" in told[0]
    assert "a report" in told[0]
    assert "warning snapshot" not in found()[1]


def test_dead_rows_are_counted() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = false)")
        try:
            for _ in range(30):
                make_job("queued")
            Job.objects.all().delete()
            cursor.execute("SELECT pg_stat_force_next_flush()")
            # Whether it is a problem depends on when it was vacuumed, too: tests/doors/test_problems.py.
            wait_for(lambda: re.search(r"about [\d,]+ jobs, [1-9][\d,]* dead rows", found()[1]["ok table"][0]))
        finally:
            cursor.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")
