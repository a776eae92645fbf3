"""Each job is like a request, whatever the project's database settings are; what the worker opens, it gives back."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
import pytest
from chaos.proxy import Proxy
from django.db import connection

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import listener
from pgqueue_django.worker.connections import Backoff, own_connection
from pgqueue_django.worker.listener import Listener
from pgqueue_django.worker.slots import TRIES
from tests.machine import handlers

from .test_isolation import NOT_OURS, OURS
from .test_listen import wait_until_it_hears
from .workers import (
    GRACE,
    REAL_DATABASE,
    Process,
    Running,
    attempts,
    database_url,
    lead,
    sessions,
    wait_for,
    wait_for_state,
)

pytestmark = REAL_DATABASE
StartProcess = Callable[..., Process]
Worker = Callable[..., Running]
OVERRUN = "query LIKE '%%/* overrun */' AND state = 'active'"
SLOTS = 8

KEPT = {"DATABASE": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}}
POOLED = {"DATABASE": {"CONN_MAX_AGE": 0}, "OPTIONS": {"pool": {"min_size": 1, "max_size": SLOTS}}}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "closed after each job": {"DATABASE": {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}},
    "kept": KEPT,
    "kept and checked": {"DATABASE": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}},
    "kept for a second": {"DATABASE": {"CONN_MAX_AGE": 1, "CONN_HEALTH_CHECKS": True}},
    "pool": POOLED,
    "django-prometheus": {"DATABASE": {"ENGINE": "django_prometheus.db.backends.postgresql"}},
    "ATOMIC_REQUESTS": {"DATABASE": {"ATOMIC_REQUESTS": True}},
    "idle transactions end": {"OPTIONS": {"options": "-c idle_in_transaction_session_timeout=1s"}},
}
NEEDS = {"pool": "psycopg_pool", "django-prometheus": "django_prometheus"}


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_connection_is_left_over_thousands_of_jobs(process: StartProcess, name: str, count: int) -> None:
    """jcass77/django-apscheduler #172: each thread had a connection that nobody closed, until there were too many."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    tasks = [handlers.use_orm, handlers.use_orm_async, handlers.write_atomic, handlers.do_nothing_async]
    enqueue_many(tasks[number % len(tasks)].call() for number in range(count))
    started = process("--concurrency", str(SLOTS), settings=CONFIGURATIONS[name])
    most = watch_until_all_ended(started, 60 + count / 50)
    assert attempts() == {("succeeded", 1): count}
    print(f"{name}: at most {most} sessions of handlers")
    # Threads that are idle may keep theirs while as many coroutines have one each; what is closed takes its time to go.
    assert most <= 2 * SLOTS
    wait_for(lambda: sessions(NOT_OURS) <= (0 if name == "closed after each job" else SLOTS), 5)
    assert started.stop() == 0
    wait_for(lambda: sessions() == 0, 5 + GRACE)


def watch_until_all_ended(started: Process, timeout: float) -> int:
    """The most sessions that its handlers have had at the same time; it has never more than four of its own."""
    most = 0

    def all_ended() -> bool:
        nonlocal most
        assert started.exit_code is None
        assert sessions(OURS) <= 4
        most = max(most, sessions(NOT_OURS))
        return not Job.objects.filter(finished_at=None).exists()

    wait_for(all_ended, timeout)
    return most


def test_what_handlers_open_in_threads_of_their_own_is_theirs_and_ends_with_them(process: StartProcess) -> None:
    """The same report, for tasks that start threads: those that close what they opened leave nothing behind."""
    enqueue_many(handlers.use_orm_in_threads.call() for _ in range(200))
    started = process("--concurrency", str(SLOTS), settings=KEPT)
    assert watch_until_all_ended(started, 60) <= 2 * SLOTS * (1 + 4)
    assert attempts() == {("succeeded", 1): 200}
    wait_for(lambda: sessions(NOT_OURS) <= SLOTS, 5)
    assert started.stop() == 0
    wait_for(lambda: sessions() == 0, 5 + GRACE)


@pytest.mark.parametrize("settings", [KEPT, CONFIGURATIONS["kept and checked"]], ids=["kept", "kept and checked"])
def test_a_dead_connection_costs_at_most_the_job_that_meets_it(process: StartProcess, settings: dict[str, Any]) -> None:
    """procrastinate-org/procrastinate #1335: one dead connection was used for hours, and half of all jobs failed."""
    started = process("--concurrency", "4", settings=settings)
    for _ in range(3):
        done = Job.objects.count()
        enqueue_many(handlers.use_orm.using(max_attempts=2).call() for _ in range(20))
        wait_for(lambda done=done: Job.objects.filter(state="succeeded").count() == done + 20, 20)
        dead = terminate(NOT_OURS)
        assert dead
    failed = sum(len(job.history) for job in Job.objects.all())
    # Two terminations were met, each of a connection of each slot.
    assert failed <= (0 if settings is not KEPT else 2 * 4)
    assert started.stop() == 0


