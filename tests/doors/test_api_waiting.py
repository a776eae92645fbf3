"""``GET jobs/{id}?wait=20`` under ASGI: many who wait for jobs, and one who asks for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.cache import cache
from django.core.handlers.asgi import ASGIHandler
from django.db import connection, connections
from django.test import Client
from verbs import rows
from verbs.rows import DB, GRACE, claim_one, make_job, wait_for

from pgqueue_django import deadline, transitions
from pgqueue_django.access import Actor
from pgqueue_django.answers import Unanswered
from pgqueue_django.api import reading, waiting
from pgqueue_django.api.waiting import waiting as ours
from pgqueue_django.conf import RIGHTS
from pgqueue_django.states import State

from .api_tasks import charge

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])


def everybody(request: Any) -> Actor:
    return Actor("tester", RIGHTS)


@pytest.fixture(autouse=True)
def open_api(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PGQUEUE = {"API_AUTH": [everybody]}
    settings.ROOT_URLCONF, settings.MIDDLEWARE = f"{__package__}.api_urls", []
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)  # as it is to be under ASGI


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However a wait ended, it is forgotten; and so is the thread, with its connection, when nobody waits any more."""
    monkeypatch.setattr(waiting, "_IDLE_SECONDS", 0.2)
    yield
    assert ours.count == 0
    wait_for(lambda: "pgqueue-waiting" not in {thread.name for thread in threading.enumerate()})
    wait_for(lambda: sessions("pgqueue api") == 0)


