"""The page of one job: what it tells of its attempts, its payload and the jobs around it, to whom, and at what cost."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from verbs import rows

from doors.conftest import analyze, fill, log_in, plan
from pgqueue_django import snapshot, transitions
from pgqueue_django.admin import detail
from pgqueue_django.dashboard import related
from pgqueue_django.models import Job, Worker
from pgqueue_django.outcomes import DeadLettered, Failure, Kind, Retried
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db

LIST = "/admin/pgqueue_django/job/"
TASK = "shop.tasks.charge"
SEES = ("view_job", "view_job_payload")
Browser = Callable[..., Client]


def url(job: Job | int, *what: str) -> str:
    return f"{LIST}{job if isinstance(job, int) else job.pk}/{'/'.join(what or ('change',))}/"


def text_of(client: Client, job: Job) -> str:
    answer = client.get(url(job))
    assert answer.status_code == 200
    return answer.content.decode()


def words(html: str) -> str:
    """What a person reads."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def write(job: Job, **columns: Any) -> None:
    """By plain SQL: what no verb writes."""
    with connection.cursor() as cursor:
        for name, value in columns.items():
            cursor.execute(f"UPDATE pgqueue_job SET {name} = %s WHERE id = %s", [value, job.pk])


def worker(name: str = "w", *, tasks: Any = (TASK,), lease: float = 30) -> Worker:
    return Worker.objects.create(
        id=name, name=name, host="h", pid=1, queues=[], concurrency=1, lease_seconds=lease, tasks=list(tasks)
    )


# -- arguments and result --------------------------------------------------------------------------------------

PARTS = {"args": '["secret-1"]', "kwargs": '{"secret-2": 1}', "result": '"secret-3"'}
PEOPLE: dict[str, tuple[tuple[str, ...] | None, int]] = {
    "anonymous": (None, 302),
    "staff": ((), 403),
    "viewer": (("view_job",), 403),
    "blind": (("view_job_payload",), 403),
    "copier": (("view_job", "copy_job"), 403),
    "reader": (SEES, 200),
}


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("part", PARTS)
def test_the_whole_payload_is_for_who_may_see_it(who: str, part: str, browser: Browser) -> None:
    rights, status = PEOPLE[who]
    job = rows.make_job("succeeded", args=PARTS["args"], kwargs=PARTS["kwargs"])
    write(job, result=PARTS["result"])
    client = Client() if rights is None else browser(*rights)
    answer = client.get(url(job, "payload", part))
    assert answer.status_code == status
    assert (answer.content.decode() == PARTS[part]) == (status == 200)
    assert ("secret" in answer.content.decode()) == (status == 200)


def test_a_key_and_what_a_handler_says_are_for_who_may_see_payloads(browser: Browser) -> None:
    held = rows.claim_one(rows.make_job(idempotency_key="secret-order-7").pk)
    rows.heartbeat(held, progress={held.id: '{"fraction": 0.4, "message": "secret-step"}'})
    job = Job.objects.get()
    shown = text_of(browser("view_job"), job)
    assert "secret" not in shown
    assert "40%" in shown
    shown = text_of(browser(*SEES), job)
    assert "secret-order-7" in shown
    assert "secret-step" in shown


def test_who_is_not_staff_reads_no_payload(person: Callable[..., User]) -> None:
    job = rows.make_job(args=["secret"])
    assert log_in(person(*SEES, staff=False)).get(url(job, "payload", "args")).status_code == 302


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options"])
def test_the_payload_is_only_read(method: str, browser: Browser) -> None:
    job = rows.make_job()
    before = rows.row(job.pk)
    answer = getattr(browser(*SEES), method)(url(job, "payload", "args"))
    assert answer.status_code == 405
    assert rows.row(job.pk) == before


def test_a_payload_is_text_to_every_browser_and_a_long_one_is_saved(browser: Browser, settings: Any) -> None:
    settings.SECURE_CONTENT_TYPE_NOSNIFF = False  # or Django's middleware would say so of every page
    hostile = "<script>alert(1)</script>"
    job = rows.make_job(args=[hostile])
    answer = browser(*SEES).get(url(job, "payload", "args"))
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"] == f'inline; filename="job-{job.pk}-args.json"'
    assert "no-cache" in answer.headers["Cache-Control"]
    write(job, args=json.dumps(["x" * (detail.MAX_INLINE - 4)]))
    assert browser(*SEES).get(url(job, "payload", "args")).headers["Content-Disposition"].startswith("inline")
    write(job, args=json.dumps(["x" * (detail.MAX_INLINE - 3)]))
    answer = browser(*SEES).get(url(job, "payload", "args"))
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert len(answer.content) == detail.MAX_INLINE + 1


