"""Looking for jobs in the admin: found by what they are, within bounds, by those who may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from verbs import rows
from verbs import tasks_of_tests as tasks
from verbs.rows import make_job

from doors.conftest import analyze, fill
from pgqueue_django import snapshot
from pgqueue_django.admin import listing
from pgqueue_django.models import Job
from pgqueue_django.outcomes import DeadLettered, Failure, Kind

pytestmark = pytest.mark.django_db
LIST = "/admin/pgqueue_django/job/"
Browser = Callable[..., Client]


def found(client: Client, text: str, **filters: str) -> set[int]:
    answer = client.get(LIST, {"q": text, **filters})
    assert answer.status_code == 200
    return {job.pk for job in answer.context["cl"].result_list}


def said(client: Client, text: str) -> str:
    return " ".join(str(one) for one in client.get(LIST, {"q": text}).context["messages"])


@pytest.fixture
def root(browser: Browser) -> Client:
    return browser(superuser=True)


def test_by_number_key_task_queue_worker_and_label(root: Client) -> None:
    one = make_job("running", task="shop.charge", queue_name="billing", label="Invoice 42", idempotency_key="welcome:7")
    other = make_job("dead", task="shop.refund", queue_name="mail", worker_id="web-2")
    for text, who in (
        (f"{one.pk}", {one}), (f"id:{one.pk},{other.pk}", {one, other}), ("key:welcome:7", {one}),
        ("task:shop.charge", {one}), ("task:shop.*", {one, other}), ("task:shop", set()), ("queue:mail", {other}),
        ("worker:web-2", {other}), ("label:invoice", {one}), ('label:"voice 42"', {one}), ("label:%", set()),
        ("task:shop.* queue:mail", {other}), ("task:shop.charge queue:mail", set()),
    ):  # fmt: skip
        assert found(root, text) == {job.pk for job in who}, text


def test_a_bare_word_is_a_key(root: Client) -> None:
    job = make_job(idempotency_key="order-2026-7")
    make_job(idempotency_key="order-2026-8")
    assert found(root, "order-2026-7") == {job.pk}
    assert found(root, '"order-2026-7"') == {job.pk}


def test_by_argument_with_or_without_its_name(root: Client) -> None:
    named = tasks.charge.enqueue(invoice_id=7, amount_cents=5).id
    placed = tasks.charge.enqueue(7, amount_cents=6).id
    other = tasks.charge.enqueue(8, amount_cents=7).id
    nested = make_job(args=[1], kwargs={"order": {"lines": [{"sku": "ü-1"}]}, "ok": True}).pk
    assert found(root, "args.invoice_id:7") == {named, placed}
    assert found(root, "args.0:8") == {other}
    assert found(root, "args.amount_cents:7") == {other}
    assert found(root, "args.order.lines.0.sku:ü-1") == {nested}
    assert found(root, "args.ok:true") == {nested}
    assert found(root, "args.order:x") == set()


def test_by_the_type_or_the_words_of_the_newest_error(root: Client) -> None:
    def fail(message: str, error_type: str) -> int:
        job = make_job()
        held = rows.claim_one(job.pk)
        rows.settle(held, DeadLettered(Failure(Kind.ERROR, error_type, message)))
        return job.pk

    declined = fail("card declined by bank", "shop.CardError")
    make_job("dead")
    assert found(root, "error:CardError") == found(root, "error:cardError") == {declined}
    assert found(root, 'error:"declined by"') == {declined}
    assert found(root, "error:expired") == set()


def test_a_state_narrows_what_is_looked_at(root: Client) -> None:
    dead, queued = make_job("dead", queue_name="mail"), make_job("queued", queue_name="mail")
    assert found(root, "queue:mail") == {dead.pk, queued.pk}
    assert found(root, "queue:mail", state="dead") == {dead.pk}
    assert found(root, f"id:{dead.pk}", state="queued") == set()


def test_it_looks_at_the_newest_and_says_so_but_finds_a_number_whatever_its_age(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LISTED", 5)
    old = make_job(queue_name="mail")
    fill(succeeded=10)
    assert found(root, "queue:mail") == set()
    assert found(root, f"id:{old.pk} queue:mail") == found(root, f"{old.pk}") == {old.pk}
    assert found(root, "queue:mail", state="queued") == {old.pk}
    note = root.get(LIST, {"q": "queue:mail"}).context["cl"].limit_note
    assert note == "Named jobs are found whatever their age, others among the first 5 of the list."


@pytest.mark.parametrize("text", ["key:k", "k", "args.a:1", "error:boom"])
def test_what_is_secret_cannot_be_guessed_at(text: str, browser: Browser) -> None:
    job = make_job("dead", idempotency_key="k", kwargs={"a": 1})
    blind, seeing = browser("view_job"), browser("view_job", "view_job_payload")
    assert found(seeing, text) == {job.pk}
    assert found(blind, text) == set()
    assert said(blind, text) == "To look for keys, arguments and errors you need the right to see them."


def test_what_cannot_be_read_is_said_and_finds_nothing(root: Client) -> None:
    make_job()
    assert found(root, "wroker:web") == set()
    assert said(root, "task:a wroker:web").startswith("At character 8: There is no wroker:, there are id:, key:, task:")
    assert said(root, "id:x") == "At character 4: x is no number of a job."


def test_json_that_plain_sql_wrote_is_no_500(root: Client) -> None:
    good = make_job(kwargs={"a": "x"})
    bad = make_job()
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE pgqueue_job SET kwargs = '{"a": "\\u0000"}', args = '5' WHERE id = %s""", [bad.pk])
    assert found(root, "args.a:x") == set()
    assert said(root, "args.a:x") == "A job holds what cannot be compared; look for less of it."
    assert found(root, f"id:{good.pk} args.a:x") == {good.pk}
    assert found(root, "args.0:5") == set()


