"""Enqueueing in coroutines: in views under ASGI, in transactions, in handlers of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from pgqueue_django import aenqueue_many, enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import REAL_DATABASE, ROOT, Running, database_url, sessions, wait_for, wait_for_state

pytestmark = REAL_DATABASE


@pytest.fixture(autouse=True)
def under_asgi(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.machine.site"
    settings.MIDDLEWARE = []


@pytest.fixture(params=["CONN_MAX_AGE=0", "pool"])
def connecting(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> Iterator[Any]:
    """Connections of requests as Django says that they are to be under ASGI: closed after each, or of its pool."""
    there = connections.settings["default"]
    monkeypatch.setitem(there, "CONN_MAX_AGE", 0)
    if request.param == "pool":
        monkeypatch.setitem(there, "OPTIONS", {**there["OPTIONS"], "pool": {"min_size": 1, "max_size": 4}})
    yield
    if request.param == "pool":
        connections.create_connection("default").close_pool()


async def ask(path: str) -> Any:
    """The answer of the application, in this event loop. Raises AssertionError unless it is a 200."""
    from tests.machine.site import application

    path, _, query = path.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    there = ApplicationCommunicator(application, scope)
    await there.send_input({"type": "http.request", "body": b"", "more_body": False})
    begin = await there.receive_output(30)
    body = b""
    while True:
        part = await there.receive_output(30)
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    await there.wait(30)
    assert begin["status"] == 200, body.decode(errors="replace")[-2000:]
    return json.loads(body)


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """In an event loop of its own. What ran beside no request has left its connection to the thread for that."""

    async def whole() -> Any:
        try:
            return await main()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(whole())


@pytest.fixture
def leaves_nothing(connecting: None) -> Iterator[None]:
    """No thread and no connection more than before, once a loop has run and has made the thread that stays."""
    run(lambda: sync_to_async(int)())
    before = set(threading.enumerate())
    held = sessions()
    yield
    connections.create_connection("default").close_pool() if "pool" in _options() else None
    wait_for(lambda: sessions() <= held)
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread not in before])


def _options() -> dict[str, Any]:
    options: dict[str, Any] = connections.settings["default"]["OPTIONS"]
    return options


def test_a_thousand_at_once_in_one_view(leaves_nothing: None) -> None:
    answer = run(lambda: ask("/thousand/"))
    assert len(set(answer["ids"])) == 1000
    assert Job.objects.filter(state="queued").count() == 1000


def test_a_thousand_requests_leave_no_thread_and_no_connection(leaves_nothing: None) -> None:
    """Each has a thread and a connection of its own while it runs: as many at a time as the database has room for."""

    async def main() -> list[Any]:
        places = asyncio.Semaphore(20)

        async def one() -> Any:
            async with places:
                return await ask("/one/")

        return await asyncio.gather(*(one() for _ in range(1000)))

    assert len({answer["ids"][0] for answer in run(main)}) == 1000
    assert Job.objects.count() == 1000


def test_a_bulk_in_a_view(leaves_nothing: None) -> None:
    assert run(lambda: ask("/bulk/"))["ids"] == sorted(Job.objects.values_list("id", flat=True))


@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_transaction_of_a_view_is_one_plain_function(connecting: None, rolls_back: bool) -> None:
    """The job in it is there if and only if it commits; a coroutine that runs beside it is no part of it."""
    answer = run(lambda: ask(f"/transaction/?rolls_back={int(rolls_back)}"))
    there = set(Job.objects.values_list("id", flat=True))
    assert there == ({answer["beside"]} if rolls_back else {answer["beside"], answer["in_it"]})


def test_a_view_that_fails_has_enqueued_all_the_same(connecting: None, caplog: pytest.LogCaptureFixture) -> None:
    """An asynchronous view has no transaction around it: Django refuses ATOMIC_REQUESTS for them."""
    caplog.set_level(logging.CRITICAL, "django.request")
    with pytest.raises(AssertionError):
        run(lambda: ask("/fail/"))
    assert Job.objects.count() == 1


def test_the_plain_calls_are_refused_in_a_coroutine_before_anything_is_sent(connecting: None) -> None:
    async def main() -> None:
        for call in (
            handlers.do_nothing.enqueue,
            lambda: enqueue_many([handlers.do_nothing.call()]),
            lambda: enqueue_many(handlers.do_nothing.call() for _ in range(60)),
            transaction.atomic().__enter__,
        ):
            with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
                call()

    run(main)
    assert not Job.objects.exists()


def test_no_request_is_needed(connecting: None) -> None:
    async def main() -> list[int]:
        many = await aenqueue_many([handlers.do_nothing.call() for _ in range(3)])
        return [(await handlers.do_nothing.aenqueue()).id, *(one.id for one in many)]

    assert sorted(run(main)) == sorted(Job.objects.values_list("id", flat=True))


def test_a_bulk_of_something_else_is_refused(connecting: None) -> None:
    with pytest.raises(TypeError, match=r"task\.call"):
        run(lambda: aenqueue_many([handlers.do_nothing]))  # type: ignore[list-item]


def test_a_handler_enqueues_on_the_event_loop_of_the_worker(worker: Callable[..., Running]) -> None:
    running = worker(concurrency=4)
    ids = [handlers.enqueue_at_once.enqueue(50).id for _ in range(4)]
    for one in ids:
        assert len(set(wait_for_state(one, State.SUCCEEDED).result)) == 50
    wait_for(lambda: Job.objects.filter(state="succeeded").count() == 204)
    assert running.stop() == 0


@pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed")
def test_under_a_server_nothing_is_left_either(tmp_path: Path) -> None:
    """uvicorn: 500 requests, up to 20 at a time, and one that enqueues a thousand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return json.load(answer)

    def is_up() -> bool:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            return bool(get("/threads/"))
        return False

    log = tmp_path / "log"
    changes = {"DATABASE": {"CONN_MAX_AGE": 0}, "URLS": "tests.machine.site"}
    before = sessions()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "tests.machine.site:application", "--port", str(port)],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.machine.settings",
                "DATABASE_URL": database_url(),
                "MACHINE_SETTINGS": json.dumps(changes),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(is_up, 30)
        get("/one/")
        idle = get("/threads/")["threads"]
        with ThreadPoolExecutor(20) as clients:
            list(clients.map(get, ["/one/"] * 500))
        assert len(get("/thousand/")["ids"]) == 1000
        assert Job.objects.count() == 1501
        wait_for(lambda: len(get("/threads/")["threads"]) <= len(idle))
        wait_for(lambda: sessions() <= before)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait(10)
    assert "Traceback" not in log.read_text()