def test_a_payload_is_shown_as_it_is_stored(browser: Browser) -> None:
    stored = r'{"b" : 12345678901234567890123, "a":1.10,"z":"中\u4e2d\ud800"}'
    job = rows.make_job()
    write(job, kwargs=stored)
    assert browser(*SEES).get(url(job, "payload", "kwargs")).content.decode() == stored
    shown = text_of(browser(*SEES), job)
    for part in ("12345678901234567890123", "1.10", "中中\\ud800"):
        assert part in shown


@pytest.mark.parametrize("address", ["payload/history", "payload/args;", "payload/fencing_token"])
def test_no_other_column_is_a_payload(address: str, browser: Browser) -> None:
    job = rows.make_job("dead")
    assert browser(superuser=True).get(f"{LIST}{job.pk}/{address}/").status_code == 404


def test_the_payload_of_a_job_that_is_gone_says_so(browser: Browser) -> None:
    answer = browser(*SEES).get(url(77, "payload", "args"), follow=True)
    assert "There is no job 77" in answer.content.decode()


def test_a_long_payload_does_not_make_the_page_heavy(browser: Browser) -> None:
    long = {"lines": [{"sku": f"A-{number}"} for number in range(20_000)]}
    small = rows.make_job("succeeded")
    job = rows.make_job("succeeded", args=["x" * 200_000], kwargs=long)
    write(job, result=json.dumps(long))
    with CaptureQueriesContext(connection):
        page = text_of(browser(*SEES), job)
    assert len(page) < len(text_of(browser(*SEES), small)) + 3 * 2 * detail.EXCERPT
    assert "Show all 195.3" in page
    assert page.count("Show all") == 3
    assert page.count("…</pre>") == 3
    assert "A-19999" not in page
    for part in PARTS:
        assert f'href="{url(job, "payload", part)}"' in page


def test_who_may_not_see_long_arguments_is_told_their_size(browser: Browser) -> None:
    job = rows.make_job(args=["secret", "y" * 20_000], kwargs={"a": 1})
    page = text_of(browser("view_job"), job)
    assert "Arguments of 19.6\xa0KB, not shown to you." in page
    assert "secret" not in page
    assert "payload/" not in page
    write(job, args='["secret", 2, [3, 4]]')
    assert "4 arguments, not shown to you." in text_of(browser("view_job"), job)


# -- attempts --------------------------------------------------------------------------------------------------


def traceback_of(function: str, message: str) -> str:
    own = f'  File "/srv/shop/tasks.py", line 41, in {function}\n    card.pay()\n'
    library = '  File "/usr/lib/python3.13/http/client.py", line 9, in request\n    self.send()\n'
    return f"Traceback (most recent call last):\n{own}{library * 3}shop.CardError: {message}\n"


def failing(*errors: tuple[str, str]) -> Job:
    """A job with so many failed attempts, each with the function and the message of its error."""
    job = rows.make_job(max_attempts=len(errors))
    for number, (function, message) in enumerate(errors, 1):
        failure = Failure(Kind.ERROR, "shop.CardError", message, traceback_of(function, message))
        held = rows.claim_one(job.pk)
        assert rows.settle(held, Retried(failure, 60) if number < len(errors) else DeadLettered(failure)).moved
        transitions.run_now(rows.DB, [job.pk])
    return Job.objects.get(pk=job.pk)


def test_library_frames_are_folded_and_the_same_traceback_is_named(browser: Browser) -> None:
    job = failing(("charge", "declined 1"), ("refund", "declined 2"), ("charge", "declined 3"))
    page = text_of(browser(*SEES), job)
    assert page.count("<summary>3 library frames</summary>") == 2
    assert page.count("Same traceback as attempt 3") == 1
    anchor = re.findall(r'href="#([\w-]+)">Same', page)[0]
    assert re.search(rf'<li id="{anchor}">\s*<p class="pgq-attempt">\s*<span class="pgq-number">3</span>', page)
    own = re.findall(r"<pre>([^<]*)</pre>", re.sub(r"<details><summary>\d+ library.*?</details>", "", page, flags=re.S))
    assert "in charge" in "".join(own)
    assert "http/client.py" not in "".join(own)
    for number in (1, 2, 3):
        assert f"declined {number}" in page


