"""The dashboard when the database is away: a real server, really stopped and frozen, under WSGI and ASGI."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from verbs.rows import GRACE, wait_for

from doors.test_away import LOGIN, ROOT, Answer, Site, free_port
from doors.test_dashboard_stream import PAGE, STREAM, Stream
from doors.websites import Website
from pgqueue_django.admin.dashboard import AWAY_SECONDS
from testproject import localdb

pytestmark = pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed")

FRAME = f"{PAGE}frame.json"
SERVE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
from django.conf import settings
settings.PGQUEUE = {"LIVE": "sse"}
settings.DATABASES["default"]["CONN_MAX_AGE"] = %(max_age)s
settings.DATABASES["default"]["ATOMIC_REQUESTS"] = True  # which would ask a database before the view is called
"""
WSGI = """
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from testproject.wsgi import application
server = ThreadedWSGIServer(("127.0.0.1", %(port)d), WSGIRequestHandler)
server.set_app(application)
server.serve_forever()
"""
ASGI = """
import uvicorn
from testproject.asgi import application
uvicorn.run(application, port=%(port)d, log_level="critical")
"""


@contextlib.contextmanager
def serving(database_url: str, interface: str) -> Iterator[tuple[int, psutil.Process]]:
    port = free_port()
    code = SERVE + (ASGI if interface == "asgi" else WSGI)
    process = subprocess.Popen(
        [sys.executable, "-c", code % {"port": port, "max_age": 0 if interface == "asgi" else None}],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: process.poll() is not None or socket.socket().connect_ex(("127.0.0.1", port)) == 0, 30)
        assert process.poll() is None, "the web server ended"
        yield port, psutil.Process(process.pid)
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


@pytest.fixture(scope="module", params=["wsgi", "asgi"])
def website(request: pytest.FixtureRequest, private: tuple[localdb.Server, str]) -> Iterator[Site]:
    database, session = private
    with serving(database.url(), request.param) as (port, process):
        yield Site(port, process, database, session)


def ask(site: Site, path: str) -> Answer:
    return site.get(path, Cookie=f"sessionid={site.session}")


@pytest.fixture
def site(website: Site) -> Iterator[Site]:
    wait_for(lambda: ask(website, FRAME).status == 200, 30)
    website.outlive_reading()
    yield website
    website.thaw()
    website.database.start()
    wait_for(lambda: ask(website, FRAME).status == 200, 30)


@pytest.mark.parametrize("path", [FRAME, STREAM, PAGE])
def test_a_stopped_database_is_said_at_once(path: str, site: Site) -> None:
    site.database.stop("immediate")
    answer = ask(site, path)
    assert answer.status == 503
    assert answer.seconds < 0.5 + GRACE


@pytest.mark.parametrize("path", [FRAME, STREAM, PAGE])
def test_a_frozen_database_is_said_in_time(path: str, site: Site) -> None:
    site.freeze()
    answer = ask(site, path)
    assert answer.status == 503
    assert answer.seconds < 2 + GRACE
    site.thaw()
    wait_for(lambda: ask(site, FRAME).status == 200, 10)


def test_a_database_that_freezes_a_moment_after_it_answered_does_not_hold_the_request(site: Site) -> None:
    """What asks for the session has no time of its own: the ping is still good for somebody else's answer."""
    assert site.healthz().status == 200
    site.freeze()
    answer = ask(site, FRAME)
    assert answer.status == 503
    assert answer.seconds < 5 + GRACE


def test_the_page_needs_no_database_to_say_so_and_loads_itself_again(site: Site) -> None:
    site.database.stop("immediate")
    page = ask(site, PAGE)
    assert page.status == 503
    assert f'http-equiv="refresh" content="{AWAY_SECONDS}"' in page.body
    assert "Traceback" not in page.body
    assert str(site.database.port) not in page.body
    for path in (FRAME, STREAM):
        answer = ask(site, path)
        assert json.loads(answer.body) == {"status": "unavailable"}
        assert answer.headers["Retry-After"] == str(AWAY_SECONDS)
        assert answer.headers["Cache-Control"] == "no-store"


def test_who_is_not_known_is_told_so_whatever_the_database_does(site: Site) -> None:
    site.database.stop("immediate")
    assert site.get(FRAME).status == 401
    assert site.get(PAGE).status == 302


def test_a_stream_says_that_the_database_is_away_and_goes_on(private: tuple[localdb.Server, str]) -> None:
    database, session = private
    with serving(database.url(), "asgi") as (port, process):
        site = Site(port, process, database, session)
        one = Stream(Website("asgi", port, ROOT, process), session)
        number = one.frame()["number"]
        site.freeze()
        try:
            began = time.monotonic()
            while (event := one.event()).get("event") != "away":
                assert time.monotonic() < began + 10
            assert set(json.loads(event["data"])) == {"since"}
            # Whoever comes now cannot be looked at.
            assert ask(site, STREAM).status == 503
        finally:
            site.thaw()
        assert one.frame()["number"] > number
        database.stop("immediate")
        while one.event().get("event") != "away":
            pass
        database.start()
        assert one.frame()["number"] > number
        one.close()
