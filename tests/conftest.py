"""Fixtures for every folder: jobs in any state, second sessions, and no transaction left open behind a test.

Tests that need commits ask for ``transaction=True``; the others run in one that is rolled back, which is faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection
from hypothesis import settings
from verbs import rows

from pgqueue_django import wakeups
from pgqueue_django.models import Job

# The same examples in each run; and no time limit for one: the machine may be busy.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """A table of jobs that has been vacuumed: what all tests leave dead is no bloat, whenever autovacuum comes."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("VACUUM pgqueue_job")


@pytest.fixture
def make_job(db: None) -> Callable[..., Job]:
    """``make_job(state="queued", **columns)``: see ``verbs.rows.make_job``."""
    return rows.make_job


@pytest.fixture
def wait_for() -> Callable[..., Any]:
    """``wait_for(condition, timeout=10)`` polls instead of sleeping."""
    return rows.wait_for


@pytest.fixture
def second_connection(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A raw session on the test database, in autocommit, closed afterwards."""
    with rows.connect() as session:
        yield session


@pytest.fixture
def third_connection(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    with rows.connect() as session:
        yield session


@pytest.fixture(autouse=True)
def forget_wakeups() -> None:
    """A notification of one test must not use up the next one's allowance."""
    wakeups._spent.clear()


@pytest.fixture(autouse=True)
def no_transaction_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that commits if it leaves a session in a transaction: the next one would wait for its locks."""
    yield
    marker = request.node.get_closest_marker("django_db")
    if not (marker and marker.kwargs.get("transaction")):
        return
    assert not connection.in_atomic_block, "the test left an atomic block open"
    left: list[str] = []

    def none_left() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT query FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%%'"
            )
            left[:] = [query for (query,) in cursor.fetchall()]
        return not left

    # The server needs a moment to notice that a killed process is gone.
    with contextlib.suppress(AssertionError):
        rows.wait_for(none_left, timeout=2)
    assert not left, f"sessions left in a transaction, after: {left}"
