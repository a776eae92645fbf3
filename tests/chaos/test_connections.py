"""No connection to be had, and connections that end while the worker sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

from chaos.fleet import Fleet, until
from chaos.proxy import Proxy
from chaos.test_restart import assert_listening
from testproject import ledger
from testproject.localdb import Server


class Hog:
    """Takes the connections that a server has left, until ``close``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._taken = ExitStack()
        self.close = self._taken.close

    def take_all(self) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                self._taken.enter_context(psycopg.connect(self._url, application_name="hog"))


@pytest.fixture
def hog(server: Server, url: str) -> Iterator[Hog]:
    """On a server of twenty connections."""
    with ledger.connect(url) as session:
        session.execute("ALTER SYSTEM SET max_connections = 20")
    server.restart()
    one = Hog(url)
    yield one
    one.close()
    with ledger.connect(url) as session:
        session.execute("ALTER SYSTEM RESET max_connections")
    server.restart()


STARTING = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'starting'"


def refusals(server: Server) -> int:
    """How many connections the server has refused because it had too many."""
    return server.log_file.read_text(errors="replace").count("too many clients")


def test_a_server_without_a_free_connection_is_asked_now_and_then_until_it_has_one(
    fleet: Fleet, server: Server, hog: Hog
) -> None:
    """oban-bg/oban #1499: after a while without connections, nobody listened any more."""
    worker = fleet.hire("--lease", "6", "--concurrency", "4", "--poll-interval", "10")
    fleet.produce(4)
    fleet.wait_until_finished()

    def worker_has_none() -> bool:
        fleet.query(
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name NOT IN ('chaos', 'hog')"
        )
        hog.take_all()
        # Nor one that has only just come.
        return not fleet.sessions() and fleet.query(STARTING) == [(0,)]

    until("it has lost all of its connections", worker_has_none)
    # The first pauses are short ones.
    before = refusals(server)
    until("the pauses have grown", lambda: refusals(server) >= before + 20)
    began = time.monotonic()
    until("some more", lambda: refusals(server) >= before + 50)
    rate = 30 / (time.monotonic() - began)
    print(f"{rate:.1f} connections a second are asked for, by four threads")
    assert rate < 12
    assert fleet.sessions() == []
    assert worker.exit_code is None

    hog.close()
    fleet.produce(20)
    fleet.wait_until_finished()
    assert_listening(fleet, [worker])
    assert [job for job in fleet.settle_accounts().jobs if job.failed_attempts] == []


@pytest.mark.parametrize("how", [Proxy.close, Proxy.reset], ids=["FIN", "RST"])
def test_sessions_that_somebody_ends_while_the_worker_sleeps(
    fleet: Fleet, proxy: Proxy, how: Callable[[Proxy, str], int]
) -> None:
    """RealOrangeOne/django-tasks-db PR 22: a balancer ended the idle session, and the worker at its next poll.

    Where it says nothing: ``test_cut_replies.py::test_a_black_hole_is_noticed_within_half_a_minute``.
    """
    worker = fleet.hire("--lease", "6", "--poll-interval", "10", url=proxy.url(fleet.url))
    assert_listening(fleet, [worker])
    before = set(fleet.sessions())
    assert how(proxy, "pgqueue") == len(before) == 4
    until("all are there again", lambda: len(set(fleet.sessions()) - before) == 4, seconds=15)
    assert_listening(fleet, [worker])
    assert worker.exit_code is None
    assert [job for job in fleet.settle_accounts().jobs if job.failed_attempts] == []
