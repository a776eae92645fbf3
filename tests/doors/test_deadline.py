"""The limit on how long a request waits for its databases: what it leaves as it was, and when it cannot be had."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections
from verbs.rows import GRACE

from pgqueue_django import deadline

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])


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


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has the thread that looks
def test_a_forked_child_has_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that has answered before it forks: the thread that looks is not in the child."""
    with deadline.limit():
        connection.ensure_connection()
    monkeypatch.setattr(deadline, "SECONDS", 3)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        end_what_sleeps()
        assert status == 0
        return

    def ask() -> None:
        with deadline.limit(), contextlib.suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    try:
        began = time.monotonic()
        thread = threading.Thread(target=ask)  # which has a connection of its own
        thread.start()
        thread.join()
        os._exit(time.monotonic() - began > deadline.SECONDS + GRACE)
    finally:
        os._exit(2)
