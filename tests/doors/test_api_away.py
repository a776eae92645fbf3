"""The JSON API when the database is away: stopped, frozen or silent. A 503 within five seconds, and back by itself.

A web server in a process of its own against a private PostgreSQL. A connection to it that is kept alive is one thread
there, with the database connection that it has kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg
import pytest
from verbs.rows import GRACE, wait_for

from pgqueue_django import deadline
from testproject import localdb

from .test_away import LOGIN, ROOT, WAITING, Site, free_port

TOKEN = "token-of-the-test"
SERVE = """
import os
port = %(port)d
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
from django.conf import settings
settings.PGQUEUE = {
    "API_AUTH": ["pgqueue_django.access.token", "pgqueue_django.access.session"],
    "API_TOKENS": {"test": {"sha256": "%(sha256)s", "rights": ["enqueue_job", "view_job"]}},
}
settings.DATABASES["default"].update(%(database)r)
settings.DATABASES["default"]["OPTIONS"].update(%(options)r)
%(server)s
"""
WSGI = """
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from testproject.wsgi import application
server = ThreadedWSGIServer(("127.0.0.1", port), WSGIRequestHandler)
server.set_app(application)
server.serve_forever()
"""
ASGI = """
import uvicorn
from testproject.asgi import application
uvicorn.run(application, port=port, log_level="critical")
"""
SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
CONNECTING: dict[str, Any] = {
    "kept": ({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}, {}),
    "checked": ({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}, {}),
    "new": ({"CONN_MAX_AGE": 0}, {}),
    "pool": ({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}, {"pool": {"min_size": 1, "max_size": 2}}),
    "checked pool": ({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}, {"pool": {"min_size": 1, "max_size": 2}}),
}
JOB = {"task": "testproject.shop.tasks.count_stock"}


@dataclass
class Answer:
    status: int
    document: dict[str, Any]
    headers: dict[str, str]
    seconds: float


class Line:
    """One connection to the web server, kept alive: one thread there."""

    def __init__(self, port: int, session: str, csrf: str = "c" * 32) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._cookie = {"Cookie": f"sessionid={session}; csrftoken={csrf}", "X-CSRFToken": csrf}

    def ask(self, who: str, body: Any = None, path: str = "jobs") -> Answer:
        headers = self._cookie if who == "session" else {"Authorization": f"Bearer {TOKEN}"}
        began = time.monotonic()
        if body is None:
            self._connection.request("GET", f"/pgqueue/api/v1/{path}", headers=headers)
        else:
            headers = {**headers, "Content-Type": "application/json"}
            self._connection.request("POST", f"/pgqueue/api/v1/{path}", json.dumps(body), headers)
        response = self._connection.getresponse()
        text = response.read().decode()
        seconds = time.monotonic() - began
        return Answer(response.status, json.loads(text), dict(response.headers), seconds)

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def serving(database_url: str, connecting: str = "kept", server: str = WSGI) -> Iterator[int]:
    port = free_port()
    database, options = CONNECTING[connecting]
    code = SERVE % {"sha256": SHA256, "port": port, "database": database, "options": options, "server": server}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: process.poll() is not None or socket.socket().connect_ex(("127.0.0.1", port)) == 0, 30)
        assert process.poll() is None, "the web server ended"
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def private() -> Iterator[tuple[localdb.Server, str]]:
    """A database of its own, and the session of somebody who may everything."""
    try:
        server = localdb.fresh()
    except localdb.LocalDatabaseError as error:
        pytest.skip(str(error))
    with server as database:
        environment = {**os.environ, "DATABASE_URL": database.url(), "PYTHONPATH": str(ROOT)}
        session = subprocess.run(
            [sys.executable, "-c", LOGIN], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()
        yield database, session


@pytest.fixture(scope="module", params=list(CONNECTING))
def website(request: pytest.FixtureRequest, private: tuple[localdb.Server, str]) -> Iterator[Site]:
    """With each way of Django's to have connections."""
    database, session = private
    with serving(database.url(), request.param) as port:
        yield Site(port, psutil.Process(), database, session)


@pytest.fixture
def site(website: Site) -> Iterator[Site]:
    yield website
    website.thaw()
    website.database.start()


@pytest.fixture
def line(site: Site) -> Iterator[Line]:
    """Over which both kinds of actors have been answered already."""
    line = Line(site.port, site.session)
    for who in ("token", "session"):
        wait_for(lambda who=who: line.ask(who).status == 200, 30)  # type: ignore[misc]
        assert line.ask(who, JOB).status == 201
    yield line
    line.close()


def stopped(site: Site) -> None:
    site.database.stop("immediate")


def frozen(site: Site) -> None:
    site.freeze()


