"""What do many people cost who look at the dashboard?

Method: a database with 1,000,000 succeeded jobs, 5,000 ready, 5,000 scheduled, 500 dead and 50 running ones in 20
queues, and an hour of statistics. One web server process: uvicorn, or a single-threaded WSGI server, as one synchronous
worker of gunicorn is. 1 or 100 people, each logged in by a session of his own, all with the same rights, ask for the
frame every two seconds (`poll`) or hold a stream (`sse`) for a while, after a warm-up that is not counted.
`walks` are the walks over the table of jobs that PostgreSQL counted. Then, in this process, a snapshot alone, a whole
reading, and one frame made of it.

How to read it: CPU is that of the web server alone, in per cent of one core; memory is its resident memory, MB of
1,000,000 bytes. `statements` are transactions of the database a second: of a frame that is asked for, most are to find
out who asks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from bench import growth, meter, record
from bench import lab as laboratory
from bench.snapshot import _LIVE, _STATS

READINGS = 50
RIGHTS = ("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule", "view_job_payload", "cancel_job")
PATH = "/admin/pgqueue_django/job/dashboard/"
ROWS = (
    *("cpu_percent", "rss_start_mb", "rss_mb", "frames_per_second", "ms_p50", "ms_p99", "statements", "walks"),
    *("sessions", "refused"),
)

_RUNNING = """
    INSERT INTO pgqueue_job (task, queue_name, state, attempts, started_at, lease_expires_at, worker_id)
    SELECT 'bench.tasks.t' || number %% 20, 'q' || number %% 20, 'running', 1, now(), now() + interval '1 day', 'w1'
    FROM generate_series(1, 50) AS number
"""
_WSGI = """
import os
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from django.core.wsgi import get_wsgi_application
WSGIServer.request_queue_size = 256
WSGIRequestHandler.log_message = lambda *args: None
make_server("127.0.0.1", int(os.environ["PORT"]), get_wsgi_application()).serve_forever()
"""
_ASGI = """
import os, uvicorn
from django.core.asgi import get_asgi_application
uvicorn.run(get_asgi_application(), port=int(os.environ["PORT"]), log_level="critical", backlog=512)
"""
SERVERS = {"wsgi": _WSGI, "asgi": _ASGI}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="of each run (20, quick 6)")


@contextlib.contextmanager
def serving(lab: laboratory.Lab, interface: str, live: str) -> Iterator[tuple[int, int]]:
    """Port and process id of a web server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    changes = {"DATABASE_URL": lab.url, "DJANGO_SETTINGS_MODULE": "bench.settings", "PORT": str(port)}
    # Django's advice for ASGI: a connection for each request.
    changes |= {"BENCH_LIVE": live, "BENCH_CONN_MAX_AGE": "0" if interface == "asgi" else ""}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVERS[interface]],
        cwd=laboratory.ROOT,
        env={**os.environ, **changes, "PYTHONPATH": str(laboratory.ROOT)},
    )
    try:
        until = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the web server did not come")
            time.sleep(0.05)
        yield port, server.pid
    finally:
        server.kill()
        server.wait()


def log_in(many: int) -> list[str]:
    """The cookies of so many people with the same rights."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    rights = Permission.objects.filter(content_type__app_label="pgqueue_django", codename__in=RIGHTS)
    cookies = []
    for number in range(many):
        user, is_new = User.objects.get_or_create(username=f"viewer-{number}", is_staff=True)
        if is_new:
            user.user_permissions.set(rights)
        client = Client()
        client.force_login(user)
        cookies.append(client.cookies["sessionid"].value)
    return cookies


class Viewers:
    """People who look for a while: how long each answer took, and how many frames came."""

    def __init__(self, port: int, cookies: list[str]) -> None:
        self._port = port
        self._cookies = cookies
        self.took: list[float] = []
        self.frames = 0
        self.refused = 0
        """Answers that the database did not answer in time: on a machine with other things to do."""

    @contextlib.asynccontextmanager
    async def looking(self, transport: str) -> AsyncIterator[None]:
        kind = self._poll if transport == "poll" else self._listen
        tasks = [asyncio.create_task(kind(cookie, place)) for place, cookie in enumerate(self._cookies)]
        try:
            yield
            failed = [task for task in tasks if task.done()]
            for task in failed:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, path: str, cookie: str, etag: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        head = f"GET {PATH}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: sessionid={cookie}\r\nConnection: close\r\n"
        writer.write((head + (f"If-None-Match: {etag}\r\n" if etag else "") + "\r\n").encode())
        return reader, writer

    async def _poll(self, cookie: str, place: int) -> None:
        await asyncio.sleep(2 * place / len(self._cookies))
        etag = ""
        while True:
            began = time.monotonic()
            reader, writer = await self._ask("frame.json", cookie, etag)
            answer = await reader.read()
            writer.close()
            head, _, _ = answer.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            status = lines[0].split()[1]
            if status not in ("200", "304", "503"):
                raise RuntimeError(lines[0])
            self.refused += status == "503"
            etag = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("etag:")), "")
            self.took.append(time.monotonic() - began)
            self.frames += status == "200"
            await asyncio.sleep(max(0.0, began + 2 - time.monotonic()))

    async def _listen(self, cookie: str, place: int) -> None:
        await asyncio.sleep(2 * place / len(self._cookies))
        while True:
            reader, writer = await self._ask("stream/", cookie)
            status = (await reader.readline()).split()[1].decode()
            if status == "200":
                break
            if status != "503":
                raise RuntimeError(f"the stream is a {status}")
            self.refused += 1
            writer.close()
            await asyncio.sleep(2)
        try:
            while line := await reader.readline():
                self.frames += line.startswith(b"event: frame")
        finally:
            writer.close()
        raise RuntimeError("a stream ended")


_COUNTS = """
    SELECT (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()),
           (SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'pgqueue_job')
