"""A limit on waiting for databases: what it cuts, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import psutil
import pytest
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from machine.workers import database_url
from verbs.rows import GRACE

from pgqueue_django import deadline

from .test_away import ROOT

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])


def ask(sql: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def test_who_waits_when_the_time_is_over_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "SECONDS", 2.2)
    began = time.monotonic()
    with pytest.raises(OperationalError), deadline.limit():
        ask("SELECT pg_sleep(6)")
    assert 2.2 <= time.monotonic() - began < 2.2 + GRACE
    assert connection.connection is None
    assert ask("SELECT 1") == (1,)


def test_a_transaction_that_is_cut_off_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "SECONDS", 2.2)

    def write_and_wait() -> None:
        with deadline.limit(), transaction.atomic():
            ask("INSERT INTO pgqueue_chore (name) VALUES ('cut') RETURNING 1")
            ask("SELECT pg_sleep(6)")

    with pytest.raises((OperationalError, InterfaceError)):
        write_and_wait()
    assert ask("SELECT count(*) FROM pgqueue_chore WHERE name = 'cut'") == (0,)


def test_no_connection_is_begun_for_which_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that health checks have found dead would be made anew after the limit, and take its two seconds."""
    monkeypatch.setattr(deadline, "SECONDS", deadline.CONNECT_SECONDS)
    connection.close()
    with deadline.limit(), pytest.raises(InterfaceError):
        connection.ensure_connection()
    assert ask("SELECT 1") == (1,)


def test_a_connection_that_is_made_on_the_way_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "SECONDS", 2.5)
    connection.close()
    began = time.monotonic()
    with pytest.raises(OperationalError), deadline.limit():
        ask("SELECT pg_sleep(6)")
    assert time.monotonic() - began < 2.5 + GRACE


def test_within_its_time_it_changes_nothing_and_leaves_nothing() -> None:
    ask("SELECT 1")
    before, held = psutil.Process().num_fds(), connection.connection
    for _ in range(50):
        with deadline.limit():
            assert ask("SELECT 1") == (1,)
    assert connection.connection is held
    assert "connect" not in vars(connection)
    assert psutil.Process().num_fds() == before
    assert deadline._running == {}


def end_what_sleeps() -> None:
    """The server does not know that it was cut off."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%'"
        )


def test_a_pool_that_is_made_within_the_limit_is_the_projects_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody in the process connects by it from then on, with what the project has set."""
    settings = connections.settings["default"]
    options = {**settings["OPTIONS"], "pool": {"min_size": 1, "max_size": 2}}
    changed = {**settings, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "OPTIONS": options}
    monkeypatch.setitem(connections.settings, "default", changed)
    kept: dict[str, Any] = {}

    def ask() -> None:
        with deadline.limit():
            connection.ensure_connection()
        kept.update(connection.pool.kwargs)  # type: ignore[attr-defined]
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]

    thread = threading.Thread(target=ask)  # which has connections of its own
    thread.start()
    thread.join()
    assert kept["dbname"] == settings["NAME"]
    assert "connect_timeout" not in kept


def test_a_process_that_can_start_no_thread_says_so_and_later_has_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_watcher", None)
    usual = threading.stack_size(1 << 46)  # more than there is
    try:
        with pytest.raises(InterfaceError, match="thread"), deadline.limit():
            pytest.fail("nobody looks after it")
    finally:
        threading.stack_size(usual)
    connection.ensure_connection()
    monkeypatch.setattr(deadline, "SECONDS", 0.5)
    began = time.monotonic()
    with deadline.limit(), pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(30)")
    assert time.monotonic() - began < 0.5 + GRACE
    end_what_sleeps()


FORK = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
import django
django.setup()
from django.db import OperationalError, connection
from pgqueue_django import deadline
deadline.SECONDS = 2.2
with deadline.limit():
    pass
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    with deadline.limit(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(6)")
except OperationalError:
    os._exit(7)
"""


def test_it_holds_in_a_process_that_was_forked_after_its_first_use() -> None:
    """As servers do that load the application before they fork."""
    environment = {**os.environ, "DATABASE_URL": database_url(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, timeout=30, check=False)
    assert done.returncode == 7