def test_the_timeline_is_a_drawing_and_the_same_as_a_list(browser: Browser) -> None:
    job = failing(("charge", "declined"), ("charge", "declined"))
    page = text_of(browser("view_job"), job)
    svg = re.findall(r'<svg class="pgq-timeline.*?</svg>', page, re.S)[0]
    titles = [title.text for title in ET.fromstring(svg).iter("title")]
    listed = re.findall(r'<li><span class="pgq-key ([^"]+)"></span>(.*?) <strong>', page)
    assert [looks for looks, _ in listed] == [group.get("class") for group in ET.fromstring(svg)]
    assert [text for _, text in listed] == [str(title).rpartition(",")[0] for title in titles]
    assert [text for _, text in listed if "Attempt" in text] == [
        "Attempt 1: error (shop.CardError)",
        "Attempt 2: error (shop.CardError)",
    ]
    assert "2 attempts," in page


def test_of_a_long_history_twenty_attempts_are_read_and_the_gap_is_told(browser: Browser) -> None:
    job = rows.make_job("dead")
    entry = {"worker": "w", "started_at": "2027-01-31T12:00:00Z", "ended_at": "2027-01-31T12:00:01Z", "kind": "error"}
    write(job, history=json.dumps([{**entry, "attempt": n, "message": f"<{n}>"} for n in range(1, 1001)]))
    answer = browser(*SEES).get(url(job))
    assert [entry.message for entry in answer.context["attempts"]] == [f"<{n}>" for n in (*range(1000, 981, -1), 1)]
    page = answer.content.decode()
    assert "980 attempts are not kept, or not shown." in page
    assert page.count("980 attempts that are not kept") == 2


def test_long_texts_of_one_attempt_are_cut(browser: Browser) -> None:
    job = rows.make_job("dead")
    write(job, history=json.dumps([{"message": "m" * 10**6, "traceback": "t" * 10**6, "kind": "k" * 10**6}]))
    page = text_of(browser(*SEES), job)
    assert len(page) < 60_000
    assert page.count("characters left out") >= 2


# -- what a person has to know at once -------------------------------------------------------------------------

NOT_KNOWN = "No live worker knows this task."


@pytest.mark.parametrize(
    ("tasks", "lease", "warned"),
    [
        ([TASK], 30, False),
        (["shop.tasks.other"], 30, True),
        ([], 30, True),
        ([f"shop.tasks.t{n}" for n in range(500)], 30, False),  # its row has no room for more names
    ],
)
def test_a_task_that_no_live_worker_knows_is_told(
    tasks: list[str], lease: float, warned: bool, browser: Browser
) -> None:
    job = rows.make_job("dead", task=TASK)
    worker(tasks=tasks, lease=lease)
    assert (NOT_KNOWN in text_of(browser("view_job"), job)) == warned


def test_one_that_is_known_to_a_dead_worker_only_is_not_known(browser: Browser) -> None:
    job = rows.make_job(task=TASK)
    page = text_of(browser("view_job"), job)
    assert "No worker is alive." in page
    worker("gone", lease=-1)
    worker("other", tasks=[])
    page = text_of(browser("view_job"), job)
    assert NOT_KNOWN in page
    assert "No worker is alive." not in page
    write(job, worker_id="other", started_at="2027-01-31T12:00:00Z")
    assert NOT_KNOWN not in text_of(browser("view_job"), job), "it has run the job"


def test_a_table_of_workers_that_plain_sql_has_written_breaks_nothing(browser: Browser) -> None:
    job = rows.make_job(task=TASK)
    worker()
    Worker.objects.update(tasks={"not": "a list"})
    assert NOT_KNOWN in text_of(browser("view_job"), job)


def test_a_cancelled_handler_may_go_on_until_its_lease_ends_and_the_page_says_so(browser: Browser) -> None:
    job = rows.make_job("running")
    transitions.cancel(rows.DB, [job.pk])
    assert "Cancelled while it ran: its handler was told, and may go on for " in text_of(browser("view_job"), job)
    rows.move_clock(job.pk, "run_after", -1)
    assert "Cancelled while it ran" not in text_of(browser("view_job"), job)
    for state in ("scheduled", "retrying"):
        waiting = rows.make_job(state)
        transitions.cancel(rows.DB, [waiting.pk])
        assert "Cancelled while it ran" not in text_of(browser("view_job"), waiting)


