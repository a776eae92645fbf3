"""The list of jobs in the admin: its pages, its filters, its count, and what it asks of the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from verbs import rows
from verbs.rows import make_job

from doors.conftest import analyze, fill, plan
from pgqueue_django import walks
from pgqueue_django.admin import choices, listing
from pgqueue_django.admin.jobs import JobAdmin
from pgqueue_django.models import Job, Stat, Worker
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db

LIST = "/admin/pgqueue_django/job/"
Browser = Callable[..., Client]
QUICK = ("succeeded", "cancelled")
"""States without an index of their own."""


@pytest.fixture
def viewer(browser: Browser) -> Client:
    return browser("view_job", "view_job_payload")


@pytest.fixture
def root(browser: Browser) -> Client:
    return browser(superuser=True)


def ids(answer: HttpResponse) -> list[int]:
    assert answer.status_code == 200
    return [job.pk for job in answer.context["cl"].result_list]


def listed(client: Client, **query: str) -> list[int]:
    return ids(client.get(LIST, query))


def link(answer: HttpResponse, rel: str) -> str | None:
    found = re.search(rf'<a href="([^"]*)" rel="{rel}"', answer.content.decode())
    return found and LIST + found[1].replace("&amp;", "&")


def turned(client: Client, url: str, rel: str = "next") -> Iterator[HttpResponse]:
    """This page and all that its links lead to."""
    following: str | None = url
    while following:
        answer = client.get(following)
        yield answer
        following = link(answer, rel)


# -- pages -----------------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[str, ...]] = {
    "queued": ("queue_name", "-priority", "run_after", "id"),
    "scheduled": ("run_after", "id"),
    "retrying": ("run_after", "id"),
    "running": ("worker_id", "id"),
}


@pytest.mark.parametrize("state", ["", *State])
def test_pages_hold_every_job_once_in_order_forwards_and_backwards(
    state: str, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 7)
    fill(**{one.value: 23 for one in State})
    with connection.cursor() as cursor:  # many equal moments, which only the number tells apart
        cursor.execute("UPDATE pgqueue_job SET run_after = date_trunc('minute', run_after)")
    jobs = Job.objects.filter(state=state) if state else Job.objects.all()
    expected = list(jobs.order_by(*ORDERS.get(state, ("-id",))).values_list("id", flat=True))
    url = f"{LIST}?state={state}" if state else LIST
    there = list(turned(viewer, url))
    pages = [ids(page) for page in there]
    assert [one for page in pages for one in page] == expected
    assert {len(page) for page in pages[:-1]} == {7}
    assert pages[-1], "no link leads to an empty page"
    back = [
        ids(page)
        for page in turned(viewer, there[-1].request["PATH_INFO"] + "?" + there[-1].request["QUERY_STRING"], "prev")
    ]
    assert back == pages[::-1]
    assert link(there[0], "prev") is None


def test_a_new_job_does_not_disturb_who_turns_the_pages(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    old = [rows.make_job().pk for _ in range(6)][::-1]
    first = viewer.get(LIST)
    new = rows.make_job().pk
    second = viewer.get(link(first, "next"))
    assert ids(first) + ids(second) == old[:4]
    before = viewer.get(link(second, "prev"))
    assert ids(before) == old[:2], "the page that it came from, with another before it"
    assert ids(viewer.get(link(before, "prev"))) == [new, old[0]], "the first page is never a short one"


def test_pages_go_by_place_and_not_by_number(viewer: Client) -> None:
    fill(queued=250)
    with CaptureQueriesContext(connection) as queries:
        pages = list(turned(viewer, LIST))
    assert [len(ids(page)) for page in pages] == [100, 100, 50]
    assert not [one["sql"] for one in queries if "OFFSET" in one["sql"].upper()]
    assert not re.search(r"[?&;]p=\d", pages[1].content.decode())


@pytest.mark.parametrize("place", ["2", "x", "WzEsMl0:1abc:x", "%00", "..%2f"])
def test_a_place_that_is_none_leads_to_the_list(place: str, viewer: Client) -> None:
    assert viewer.get(f"{LIST}?p={place}").status_code == 302


def test_a_place_is_good_for_its_own_filters_only(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    fill(queued=5, dead=5)
    following = link(viewer.get(LIST, {"state": "queued"}), "next")
    assert following
    assert viewer.get(following).status_code == 200
    assert viewer.get(following.replace("state=queued", "state=dead")).status_code == 302
    assert viewer.get(following + "&q=x").status_code == 302


@pytest.mark.parametrize("sort", ["1", "-3", "4.-2", "7"])
def test_nobody_sorts_by_what_has_no_index(sort: str, viewer: Client) -> None:
    fill(queued=80, dead=80)
    newest = list(Job.objects.order_by("-id").values_list("pk", flat=True)[:100])
    assert listed(viewer, o=sort) == newest
    assert "sortable" not in viewer.get(LIST).content.decode()


def test_the_page_says_how_many_there_are_in_which_order(viewer: Client) -> None:
    fill(queued=3, running=1)
    text = viewer.get(LIST, {"state": "queued"}).content.decode()
    assert "3 jobs, in the order in which each queue is claimed" in text
    assert "1 job, by worker" in viewer.get(LIST, {"state": "running"}).content.decode()
    assert "4 jobs, the newest first" in viewer.get(LIST).content.decode()


# -- filters ---------------------------------------------------------------------------------------------------


def matching(**filters: str) -> set[int]:
    names = {"queue": "queue_name", "worker": "worker_id", "error": "error_type"}
    jobs = Job.objects.filter(**{names.get(name, name): value for name, value in filters.items()})
    return set(jobs.values_list("pk", flat=True))


@pytest.mark.parametrize("state", ["", *State])
@pytest.mark.parametrize(
    "filters",
    [{"queue": "q1"}, {"task": "shop.tasks.t3"}, {"worker": "w2"}, {"error": "shop.CardError"},
     {"queue": "q1", "task": "shop.tasks.t3", "worker": "w2"}],
)  # fmt: skip
def test_filters_find_what_fits_and_nothing_else(filters: dict[str, str], state: str, viewer: Client) -> None:
    fill(**{one.value: 90 for one in State})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET error_type = 'shop.CardError' WHERE id % 5 = 0")
    if state:
        filters = {**filters, "state": state}
    expected = matching(**filters)
    assert expected
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    found = [id for page in turned(viewer, f"{LIST}?{query}") for id in ids(page)]
    assert sorted(found) == sorted(expected)


def test_filters_and_a_search_are_asked_together_on_every_page(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 3)
    fill(**{one.value: 90 for one in State})
    expected = matching(state="dead", queue="q1", task="shop.tasks.t3")
    pages = list(turned(viewer, f"{LIST}?state=dead&queue=q1&q=task:shop.tasks.t3"))
    assert len(pages) > 1
    assert sorted(id for page in pages for id in ids(page)) == sorted(expected)
    text = pages[-1].content.decode()
    assert 'value="task:shop.tasks.t3"' in text
    assert '<input type="hidden" name="queue" value="q1">' in text, "the search would lose the filter"
    assert 'name="p"' not in text, "nor may it go on at a place of another list"


def test_a_choice_begins_at_the_first_page(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    fill(dead=9, queued=9)
    second = list(turned(viewer, LIST))[1].content.decode()
    panel = second[second.index('id="changelist-filter"') :]
    hrefs = re.findall(r'<a href="(\?[^"]*)"', panel[: panel.index("pgq-pages") if "pgq-pages" in panel else None])
    assert any("state=dead" in href for href in hrefs)
    assert not [href for href in hrefs if "p=" in href]


@pytest.mark.parametrize("name", ["state", "queue", "task", "worker", "error", "since"])
@pytest.mark.parametrize("value", ["nothing-like-it", "<script>alert(1)</script>", "\0", "'; DROP TABLE x; --", "%s"])
def test_what_no_job_has_finds_nothing(name: str, value: str, viewer: Client) -> None:
    fill(dead=3, running=3)
    answer = viewer.get(LIST, {name: value})
    assert ids(answer) == []
    assert "<script>alert" not in answer.content.decode()
    assert "0 jobs" in answer.content.decode()


def test_an_empty_filter_is_none(viewer: Client) -> None:
    fill(dead=3)
    assert len(listed(viewer, state="", queue="", since="")) == 3


# -- enqueued within -------------------------------------------------------------------------------------------


def age(seconds: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_job SET enqueued_at = statement_timestamp() - make_interval(secs => {seconds})")


@pytest.mark.parametrize("state", ["", "dead", "queued", "succeeded"])
@pytest.mark.parametrize(("since", "seconds"), [("1h", 3600), ("24h", 86_400), ("7d", 604_800)])
def test_enqueued_within(since: str, seconds: int, state: str, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 40)
    fill(succeeded=60)
    fill(**{state or "dead": 90})
    newest = Job.objects.latest("id").pk
    # A third of them within, by number the newest.
    age(f"({newest} - id) * {seconds} / 30.5")
    expected = [id for id in range(newest, newest - 31, -1) if not state or Job.objects.get(pk=id).state == state]
    pages = list(turned(viewer, f"{LIST}?since={since}" + (f"&state={state}" if state else "")))
    found = [id for page in pages for id in ids(page)]
    assert sorted(found, reverse=True) == [id for id in expected if (newest - id) * seconds / 30.5 < seconds]
    if state != "queued":
        assert len(pages) == 1, "where numbers go with time the list ends where the time does"
        assert pages[0].context["cl"].count_text == f"{len(found)} jobs"


def test_rows_that_plain_sql_has_dated_cost_no_other(viewer: Client) -> None:
    """The search for the first of them by halves goes by number, and takes one that it meets for its neighbours."""
    fill(succeeded=300)
    newest = Job.objects.latest("id").pk
    age(f"({newest} - id) * 60")
    expected = listed(viewer, since="1h")
    assert len(expected) == 60
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET enqueued_at = '2001-01-01' WHERE id = %s", [newest - 150])
        cursor.execute("UPDATE pgqueue_job SET enqueued_at = statement_timestamp() WHERE id = %s", [newest - 299])
    assert listed(viewer, since="1h") == [*expected, newest - 299], "and what is that near is in the walk, too"


# -- what is offered -------------------------------------------------------------------------------------------


def offered(client: Client, parameter: str, **query: str) -> list[str]:
    (spec,) = [
        one for one in client.get(LIST, query).context["cl"].filter_specs if one.parameter_name == parameter
    ] or [None]
    return [str(value) for value, _ in spec.lookup_choices] if spec else []


def tally(queue: str, task: str, succeeded: int = 1) -> None:
    empty = [0] * 16
    Stat.objects.create(
        minute="1970-01-01T00:00Z", worker_id="", queue_name=queue, task=task, succeeded=succeeded,
        pickup_counts=empty, run_counts=empty,
    )  # fmt: skip


def test_filters_offer_what_statistics_and_workers_know(viewer: Client) -> None:
    tally("mail", "shop.tasks.send")
    tally("billing", "shop.tasks.charge")
    rows.make_job(queue_name="new")
    Worker.objects.create(id="w-1", name="w", host="h", pid=1, queues=["slow"], concurrency=1, lease_seconds=30)
    Worker.objects.create(id="gone", name="w", host="h", pid=2, queues=["old"], concurrency=1, lease_seconds=30)
    Worker.objects.filter(pk="gone").update(heartbeat_at="2020-01-01T00:00Z")
    for state, error in (("dead", "shop.CardError"), ("queued", "shop.Recovered")):
        Job.objects.filter(pk=rows.make_job(state).pk).update(error_type=error)
    assert offered(viewer, "queue") == ["billing", "default", "mail", "new", "slow"]
    assert offered(viewer, "task") == ["shop.tasks.charge", "shop.tasks.send"]
    assert offered(viewer, "worker") == ["w-1"]
    assert offered(viewer, "error") == ["shop.CardError"]
    assert offered(viewer, "queue", queue="other") == ["other", "billing", "default", "mail", "new", "slow"]


def test_they_offer_no_more_than_fifty_those_with_the_most_attempts(viewer: Client) -> None:
    for number in range(70):
        tally(f"q{number:02}", f"t{number:02}", succeeded=number)
    for number in range(60):
        rows.make_job(queue_name=f"ready-{number}")
    assert offered(viewer, "queue") == [f"q{number:02}" for number in range(20, 70)]
    assert offered(viewer, "task") == [f"t{number:02}" for number in range(20, 70)]


def test_a_list_comes_without_what_takes_too_long_to_offer(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tally("mail", "shop.tasks.send")
    monkeypatch.setattr(choices, "_READING", "SELECT pg_sleep(60), %(most)s, %(among)s")
    monkeypatch.setattr(choices, "SECONDS", 0.05)
    job = rows.make_job(queue_name="mail")
    assert listed(viewer, queue="mail") == [job.pk]
    assert offered(viewer, "queue") == []


# -- within bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["", *State])
def test_a_page_looks_at_no_more_rows_than_it_may_says_so_and_goes_on(
    state: str, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(**{one.value: 60 for one in State})
    monkeypatch.setattr(walks, "LOOKED_AT", 20)
    filters = {"task": "shop.tasks.t3", **({"state": state} if state else {})}
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    pages = list(turned(viewer, f"{LIST}?{query}"))
    assert len(pages) > 3
    assert sorted(id for page in pages for id in ids(page)) == sorted(matching(**filters))
    for page in pages[:-1]:
        text = page.content.decode()
        assert "20 jobs were looked at for this page, and there are more." in text
        assert page.context["cl"].further_url in text.replace("&amp;", "&")
    assert "were looked at" not in pages[-1].content.decode()


def test_a_page_that_is_full_says_nothing_of_what_it_looked_at(viewer: Client) -> None:
    fill(dead=250)
    assert "looked at" not in viewer.get(LIST).content.decode()


@pytest.mark.parametrize(
    ("jobs", "text"), [(0, "0 jobs"), (1, "1 job"), (41, "41 jobs"), (200, "200 jobs"), (300, "200+ jobs")]
)
def test_the_count_is_true_and_ends_early(
    jobs: int, text: str, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 200)
    fill(dead=jobs, succeeded=10)
    pages = list(turned(viewer, f"{LIST}?state=dead"))
    assert {page.context["cl"].count_text for page in pages} == {text}


def test_thousands_are_written_as_the_language_does(viewer: Client) -> None:
    fill(succeeded=10_001)
    assert "10,000+ jobs, the newest first" in viewer.get(LIST).content.decode()
    german = viewer.get(LIST, headers={"Accept-Language": "de"}).context["cl"].count_text
    assert german.startswith("10.000+ ")


def test_what_takes_too_long_to_count_is_not_counted(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(dead=9_000)
    monkeypatch.setattr(listing, "COUNT_SECONDS", 0.001)
    answer = viewer.get(LIST, {"state": "dead", "q": "task:shop.*"})
    assert len(ids(answer)) == 100
    assert answer.context["cl"].count_text == ""
    assert answer.context["cl"].head == "the newest first"


# -- actions ---------------------------------------------------------------------------------------------------


def act(client: Client, url: str, action: str, *chosen: int, across: bool = False) -> str:
    data = {"action": action, "_selected_action": [str(id) for id in chosen or (0,)], "index": "0",
            "select_across": str(int(across))}  # fmt: skip
    answer = client.post(url, data, follow=True)
    return " ".join(str(message) for message in answer.context["messages"])


def test_the_selected_jobs_of_any_page_are_moved_and_no_other(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 5)
    fill(dead=12)
    second = list(turned(root, f"{LIST}?state=dead"))[1]
    chosen = ids(second)[1:3]
    url = link(root.get(LIST, {"state": "dead"}), "next")
    assert url
    assert act(root, url, "requeue_jobs", *chosen) == "2 requeued."
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == set(chosen)
    assert LogEntry.objects.count() == 2


def test_what_has_left_the_list_meanwhile_is_said_and_not_passed_over(root: Client) -> None:
    job = rows.make_job("dead")
    assert listed(root, state="dead") == [job.pk]
    Job.objects.filter(pk=job.pk).update(state="queued", finished_at=None)
    assert act(root, f"{LIST}?state=dead", "requeue_jobs", job.pk) == "0 requeued, 1 skipped: it is queued."


def selects_all(answer: HttpResponse) -> bool:
    return 'class="question' in answer.content.decode()


@pytest.mark.parametrize("query", ["state=dead", "state=dead&q=queue:q1", "state=dead&queue=q1&since=24h"])
def test_all_that_match_can_be_selected_where_it_is_known_how_many_they_are(query: str, root: Client) -> None:
    fill(dead=450, failed=450)
    answer = root.get(f"{LIST}?{query}")
    wanted = set(Job.objects.filter(state="dead", **({} if query == "state=dead" else {"queue_name": "q1"}))
                 .values_list("pk", flat=True))  # fmt: skip
    assert len(wanted) in (150, 450)
    assert selects_all(answer)
    assert f"Select all {len(wanted)} jobs" in answer.content.decode()
    assert act(root, f"{LIST}?{query}", "requeue_jobs", across=True) == f"{len(wanted)} requeued."
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == wanted


def test_where_it_is_not_known_they_cannot_and_a_forged_wish_is_bounded(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 300)
    monkeypatch.setattr(listing, "LISTED", 300)
    fill(dead=500)
    answer = root.get(LIST, {"state": "dead"})
    assert "300+ jobs" in answer.content.decode()
    assert not selects_all(answer)
    assert "0 of 100 selected" in answer.content.decode()
    newest = set(Job.objects.order_by("-id").values_list("pk", flat=True)[:300])
    told = act(root, f"{LIST}?state=dead", "requeue_jobs", across=True)
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == newest
    assert "300 requeued." in told
    assert "300 jobs are the most at one time; the rest was left alone." in told


def test_a_forged_wish_for_what_cannot_be_found_moves_nothing(root: Client) -> None:
    fill(dead=5)
    act(root, f"{LIST}?state=nothing", "requeue_jobs", across=True)
    act(root, f"{LIST}?q=wroker:x", "requeue_jobs", across=True)
    assert Job.objects.filter(state="dead").count() == 5


# -- what it asks of the database ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    ["", "state=dead", "state=queued&queue=q1", "q=17", "q=args.a:1", "since=24h&task=shop.tasks.t1", "q=key:a"],
)
def test_queries_are_as_many_whatever_the_number_of_jobs(query: str, root: Client) -> None:
    numbers = []
    for more in (150, 1_000):
        fill(dead=more, queued=more)
        following: str | None = f"{LIST}?{query}"
        for _ in range(2):  # and the second page
            if following is None:
                break
            with CaptureQueriesContext(connection) as queries:
                answer = root.get(following)
            ours = [one["sql"] for one in queries if "pgqueue_" in one["sql"] and "SAVEPOINT" not in one["sql"]]
            assert len(ours) <= 4 + ("args." in query), ours  # one more looks for the index on arguments
            numbers.append(len(ours))
            following = link(answer, "next")
    assert max(numbers) <= 5
    assert all(abs(one - numbers[0]) <= 1 for one in numbers)  # a list that is all on one page needs no count


def test_the_list_reads_no_payload(viewer: Client) -> None:
    fill(dead=150)
    for query in ("", "?state=dead", "?state=dead&queue=q1&q=task:shop.*"):
        with CaptureQueriesContext(connection) as queries:
            viewer.get(f"{LIST}{query}")
        ours = [one["sql"] for one in queries if "pgqueue_job" in one["sql"]]
        assert ours
        for sql in ours:
            for column in ("args", "kwargs", "result", "history", "progress", "backoff"):
                assert not re.search(rf"\b{column}\b", sql), sql


MIXES = {
    "even": dict.fromkeys(map(str, State), 2_500),
    "finished": {"succeeded": 20_000, "queued": 5, "retrying": 5, "failed": 5, "dead": 5, "running": 5},
    "scheduled": {"scheduled": 20_000, "retrying": 5, "queued": 5},
    "broken": {"dead": 20_000, "failed": 5},
    "ready": {"queued": 20_000, "running": 5},
}
INDEXES = {
    "queued": "pgqueue_job_ready",
    "scheduled": "pgqueue_job_waiting",
    "retrying": "pgqueue_job_waiting",
    "running": "pgqueue_job_running",
    "failed": "pgqueue_job_broken",
    "dead": "pgqueue_job_broken",
}
ASKED = ("", "queue=q1", "task=shop.tasks.t1", "worker=w1", "error=shop.CardError", "since=24h", "queue=q1&worker=w1",
         "q=queue:q1", "q=args.a:1", "q=error:boom", "q=label:x task:shop.*", "q=17", "q=id:1,2,3 queue:q1", "q=key:a",
         "q=fp:0123456789abcdef", "since=1h&q=task:shop.*")  # fmt: skip


def plans(queries: CaptureQueriesContext) -> Iterator[tuple[str, str]]:
    """Each reading of the table of jobs and its plan, with the settings that it had."""
    with transaction.atomic():
        for one in queries:
            sql = one["sql"]
            if "SAVEPOINT" in sql or "set_config" in sql:
                with connection.cursor() as cursor:
                    cursor.execute(sql)
            elif "pgqueue_job" in sql:
                yield sql, plan(sql.replace("%", "%%"))


@pytest.mark.parametrize(
    ("mix", "statistics"),
    [*((mix, "fresh") for mix in MIXES), ("finished", "of other jobs"), ("broken", "of other jobs")],
)
def test_no_list_scans_the_table(mix: str, statistics: str, root: Client) -> None:
    if statistics == "of other jobs":
        fill(succeeded=30_000)
        analyze()
        Job.objects.all().delete()
    fill(**MIXES[mix])
    if statistics == "fresh":
        analyze()
    for state in ("", *State):
        for asked in ASKED if state in ("", "dead") else ASKED[: 1 + list(State).index(State(state)) % 3]:
            query = "&".join(filter(None, (f"state={state}" if state else "", asked)))
            with CaptureQueriesContext(connection) as queries:
                following = link(root.get(f"{LIST}?{query}"), "next")
                if following and not asked:
                    root.get(following)
            readings = list(plans(queries))
            assert readings
            for sql, found in readings:
                assert "Seq Scan on pgqueue_job" not in found, (query, sql, found)
                is_walk = "is_wanted" in sql and not re.search("q=(17|id|key|fp)", asked)
                if is_walk and state in INDEXES:
                    assert INDEXES[state] in found, (query, found)
                    if "since" not in asked:  # which looks for a number by halves
                        assert "pgqueue_job_pkey" not in found, (query, found)


@pytest.mark.parametrize("state", ["", *State])
def test_a_page_far_away_begins_where_it_is(state: str, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the rows that it looks at, and passes over none: the hundredth page costs what the second does."""
    monkeypatch.setattr(JobAdmin, "list_per_page", 100)
    fill(**{state or "succeeded": 10_000, "failed" if state == "dead" else "dead": 10_000})
    analyze()
    jobs = Job.objects.filter(state=state) if state else Job.objects.all()
    walk = walks.OF_STATE[State(state)] if state else walks.NEWEST
    row = jobs.order_by(*ORDERS.get(state, ("-id",))).values(*walk.place)[9_000]
    for backwards in (False, True):
        place = (value.isoformat() if isinstance(value, datetime) else value for value in row.values())
        cut = walks.Cut(tuple(place), not backwards)
        text = walks.written([backwards, cut.is_after, *cut.place], listing.SALT, {"state": state} if state else {})
        with CaptureQueriesContext(connection) as queries:
            assert len(listed(viewer, p=text, **({"state": state} if state else {}))) == 100
        sql = next(one["sql"] for one in queries if "is_last" in one["sql"])
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('enable_sort', 'off', false)")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
            (found,) = cursor.fetchone()
            cursor.execute("RESET enable_sort")
        top = found[0]["Plan"]
        # A hundred rows, in an order that is theirs, or not; and 9,000 entries of an index are 36 pages.
        most = 130 if state in ORDERS else 25
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < most, found


