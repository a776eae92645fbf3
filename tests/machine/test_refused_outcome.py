"""Outcomes that the database refuses: each concerns its own job alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgqueue_django import enqueue_many, task_by_name
from pgqueue_django.models import Stat
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import REAL_DATABASE, Running, always, failure, job, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Worker = Callable[..., Running]
Gate = Callable[[], Any]


@pytest.fixture
def refuse() -> Iterator[Callable[[str, str], None]]:
    """``refuse(condition, sqlstate)``: somebody's trigger on the table of jobs."""

    def install(condition: str, sqlstate: str = "P0001") -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                CREATE OR REPLACE FUNCTION machine_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'not this one' USING ERRCODE = '{sqlstate}', DETAIL = 'Row: ' || NEW::text;
                END $$;
                CREATE TRIGGER machine_refuse BEFORE UPDATE ON pgqueue_job
                FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION machine_refuse();
                """
            )

    yield install
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER IF EXISTS machine_refuse ON pgqueue_job")


def in_one_batch(
    running: Running, gate: Gate, session: psycopg.Connection[Any], calls: list[Any], door: Any
) -> list[Any]:
    """These jobs end while a flush hangs, so that all of their outcomes go into the next one."""
    hanging_door = gate()
    hanging = handlers.wait_unwritten.enqueue(str(hanging_door))
    jobs = enqueue_many(calls)
    wait_for(lambda: running.loop._slots.load == len(jobs) + 1)
    with session.transaction():
        session.execute("LOCK TABLE pgqueue_stat IN EXCLUSIVE MODE")
        hanging_door.open()
        wait_for(lambda: sessions("wait_event_type = 'Lock' AND query LIKE '%%pgqueue_stat%%'"))
        door.open()
        wait_for(lambda: running.loop._slots.load == 0)
    wait_for_state(hanging, State.SUCCEEDED)
    return jobs


# Raised by a trigger, a constraint, a type; a statement timeout, a serialization failure, a lock timeout.
STATES = ["P0001", "23514", "22003", "57014", "40001", "55P03"]


@pytest.mark.parametrize("sqlstate", STATES)
def test_an_outcome_that_the_database_refuses_becomes_a_failed_attempt_and_takes_nobody_along(
    worker: Worker,
    gate: Gate,
    refuse: Callable[..., None],
    second_connection: psycopg.Connection[Any],
    log: Callable[..., list[str]],
    sqlstate: str,
) -> None:
    refuse("NEW.queue_name = 'refused' AND NEW.state = 'succeeded'", sqlstate)
    running = worker(concurrency=12)
    door = gate()
    calls = [
        handlers.wait_unwritten.using(queue_name="refused" if number == 4 else "default").call(str(door))
        for number in range(10)
    ]
    jobs = in_one_batch(running, gate, second_connection, calls, door)
    for number, enqueued in enumerate(jobs):
        if number != 4:
            assert wait_for_state(enqueued, State.SUCCEEDED, timeout=5).attempts == 1

    def others_go_on() -> bool:
        wait_for_state(handlers.give.enqueue(1), State.SUCCEEDED)
        return job(jobs[4]).state == State.RETRYING

    wait_for(others_go_on, 10)
    row = job(jobs[4])
    assert (row.attempts, row.result, failure(jobs[4])["kind"]) == (1, None, "result")
    assert "not this one" in failure(jobs[4])["message"]
    wait_for(lambda: not running.loop.held)
    assert running.loop.counts[State.RETRYING] == 1
    assert sum(stat.succeeded for stat in Stat.objects.all()) == running.loop.counts[State.SUCCEEDED] >= 10
    assert all(len(log(enqueued)) == 1 for enqueued in jobs)
    assert running.stop() == 0


@pytest.mark.parametrize("sqlstate", ["P0001", "57014"])
def test_an_outcome_for_which_nothing_can_be_recorded_is_ended_by_its_lease(
    worker: Worker, gate: Gate, refuse: Callable[..., None], log: Callable[..., list[str]], sqlstate: str
) -> None:
    refuse(
        "NEW.queue_name = 'refused' AND NEW.state <> 'running' "
        "AND COALESCE(NEW.history->-1->>'kind', '') <> 'lease_expired'",
        sqlstate,
    )
    refused = handlers.give.using(queue_name="refused", max_attempts=1).enqueue("x")
    running = worker(concurrency=2, lease=1.5)
    good = handlers.give.enqueue("y")
    wait_for_state(good, State.SUCCEEDED)

    def others_go_on() -> bool:
        wait_for_state(handlers.give.enqueue("y"), State.SUCCEEDED)
        return job(refused).state == State.DEAD

    wait_for(others_go_on, 15)
    row = job(refused)
    assert (row.attempts, failure(refused)["kind"]) == (1, "lease_expired")
    wait_for_state(handlers.give.enqueue("z"), State.SUCCEEDED)
    assert running.stop() == 0
    assert len(log(refused)) == 1
    assert "lease will end it" in log(refused)[0]


def test_a_release_that_the_database_refuses_takes_nobody_along(
    worker: Worker, refuse: Callable[..., None], log: Callable[..., list[str]]
) -> None:
    refuse(
        "NEW.queue_name = 'refused' AND NEW.state <> 'running' "
        "AND COALESCE(NEW.history->-1->>'kind', '') <> 'lease_expired'"
    )
    unknown = enqueue_many(
        task_by_name("nowhere.at_all").using(queue_name="refused" if number == 1 else "default").call()
        for number in range(3)
    )
    running = worker(concurrency=4, lease=1.5)
    wait_for_state(handlers.give.enqueue("good"), State.SUCCEEDED, timeout=5)
    for number in (0, 2):
        wait_for_state(unknown[number], State.SCHEDULED)
    # Charged, since nobody could say that it never began.
    row = wait_for_state(unknown[1], State.RETRYING, timeout=12)
    assert failure(unknown[1])["kind"] == "lease_expired"
    assert row.attempts == 1
    wait_for_state(handlers.give.enqueue("good"), State.SUCCEEDED, timeout=5)
    assert running.stop() == 0
    assert len(log(unknown[1])) == 1


def test_outcomes_that_a_broken_connection_did_not_take_go_over_the_next_one(
    worker: Worker, gate: Gate, second_connection: psycopg.Connection[Any]
) -> None:
    running = worker(concurrency=20)
    door, hanging_door = gate(), gate()
    jobs = enqueue_many(handlers.wait_unwritten.call(str(door)) for _ in range(10))
    hanging = handlers.wait_unwritten.enqueue(str(hanging_door))
    wait_for(lambda: running.loop._slots.load == 11)
    with second_connection.transaction():
        second_connection.execute("LOCK TABLE pgqueue_stat IN EXCLUSIVE MODE")
        hanging_door.open()
        wait_for(lambda: sessions("wait_event_type = 'Lock' AND query LIKE '%%pgqueue_stat%%'"))
        door.open()
        wait_for(lambda: running.loop._slots.load == 0)
        ended = second_connection.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'pgqueue loop'"
        ).fetchone()
        assert ended == (1,)
    for enqueued in [*jobs, hanging]:
        row = wait_for_state(enqueued, State.SUCCEEDED)
        assert (row.attempts, row.fencing_token, row.history) == (1, 1, [])
    assert running.stop() == 0
    assert running.loop.counts == {State.SUCCEEDED: 11}
    assert sum(stat.succeeded for stat in Stat.objects.all()) == 11


@pytest.mark.parametrize(
    ("table", "count", "lasting"),
    [("pgqueue_job", 8, 5), pytest.param("pgqueue_stat", 1, 12, marks=pytest.mark.slow)],
)
def test_outcomes_outlive_a_table_that_somebody_has_locked_for_long(
    worker: Worker, gate: Gate, second_connection: psycopg.Connection[Any], table: str, count: int, lasting: int
) -> None:
    """As a migration does. Longer than any wait of ours, several times."""
    running = worker(concurrency=8)
    door = gate()
    jobs = enqueue_many(handlers.wait_unwritten.call(str(door)) for _ in range(count))
    wait_for(lambda: running.loop._slots.load == count)
    with second_connection.transaction():
        second_connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        door.open()
        wait_for(lambda: running.loop._slots.load == 0)
        always(lambda: len(running.loop.held) == count, lasting)
    for enqueued in jobs:
        row = wait_for_state(enqueued, State.SUCCEEDED)
        assert (row.attempts, row.history) == (1, [])
    assert running.stop() == 0
    assert running.loop.counts == {State.SUCCEEDED: count}
    assert sum(stat.succeeded for stat in Stat.objects.all()) == count