def test_what_is_left_of_a_lease_is_told_and_that_it_has_ended(browser: Browser) -> None:
    job = rows.make_job("running")
    rows.move_clock(job.pk, "lease_expires_at", 1000)
    page = text_of(browser("view_job"), job)
    assert re.search(r"Lease ends</dt><dd><time [^>]*>in 1[67] min", page)
    assert "Its lease has ended" not in page
    rows.move_clock(job.pk, "lease_expires_at", -1)
    page = text_of(browser("view_job"), job)
    assert "Its lease has ended: a worker that is alive will take it back." in page
    assert "Attempt 1: its lease has ended" in page


@pytest.mark.parametrize(
    ("progress", "value", "shown"),
    [
        ({"fraction": 0.4231, "message": "half <b>"}, "0.4231", "42% half &lt;b&gt;"),
        ({"fraction": 1}, "1.0000", "100%"),
        ({"fraction": 10**400}, "1.0000", "100%"),
        ('{"fraction": 1e5000}', "1.0000", "100%"),
        ({"fraction": -3}, "0.0000", "0%"),
        ({"fraction": "x", "message": "of old"}, None, "of old"),
        ({"fraction": True}, None, ""),
        ({"message": ["odd"]}, None, "odd"),
    ],
)
def test_progress_is_a_bar_and_words(progress: Any, value: str | None, shown: str, browser: Browser) -> None:
    job = rows.make_job("running")
    write(job, progress=progress if isinstance(progress, str) else json.dumps(progress))
    page = text_of(browser(*SEES), job)
    assert re.findall(r'<progress max="1" value="([^"]+)"', page) == ([value] if value else [])
    assert shown in " ".join(page.split())


def test_numbers_that_python_does_not_read_cost_the_history_no_page(browser: Browser) -> None:
    job = rows.make_job("dead")
    write(job, history='[{"attempt": 1e5000, "started_at": 1e400, "message": [1e5000]}]')
    assert "pgq-timeline" in text_of(browser("view_job", "view_job_payload"), job)


@pytest.mark.parametrize("progress", ["3", "[]", '"x"', "null"])
def test_progress_that_is_none_is_not_shown(progress: str, browser: Browser) -> None:
    job = rows.make_job("running")
    write(job, progress=progress)
    assert "pgq-progress" not in text_of(browser("view_job"), job)


# -- the jobs around it ----------------------------------------------------------------------------------------


def broken(*, ago: timedelta = timedelta(0), task: str = TASK) -> Job:
    job = rows.make_job("dead", task=task)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET finished_at = statement_timestamp() - %s WHERE id = %s", [ago, job.pk])
    return job


def alike(page: str) -> str | None:
    found = re.search(r'Failed like this</dt><dd><a href="([^"]*)">([^<]*)</a>', page)
    return found and found[2].replace("&nbsp;", " ").replace("\xa0", " ")


def test_jobs_that_failed_alike_are_counted_and_linked(browser: Browser) -> None:
    job = broken()
    for ago in (timedelta(minutes=59), timedelta(hours=2), timedelta(days=3), timedelta(days=8)):
        broken(ago=ago)
    other = broken(task="shop.tasks.other")
    assert job.error_fingerprint == other.error_fingerprint, "or the test says nothing"
    client = browser(*SEES)
    page = text_of(client, job)
    assert alike(page) == "1 h: 2 · 24 h: 3 · 7 d: 4"
    assert alike(text_of(client, other)) == "1 h: 1 · 24 h: 1 · 7 d: 1"
    address = re.findall(r'Failed like this</dt><dd><a href="([^"]*)"', page)[0].replace("&amp;", "&")
    found = client.get(address).context["cl"].result_list
    assert {row.task for row in found} == {TASK}
    assert len(found) == 5