def test_what_there_is_to_say_of_an_action_is_said_once(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED", 5)
    fill(dead=20)
    data = {"action": "requeue_jobs", "index": "0", "select_across": "1", "_selected_action": "0"}
    client = browser("view_job", "requeue_job")
    told = [
        [str(message) for message in client.post(f"{LIST}?{query}", data, follow=True).context["messages"]]
        for query in ("state=dead", "q=args.customer:7")
    ]
    assert told == [
        ["5 jobs are the most at one time; the rest was left alone.", "5 requeued."],
        ["0 requeued.", "To look for keys, arguments and errors you need the right to see them."],
    ]


# -- without time zones ------------------------------------------------------------------------------------------


def test_in_the_hour_that_comes_twice_no_job_is_left_out(
    viewer: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 1)
    jobs = [make_job("scheduled").pk for _ in range(4)]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET run_after = '2040-10-28 00:15Z'::timestamptz + (id - %s) * interval '30 min'",
            [jobs[0]],
        )
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    try:
        url, seen = f"{LIST}?state=scheduled", list[int]()
        while url and len(seen) < 9:
            shown = viewer.get(url).context["cl"]
            seen += [job.pk for job in shown.result_list]
            url = next((f"{LIST}{one['url']}" for one in shown.page_links if one["rel"] == "next"), "")
        assert seen == jobs
    finally:
        settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