@pytest.mark.parametrize("away", [stopped, frozen])
@pytest.mark.parametrize(("who", "body"), [("token", JOB), ("session", None)], ids=["token-post", "session-get"])
def test_a_database_that_is_away_is_a_503_in_time(
    site: Site, line: Line, away: Callable[[Site], None], body: Any, who: str
) -> None:
    away(site)
    fresh = Line(site.port, site.session)
    with contextlib.closing(fresh):
        for one in (line, fresh):
            answer = one.ask(who, body)
            assert (answer.status, answer.document["code"]) == (503, "unavailable")
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert int(answer.headers["Retry-After"]) > 0
            assert answer.seconds < 5 + GRACE
            assert "Traceback" not in str(answer.document)
            assert str(site.database.port) not in str(answer.document)
        site.thaw()
        site.database.start()
        for one in (line, fresh):
            wait_for(lambda one=one: one.ask(who, body).status in (200, 201), 20)  # type: ignore[misc]


def test_a_server_that_takes_the_connection_and_is_silent(private: tuple[localdb.Server, str]) -> None:
    """What a firewall or a dead proxy looks like."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://someone@127.0.0.1:{silent.getsockname()[1]}/shop"
        with serving(url) as port:
            line = Line(port, private[1])
            for who in ("token", "session"):
                answer = line.ask(who, JOB)
                assert answer.status == 503
                assert answer.seconds < 5 + GRACE
            line.close()


def test_a_statement_that_does_not_end_is_cut_off_and_so_is_its_connection(site: Site, line: Line) -> None:
    with psycopg.connect(site.database.url()) as holder:
        holder.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        answer = line.ask("token", JOB)
        assert answer.status == 503
        assert deadline.SECONDS <= answer.seconds < 5 + GRACE
    assert line.ask("token").status == 200


def test_who_waits_for_a_row_is_told_so_and_the_server_waits_no_longer(site: Site, line: Line) -> None:
    """With a limit of the server's own: nothing of the request is done after it was answered."""
    job = line.ask("session", JOB).document["id"]
    with psycopg.connect(site.database.url()) as holder:
        holder.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [job])
        answer = line.ask("session", {}, f"jobs/{job}/cancel")
        assert answer.status == 503
        assert answer.seconds < deadline.SECONDS
        with psycopg.connect(site.database.url(), autocommit=True) as watcher:
            assert watcher.execute(WAITING).fetchone() == (0,)
    assert line.ask("session", path=f"jobs/{job}").document["state"] == "queued"


def test_who_waits_for_a_key_that_another_transaction_has_is_told_so(site: Site, line: Line) -> None:
    wanted = {**JOB, "idempotency_key": f"key-{time.time_ns()}"}
    with psycopg.connect(site.database.url()) as holder:
        insert = "INSERT INTO pgqueue_job (task, idempotency_key) VALUES (%s, %s)"
        holder.execute(insert, [JOB["task"], wanted["idempotency_key"]])
        answer = line.ask("token", wanted)
        assert answer.status == 503
        assert answer.seconds < deadline.SECONDS
        with psycopg.connect(site.database.url(), autocommit=True) as watcher:
            assert watcher.execute(WAITING).fetchone() == (0,)
        holder.rollback()
    assert line.ask("token", wanted).status == 201


def test_a_post_whose_commit_got_no_reply_is_repeated_with_its_key(site: Site, line: Line) -> None:
    """The server is frozen while the request waits for the key; what it then commits, the repeat finds."""
    wanted = {**JOB, "idempotency_key": f"key-{time.time_ns()}"}
    with psycopg.connect(site.database.url()) as holder:
        holder.execute("LOCK TABLE pgqueue_job IN SHARE MODE")
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(line.ask("token", wanted)))
        asking.start()
        with psycopg.connect(site.database.url(), autocommit=True) as watcher:
            wait_for(lambda: watcher.execute(WAITING).fetchone() == (1,))
        site.freeze()
        asking.join(10)
        site.thaw()
    assert [answer.status for answer in answers] == [503]

    def repeated() -> Answer | None:
        answer = line.ask("token", wanted)
        return answer if answer.status != 503 else None

    first = wait_for(repeated, 20)
    again = line.ask("token", wanted)
    assert again.status == 200
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.document["id"] == first.document["id"]


@pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed")
def test_who_waits_for_a_job_when_the_database_goes_away_is_told_so(private: tuple[localdb.Server, str]) -> None:
    database, session = private
    with serving(database.url(), "new", ASGI) as port:
        site = Site(port, psutil.Process(), database, session)
        line, other = Line(port, session), Line(port, session)
        job = line.ask("token", JOB).document["id"]
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(line.ask("token", path=f"jobs/{job}?wait=3")))
        with psycopg.connect(database.url(), autocommit=True) as watcher:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgqueue api'"
            asking.start()
            wait_for(lambda: watcher.execute(waiting).fetchone() == (1,))
            site.freeze()
            try:
                asking.join(20)
            finally:
                site.thaw()
            assert [answer.status for answer in answers] == [503]
            assert answers[0].seconds < 3 + 5 + GRACE
            # And the one who asks for all is back as well.
            asking = threading.Thread(target=lambda: answers.append(line.ask("token", path=f"jobs/{job}?wait=25")))
            asking.start()
            wait_for(lambda: watcher.execute(waiting).fetchone() == (1,))
            assert other.ask("session", {}, f"jobs/{job}/cancel").status == 200
            asking.join(30)
            assert answers[1].document["state"] == "cancelled"
            assert answers[1].seconds < 10 + GRACE
        line.close()
        other.close()
