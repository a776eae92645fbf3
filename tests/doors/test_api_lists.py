"""Lists of jobs: complete, in the order of their index, and with work that does not grow with the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import signing
from django.db import connection
from django.test import Client
from verbs.rows import make_job, statements

from pgqueue_django import walks
from pgqueue_django.access import Actor
from pgqueue_django.api import shapes
from pgqueue_django.conf import RIGHTS
from pgqueue_django.models import Job
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import State

from .conftest import analyze, fill, plan

pytestmark = pytest.mark.django_db

JOBS = "/pgqueue/api/v1/jobs"


def everybody(request: Any) -> Actor:
    return Actor("tester", RIGHTS)


@pytest.fixture(autouse=True)
def open_api(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [everybody]}


def get(path: str, status: int = 200) -> Any:
    response = Client().get(path)
    assert response.status_code == status, response.content
    return response.json()


def pages(query: str) -> Iterator[list[int]]:
    following: str | None = f"{JOBS}?{query}"
    while following:
        response = Client().get(following)
        page = response.json()
        yield [job["id"] for job in page["jobs"]]
        following = page["next"]
        assert response.headers.get("Link") == (following and f'<{following}>; rel="next"')


def walked(query: str) -> list[int]:
    return [id for page in pages(query) for id in page]


@pytest.fixture
def many() -> None:
    fill(**{state.value: 23 for state in State})


# As the indexes have them; with many equal moments, which only the number tells apart.
ORDERS: dict[str, tuple[str, ...]] = {
    "queued": ("queue_name", "-priority", "run_after", "id"),
    "scheduled": ("run_after", "id"),
    "retrying": ("run_after", "id"),
    "running": ("worker_id", "id"),
}


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("limit", [1, 7, 200])
@pytest.mark.parametrize("state", ["", *State])
def test_page_by_page_each_job_is_there_once_and_in_order(state: str, limit: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET run_after = date_trunc('minute', run_after)")
    jobs = Job.objects.filter(state=state) if state else Job.objects.all()
    expected = list(jobs.order_by(*ORDERS.get(state, ("-id",))).values_list("id", flat=True))
    assert len(expected) == (23 if state else 8 * 23)
    assert walked(f"limit={limit}" + (f"&state={state}" if state else "")) == expected


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("state", ["", *State])
def test_filters_leave_out_what_does_not_fit(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Job.objects.filter(queue_name="q1", task="shop.tasks.t3", **({"state": state} if state else {}))
    expected = set(jobs.values_list("id", flat=True))
    assert expected
    query = "queue_name=q1&task=shop.tasks.t3" + (f"&state={state}" if state else "")
    assert set(walked(query)) == expected
    # And with pages that look at so few rows that some of them find nothing.
    monkeypatch.setattr(walks, "LOOKED_AT", 4)
    found = list(pages(query))
    assert sorted(id for page in found for id in page) == sorted(expected)
    assert [] in found


@pytest.mark.usefixtures("many")
def test_one_page_looks_at_no_more_rows_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 10)
    newest = list(Job.objects.order_by("-id").values_list("id", "task")[:10])
    page = get(f"{JOBS}?task=shop.tasks.t3")
    assert [job["id"] for job in page["jobs"]] == [id for id, task in newest if task == "shop.tasks.t3"]
    assert page["next"]


def test_a_new_job_does_not_disturb_who_turns_the_pages() -> None:
    old = [make_job().pk for _ in range(4)]
    first = get(f"{JOBS}?limit=2")
    make_job()
    second = get(first["next"])
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == old[::-1]


def test_a_job_is_found_by_its_key() -> None:
    job = make_job(task="shop.tasks.charge", idempotency_key="order-7")
    make_job(task="shop.tasks.other", idempotency_key="order-7")
    query = f"{JOBS}?task=shop.tasks.charge&idempotency_key=order-7"
    assert [one["id"] for one in get(query)["jobs"]] == [job.pk]
    assert get(f"{query}&state=queued")["jobs"] != []
    assert get(f"{query}&state=dead")["jobs"] == []


def test_to_look_for_a_key_needs_the_right_to_read_it(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [lambda request: Actor("viewer", {"view_job"})]}
    get(f"{JOBS}?task=shop.tasks.charge&idempotency_key=order-7", 403)


def test_a_cursor_is_good_for_its_own_filters_only_and_cannot_be_made() -> None:
    fill(queued=5, dead=5)
    cursor = parse_qs(urlsplit(get(f"{JOBS}?state=queued&limit=2")["next"]).query)["cursor"][0]
    get(f"{JOBS}?state=queued&limit=3&cursor={cursor}")
    for other in ("state=dead", "state=scheduled", "", "state=queued&queue_name=q1"):
        assert get(f"{JOBS}?{other}&cursor={cursor}", 400)["code"] == "cursor"
    get(f"{JOBS}?state=queued&cursor={cursor[:-1]}", 400)
    get(f"{JOBS}?state=queued&cursor={signing.dumps(['q', 0, 'x', 1])}", 400)


def test_nothing_is_counted_and_a_page_is_one_reading() -> None:
    fill(queued=5, dead=5)
    for query in ("", "?state=queued", "?state=dead&task=shop.tasks.t1", "?queue_name=q1&limit=1"):
        with statements() as sent:
            get(f"{JOBS}{query}")
        sent = [sql for sql in sent if "pgqueue_job" in sql]
        assert len(sent) == 1
        assert "count(" not in sent[0].lower()


# -- plans -----------------------------------------------------------------------------------------------------

INDEXES = {
    "": "pgqueue_job_pkey",
    "succeeded": "pgqueue_job_pkey",
    "cancelled": "pgqueue_job_pkey",
    "queued": "pgqueue_job_ready",
    "scheduled": "pgqueue_job_waiting",
    "retrying": "pgqueue_job_waiting",
    "running": "pgqueue_job_running",
    "failed": "pgqueue_job_broken",
    "dead": "pgqueue_job_broken",
}


def a_page(filters: dict[str, str], limit: int, cut: walks.Cut | None = None) -> walks.Page:
    with index_walks("default") as cursor:
        return walks.page(cursor, *walks.chosen(filters), limit, cut, columns=shapes.SUMMARY)


@pytest.mark.parametrize("statistics", ["fresh", "empty", "of other jobs"])
@pytest.mark.parametrize("state", INDEXES)
def test_each_page_walks_along_one_index(state: str, statistics: str) -> None:
    if statistics == "of other jobs":
        fill(**({one.value: 10 for one in State} | {state or "dead": 20_000}))
    if statistics != "fresh":
        analyze()
        Job.objects.all().delete()
    fill(**{one.value: 500 for one in State} | {"succeeded": 20_000})
    if statistics == "fresh":
        analyze()
    for filters in ({}, {"queue_name": "q1"}, {"task": "shop.tasks.t1"}):
        wanted = {**filters, **({"state": state} if state else {})}
        for cut in (None, a_page(wanted, 5).ends):
            with statements() as sent:
                a_page(wanted, 50, cut)
            for sql in sent:
                if "pgqueue_job" not in sql:
                    continue
                with index_walks("default"):
                    found = plan(sql.replace("%", "%%"))
                assert "Seq Scan" not in found, f"{wanted} {cut}\n{found}"
                assert INDEXES[state] in found, f"{wanted} {cut}\n{found}"
                # Equal moments are put in the order of their numbers; nothing else is sorted.
                assert "Sort" not in found.replace("Incremental Sort", "").replace("Presorted", "").replace(
                    "Sort Key", ""
                ), found


@pytest.mark.parametrize("state", ["failed", "dead"])
def test_a_queue_is_requeued_along_the_index_of_broken_jobs(state: str) -> None:
    fill(**({one.value: 10 for one in State} | {state: 20_000}))
    analyze()
    Job.objects.all().delete()
    fill(succeeded=20_000, failed=50, dead=50)
    with statements() as sent:
        response = Client().post("/pgqueue/api/v1/queues/q1/requeue", {"state": state}, "application/json")
    assert response.json() == {"requeued": Job.objects.filter(queue_name="q1", state="queued").count(), "more": False}
    assert response.json()["requeued"] > 10
    walk = next(sql for sql in sent if sql.startswith("SELECT") and "LIMIT" in sql and '"pgqueue_job"' in sql)
    with index_walks("default"):
        found = plan(walk.replace("%", "%%"))
    assert "pgqueue_job_broken" in found, found