def test_more_than_were_looked_at_are_told_to_be_more(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [broken() for _ in range(3)]
    monkeypatch.setattr(snapshot, "CAP", 3)
    page = text_of(browser("view_job"), jobs[0])
    assert alike(page) == "1 h: 3+ · 24 h: 3+ · 7 d: 3+"
    assert "Of the newest 3 with this error." in page
    monkeypatch.setattr(snapshot, "CAP", 4)
    assert alike(text_of(browser("view_job"), jobs[0])) == "1 h: 3 · 24 h: 3 · 7 d: 3"


def test_a_job_without_an_error_has_nothing_alike(browser: Browser) -> None:
    assert alike(text_of(browser("view_job"), rows.make_job("succeeded"))) is None


def test_copies_and_what_they_were_made_of_are_linked(browser: Browser) -> None:
    old = rows.make_job("dead")
    copies = [transitions.copy(rows.DB, rows.new(), old.pk).id for _ in range(2)]
    page = text_of(browser("view_job"), old)
    for id in copies:
        assert f'<a href="{url(id)}">{id}</a> <span class="pgq-state pgq-queued">' in page
    assert "Copy of" not in page
    copy = Job.objects.get(pk=copies[0])
    page = text_of(browser("view_job"), copy)
    assert f'Copy of</dt><dd><a href="{url(old)}">{old.pk}</a> <span class="pgq-state pgq-dead">' in page
    transitions.delete(rows.DB, [old.pk])
    assert f"Copy of {old.pk} (gone)" in words(text_of(browser("view_job"), copy))


@pytest.mark.django_db(transaction=True)
def test_the_page_is_there_although_what_is_around_the_job_takes_too_long(
    browser: Browser, second_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, client = broken(), browser(*SEES)
    monkeypatch.setattr(snapshot, "MAX_SECONDS", 0.1)
    with second_connection.transaction(force_rollback=True):
        second_connection.execute("LOCK TABLE pgqueue_worker")
        page = text_of(client, job)
    assert "The database took too long to look for workers and jobs around this one." in page
    assert "boom" in page
    assert alike(page) is None
    assert alike(text_of(client, job)) is not None


def test_many_copies_are_cut(browser: Browser) -> None:
    old = rows.make_job("dead")
    for _ in range(related.MAX_COPIES):
        transitions.copy(rows.DB, rows.new(), old.pk)
    assert "and more" not in text_of(browser("view_job"), old)
    transitions.copy(rows.DB, rows.new(), old.pk)
    page = text_of(browser("view_job"), old)
    assert "and more" in page
    assert page.count("pgq-queued") == related.MAX_COPIES


# -- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_the_page_is_five_queries_whatever_there_is(state: State, browser: Browser) -> None:
    client = browser(superuser=True)
    numbers = []
    for more in (1, 300):
        job = rows.make_job(state)
        fill(dead=more)
        worker(f"w{more}")
        for _ in range(min(more, 3)):
            transitions.copy(rows.DB, rows.new(), job.pk)
        with rows.statements() as sent:
            text_of(client, job)
        numbers.append(len(sent))
    # Session, user, the job, settings of the walk, and all that is around the job.
    assert numbers == [5, 5]


@pytest.mark.parametrize("mix", [{"dead": 20_000}, {"succeeded": 20_000, "dead": 5}, {"queued": 20_000, "failed": 500}])
def test_the_page_scans_nothing(mix: dict[str, int], browser: Browser) -> None:
    fill(**mix)
    job = Job.objects.filter(state__in=["dead", "failed"]).latest("id")
    with connection.cursor() as cursor:
        # As many alike as there can be, and copies.
        cursor.execute(
            "UPDATE pgqueue_job SET error_fingerprint = '0123456789abcdef' WHERE state IN ('dead', 'failed')"
        )
        cursor.execute("UPDATE pgqueue_job SET copy_of = %s WHERE id %% 7 = 0", [job.pk])
    write(job, copy_of=Job.objects.earliest("id").pk)
    analyze()
    job.refresh_from_db()
    client = browser(superuser=True)
    with CaptureQueriesContext(connection) as queries:
        text_of(client, job)
    plans = []
    for query in queries:
        sql = query["sql"]
        if "set_config" in sql:
            with connection.cursor() as cursor:
                cursor.execute(sql)
        if "pgqueue_job" in sql:
            plans.append(plan(sql))
    assert len(plans) == 2
    for found in plans:
        assert "Seq Scan on pgqueue_job" not in found, found
    assert "pgqueue_job_error" in plans[1]
    assert "pgqueue_job_copy" in plans[1]
    assert "Sort" not in plans[1], plans[1]
    for part in ("seen", "copies"):
        assert re.search(rf"CTE {part}\n\s*->  Limit", plans[1]), plans[1]


def test_the_page_reads_no_whole_payload(browser: Browser) -> None:
    job = rows.make_job("succeeded")
    with CaptureQueriesContext(connection) as queries:
        text_of(browser(superuser=True), job)
    (sql,) = [query["sql"] for query in queries if 'FROM "pgqueue_job"' in query["sql"]]
    for column in ("args", "kwargs", "result"):
        assert f'"pgqueue_job"."{column}"' not in sql