"""


def counts(lab: laboratory.Lab) -> tuple[int, int]:
    row = lab.watcher.execute(_COUNTS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def others(lab: laboratory.Lab) -> int:
    return int(
        lab.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            "backend_type = 'client backend' AND application_name <> 'bench watcher'"
        )
    )


async def watch(lab: laboratory.Lab, port: int, pid: int, cookies: list[str], transport: str, seconds: float) -> Any:
    viewers = Viewers(port, cookies)
    async with viewers.looking(transport):
        await asyncio.sleep(5)  # each has his first frame
        viewers.took.clear()
        viewers.frames = viewers.refused = 0
        before, began, (statements, walks) = meter.cost({"web": [pid]}, 0), time.monotonic(), counts(lab)
        sessions, resident = 0, 0.0
        while time.monotonic() < began + seconds:
            await asyncio.sleep(0.2)
            sessions = max(sessions, others(lab))
            resident = max(resident, meter.resident_mb([pid]))
        after, took = meter.cost({"web": [pid]}, 0), time.monotonic() - began
        (more_statements, more_walks), lengths = counts(lab), sorted(viewers.took)
    return {
        "cpu_percent": 100 * (after.cpu["web"] - before.cpu["web"]) / took,
        "rss_mb": resident,
        "frames_per_second": viewers.frames / took,
        "refused": viewers.refused,
        **({"ms_p50": 1000 * statistics.median(lengths)} if lengths else {}),
        **({"ms_p99": 1000 * lengths[int(0.99 * len(lengths))]} if lengths else {}),
        "statements": (more_statements - statements) / took,
        "walks": (more_walks - walks) / took,
        "sessions": sessions,
    }


def one_reading() -> dict[str, Any]:
    from datetime import UTC

    from django.db import connections

    from pgqueue_django import snapshot
    from pgqueue_django.dashboard import frames, live

    took: dict[str, list[float]] = {"snapshot": [], "reading": [], "frame": []}
    viewer = frames.Viewer("en", UTC, frozenset(RIGHTS), "admin")
    size = 0
    for _ in range(READINGS):
        moments = [time.perf_counter()]
        snapshot.take("default")
        moments.append(time.perf_counter())
        reading = live._watch.take("default")
        moments.append(time.perf_counter())
        size = len(frames.of(viewer, reading).body)
        moments.append(time.perf_counter())
        for name, (begin, end) in zip(took, itertools.pairwise(moments), strict=True):
            took[name].append(1000 * (end - begin))
    connections["default"].close()
    return {
        "snapshot_ms_p50": statistics.median(took["snapshot"]),
        "reading_ms_p50": statistics.median(took["reading"]),
        "reading_ms_max": max(took["reading"]),
        "frame_ms_p50": statistics.median(took["frame"]),
        "frame_bytes": size,
    }


def main() -> int:
    bench = record.Bench("dashboard", __doc__ or "", repeats=2, flags=flags)
    seconds = bench.args.seconds or (6.0 if bench.quick else 20.0)
    finished = 10_000 if bench.quick else 1_000_000
    bench.document["parameters"] = {"seconds": seconds, "finished": finished, "readings": READINGS}
    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        growth.fill(lab, "finished", finished, small=True)
        for statement in (_LIVE, _RUNNING, _STATS):
            lab.run(statement.replace("%%", "%"))
        cookies = log_in(100)
        lab.tidy()

        def run(cell: record.Cell) -> dict[str, Any]:
            if cell["viewers"] == "reading":
                return one_reading()
            interface, _, transport = cell["how"].partition(", ")
            with serving(lab, interface, transport) as (port, pid):
                start = meter.resident_mb([pid])
                chosen = cookies[: int(cell["viewers"])]
                return {
                    "rss_start_mb": start,
                    **asyncio.run(watch(lab, port, pid, chosen, transport, seconds)),
                }

        cells = record.expand(how=["wsgi, poll", "asgi, poll", "asgi, sse"], viewers=["1", "100"])
        bench.measure([*cells, {"how": "-", "viewers": "reading"}], run)

    reading, frame = (bench.median(name, viewers="reading") for name in ("reading_ms_p50", "frame_ms_p50"))
    both = reading + frame if reading and frame else None
    bench.ratio(f"a reading and its frame, beside {finished:,} jobs: at most 300 ms", both, unit=" ms", most=300)
    for how in ("wsgi, poll", "asgi, poll", "asgi, sse"):
        one, many = (bench.median("walks", how=how, viewers=viewers) for viewers in ("1", "100"))
        ratio = many / one if one and many else None
        # One who asks every two seconds wants half of the readings that many do: those come each second.
        most = 1.5 if how.endswith("sse") else 2.5
        bench.ratio(f"walks over the jobs, 100 viewers of 1, {how}: at most {most}", ratio, most=most)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