def terminate(condition: str) -> list[int]:
    """End these sessions of this database on the server; their backends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
            f"AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition.replace('%%', '%')}"
        )
        return [pid for pid, _ in cursor.fetchall()]


@pytest.mark.parametrize("role", ["loop", "heartbeat", "chores", "listener"])
def test_a_session_of_the_worker_that_is_terminated_is_replaced(
    worker: Worker, gate: Callable[[], Any], role: str
) -> None:
    mine = f"application_name = 'pgqueue {role}'"
    door = gate()
    worker(listen=True, lease=6.0, concurrency=2)
    held = handlers.wait_unwritten.enqueue(str(door))
    wait_for_state(held, State.RUNNING)
    for _ in range(3):
        wait_for(lambda: sessions(mine) == 1)
        (pid,) = terminate(mine)
        wait_for(lambda pid=pid: sessions(f"{mine} AND pid <> %s", pid) == 1, 5)
        assert wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED).attempts == 1
    door.open()
    assert wait_for_state(held, State.SUCCEEDED).attempts == 1


def test_processes_have_no_connection_of_the_one_that_started_them(process: StartProcess) -> None:
    """django-q2/django-q2 #209: parent and child talked on one socket, and both heard what was not for them."""
    pytest.importorskip("psycopg_pool")
    started = process("--processes", "2", settings={**POOLED, "APPS": ["tests.machine.early.Early"]})
    enqueue_many(handlers.use_orm.call() for _ in range(100))
    wait_for(lambda: attempts() == {("succeeded", 1): 100}, 30)
    supervisor = psutil.Process(started.pid)
    family = [supervisor, *supervisor.children()]
    assert len(family) == 3
    ports = [end.laddr.port for one in family for end in one.net_connections("tcp") if end.raddr]
    assert len(ports) == len(set(ports)) > 2
    assert started.stop() == 0


def test_a_statement_that_cannot_be_cancelled_costs_its_connection_and_not_the_process(
    worker: Worker, log: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind two poolers that share an address: the request to cancel comes to the one that knows nothing of it."""
    with Proxy.before(database_url()) as proxy:
        lead(monkeypatch, proxy.port)
        proxy.loses_cancels = True
        running = worker(concurrency=1)
        late = handlers.overrun_in_sql_soon.enqueue()
        wait_for_state(late, State.RETRYING)
        try:
            assert sessions(OVERRUN) == 1
            # Its place is free again, and the process need not be replaced.
            wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED, timeout=(TRIES - 1) * 2 + GRACE)
            assert log("goes on although") == []
            assert running.stop() == 0
        finally:
            terminate(OVERRUN)  # the server does not know yet that nobody waits


# -- the listener ----------------------------------------------------------------------------------------------


def test_no_notification_is_lost_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, second_connection: psycopg.Connection[Any]
) -> None:
    """psycopg/psycopg #962: what came while nobody waited for notifications was dropped."""
    monkeypatch.setattr(listener, "_LOOK_UP_SECONDS", 0.002)
    heard: list[str | None] = []
    ears = Listener("default", heard=heard.append, notify=lambda channel, sent: None)
    ears.start()
    wait_for(lambda: heard == [None])
    for number in range(1000):
        second_connection.execute("SELECT pg_notify('pgqueue', %s)", [str(number)])
    wait_for(lambda: len(heard) == 1001)
    assert heard[1:] == [str(number) for number in range(1000)]
    ears.stop()
    ears.join(5)
    assert not ears.is_alive()


def test_a_listener_whose_line_is_dead_finds_out_and_listens_again(
    worker: Worker, log: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half open: its packets vanish, and nobody says so. TCP would notice after 25 s."""
    monkeypatch.setattr(listener, "_SILENCE_SECONDS", 1.0)
    with Proxy.before(database_url()) as proxy:
        lead(monkeypatch, proxy.port)
        running = worker(listen=True, poll_interval=30)
        wait_until_it_hears(running)
        assert log("listener") == []
        assert proxy.black_hole("pgqueue listener") == 1
        wait_for(lambda: log("the connection is dead"), 1 + listener._ARRIVAL_SECONDS + GRACE)
        wait_for(lambda: log("listener: works again"), 5)
        wait_until_it_hears(running, of=2)  # the server knows of the dead one still
        assert running.stop() == 0


def test_own_connections_notice_a_peer_that_went_silent() -> None:
    with own_connection("default", "test", silence=7) as own:
        own.ensure_connection()
        wire = socket.socket(fileno=own.connection.fileno())
        try:
            if wire.family == socket.AF_UNIX:
                pytest.skip("the server is on a local socket")
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [wire.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 5, 3, 7000]
        finally:
            wire.detach()
        # The other end, too: what a vanished host has locked is free again.
        with own.cursor() as cursor:
            cursor.execute("SHOW tcp_keepalives_idle")
            assert cursor.fetchone() == ("10",)


def test_pauses_before_a_connection_is_tried_again_grow_are_bounded_and_differ() -> None:
    one, other = Backoff(), Backoff()
    waits = [one.failed() for _ in range(2_000)]
    assert [other.failed() for _ in range(2_000)] != waits
    assert 0.05 <= waits[0] <= 0.1
    assert all(1 <= wait <= 2 for wait in waits[10:])
    one.worked()
    assert one.failed() <= 0.1
