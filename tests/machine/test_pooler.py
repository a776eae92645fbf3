"""Behind pgbouncer: a session belongs to a worker for one transaction only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.proxy import Proxy
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import listener
from pgqueue_django.worker.connections import Backoff
from testproject.localdb import fresh
from tests.machine import handlers

from .pooler import PROGRAM, Pooler
from .test_listen import LISTENS, wait_until_it_hears
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

pytestmark = [
    REAL_DATABASE,
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer"),
]
StartProcess = Callable[..., Process]
Worker = Callable[..., Running]
Log = Callable[..., list[str]]
WARNING = "polling only: no notifications from database"


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[Pooler]:
    with Pooler(database_url()) as one:
        yield one


def work_through(process: StartProcess, pooler: Pooler, count: int) -> list[Process]:
    started = [process("--concurrency", "8", environment={"DATABASE_URL": pooler.url}) for _ in range(4)]
    tasks = [handlers.use_orm, handlers.use_orm_async, handlers.write_atomic, handlers.do_nothing]
    enqueue_many(tasks[number % 4].call() for number in range(count))
    wait_for(lambda: not Job.objects.exclude(state__in=("succeeded", "failed", "dead")).exists(), 60 + count / 100)
    return started


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_four_workers_on_a_pool_of_four_lose_nothing_and_leave_nothing(
    process: StartProcess, pooler: Pooler, count: int
) -> None:
    """psycopg/psycopg #280: prepared statements met other sessions than those that knew them, and jobs failed.

    The pooler's sessions serve others afterwards: no limit of ours, no LISTEN and no prepared statement is left there.
    """
    started = work_through(process, pooler, count)
    assert attempts() == {("succeeded", 1): count}
    found = pooler.in_every_session(
        "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'), "
        "current_setting('tcp_keepalives_idle') <> '10', (SELECT count(*) FROM pg_prepared_statements), "
        "(SELECT count(*) FROM pg_listening_channels())"
    )
    assert len(found) == pooler.size
    assert set(found) == {("0", "0", True, 0, 0)}
    for one in started:
        assert one.stop() == 0
        assert (one.log.count(" WARNING "), one.log.count(WARNING), one.log.count(" ERROR ")) == (1, 1, 0)


@pytest.fixture
def pooled(pooler: Pooler, monkeypatch: pytest.MonkeyPatch) -> Pooler:
    """Workers in this process go through the pooler from now on; the session of the test itself is direct."""
    lead(monkeypatch, pooler.port)
    return pooler


def tries(running: Running) -> int:
    """How often it has tried to listen in vain."""
    assert running.loop._listener is not None
    return running.loop._listener._deaf._failures


def test_a_worker_behind_a_pooler_says_once_what_to_do_and_polls(
    worker: Worker, pooled: Pooler, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """riverqueue/river #205: LISTEN works, on a session that is given away at once; nothing arrives, nobody is told."""
    monkeypatch.setattr(Backoff, "failed", lambda self: setattr(self, "_failures", self._failures + 1) or 0.0)
    running = worker(listen=True)
    wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED)
    wait_for(lambda: tries(running) >= 3)
    (warning,) = log(WARNING)
    assert 'PGQUEUE["LISTEN_DATABASE"]' in warning
    assert set(pooled.in_every_session("SELECT count(*) FROM pg_listening_channels()")) == {(0,)}
    wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED)


def test_it_tries_again_ever_more_seldom(worker: Worker, pooled: Pooler) -> None:
    running = worker(listen=True)
    waits = [running.loop._listener._deaf.failed() for _ in range(12)]
    assert 1 <= waits[0] <= 2
    assert 30 <= waits[-1] <= 60
    # The rest of this object's life is a retry after a minute: the worker ends all the same.
    assert running.stop(3) == 0


