"""How long do the pages for people take beside very many jobs, and what does the index on arguments cost?

Method: tables of 20,000 and 1,000,000 jobs (others with --sizes), states mixed as in life (91 % have succeeded), 50
queues, 200 tasks, payloads of 300 bytes, a history on what failed; VACUUM ANALYZE and CHECKPOINT. Each page is asked
for nine times over Django's test client, by somebody who may see all, after a first time that is not counted.
Milliseconds are of the client; CPU is user and system time of this process and of its session's server process, which
other work on the machine does not change. Then, with and without the index on arguments: 2,000 single enqueues, 20,000
in bulk, and all of them claimed and settled in hundreds; of these the CPU of the server process.

How to read it: CPU is what a page takes on an idle machine, with its data in memory; the difference between the two is
who else was running.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import lab as laboratory
from bench import record

VISITS = 9
LIST = "/admin/pgqueue_django/job/"
_STATES = ("scheduled", "queued", "running", "retrying", "succeeded", "failed", "dead", "cancelled")
_TICKS = os.sysconf("SC_CLK_TCK")

FILL = """
    INSERT INTO pgqueue_job (task, queue_name, priority, state, args, kwargs, run_after, enqueued_at, finished_at,
        attempts, lease_expires_at, worker_id, idempotency_key, label, history, error_type, error_fingerprint)
    SELECT 'shop.tasks.t' || (i * 7) %% 200, 'q' || (i * 3) %% 50, i %% 3, state, '[]',
        json_build_object('tenant_id', (i * 11) %% 20000, 'note', repeat('x', 260)),
        statement_timestamp()
            + make_interval(secs => CASE state WHEN 'scheduled' THEN i ELSE (i - %(jobs)s) / 10.0 END),
        statement_timestamp() + make_interval(secs => (i - %(jobs)s) / 10.0),
        CASE WHEN state IN ('succeeded', 'failed', 'dead', 'cancelled') THEN statement_timestamp() END, 1,
        CASE state WHEN 'running' THEN statement_timestamp() + interval '1 hour' END, 'w' || i %% 20,
        CASE WHEN i %% 10 = 0 THEN 'key-' || i END, 'order ' || i,
        CASE WHEN state IN ('failed', 'dead') THEN jsonb_build_array(jsonb_build_object('attempt', 1, 'kind', 'error',
            'error_type', 'shop.Error' || i %% 5, 'message', 'declined ' || i, 'traceback', repeat('line of it ', 60)))
        ELSE '[]' END,
        CASE WHEN state IN ('failed', 'dead') THEN 'shop.Error' || i %% 5 END,
        CASE WHEN state IN ('failed', 'dead') THEN lpad(to_hex(i %% 40), 16, '0') END
    FROM (SELECT i, (ARRAY['scheduled', 'queued', 'queued', 'queued', 'retrying', 'failed', 'dead', 'dead', 'cancelled',
              CASE WHEN i %% 50 = 0 THEN 'running' ELSE 'succeeded' END])[1 + LEAST(i %% 100, 9)] AS state
          FROM generate_series(1 + %(from)s, %(to)s) AS i) AS numbered
"""
STATS = """
    INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, pickup_counts, run_counts)
    SELECT '1970-01-01 00:00Z', '', 'q' || (n * 3) % 50, 'shop.tasks.t' || n, n, array_fill(1::bigint, ARRAY[16]),
           array_fill(1::bigint, ARRAY[16])
    FROM generate_series(0, 199) AS n
"""


def fill(execute: Callable[..., Any], jobs: int) -> None:
    for start in range(0, jobs, 500_000):
        execute(FILL, {"jobs": jobs, "from": start, "to": min(jobs, start + 500_000)})
    execute(STATS)


def there(job: int) -> Iterator[tuple[str, str]]:
    """Names and addresses. ``job``: the number of one that is dead."""
    yield "list", LIST
    for state in _STATES:
        yield f"list, {state}", f"{LIST}?state={state}"
    yield "list, one queue's ready jobs", f"{LIST}?state=queued&queue=q3"
    yield "list, a rare task", f"{LIST}?task=shop.tasks.t7"
    yield "list, within a day", f"{LIST}?since=24h"
    yield "list, dead of one type of error within a day", f"{LIST}?state=dead&error=shop.Error3&since=24h"
    yield "search, an argument", f"{LIST}?q=args.tenant_id:7"
    yield "search, an error", f"{LIST}?q=error:declined"
    yield "search, an error of dead jobs", f"{LIST}?state=dead&q=error:%22declined+77%22"
    yield "search, a label", f"{LIST}?q=label:%22order+5%22"
    yield "search, a key", f"{LIST}?q=key:key-500"
    yield "search, a fingerprint", f"{LIST}?q=fp:0000000000000007"
    yield "search, a number", f"{LIST}?q={job}"
    yield "one job", f"{LIST}{job}/change/"
    yield "problems", f"{LIST}problems/"
    yield "queues", "/admin/pgqueue_django/queue/"
    yield "health", "/pgqueue/healthz/queues"
    yield "metrics", "/pgqueue/metrics"


class Clock:
    """CPU seconds of this process and of its session's server process."""

    def __init__(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            self._stat = Path(f"/proc/{cursor.fetchone()[0]}/stat")

    def server(self) -> float:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def both(self) -> float:
        return time.process_time() + self.server()


def visit(client: Any, url: str) -> Any:
    from pgqueue_django import answers

    answers.shared.forget()
    answer = client.get(url)
    assert answer.status_code in (200, 503), (url, answer.status_code)  # of health: there are problems
    return answer


def timed(client: Any, url: str, visits: int) -> dict[str, float]:
    """``ms_p50`` of the client, and ``cpu_ms`` of a visit."""
    visit(client, url)
    clock = Clock()
    before, took = clock.both(), []
    for _ in range(visits):
        began = time.perf_counter()
        visit(client, url)
        took.append(1000 * (time.perf_counter() - began))
    return {"ms_p50": statistics.median(took), "cpu_ms": 1000 * (clock.both() - before) / visits}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=record.numbers, help="jobs in the tables (20000,1000000; quick 20000)")


