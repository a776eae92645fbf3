"""A limit on waiting for databases: what it cuts, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from django.db import InterfaceError, OperationalError, connection, transaction
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
