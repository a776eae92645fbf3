"""The dashboard's stream under a real ASGI server: what it sends, what many of them cost, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import AsyncClient, Client, RequestFactory
from django.urls import set_script_prefix
from verbs.rows import GRACE, make_job, wait_for

from doors.conftest import log_in
from doors.websites import Website, website
from pgqueue_django import answers
from pgqueue_django.dashboard import frames, live, stream
from pgqueue_django.dashboard.frames import Viewer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed"),
]

PAGE = "/admin/pgqueue_django/job/dashboard/"
STREAM = f"{PAGE}stream/"


class Stream:
    """One browser that listens."""

    def __init__(self, site: Website, session: str, path: str = STREAM) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
        self._connection.request("GET", path, headers={"Cookie": f"sessionid={session}"})
        self.response = self._connection.getresponse()

    def event(self) -> dict[str, str]:
        """The next block of fields; a comment has the name ""."""
        found: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            found[name] = value.removeprefix(" ")
        return found

    def frame(self) -> dict[str, Any]:
        while (event := self.event()).get("event") != "frame":
            pass
        content: dict[str, Any] = json.loads(event["data"])
        return content

    def close(self) -> None:
        self.response.close()
        self._connection.close()


def session_of(client: Client) -> str:
    return client.cookies["sessionid"].value


@pytest.fixture
def session(person: Callable[..., User]) -> str:
    return session_of(log_in(person("view_dashboard", "view_job")))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Website]:
    with website(tmp_path, "asgi", LIVE="sse") as one:
        yield one


def asked(site: Website, path: str, session: str) -> tuple[int, bytes]:
    connected = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    with contextlib.closing(connected):
        connected.request("GET", path, headers={"Cookie": f"sessionid={session}"} if session else {})
        response = connected.getresponse()
        return response.status, response.read()


def test_frames_come_by_themselves_and_are_those_that_a_script_would_ask_for(site: Website, session: str) -> None:
    assert f'data-stream-url="{STREAM}"'.encode() in asked(site, PAGE, session)[1]
    one = Stream(site, session)
    assert one.response.status == 200
    assert one.response.headers["Content-Type"] == "text/event-stream"
    assert "no-store" in one.response.headers["Cache-Control"]
    assert one.event() == {"retry": "3000"}
    first = one.event()
    assert set(first) == {"id", "event", "data"}
    content = json.loads(first["data"])
    job = make_job()
    began = time.monotonic()
    while not (content := one.frame())["feed"]:
        assert time.monotonic() < began + live.SECONDS + answers.SHARED_SECONDS + GRACE
    assert content["feed"][0]["text"].startswith(f"#{job.pk} ")
    status, body = asked(site, f"{PAGE}frame.json", session)
    assert status == 200
    assert set(json.loads(body)) == set(content)
    assert json.loads(body)["number"] >= content["number"]
    one.close()


def test_a_stream_has_the_window_that_was_asked_for(site: Website, session: str) -> None:
    assert f'data-stream-url="{STREAM}?window=hour"'.encode() in asked(site, f"{PAGE}?window=hour", session)[1]
    one, other = Stream(site, session, f"{STREAM}?window=hour"), Stream(site, session)
    assert one.frame()["window"] == "hour"
    assert other.frame()["window"] == "live"
    one.close()
    other.close()


def test_a_stream_is_for_those_who_may_see_the_dashboard(site: Website, person: Callable[..., User]) -> None:
    assert asked(site, STREAM, "")[0] == 401
    assert asked(site, STREAM, session_of(log_in(person("view_job"))))[0] == 403


def sessions() -> int:
    """Of others, on this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def test_a_hundred_streams_see_the_readings_of_one_and_leave_nothing(site: Website, session: str) -> None:
    asked(site, f"{PAGE}frame.json", session)
    threads = site.process.num_threads()
    many = [Stream(site, session) for _ in range(100)]
    numbers, most = [], 0
    for one in many:
        numbers.append([one.frame()["number"] for _ in range(2)])
        most = max(most, sessions())
    # Each begins with a frame that others have, too, and misses none.
    assert all(second == first + 1 for first, second in numbers)
    assert max(map(max, numbers)) - min(map(min, numbers)) < 50
    # One takes the readings. Django would keep the connection of each request until its stream ends.
    assert most <= 3
    # A thread for each is Django's own way: a request keeps the one that its view ran on.
    assert site.process.num_threads() <= threads + 100 + 5
    for one in many:
        one.close()
    wait_for(lambda: sessions() == 0, 10)
    wait_for(lambda: site.process.num_threads() <= threads + 1, 10)


def test_nobody_reads_when_everybody_has_gone(site: Website, session: str) -> None:
    one = Stream(site, session)
    number = one.frame()["number"]
    one.close()

    def next_number() -> int:
        return int(json.loads(asked(site, f"{PAGE}frame.json", session)[1])["number"])

    # The server learns that a reader is gone when it next writes, so at most one reading more.
    wait_for(lambda: sessions() == 0 or next_number() >= number, 5)
    before = next_number()
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + 2 * live.SECONDS + 0.5)
    assert next_number() == before + 1


@pytest.mark.parametrize(("interface", "live"), [("wsgi", {"LIVE": "sse"}), ("asgi", {}), ("asgi", {"LIVE": "poll"})])
def test_without_asgi_or_the_setting_there_is_no_stream(
    interface: str, live: dict[str, Any], tmp_path: Path, session: str
) -> None:
    with website(tmp_path, interface, **live) as site:
        assert asked(site, STREAM, session) == (204, b"")
        status, page = asked(site, PAGE, session)
        assert status == 200
        assert b"data-stream-url" not in page


# -- in this process: what would take too long to wait for ------------------------------------------------------