def test_listen_goes_to_the_server_where_the_settings_name_an_alias_for_it(
    worker: Worker, pooled: Pooler, log: Log, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(monkeypatch, str(conninfo_to_dict(pooled.direct)["port"]), "direct")
    settings.PGQUEUE = {"LISTEN_DATABASE": "direct"}
    running = worker(listen=True, poll_interval=30)
    wait_until_it_hears(running)
    assert log(WARNING) == []
    assert sessions(LISTENS) == 1


def test_it_listens_through_a_pooler_in_session_mode_if_the_settings_say_so(
    worker: Worker, transactional_db: None, log: Log, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PGQUEUE = {"LISTEN_DATABASE": "default"}
    with Pooler(database_url(), mode="session", size=20) as pooler:
        lead(monkeypatch, pooler.port)
        running = worker(listen=True, poll_interval=30)
        wait_until_it_hears(running)
        assert log(WARNING) == []
        assert running.stop() == 0


def test_an_alias_that_leads_to_a_pooler_in_transaction_mode_is_found_out(
    worker: Worker, pooled: Pooler, log: Log, settings: Any
) -> None:
    settings.PGQUEUE = {"LISTEN_DATABASE": "default"}
    worker(listen=True)
    wait_for(lambda: log(WARNING), listener._ARRIVAL_SECONDS + 2 * GRACE)
    assert "did not arrive within 2 s" in log(WARNING)[0]
    # What is sent to all workers would go to whoever has that session now.
    mine = "SELECT count(*) FROM pg_listening_channels() AS channel WHERE channel = 'pgqueue'"
    assert set(pooled.in_every_session(mine)) == {(0,)}


def test_an_alias_that_leads_to_another_server_is_found_out(
    worker: Worker, log: Log, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(monkeypatch, connections.settings["default"]["PORT"], "elsewhere", NAME="postgres")
    settings.PGQUEUE = {"LISTEN_DATABASE": "elsewhere"}
    worker(listen=True)
    wait_for(lambda: log(WARNING), listener._ARRIVAL_SECONDS + 2 * GRACE)
    assert "/postgres)" in log(WARNING)[0]


def test_a_server_that_refuses_listen_stops_nobody(
    worker: Worker, log: Log, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """riverqueue/river #973: an error at LISTEN was fatal, and no job ran at all."""
    with fresh() as standby:
        standby.stop()
        (standby.data_dir / "standby.signal").touch()
        standby.start()
        password = conninfo_to_dict(standby.url())["password"]
        with Proxy("127.0.0.1", standby.port or 0) as proxy:
            lead(monkeypatch, proxy.port, "direct", NAME="postgres", USER="postgres", PASSWORD=password)
            settings.PGQUEUE = {"LISTEN_DATABASE": "direct"}
            running = worker(listen=True, poll_interval=0.2)
            wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED)
            wait_for(lambda: tries(running) >= 2, 10)
            (warning,) = log(WARNING)
            assert "the server refuses LISTEN: cannot execute LISTEN during recovery" in warning
            wait_for_state(handlers.use_orm.enqueue(), State.SUCCEEDED)


def test_a_statement_that_is_cancelled_is_the_handlers_own_and_nobody_elses(
    process: StartProcess, transactional_db: None
) -> None:
    """Its session has served somebody else a moment before, and does so a moment after."""
    with Pooler(database_url(), size=8) as pooler:
        through = {"DATABASE_URL": pooler.url}
        started = [
            process("--queues", "late", "--concurrency", "4", environment=through),
            process("--queues", "others", "--concurrency", "8", environment=through),
        ]
        enqueue_many(handlers.sleep_in_sql_for.using(queue_name="others").call(0.01) for _ in range(600))
        enqueue_many(handlers.overrun_in_sql_soon.using(queue_name="late").call() for _ in range(60))
        wait_for(lambda: Job.objects.filter(state__in=("succeeded", "retrying")).count() == 660, 60)
        assert attempts() == {("succeeded", 1): 600, ("retrying", 1): 60}
        assert {job.history[-1]["kind"] for job in Job.objects.filter(queue_name="late")} == {"timeout"}
        # Of a minute: cancelled on the server, too.
        wait_for(lambda: sessions("query LIKE '%%overrun%%' AND state = 'active'") == 0, 5 + GRACE)
        for one in started:
            assert one.stop() == 0


def test_own_connections_prepare_nothing(process: StartProcess, pooler: Pooler) -> None:
    """psycopg/psycopg #280, for a project that has statements prepared and handlers that have none."""
    started = process(
        settings={"OPTIONS": {"prepare_threshold": 0, "server_side_binding": True}},
        environment={"DATABASE_URL": pooler.url},
    )
    # One by one, so that the same statements come again.
    for _ in range(20):
        wait_for_state(handlers.do_nothing.enqueue(), State.SUCCEEDED)
    assert set(pooler.in_every_session("SELECT count(*) FROM pg_prepared_statements")) == {(0,)}
    assert started.log.count(" WARNING ") <= 1
    assert started.stop() == 0
