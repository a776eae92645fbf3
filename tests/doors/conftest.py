"""People with rights, and closed metrics: the shop's settings open them to everybody for the demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AbstractBaseUser, Permission, User
from django.db import connection
from django.test import Client
from django.utils import translation

from pgqueue_django import answers
from pgqueue_django.dashboard import frames

# Projects of their own; test_kit_project.py runs the tests of one, test_beside_django_prometheus.py the other.
collect_ignore = ["kit_project", "prometheus_project"]

JOB_RIGHTS = ("view_job", "view_job_payload", "requeue_job", "cancel_job", "delete_job", "view_dashboard")


@pytest.fixture(autouse=True)
def closed_metrics(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": False}


@pytest.fixture(autouse=True)
def no_reading_of_the_test_before() -> None:
    answers.shared.forget()
    answers.pings.forget()
    frames.forget()


@pytest.fixture(autouse=True)
def language_of_the_settings() -> Iterator[None]:
    """A request leaves its language to the thread: tests without one would go on in it."""
    yield
    translation.deactivate()


@pytest.fixture
def person(db: None) -> Callable[..., User]:
    """``person("view_job", …)``: a staff user with these rights."""

    def make(*rights: str, staff: bool = True, superuser: bool = False) -> User:
        name = f"user-{User.objects.count()}"
        user = User.objects.create(username=name, is_staff=staff, is_superuser=superuser)
        chosen = Permission.objects.filter(content_type__app_label="pgqueue_django", codename__in=rights)
        assert chosen.count() == len(rights), f"a right of {rights} does not exist"
        user.user_permissions.set(chosen)
        return user

    return make


@pytest.fixture
def browser(person: Callable[..., User]) -> Callable[..., Client]:
    """``browser("view_job", …)``: a client where somebody with these rights is logged in."""

    def make(*rights: str, **options: Any) -> Client:
        return log_in(person(*rights, **options))

    return make


def log_in(user: AbstractBaseUser, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


_FILL = """
    INSERT INTO pgqueue_job (task, queue_name, priority, state, run_after, enqueued_at, started_at, finished_at,
                             attempts, lease_expires_at, worker_id)
    SELECT 'shop.tasks.t' || i %% 7, 'q' || i %% 3, i %% 2, %s,
           statement_timestamp() + make_interval(secs => CASE WHEN %s = 'scheduled' THEN i + 60 ELSE -i END),
           statement_timestamp() - make_interval(secs => i), NULL,
           CASE WHEN %s IN ('succeeded', 'failed', 'dead', 'cancelled') THEN statement_timestamp() END, 1,
           CASE WHEN %s = 'running' THEN statement_timestamp() + interval '1 hour' END, 'w' || i %% 4
    FROM generate_series(1, %s) AS i
"""


def fill(**rows_by_state: int) -> None:
    """So many rows of each state, by plain SQL: the verbs would take minutes for what is only to be read."""
    with connection.cursor() as cursor:
        for state, count in rows_by_state.items():
            cursor.execute(_FILL, [state, state, state, state, count])


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgqueue_job; ANALYZE pgqueue_stat")


def plan(sql: str, params: Any = None) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", params)
        return "\n".join(line for (line,) in cursor.fetchall())