def viewer(window: str = "live") -> Viewer:
    return Viewer("en", UTC, frozenset({"view_job"}), "admin", window)


@contextlib.asynccontextmanager
async def listening(one: Viewer) -> AsyncIterator[AsyncIterator[bytes]]:
    events = stream.events(one)
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        assert (await anext(events)).startswith(b"retry: ")
        yield events


def in_a_loop(main: Callable[[], Any]) -> None:
    try:
        asyncio.run(main())
    finally:
        frames.forget()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("pgqueue-stream")])


def test_a_stream_ends_so_that_whoever_comes_again_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SECONDS", 1.0)
    assert stream.PING_SECONDS > 1

    async def main() -> None:
        began = time.monotonic()
        async with listening(viewer()) as events:
            found = [event async for event in events]
        assert found
        assert 1.0 <= time.monotonic() - began < 1.0 + answers.SECONDS + GRACE

    in_a_loop(main)


def test_a_stream_whose_rights_were_taken_ends_soon() -> None:
    assert stream.SECONDS <= 60


def test_links_lead_to_where_the_project_is_mounted() -> None:
    """The frames are made on a thread that is in no request."""
    set_script_prefix("/shop/")
    try:
        one = frames.viewer_of(RequestFactory().get(PAGE), frozenset({"view_job"}), "admin")
    finally:
        set_script_prefix("/")

    async def main() -> None:
        async with listening(one) as events:
            content = json.loads((await anext(events)).decode().partition("data: ")[2])
        assert {tile["url"].partition("pgqueue_django/")[0] for tile in content["tiles"]} == {"/shop/admin/", ""}

    in_a_loop(main)


def test_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PING_SECONDS", 0.3)

    async def main() -> None:
        async with listening(viewer()) as events:
            while await anext(events) != b": here\n\n":
                pass

    in_a_loop(main)


def test_a_reader_that_is_slow_gets_the_newest_frame_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.1)
    monkeypatch.setattr(live.readings, "seconds", 0.0)

    async def main() -> None:
        async with listening(viewer()) as slow, listening(viewer()) as quick:
            numbers = [number_of(await anext(quick)) for _ in range(4)]
            assert numbers == list(range(numbers[0], numbers[0] + 4))
            assert number_of(await anext(slow)) >= numbers[-1]

    in_a_loop(main)


def test_a_frame_that_cannot_be_made_takes_nobody_else_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.1)
    monkeypatch.setattr(live.readings, "seconds", 0.0)
    bad = dataclasses.replace(viewer(), site="of nobody")
    made = frames.of

    def of(one: Viewer, reading: live.Reading) -> frames.Frame:
        if one == bad and caplog.messages == []:
            raise OverflowError("date value out of range")
        return made(one, reading)

    monkeypatch.setattr(frames, "of", of)

    async def main() -> None:
        async with listening(bad) as one, listening(viewer()) as other:
            numbers = [number_of(await anext(other)) for _ in range(3)]
            assert numbers == list(range(numbers[0], numbers[0] + 3))
            assert number_of(await anext(one)) > 0

    with caplog.at_level("ERROR", "pgqueue_django"):
        in_a_loop(main)
    assert len(caplog.messages) == 1
    assert "no frame for" in caplog.messages[0]


def test_a_reading_that_fails_in_any_way_is_an_event_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.1)
    reading = live.readings.reading

    def none(until: float | None = None) -> live.Reading:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        async with listening(viewer()) as events:
            number = number_of(await anext(events))
            monkeypatch.setattr(live.readings, "reading", none)
            while not (await asyncio.wait_for(anext(events), 5 + GRACE)).startswith(b"event: away"):
                pass
            monkeypatch.setattr(live.readings, "reading", reading)
            assert number_of(await anext(events)) >= number

    with caplog.at_level("ERROR", "pgqueue_django"):
        in_a_loop(main)
    assert "dashboard: no reading" in caplog.messages


def number_of(event: bytes) -> int:
    return int(json.loads(event.decode().partition("data: ")[2])["number"])


def test_a_database_that_is_away_is_said_once_and_to_whoever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.1)
    monkeypatch.setattr(live.readings, "seconds", 0.0)
    monkeypatch.setattr(stream, "PING_SECONDS", 0.5)
    settings = connection.settings_dict

    async def main() -> None:
        async with listening(viewer()) as events:
            await anext(events)
            monkeypatch.setitem(settings, "PORT", "1")
            while not (said := await anext(events)).startswith(b"event: away"):
                pass
            assert set(json.loads(said.partition(b"data: ")[2])) == {"since"}
            assert await anext(events) == b": here\n\n"
            async with listening(viewer()) as other:
                assert await anext(other) == said
            monkeypatch.undo()
            assert (await anext(events)).startswith(b"id: ")

    in_a_loop(main)


def test_a_head_of_a_stream_is_no_stream(settings: Any, person: Callable[..., User]) -> None:
    settings.PGQUEUE = {"LIVE": "sse"}
    client = AsyncClient()
    client.cookies = log_in(person("view_dashboard")).cookies

    async def main() -> int:
        status: int = (await client.head(STREAM)).status_code
        await sync_to_async(connections.close_all)()  # of the thread that the view ran on
        return status

    assert asyncio.run(main()) == 204


def test_a_middleware_that_compresses_does_not_hold_the_frames_back(settings: Any, person: Callable[..., User]) -> None:
    settings.PGQUEUE = {"LIVE": "sse"}
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
    client = AsyncClient()
    client.cookies = log_in(person("view_dashboard")).cookies

    async def main() -> bytes:
        answer = await client.get(STREAM, headers={"Accept-Encoding": "gzip"})
        first: bytes = await anext(aiter(answer.streaming_content))
        await sync_to_async(connections.close_all)()
        return first

    assert asyncio.run(main()).startswith(b"retry: ")
