"""Frames as server-sent events, for a server that speaks ASGI.

One task for each event loop takes a reading every ``live.SECONDS`` while anybody listens, and makes a frame for each
kind of viewer, on a thread of its own: who listens only waits for it. What is too slow for its reader is left out, not
kept. A database that is away is an event, not the end of the stream.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import connections

from pgqueue_django.answers import Unanswered

from . import frames, live
from .frames import Viewer

logger = logging.getLogger("pgqueue_django")

SECONDS = 60.0
"""A stream ends after this: who comes again has to be logged in, and to have the right, still."""
PING_SECONDS = 15.0
"""After so long without an event a comment says that somebody is there: proxies end what is silent."""
RETRY_SECONDS = 3.0


class _Listener:
    """What is to be sent next to one stream."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self._next = b""
        self._came = asyncio.Event()

    def tell(self, event: bytes) -> None:
        self._next = event
        self._came.set()

    async def event(self) -> bytes:
        await self._came.wait()
        self._came.clear()
        return self._next


class _Station:
    """Those who listen on one event loop."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._away = b""
        self._seen: tuple[datetime, float] | None = None

    @contextmanager
    def joined(self, viewer: Viewer) -> Iterator[_Listener]:
        listener = _Listener(viewer)
        if self._away:
            listener.tell(self._away)
        self._listeners.add(listener)
        if self._task is None:
            # In no request's context: it outlives the one that it begins with.
            self._task = asyncio.get_running_loop().create_task(self._look(), context=contextvars.Context())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task, self._away = None, b""

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(1, "pgqueue-stream")
        try:
            while True:
                began = time.monotonic()
                viewers = {listener.viewer for listener in self._listeners}
                try:
                    made = await loop.run_in_executor(threads, _frames, viewers)
                except Exception as error:  # whatever it is: those who listen have to be told
                    if not isinstance(error, Unanswered):
                        logger.exception("dashboard: no reading")
                    if not self._away:
                        self._away = _event("away", json.dumps({"since": self._now().isoformat()}).encode())
                        for listener in self._listeners:
                            listener.tell(self._away)
                else:
                    self._away, self._seen = b"", (made.taken_at, time.monotonic())
                    for listener in self._listeners:
                        if event := made.events.get(listener.viewer):
                            listener.tell(event)
                await asyncio.sleep(max(0.0, began + live.SECONDS - time.monotonic()))
        finally:
            threads.shutdown(wait=False)

    def _now(self) -> datetime:
        """By the database's clock, as far as it is known."""
        if self._seen is None:
            return datetime.now(UTC)
        taken_at, at = self._seen
        return taken_at + timedelta(seconds=time.monotonic() - at)


class _Made(NamedTuple):
    taken_at: datetime
    events: Mapping[Viewer, bytes]


def _frames(viewers: Collection[Viewer]) -> _Made:
    reading = live.readings.reading()
    events = {}
    for viewer in viewers:
        try:
            frame = frames.of(viewer, reading)
        except Exception:  # whatever it is: the others listen, too, and the next reading may be another
            logger.exception("dashboard: no frame for %s", viewer)
        else:
            events[viewer] = _event("frame", frame.body, frame.etag.strip('"'))
    return _Made(reading.now, events)


def _event(name: str, data: bytes, id: str = "") -> bytes:
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


def _let_go() -> None:
    """Of the connections that the request was made with: Django would hold them until the stream ends."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:  # of a test
            connection.close()


_stations: WeakKeyDictionary[asyncio.AbstractEventLoop, _Station] = WeakKeyDictionary()


async def events(viewer: Viewer) -> AsyncIterator[bytes]:
    """What one stream sends, for ``SECONDS``."""
    ends_at = time.monotonic() + SECONDS
    await sync_to_async(_let_go)()
    yield f"retry: {RETRY_SECONDS * 1000:.0f}\n\n".encode()
    with _stations.setdefault(asyncio.get_running_loop(), _Station()).joined(viewer) as listener:
        while (left := ends_at - time.monotonic()) > 0:
            try:
                event = await asyncio.wait_for(listener.event(), min(PING_SECONDS, left))
            except TimeoutError:
                event = b": here\n\n"
            yield event
