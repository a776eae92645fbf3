"""The page of what is wrong: failed and dead jobs by kind of error, and all of a kind sent back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from machine.workers import database_url
from verbs import rows
from verbs.rows import make_job

from doors.conftest import analyze, fill, plan
from pgqueue_django import failures, snapshot, transitions
from pgqueue_django.admin import listing
from pgqueue_django.models import AuditEntry, Job
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind

pytestmark = pytest.mark.django_db
URL = "/admin/pgqueue_django/job/problems/"
LIST = "/admin/pgqueue_django/job/"
Browser = Callable[..., Client]


def fail(message: str = "boom", task: str = "shop.charge", *, ago: float = 0, dead: bool = True) -> Job:
    job = make_job(task=task)
    failure = Failure(Kind.ERROR, "shop.CardError", message)
    rows.settle(rows.claim_one(job.pk), DeadLettered(failure) if dead else Failed(failure))
    Job.objects.filter(pk=job.pk).update(finished_at=rows.database_now() - timedelta(seconds=ago))
    job.refresh_from_db()
    return job


def groups() -> list[tuple[str, str, int, int, int, int]]:
    return [(one.task, one.message, one.jobs, one.hour, one.day, one.week) for one in failures.take("default").groups]


def test_jobs_that_look_alike_are_one_group_with_its_counts() -> None:
    for ago in (60, 7_000, 90_000, 700_000):
        newest = fail(f"order {ago} declined", ago=ago, dead=ago > 100)
    fail("expired")
    fail("expired", task="shop.refund")
    make_job("cancelled")
    make_job("succeeded")
    found = failures.take("default")
    assert groups() == [
        ("shop.charge", "order 700000 declined", 4, 1, 2, 3),
        ("shop.refund", "expired", 1, 1, 1, 1),
        ("shop.charge", "expired", 1, 1, 1, 1),
    ]
    first = found.groups[0]
    assert (first.sample_id, first.error_type, first.fingerprint) == (
        newest.pk, "shop.CardError", newest.error_fingerprint,
    )  # fmt: skip
    assert (first.last_at - first.first_at).total_seconds() == pytest.approx(699_940, abs=10)
    assert not found.is_capped


def test_what_plain_sql_wrote_is_a_group_of_its_own() -> None:
    fill(dead=21)
    assert {(task, jobs) for task, _, jobs, *_ in groups()} == {(f"shop.tasks.t{number}", 3) for number in range(7)}
    assert {one.fingerprint for one in failures.take("default").groups} == {None}


def test_it_looks_at_the_newest_and_says_so(monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    monkeypatch.setattr(snapshot, "CAP", 10)
    fill(failed=5, dead=30)
    assert sum(jobs for _, _, jobs, *_ in groups()) == 15
    assert failures.take("default").is_capped
    assert "Of the newest" in browser("view_job").get(URL).content.decode()


def test_no_plan_scans_the_table() -> None:
    fill(succeeded=20_000, failed=50, dead=50)
    analyze()
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('enable_sort', 'off', true)")
    bounds = {"cap": 10_000, "most": 200}
    for sql in (failures._GROUPS, failures._CAPPED):
        assert "Seq Scan on pgqueue_job" not in plan(sql, bounds)


@pytest.mark.parametrize("fingerprint", ["0" * 16, None])
def test_a_group_is_found_along_its_index_however_many_have_failed_alike(fingerprint: str | None) -> None:
    fill(succeeded=5_000, failed=10_000, dead=50)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET error_fingerprint = %s WHERE state = 'failed'", ["0" * 16])
    analyze()
    with CaptureQueriesContext(connection) as queries:
        failures.ids_of("default", "shop.tasks.t1", fingerprint, until=4e9, most=100)
    (sql,) = [one["sql"] for one in queries if "pgqueue_job" in one["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('enable_sort', 'off', true)")
    assert "Index Scan using pgqueue_job_error" in plan(sql.replace("%", "%%")), plan(sql)


def test_a_group_is_of_one_task_and_not_newer_than_its_page() -> None:
    ids = [fail("declined", ago=ago).pk for ago in (0, 20, 10)]
    found = failures.take("default")
    (group,) = found.groups

    def ids_of(task: str, ago: float, most: int) -> list[int]:
        return failures.ids_of("default", task, group.fingerprint, until=found.until - ago, most=most)

    assert ids_of(group.task, 5, 9) == [ids[2], ids[1]]
    assert ids_of(group.task, 0, 2) == [ids[2], ids[1]]
    assert ids_of(group.task, 0, 9) == [ids[2], ids[1], ids[0]]
    assert ids_of("shop.other", 0, 9) == []


# -- the page --------------------------------------------------------------------------------------------------


def test_it_shows_the_groups_each_linked_to_its_jobs(browser: Browser) -> None:
    jobs = [fail("declined"), fail("declined"), fail("expired")]
    client = browser("view_job", "view_job_payload")
    page = client.get(URL).content.decode()
    assert page.count("shop.CardError") == 2
    assert "declined" in page
    link = f"{LIST}?q=fp%3A{jobs[0].error_fingerprint}+task%3Ashop.charge"
    assert f'href="{link}"' in page
    assert {job.pk for job in client.get(link).context["cl"].result_list} == {jobs[0].pk, jobs[1].pk}
    assert f'href="{URL}"' in client.get(LIST).content.decode()


def test_what_errors_said_is_for_those_who_may_see_it(browser: Browser) -> None:
    fail("secret words")
    assert "secret words" not in browser("view_job").get(URL).content.decode()
    assert "secret words" in browser("view_job", "view_job_payload").get(URL).content.decode()


def test_the_rules_that_find_something_are_told(browser: Browser) -> None:
    job = make_job(queue_name="mail")
    moment = rows.database_now() - timedelta(seconds=400)
    Job.objects.filter(pk=job.pk).update(run_after=moment, enqueued_at=moment)
    page = browser("view_job").get(URL).content.decode()
    assert "Queue mail: no live worker takes it" in page
    assert "No job has failed, or is dead." in page


def requeue(client: Client, job: Job, **changed: Any) -> Any:
    data = {"task": job.task, "fingerprint": job.error_fingerprint or "", "until": until(client), **changed}
    return client.post(URL, data, follow=True)


def until(client: Client) -> str:
    """What the forms of a page that is shown now have."""
    return str(client.get(URL).context["until"])


def said(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


def test_all_of_a_group_go_back_and_no_other(browser: Browser) -> None:
    mine = [fail("declined", dead=number % 2 == 0) for number in range(5)]
    others = [fail("expired"), fail("declined", task="shop.refund")]
    answer = requeue(browser(superuser=True), mine[-1])
    assert said(answer) == "5 requeued."
    assert {rows.state_of(job.pk) for job in mine} == {"queued"}
    assert {rows.state_of(job.pk) for job in others} == {"dead"}
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(job.pk) for job in mine}


def test_those_that_failed_after_the_page_was_shown_stay(browser: Browser) -> None:
    client = browser(superuser=True)
    early = make_job(task="shop.charge")
    shown, again = fail("declined"), fail("declined")
    moment = until(client)
    failure = DeadLettered(Failure(Kind.ERROR, "shop.CardError", "declined"))
    rows.settle(rows.claim_one(early.pk), failure)  # enqueued before, dead after
    assert transitions.requeue("default", [again.pk])
    rows.settle(rows.claim_one(again.pk), failure)
    fail("declined")
    assert said(requeue(client, shown, until=moment)) == "1 requeued."
    assert Job.objects.filter(state="dead").count() == 3
    assert rows.state_of(shown.pk) == "queued"


def test_a_group_of_plain_sql_goes_back_too(browser: Browser) -> None:
    fill(dead=14)
    job = Job.objects.filter(task="shop.tasks.t1").latest("pk")
    assert said(requeue(browser(superuser=True), job)) == "2 requeued."


def test_one_that_succeeded_meanwhile_is_not_run_again(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    job = fail("declined")
    real = transitions.requeue

    def somebody_was_faster(using: str, ids: Any, source: Any = None) -> set[int]:
        monkeypatch.setattr(transitions, "requeue", real)
        real(using, ids)
        rows.settle(rows.claim_one(job.pk), rows.ending("succeeded"))  # type: ignore[arg-type]
        return real(using, ids, source)

    monkeypatch.setattr(transitions, "requeue", somebody_was_faster)
    assert said(requeue(browser(superuser=True), job)) == "0 requeued, 1 skipped: it is succeeded."
    assert rows.state_of(job.pk) == "succeeded"


def test_large_groups_go_back_in_steps_up_to_a_bound(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTED", 1_500)
    fill(dead=11_200)  # 1,600 of each task
    with CaptureQueriesContext(connection) as captured:
        answer = requeue(browser(superuser=True), Job.objects.filter(task="shop.tasks.t1").latest("pk"))
    assert said(answer).startswith("1500 requeued.")
    assert Job.objects.filter(state="queued").count() == 1_500
    moving = [query["sql"] for query in captured if "UPDATE pgqueue_job" in query["sql"]]
    assert len(moving) == 2, "each step locks its rows in one statement, in the order of their ids"


@pytest.mark.parametrize(
    ("rights", "sees", "may"),
    [
        ((), 403, False),
        (("requeue_job",), 403, False),
        (("view_job",), 200, False),
        (("view_job", "cancel_job", "delete_job", "run_job_now"), 200, False),
        (("view_job", "requeue_job"), 200, True),
    ],
)
def test_who_may(rights: tuple[str, ...], sees: int, may: bool, browser: Browser) -> None:
    job, client = fail("declined"), browser(*rights)
    answer = client.get(URL)
    assert answer.status_code == sees
    assert ("Requeue all" in answer.content.decode()) is may
    status = client.post(URL, {"task": job.task, "fingerprint": job.error_fingerprint, "until": "9" * 10}).status_code
    assert status == (302 if may else 403)
    assert rows.state_of(job.pk) == ("queued" if may else "dead")
    assert Client().get(URL).status_code == 302
    assert client.put(URL).status_code in (403, 405)


@pytest.mark.parametrize(
    "changed",
    [
        {"until": "x"},
        {"until": ""},
        {"until": "9" * 30},
        {"until": "1e9"},
        {"until": "nan"},
        {"task": "a\0b"},
        {"fingerprint": "\0"},
    ],
)
def test_forged_groups_are_refused(changed: dict[str, str], browser: Browser) -> None:
    job = fail("declined")
    data = {"task": job.task, "fingerprint": job.error_fingerprint, "until": "9" * 10, **changed}
    assert browser(superuser=True).post(URL, data).status_code == 400
    assert rows.state_of(job.pk) == "dead"


def test_hostile_text_is_text(browser: Browser) -> None:
    job = fail("<script>alert(1)</script>")
    Job.objects.filter(pk=job.pk).update(task="<b>", error_type="<img src=x>", queue_name="<i>")
    page = browser(superuser=True).get(URL).content.decode()
    for text in ("<script>alert", "<b>", "<img src=x", "<i>"):
        assert text not in page


def test_the_number_of_queries_does_not_grow_with_the_groups(browser: Browser) -> None:
    client = browser(superuser=True)
    counts = []
    for number in (1, 12):
        for _ in range(number):
            fail(f"error {'x' * (number + _)}")
        with CaptureQueriesContext(connection) as captured:
            client.get(URL)
        counts.append(len(captured))
    assert counts[0] == counts[1]


@pytest.mark.django_db(transaction=True)
def test_what_the_first_steps_have_moved_is_said_when_a_later_one_has_to_wait_too_long(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    jobs = [fail("declined") for _ in range(5)]  # sent back the newest first
    client = browser(superuser=True)
    moment = until(client)
    with psycopg.connect(database_url()) as held, connection.cursor() as cursor:
        held.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [jobs[1].pk])
        cursor.execute("SET lock_timeout = '100ms'")
        answer = requeue(client, jobs[0], until=moment)
        cursor.execute("RESET lock_timeout")
    assert said(answer) == "2 requeued. The database took too long. Left alone: 3. Try it again."
    assert [rows.state_of(job.pk) for job in jobs] == ["dead", "dead", "dead", "queued", "queued"]
    assert AuditEntry.objects.values_list("changed", "skipped").get() == (2, 0)


@pytest.mark.django_db(transaction=True)
def test_where_not_even_the_first_step_came_through_nothing_is_said_to_be_done(browser: Browser) -> None:
    job, client = fail("declined"), browser(superuser=True)
    moment = until(client)
    with psycopg.connect(database_url()) as held, connection.cursor() as cursor:
        held.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.pk])
        cursor.execute("SET lock_timeout = '100ms'")
        answer = requeue(client, job, until=moment)
        cursor.execute("RESET lock_timeout")
    assert said(answer) == "The database took too long. Left alone: 1. Try it again."
    assert rows.state_of(job.pk) == "dead"
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_database_that_takes_too_long_is_said_and_nothing_is_moved(browser: Browser) -> None:
    job = fail("declined")
    client = browser(superuser=True)
    group = {"task": job.task, "fingerprint": job.error_fingerprint, "until": "9" * 10}
    with psycopg.connect(database_url()) as held:
        held.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        answers = [
            client.get(URL),
            client.post(URL, group),
            client.post(f"{LIST}dashboard/requeue-dead/", {"queue": job.queue_name}),
        ]
    assert [(answer.status_code, answer.headers["Location"]) for answer in answers] == [
        (302, LIST), (302, URL), (302, f"{LIST}dashboard/"),
    ]  # fmt: skip
    texts = [str(message) for message in client.get(LIST).context["messages"]]
    assert len(texts) == 3
    assert all(text.startswith("The database took too long") for text in texts)
    assert rows.state_of(job.pk) == "dead"