def sessions(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
        return int(cursor.fetchone()[0])


@contextlib.asynccontextmanager
async def asking(
    path: str, method: str = "GET", parts: tuple[bytes, ...] = (b"",), **headers: str
) -> AsyncIterator[ApplicationCommunicator]:
    path, _, query = path.partition("?")
    there = ApplicationCommunicator(
        ASGIHandler(),
        {
            "type": "http",
            "method": method,
            "path": f"/pgqueue/api/v1/{path}",
            "query_string": query.encode(),
            "headers": [
                (name.replace("_", "-").lower().encode(), value.encode())
                for name, value in {"host": "testserver", **headers}.items()
            ],
        },
    )
    for part in parts:
        await there.send_input({"type": "http.request", "body": part, "more_body": part is not parts[-1]})
    yield there


async def answer(there: ApplicationCommunicator) -> tuple[int, dict[str, Any]]:
    begin = await there.receive_output(60)
    body = b""
    while True:
        part = await there.receive_output(60)
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    await there.wait(60)
    return begin["status"], json.loads(body or b"{}")


async def ask(path: str, **how: Any) -> tuple[int, dict[str, Any]]:
    async with asking(path, **how) as there:
        return await answer(there)


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """In an event loop of its own, whose thread leaves no connection."""

    async def whole() -> Any:
        try:
            return await main()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(whole())


async def until(condition: Callable[[], Any]) -> None:
    await sync_to_async(wait_for)(condition)


def test_the_answer_comes_when_the_job_has_finished() -> None:
    job = make_job("queued", task=charge.path)
    held = claim_one(job.pk)

    async def main() -> tuple[int, dict[str, Any]]:
        answered = asyncio.ensure_future(ask(f"jobs/{job.pk}?wait=25"))
        await until(lambda: ours.count == 1)
        assert not answered.done()
        await sync_to_async(rows.settle)(held, rows.ending(State.SUCCEEDED))
        return await answered

    began = time.monotonic()
    status, shown = run(main)
    assert (status, shown["state"], shown["result"]) == (200, "succeeded", "ok")
    assert time.monotonic() - began < 5 + GRACE


def test_when_the_time_is_over_it_is_answered_as_it_is() -> None:
    job = make_job("queued")
    began = time.monotonic()
    status, shown = run(lambda: ask(f"jobs/{job.pk}?wait=1"))
    assert (status, shown["state"]) == (200, "queued")
    assert 1 <= time.monotonic() - began < 2 + GRACE


def test_a_job_that_has_finished_or_does_not_exist_is_answered_at_once() -> None:
    job = make_job("dead")
    began = time.monotonic()
    assert run(lambda: ask(f"jobs/{job.pk}?wait=25"))[1]["state"] == "dead"
    assert run(lambda: ask(f"jobs/{job.pk + 1}?wait=25"))[0] == 404
    assert run(lambda: ask(f"jobs/{job.pk}"))[0] == 200
    assert time.monotonic() - began < 5 + GRACE


def test_a_job_that_goes_away_is_told() -> None:
    job = make_job("queued")

    async def main() -> int:
        answered = asyncio.ensure_future(ask(f"jobs/{job.pk}?wait=25"))
        await until(lambda: ours.count == 1)
        await sync_to_async(transitions.cancel)(DB, [job.pk])
        await sync_to_async(transitions.delete)(DB, [job.pk])
        return (await answered)[0]

    assert run(main) == 404


def test_all_who_wait_share_one_connection_and_one_thread() -> None:
    """And hold none of their own meanwhile."""
    jobs = [make_job("queued").pk for _ in range(10)]

    async def main() -> list[str]:
        before = await sync_to_async(everything)()
        answers: list[Any] = []
        for n in range(0, 200, 10):  # not all at once: that would be as many connections, as with any view
            answers += [asyncio.ensure_future(ask(f"jobs/{id}?wait=25")) for id in jobs]
            await until(lambda n=n: ours.count == n + 10)
        await until(lambda: sessions("pgqueue api") == 1)
        await until(lambda: everything() <= before + 1)
        assert [thread.name for thread in threading.enumerate()].count("pgqueue-waiting") == 1
        seen = []
        await sync_to_async(transitions.cancel)(DB, jobs)
        await until(lambda: seen.append(everything()) or all(one.done() for one in answers))
        # They look at their jobs in turns.
        assert max(seen) <= before + 1 + waiting.MAX_TURNS
        return [shown["state"] for _, shown in await asyncio.gather(*answers)]

    assert run(main) == ["cancelled"] * 200


def everything() -> int:
    """Sessions of all kinds with the test's database, but for this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def test_one_too_many_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 1)
    job = make_job("queued")

    async def main() -> None:
        first = asyncio.ensure_future(ask(f"jobs/{job.pk}?wait=25"))
        await until(lambda: ours.count == 1)
        status, shown = await asyncio.wait_for(ask(f"jobs/{job.pk}?wait=25"), 5 + GRACE)
        assert (status, shown["state"]) == (200, "queued")
        await sync_to_async(transitions.cancel)(DB, [job.pk])
        assert (await first)[1]["state"] == "cancelled"

    run(main)


def test_who_waits_too_long_for_his_turn_is_told_so(monkeypatch: pytest.MonkeyPatch, second_connection: Any) -> None:
    """While the database is frozen, each one before him takes as long as a request may."""
    monkeypatch.setattr(waiting, "MAX_TURNS", 1)
    monkeypatch.setattr(waiting, "TURN_SECONDS", 0.2)
    job = make_job("queued")

    async def main() -> tuple[int, dict[str, Any]]:
        began = time.monotonic()
        asked = [asyncio.ensure_future(ask(f"jobs/{job.pk}?wait=2")) for _ in range(2)]
        await until(lambda: ours.count == 2)
        with second_connection.transaction():
            second_connection.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
            (told,), (looking,) = await asyncio.wait(asked, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert time.monotonic() - began < 2 + deadline.SECONDS  # or he had his turn after the other
        assert (await looking)[0] == 200
        return await told

    status, problem = run(main)
    assert (status, problem["code"]) == (503, "unavailable")


def test_where_nobody_can_be_started_who_asks_nobody_waits() -> None:
    usual = threading.stack_size(1 << 46)  # more than there is
    try:
        with pytest.raises(Unanswered, match="thread"):
            asyncio.run(ours.until_finished(1, 25))
    finally:
        threading.stack_size(usual)


def test_who_waits_is_counted_once(settings: Any) -> None:
    cache.clear()
    settings.PGQUEUE = {"API_AUTH": [everybody], "API_RATE": "1/h"}
    job = make_job("queued")
    assert run(lambda: ask(f"jobs/{job.pk}?wait=1"))[0] == 200
    assert run(lambda: ask(f"jobs/{job.pk}?wait=1"))[0] == 429


def test_a_client_that_has_gone_is_forgotten() -> None:
    job = make_job("queued")

    async def main() -> None:
        async with asking(f"jobs/{job.pk}?wait=25") as there:
            await until(lambda: ours.count == 1)
            await there.send_input({"type": "http.disconnect"})
            await until(lambda: ours.count == 0)
            await there.wait(10)

    run(main)


def test_who_has_waited_has_asked_once(settings: Any) -> None:
    cache.clear()
    settings.PGQUEUE = {"API_AUTH": [everybody], "API_RATE": "1/h"}
    job = make_job("queued")
    assert [run(lambda: ask(f"jobs/{job.pk}?wait=1"))[0] for _ in range(2)] == [200, 429]
    cache.clear()


def test_a_wait_that_is_over_can_be_not_modified() -> None:
    job = make_job("queued")
    etag = Client().get(f"/pgqueue/api/v1/jobs/{job.pk}").headers["ETag"]
    assert run(lambda: ask(f"jobs/{job.pk}?wait=1", if_none_match=etag))[0] == 304


@pytest.mark.parametrize("wait", ["-1", "26", "x", "1.5", "", "1&wait=2", "%D9%A1"])
def test_a_wait_that_cannot_be_meant_is_refused(wait: str) -> None:
    job = make_job("queued")
    assert run(lambda: ask(f"jobs/{job.pk}?wait={wait}"))[0] == 400


def test_under_wsgi_nobody_waits() -> None:
    for state in ("queued", "dead"):
        response = Client().get(f"/pgqueue/api/v1/jobs/{make_job(state).pk}?wait=5")
        assert (response.status_code, response.json()["code"]) == (501, "no_waiting")


def test_a_body_in_pieces_is_refused_when_it_is_too_long() -> None:
    piece = b" " * (reading.MAX_BYTES // 4)
    given = {"method": "POST", "content_type": "application/json", "transfer_encoding": "chunked"}
    assert run(lambda: ask("jobs", parts=(piece, piece, piece, piece, b" "), **given))[0] == 413
    job = json.dumps({"task": charge.path, "args": [1]}).encode()
    assert run(lambda: ask("jobs", parts=(job[:10], job[10:]), **given))[0] == 201
