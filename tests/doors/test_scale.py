"""With very many jobs every page is there soon, asks as many questions as with few, and scans no table of jobs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import NoReverseMatch, reverse

from doors.conftest import analyze
from doors.test_job_list import link, plans
from pgqueue_django import answers, argument_index
from pgqueue_django.models import Job
from pgqueue_django.states import State

SECONDS = 0.3
GRACE = 2
"""Times as long on a machine that does something else, too."""

# States as in life: most have ended well. 50 queues, 200 tasks, payloads of 300 bytes, and what failed has a history.
_FILL = """
    INSERT INTO pgqueue_job (task, queue_name, priority, state, args, kwargs, run_after, enqueued_at, started_at,
        finished_at, attempts, lease_expires_at, worker_id, idempotency_key, label, history, error_type,
        error_fingerprint)
    SELECT 'shop.tasks.t' || (i * 7) %% 200, 'q' || (i * 3) %% 50, i %% 3, state, '[]',
        json_build_object('tenant_id', (i * 11) %% 20000, 'note', repeat('x', 260)),
        statement_timestamp()
            + make_interval(secs => CASE state WHEN 'scheduled' THEN i ELSE (i - %(jobs)s) / 10.0 END),
        statement_timestamp() + make_interval(secs => (i - %(jobs)s) / 10.0), NULL,
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
          FROM generate_series(1, %(jobs)s) AS i) AS numbered
"""
_STATS = """
    INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, pickup_counts, run_counts)
    SELECT '1970-01-01 00:00Z', '', 'q' || (n * 3) % 50, 'shop.tasks.t' || n, n, array_fill(1::bigint, ARRAY[16]),
           array_fill(1::bigint, ARRAY[16])
    FROM generate_series(0, 199) AS n
"""

LIST = "/admin/pgqueue_django/job/"


def fill(jobs: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_FILL, {"jobs": jobs})
        cursor.execute(_STATS)
    analyze()


def pages() -> Iterator[tuple[str, str]]:
    """Names and addresses; of pages that this version has."""
    yield "list", LIST
    for state in State:
        yield f"list, {state}", f"{LIST}?state={state}"
    yield "list, one queue's ready jobs", f"{LIST}?state=queued&queue=q3"
    yield "list, a rare task", f"{LIST}?task=shop.tasks.t7"
    yield "list, within a day", f"{LIST}?since=24h"
    yield "list, dead of a kind of error within a day", f"{LIST}?state=dead&error=shop.Error3&since=24h"
    yield "search, an argument", f"{LIST}?q=args.tenant_id:7"
    yield "search, an error", f"{LIST}?q=error:declined"
    yield "search, an error of dead jobs", f"{LIST}?state=dead&q=error:%22declined+77%22"
    yield "search, a label", f"{LIST}?q=label:%22order+5%22"
    yield "search, a key", f"{LIST}?q=key:key-500"
    yield "search, a fingerprint", f"{LIST}?q=fp:0000000000000007"
    job = Job.objects.filter(state="dead").latest("id").pk
    yield "search, a number", f"{LIST}?q={job}"
    yield "one job", f"{LIST}{job}/change/"
    yield "problems", f"{LIST}problems/"
    for name in ("dashboard", "dashboard_snapshot"):
        try:
            yield name, reverse(f"admin:pgqueue_django_{name}")
        except NoReverseMatch:
            continue
    yield "health", "/pgqueue/healthz/queues"
    yield "metrics", "/pgqueue/metrics"
    yield "queues", "/admin/pgqueue_django/queue/"


def visit(client: Client, url: str) -> Any:
    answers.shared.forget()
    answer = client.get(url)
    assert answer.status_code in (200, 503), (url, answer.status_code)  # of health: there are problems
    return answer


def further(client: Client) -> Iterator[tuple[str, str]]:
    """The second page of each list, and one far away."""
    for name, url in (("list", LIST), *((f"list, {state}", f"{LIST}?state={state}") for state in State)):
        following: str | None = url
        for number in range(2, 6):
            following = link(visit(client, following), "next")
            if following is None:
                break
            if number in (2, 5):
                yield f"{name}, page {number}", following


def test_pages_scan_no_table_and_ask_as_much_as_with_few(browser: Callable[..., Client], db: None) -> None:
    client = browser(superuser=True)
    asked = dict[str, list[int]]()
    for jobs in (2_000, 18_000):
        fill(jobs) if not asked else _more(jobs)
        for name, url in [*pages(), *further(client)]:
            with CaptureQueriesContext(connection) as queries:
                visit(client, url)
            asked.setdefault(name, []).append(len(queries))
            for sql, found in plans(queries):
                assert "Seq Scan on pgqueue_job" not in found or jobs == 2_000, (name, sql, found)
    for name, numbers in asked.items():
        # A list that is all on one page is not counted: a savepoint, its settings, the count, back, and released.
        assert max(numbers) - min(numbers) in (0, 5), (name, numbers)


def _more(jobs: int) -> None:
    Job.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_stat")
    fill(jobs)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.django_db(transaction=True)
def test_with_a_million_jobs_each_page_is_there_within_a_third_of_a_second(
    browser: Callable[..., Client], capsys: pytest.CaptureFixture[str]
) -> None:
    client = browser(superuser=True)
    fill(1_000_000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgqueue_job")
    measured(client, capsys, [*pages(), *further(client)])
    argument_index.create("default")
    try:
        with CaptureQueriesContext(connection) as queries:
            answer = visit(client, f"{LIST}?q=args.tenant_id:7")
        assert answer.context["cl"].count_text == "50 jobs", "of all, and not of the newest"
        (found,) = [found for sql, found in plans(queries) if "@>" in sql]
        assert argument_index.NAME in found
        assert "Seq Scan" not in found
        measured(client, capsys, [("search, an argument, with its index", f"{LIST}?q=args.tenant_id:7")])
    finally:
        argument_index.drop("default")


def measured(client: Client, capsys: pytest.CaptureFixture[str], there: list[tuple[str, str]]) -> None:
    slow = {}
    for name, url in there:
        took = []
        for _ in range(5):
            began = time.perf_counter()
            visit(client, url)
            took.append(time.perf_counter() - began)
        median = statistics.median(took)
        with capsys.disabled():
            print(f"{name:50} {1000 * median:7.1f} ms")
        if median > SECONDS * GRACE:
            slow[name] = median
    assert not slow