def main() -> int:
    bench = record.Bench("pages", __doc__ or "", repeats=2, flags=flags)
    sizes = bench.args.sizes or ([20_000] if bench.quick else [20_000, 1_000_000])
    bench.document["parameters"] = {"visits": VISITS, "sizes": sizes}
    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        for size in sizes:
            lab.use(f"pages_{size}")
            fill(lambda query, values=None: lab.watcher.execute(query, values), size)
            lab.tidy()

        def look(cell: record.Cell) -> dict[str, Any]:
            from django.contrib.auth.models import User
            from django.db import connections
            from django.test import Client

            lab.use(f"pages_{cell['jobs']}")
            client = Client(headers={"host": "localhost"})
            user, _ = User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)
            client.force_login(user)
            try:
                return timed(client, urls[cell["jobs"]][cell["page"]], VISITS)
            finally:
                connections["default"].close()

        urls = {}
        for size in sizes:
            lab.use(f"pages_{size}")
            urls[size] = dict(there(int(lab.ask("SELECT max(id) FROM pgqueue_job WHERE state = 'dead'"))))
            urls[size] |= {f"{name}, far away": url for name, url in far_away(lab)}
        bench.measure([{"jobs": size, "page": page} for size in sizes for page in urls[size]], look)

        def write(cell: record.Cell) -> dict[str, Any]:
            from pgqueue_django import argument_index

            lab.use(f"pages_{sizes[-1]}")
            (argument_index.make if cell["index"] == "with" else argument_index.drop)("default")
            lab.tidy()
            figures = writes()
            if cell["index"] == "with":
                figures["index_mb"] = lab.ask(f"SELECT pg_relation_size('{argument_index.NAME}')") / 1e6
            lab.run("DELETE FROM pgqueue_job WHERE queue_name = 'bench'")
            return figures

        bench.measure(record.expand(index=["without", "with"]), write)

    slowest = {
        size: max((bench.median("cpu_ms", jobs=size, page=page) or 0.0, page) for page in urls[size]) for size in sizes
    }
    for size, (cpu, page) in slowest.items():
        bench.ratio(f"a page beside {size:,} jobs: at most 300 ms of CPU", cpu, unit=" ms", most=300, why=page)
    return bench.finish()


def far_away(lab: laboratory.Lab) -> Iterator[tuple[str, str]]:
    """Pages in the middle of lists."""
    from urllib.parse import urlencode

    from pgqueue_django import walks
    from pgqueue_django.admin import listing
    from pgqueue_django.states import State

    for state in ("", "dead", "queued", "scheduled"):
        walk = walks.OF_STATE[State(state)] if state else walks.NEWEST
        query = f"SELECT {', '.join(walk.place)} FROM pgqueue_job WHERE {walk.where} ORDER BY {walk.order(False)}"
        many = lab.ask(f"SELECT count(*) FROM pgqueue_job WHERE {walk.where}")
        place = lab.watcher.execute(f"{query} OFFSET {many // 2} LIMIT 1").fetchone()
        filters = {"state": state} if state else {}
        text = walks.written([False, True, *(place or ())], listing.SALT, filters)
        yield f"list{f', {state}' if state else ''}", f"{LIST}?{urlencode({**filters, 'p': text})}"


def writes() -> dict[str, float]:
    """Microseconds of the server's CPU a job."""
    from bench.tasks import noop
    from pgqueue_django import enqueue_many, transitions
    from pgqueue_django.outcomes import Succeeded
    from pgqueue_django.transitions import Settlement

    task, clock, figures = noop.using(queue_name="bench"), Clock(), {}

    def order(number: int) -> dict[str, Any]:
        return {"tenant_id": number, "note": "x" * 260}

    before = clock.server()
    for number in range(2_000):
        task.enqueue(order(number))
    figures["enqueue_us"] = (clock.server() - before) / 2_000 * 1e6
    before = clock.server()
    for start in range(0, 20_000, 1_000):
        enqueue_many([task.call(order(start + number)) for number in range(1_000)])
    figures["enqueue_many_us"] = (clock.server() - before) / 20_000 * 1e6
    before, done = clock.server(), 0
    while held := transitions.claim("default", queue_name="bench", slots=100, worker_id="w", lease_seconds=60):
        done += len(held)
        transitions.settle("default", [Settlement(job, Succeeded("null"), 0.0, 0.0) for job in held], worker_id="w")
    figures["claim_and_settle_us"] = (clock.server() - before) / max(1, done) * 1e6
    return figures


if __name__ == "__main__":
    sys.exit(main())
