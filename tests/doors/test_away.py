"""The doors when the database is away: stopped, frozen or silent. A real server, really stopped.

A web server runs in a process of its own against a private PostgreSQL, so that what hangs hangs there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from verbs.rows import GRACE, wait_for

from pgqueue_django.answers import SHARED_SECONDS
from testproject import localdb

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-the-test"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
SERVE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
from django.conf import settings
settings.PGQUEUE = {"METRICS_TOKEN": "%s"}
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from testproject.wsgi import application
ThreadedWSGIServer.request_queue_size = 128
server = ThreadedWSGIServer(("127.0.0.1", %d), WSGIRequestHandler)
server.set_app(application)
server.serve_forever()
"""
LOGIN = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("root", "", "x"))
print(client.cookies["sessionid"].value)
"""


@dataclass
class Answer:
    status: int
    body: str
    seconds: float
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Site:
    port: int
    process: psutil.Process
    database: localdb.Server
    session: str
    frozen: list[psutil.Process] = field(default_factory=list)
    asked_at: float = 0.0

    def get(self, path: str, **headers: str) -> Answer:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read().decode()
        self.asked_at = time.monotonic()
        return Answer(response.status, body, time.monotonic() - began, dict(response.headers))

    def healthz(self) -> Answer:
        return self.get("/pgqueue/healthz")

    def queues(self) -> Answer:
        return self.get("/pgqueue/healthz/queues", Authorization=f"Bearer {TOKEN}")

    def metrics(self) -> Answer:
        return self.get("/pgqueue/metrics", Authorization=f"Bearer {TOKEN}")

    def metrics_of_a_user(self) -> Answer:
        return self.get("/pgqueue/metrics", Cookie=f"sessionid={self.session}")

    def status(self) -> Answer:
        return self.get("/status/")

    def outlive_reading(self) -> None:
        """A reading that was made a moment ago is still given to who asks."""
        wait_for(lambda: time.monotonic() > self.asked_at + SHARED_SECONDS + 0.1)

    def freeze(self) -> None:
        """SIGSTOP for every process of the server: its sockets stay open, and nobody answers."""
        pid = self.database.pid
        assert pid
        postmaster = psutil.Process(pid)
        postmaster.send_signal(signal.SIGSTOP)
        self.frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in self.frozen:
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in reversed(self.frozen):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self.frozen = []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(database_url: str, port: int) -> Iterator[psutil.Process]:
    environment = {**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE % (TOKEN, port)],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or socket.socket().connect_ex(("127.0.0.1", port)) == 0, 30)
        assert process.poll() is None, "the web server ended"
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def website() -> Iterator[Site]:
    try:
        server = localdb.fresh()
    except localdb.LocalDatabaseError as error:
        pytest.skip(str(error))
    with server as database:
        url = database.url()
        environment = {**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
        session = subprocess.run(
            [sys.executable, "-c", LOGIN], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()
        port = free_port()
        with serving(url, port) as process:
            yield Site(port, process, database, session)


@pytest.fixture
def site(website: Site) -> Iterator[Site]:
    assert website.healthz().status == 200
    website.outlive_reading()
    yield website
    website.thaw()
    website.database.start()
    wait_for(lambda: website.healthz().status == 200, 30)


def test_a_database_that_answers_is_healthy(site: Site) -> None:
    answer = site.healthz()
    assert answer.status == 200
    body = json.loads(answer.body)
    assert body["status"] == "ok"
    assert 0 < body["db_ms"] < 2000
    for door in DOORS:
        assert not is_away(door, getattr(site, door)()), door


DOORS = ("healthz", "queues", "metrics", "metrics_of_a_user", "status")


def is_away(door: str, answer: Answer) -> bool:
    """Prometheus reads a page of status 200 only."""
    if not door.startswith("metrics"):
        return answer.status == 503
    assert answer.status == 200
    lines = [line for line in answer.body.splitlines() if not line.startswith("#")]
    if lines[0] == "pgqueue_up 1.0":
        return False
    assert lines == ["pgqueue_up 0.0"]
    return True


@pytest.mark.parametrize("door", DOORS)
def test_a_stopped_database_is_said_at_once(door: str, site: Site) -> None:
    site.database.stop("immediate")
    answer = getattr(site, door)()
    assert is_away(door, answer)
    assert answer.seconds < 0.5 + GRACE


@pytest.mark.parametrize("door", DOORS)
def test_a_frozen_database_is_said_in_time(door: str, site: Site) -> None:
    getattr(site, door)()  # a connection that the thread may have kept
    site.outlive_reading()
    site.freeze()
    answer = getattr(site, door)()
    assert is_away(door, answer)
    assert answer.seconds < 2 + GRACE
    site.thaw()
    wait_for(lambda: not is_away(door, getattr(site, door)()), 10)


def test_a_process_lives_whatever_the_database_does(site: Site) -> None:
    site.freeze()
    answer = site.get("/pgqueue/livez")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok"})
    assert answer.seconds < 0.5 + GRACE


def test_a_database_that_freezes_after_it_was_reached_is_cut_off(site: Site) -> None:
    """The connection stands and the statement never ends: a lock on the table of the statistics holds it."""
    import psycopg

    before = sessions(site)
    with psycopg.connect(site.database.url()) as holder:
        holder.execute("LOCK TABLE pgqueue_stat IN ACCESS EXCLUSIVE MODE")
        results: list[Answer] = []
        asking = threading.Thread(target=lambda: results.append(site.metrics()))
        asking.start()
        with psycopg.connect(site.database.url(), autocommit=True) as watcher:
            wait_for(lambda: watcher.execute(WAITING).fetchone() == (1,))
        site.freeze()  # now the statement's own timeout cannot come either
        try:
            asking.join(10)
            assert results
            assert is_away("metrics", results[0])
            assert results[0].seconds < 2 + GRACE
            # Who waited on that connection has been let go, although the server still says nothing.
            wait_for(lambda: sessions(site) <= before, 5)
        finally:
            site.thaw()  # before the two sessions above take their leave of the server


def test_a_slow_statement_is_given_up(site: Site) -> None:
    import psycopg

    with psycopg.connect(site.database.url()) as holder:
        holder.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        answer = site.metrics()
        assert is_away("metrics", answer)
        assert answer.seconds < 2 + GRACE
        assert site.healthz().status == 200
        # By the server itself: one that only the client gave up would wait for the lock for as long as that is held.
        with psycopg.connect(site.database.url(), autocommit=True) as watcher:
            wait_for(lambda: watcher.execute(WAITING).fetchone() == (0,), 1 + GRACE)


def sessions(site: Site) -> int:
    """Connections that the web server holds to the database."""
    port = site.database.port
    return sum(
        1 for found in site.process.net_connections("tcp") if found.raddr and found.raddr.port == port
        and found.status == "ESTABLISHED"
    )  # fmt: skip


def test_no_answer_shows_a_traceback_or_where_the_database_is(site: Site) -> None:
    port = str(site.database.port)
    site.database.stop("immediate")
    for door in DOORS:
        body = getattr(site, door)().body
        assert "Traceback" not in body
        assert port not in body
        assert not re.search(r"<html|Error" if door != "status" else r"Error|psycopg|127\.0\.0\.1", body)
    assert site.metrics().body.endswith("pgqueue_up 0.0\n")
    assert json.loads(site.healthz().body) == {"status": "unavailable"}


def test_questions_to_a_frozen_database_do_not_pile_up(site: Site) -> None:
    before = site.process.num_threads()
    site.freeze()
    answers: list[Answer] = []
    asking = [threading.Thread(target=lambda: answers.append(site.healthz())) for _ in range(30)]
    for thread in asking:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in asking):
        # Not its threads: one whose caller has its answer may still be on its way out.
        most = max(most, sessions(site))
        time.sleep(0.02)
    assert {answer.status for answer in answers} == {503}
    # They ask all at once, of a web server on a machine with other things to do; one alone ends within 2.
    assert max(answer.seconds for answer in answers) < 4 + 2 * GRACE
    assert most <= 2, "who comes while one asks waits for his answer"
    wait_for(lambda: site.process.num_threads() <= before + 2, 6)


def test_a_server_that_takes_the_connection_and_is_silent(website: Site) -> None:
    """What a firewall or a dead proxy looks like."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://someone@127.0.0.1:{silent.getsockname()[1]}/shop"
        port = free_port()
        with serving(url, port) as process:
            site = Site(port, process, website.database, website.session)
            for door in DOORS:
                answer = getattr(site, door)()
                assert is_away(door, answer)
                assert answer.seconds < 2 + GRACE
