"""The table by itself: what the database refuses, and what a person with psql finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from psycopg.types.json import set_json_loads

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Succeeded
from pgqueue_django.states import FINISHED, State

from .rows import DB, claim, make_job, move_clock, new

pytestmark = pytest.mark.django_db

ODD = ["1e22", "-0.0", "7.205759403792141e16", '"text"', '{"b": 1, "a": 2}', "null"]

LEASED = "lease_expires_at = now()"
UNLEASED = "lease_expires_at = NULL"
UNFINISHED = "finished_at = NULL"
ENDED = "finished_at = now()"


def refused(job: Job, assignments: str) -> str:
    with pytest.raises(IntegrityError) as raised, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_job SET {assignments} WHERE id = %s", [job.pk])
    return str(raised.value)


@pytest.mark.parametrize("state", list(State))
def test_a_lease_without_running_and_running_without_a_lease_are_refused(state: State) -> None:
    job = make_job(state)
    message = refused(job, UNLEASED if state == State.RUNNING else LEASED)
    assert "pgqueue_job_running_is_leased" in message


@pytest.mark.parametrize("state", list(State))
def test_finished_without_a_moment_and_a_moment_without_finished_are_refused(state: State) -> None:
    job = make_job(state)
    assert "pgqueue_job_finished_at" in refused(job, UNFINISHED if state in FINISHED else ENDED)


@pytest.mark.parametrize(
    ("assignments", "constraint"),
    [
        ("priority = 101", "pgqueue_job_priority_range"),
        ("priority = -101", "pgqueue_job_priority_range"),
        ("attempts = -1", "attempts"),
        ("max_attempts = 0", "pgqueue_job_attempts"),
        ("state = 'Queued'", "pgqueue_job_state_known"),
        ("state = ''", "pgqueue_job_state_known"),
        ("run_after = NULL", "run_after"),
        ("state = NULL", "state"),
    ],
)
def test_impossible_rows_are_refused(assignments: str, constraint: str) -> None:
    assert constraint in refused(make_job(), assignments)


def test_a_task_has_one_row_per_key() -> None:
    make_job(idempotency_key="k")
    assert "pgqueue_job_key" in refused(make_job(), "idempotency_key = 'k'")


def test_plain_sql_that_names_only_the_task_makes_a_job_that_runs() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_job (task) VALUES ('shop.tasks.charge') RETURNING id")
        (job_id,) = cursor.fetchone()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.queue_name, job.priority, job.args, job.kwargs) == (State.QUEUED, "default", 0, [], {})
    (held,) = claim()
    assert (held.id, held.attempt, held.max_attempts) == (job_id, 1, 5)
    move_clock(job_id, "lease_expires_at", -1)
    assert transitions.reap(DB, by="w") == 1


def test_every_column_says_in_the_database_what_it_holds() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT attrelid::regclass::text || '.' || attname FROM pg_attribute
            WHERE attrelid::regclass::text LIKE 'pgqueue%%' AND attnum > 0 AND NOT attisdropped
              AND attrelid IN (SELECT oid FROM pg_class WHERE relkind = 'r')
              AND attname <> 'id' AND col_description(attrelid, attnum) IS NULL
            """
        )
        assert cursor.fetchall() == []


def test_no_index_knows_the_lease() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'pgqueue_job'")
        indexes = [definition for (definition,) in cursor.fetchall()]
    assert len(indexes) == 10
    assert not [definition for definition in indexes if "lease_expires_at" in definition or "progress" in definition]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("loads", [None, str])
def test_payloads_come_back_as_they_were_written_whatever_a_project_makes_of_json(loads: Any) -> None:
    (made,) = transitions.enqueue_many(DB, [new(args=[json.loads(text) for text in ODD])])
    (held,) = claim()
    transitions.settle(DB, [transitions.Settlement(held, Succeeded('"a text"'))], worker_id="w")
    if loads:
        connection.ensure_connection()
        set_json_loads(lambda data: loads(bytes(data), "utf-8"), connection.connection)
    try:
        job = Job.objects.get(pk=made.id)
    finally:
        connection.close()
    assert repr(job.args) == repr([json.loads(text) for text in ODD])
    assert job.result == "a text"
    with connection.cursor() as cursor:
        cursor.execute("SELECT args::text FROM pgqueue_job WHERE id = %s", [made.id])
        assert list(json.loads(cursor.fetchone()[0])[4]) == ["b", "a"]


def test_jobs_can_be_distinct_and_made_by_the_orm() -> None:
    made = Job.objects.create(task="shop.tasks.mail", args=["ü"])
    job = Job.objects.distinct().get()
    assert (job.pk, job.args, job.kwargs, job.result) == (made.pk, ["ü"], {}, None)