def test_one_that_takes_too_long_is_given_up_and_said(
    root: Client, monkeypatch: pytest.MonkeyPatch, second_connection: psycopg.Connection[Any]
) -> None:
    monkeypatch.setattr(snapshot, "MAX_SECONDS", 0.2)
    with second_connection.transaction(force_rollback=True):
        second_connection.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        told = said(root, "error:boom")
    assert told == "The database took too long. Choose a state, or name jobs by their numbers."


@pytest.mark.parametrize("text", ["queue:q1", "args.a:1", "error:boom", "label:x task:shop.*", "id:1,2,3 queue:q1"])
@pytest.mark.parametrize("state", ["", "dead", "queued", "retrying", "running", "succeeded"])
def test_no_search_scans_the_table(text: str, state: str, root: Client) -> None:
    fill(succeeded=20_000, queued=50, dead=50, running=5, retrying=5)
    analyze()
    with CaptureQueriesContext(connection) as captured:
        root.get(LIST, {"q": text, **({"state": state} if state else {})})
    of_jobs = [
        query["sql"] for query in captured if '"pgqueue_job"' in query["sql"] and query["sql"].startswith("SELECT")
    ]
    assert of_jobs
    for sql in of_jobs:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('enable_sort', 'off', false)" if "ARRAY(" in sql else "SELECT 1")
            cursor.execute(f"EXPLAIN {sql}")
            text = "\n".join(line for (line,) in cursor.fetchall())
            cursor.execute("RESET enable_sort")
        assert "Seq Scan on pgqueue_job" not in text, text


def test_an_action_across_a_search_moves_what_it_found(root: Client) -> None:
    wanted = [make_job("dead", queue_name="mail") for _ in range(3)]
    other = make_job("dead", queue_name="billing")
    data = {"action": "requeue_jobs", "index": "0", "select_across": "1", "_selected_action": "0"}
    root.post(f"{LIST}?q=queue:mail", data)
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == {job.pk for job in wanted}
    assert Job.objects.get(pk=other.pk).state == "dead"
