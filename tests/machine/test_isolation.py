"""Each job is like a request: nothing of it is left for the next one, and no connection stays behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from pgqueue_django import enqueue_many
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, POOL_OF_ONE, REAL_DATABASE, Process, Running, job, notes, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]
NOT_OURS = "application_name NOT LIKE 'pgqueue%%'"
OURS = "application_name LIKE 'pgqueue%%'"


@pytest.mark.parametrize("setter", [handlers.set_globals, handlers.set_globals_async])
@pytest.mark.parametrize("teller", [handlers.tell_globals, handlers.tell_globals_async])
def test_language_time_zone_decimals_and_context_variables_do_not_reach_the_next_job(
    drain: Drain, setter: Any, teller: Any
) -> None:
    first = teller.enqueue()
    enqueue_many([setter.call(), setter.call()])
    second = teller.enqueue()
    drain(concurrency=1)
    assert job(first).result == job(second).result
    assert job(second).result["variable"] == "unset"
    assert job(second).result["zone"] == "UTC"
    assert job(second).result["language"] in ("en", "en-us")
    assert job(second).result["digits"] == "28"


@pytest.mark.parametrize("how", handlers.CHANGES_SESSION)
def test_what_a_handler_changes_in_its_session_does_not_reach_the_next_job(drain: Drain, how: str) -> None:
    tell = handlers.tell_session.call()
    jobs = enqueue_many(
        [tell, handlers.execute.call(how), tell, handlers.execute_on_another_object.call(how), tell, tell]
    )
    drain(concurrency=1)
    first, changed, second, other, third, fourth = (job(enqueued) for enqueued in jobs)
    assert (changed.state, other.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert first.result["session"] == second.result["session"] == third.result["session"] == fourth.result["session"]
    assert first.result["pid"] == changed.result != second.result["pid"]
    # The connection that took its place stays.
    assert third.result["pid"] == fourth.result["pid"]


@pytest.mark.parametrize("how", handlers.KEEPS_SESSION)
def test_a_statement_that_changes_nothing_beyond_its_transaction_costs_no_connection(drain: Drain, how: str) -> None:
    tell = handlers.tell_session.call()
    jobs = enqueue_many([tell, handlers.execute.call(how), tell])
    drain(concurrency=1)
    first, executed, second = (job(enqueued) for enqueued in jobs)
    assert executed.state == State.SUCCEEDED, executed.history
    assert first.result == second.result


def test_what_the_project_sets_when_it_connects_is_there_for_every_job(drain: Drain) -> None:
    def prepare(connection: BaseDatabaseWrapper, **how: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '55s'")

    connection_created.connect(prepare)
    try:
        tell = handlers.tell_session.call()
        jobs = enqueue_many([tell, handlers.execute.call("a role"), tell, tell])
        drain(concurrency=1)
    finally:
        connection_created.disconnect(prepare)
    first, _, second, third = (job(enqueued).result for enqueued in jobs)
    assert "statement_timeout=55000" in first["session"][2]
    assert first["session"] == second["session"] == third["session"]
    assert second["pid"] == third["pid"]


@pytest.mark.parametrize("task", [handlers.execute, handlers.execute_async])
def test_a_changed_session_does_not_go_back_to_the_pool(process: Callable[..., Process], task: Any) -> None:
    pytest.importorskip("psycopg_pool")
    tell = handlers.tell_session.call()
    jobs = enqueue_many([tell, task.call("local"), task.call("a role"), tell, tell])
    assert process("--drain", "--concurrency", "1", settings=POOL_OF_ONE).wait(30) == 0
    first, kept, changed, second, third = (job(enqueued).result for enqueued in jobs)
    assert first["pid"] == kept == changed != second["pid"]
    assert first["session"] == second["session"]
    assert second == third


def test_queries_that_debug_keeps_are_forgotten_between_jobs(drain: Drain, settings: Any) -> None:
    settings.DEBUG = True
    jobs = enqueue_many(handlers.count_queries.call() for _ in range(5))
    drain(concurrency=1)
    assert [job(enqueued).result for enqueued in jobs] == [0] * 5


def test_under_debug_the_workers_own_connections_keep_no_queries(worker: Worker, settings: Any) -> None:
    settings.DEBUG = True
    worker(concurrency=2, listen=True)
    for enqueued in enqueue_many(handlers.do_nothing.call() for _ in range(50)):
        wait_for_state(enqueued, State.SUCCEEDED)
    wrappers = [thing for thing in gc.get_objects() if issubclass(type(thing), BaseDatabaseWrapper)]
    own = [one for one in wrappers if "pgqueue" in str(one.settings_dict["OPTIONS"].get("application_name"))]
    assert len(own) >= 3
    assert [len(one.queries_log) for one in own] == [0] * len(own)


def test_fifty_async_jobs_at_the_same_time_leave_no_connection(worker: Worker, gate: Callable[[], Any]) -> None:
    door = gate()
    jobs = enqueue_many(handlers.query_async.call(str(door)) for _ in range(50))
    running = worker(concurrency=50, listen=True)
    wait_for(lambda: len(notes("queried")) == 50)
    assert sessions(NOT_OURS) == 50
    door.open()
    for enqueued in jobs:
        wait_for_state(enqueued, State.SUCCEEDED)
    wait_for(lambda: sessions(NOT_OURS) == 0, 5 + GRACE)
    # Loop, heartbeat, chores, listener.
    assert sessions(OURS) == 4
    assert running.stop() == 0
    wait_for(lambda: sessions() == 0, 5 + GRACE)


def test_a_worker_has_no_more_connections_than_slots_and_four_and_none_after_its_end(worker: Worker) -> None:
    running = worker(concurrency=3, listen=True)
    enqueue_many(handlers.write.call("x") for _ in range(200))
    most = 0
    while len(notes()) < 200:
        most = max(most, sessions())
    assert most <= 3 + 4
    assert running.stop() == 0
    wait_for(lambda: sessions() == 0, 5 + GRACE)


def test_a_process_leaves_no_connection(process: Callable[..., Process]) -> None:
    enqueue_many(handlers.write.call("x") for _ in range(20))
    started = process("--drain", "--concurrency", "3")
    assert started.wait(30) == 0
    wait_for(lambda: sessions() == 0, 5 + GRACE)


def test_a_handler_that_uses_no_connection_opens_none(worker: Worker) -> None:
    before = set(threading.enumerate())
    jobs = enqueue_many([handlers.use_no_connection.call() for _ in range(5)] + [handlers.do_nothing_async.call()] * 5)
    worker(concurrency=2)
    for enqueued in jobs:
        wait_for_state(enqueued, State.SUCCEEDED)
    assert {job(enqueued).result for enqueued in jobs[:5]} == {True}
    assert sessions(NOT_OURS) == 0
    # Nor a thread of its own, for a coroutine.
    assert not [one for one in set(threading.enumerate()) - before if not one.name.startswith(("pgqueue", "Thread-"))]


def test_handlers_keep_their_connection_from_job_to_job(drain: Drain) -> None:
    jobs = enqueue_many(handlers.backend_pid.call() for _ in range(10))
    drain(concurrency=1)
    assert len({job(enqueued).result for enqueued in jobs}) == 1
