"""Looking for jobs in the admin: found by what they are, within bounds, by those who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from verbs import rows
from verbs import tasks_of_tests as tasks
from verbs.rows import make_job

from doors.conftest import analyze, fill
from doors.test_job_list import plans
from pgqueue_django import argument_index, snapshot, walks
from pgqueue_django.admin import JobAdmin
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
    monkeypatch.setattr(walks, "LOOKED_AT", 5)
    old = make_job(queue_name="mail")
    fill(succeeded=10)
    assert found(root, "queue:mail") == set()
    assert found(root, f"id:{old.pk} queue:mail") == found(root, f"{old.pk}") == {old.pk}
    assert found(root, "queue:mail", state="queued") == {old.pk}
    note = root.get(LIST, {"q": "queue:mail"}).context["cl"].limit_note
    assert note == "5 jobs were looked at for this page, and there are more."


def test_a_key_is_found_whatever_its_age_in_any_task(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 5)
    one, other = (make_job(task=task, idempotency_key="order-7") for task in ("shop.charge", "shop.refund"))
    make_job(task="shop.zero", idempotency_key="order-8")
    fill(succeeded=20)
    assert found(root, "order-7") == found(root, "key:order-7") == {one.pk, other.pk}
    assert found(root, "key:order-7 task:shop.refund") == {other.pk}
    assert found(root, "key:order-7", state="dead") == set()


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
    readings = [found for sql, found in plans(captured) if "is_wanted" in sql]
    assert readings
    for found in readings:
        assert "Seq Scan on pgqueue_job" not in found, found


def test_an_action_across_a_search_moves_what_it_found(root: Client) -> None:
    wanted = [make_job("dead", queue_name="mail") for _ in range(3)]
    other = make_job("dead", queue_name="billing")
    data = {"action": "requeue_jobs", "index": "0", "select_across": "1", "_selected_action": "0"}
    root.post(f"{LIST}?q=queue:mail", data)
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == {job.pk for job in wanted}
    assert Job.objects.get(pk=other.pk).state == "dead"


# -- the index on arguments --------------------------------------------------------------------------------------


@pytest.fixture
def argument_index_there(transactional_db: None) -> Iterator[None]:
    call_command("pgqueue_index", arguments=True, stdout=StringIO())
    yield
    argument_index.drop("default")


def test_nobody_has_it_who_has_not_asked_for_it() -> None:
    assert argument_index.is_whole("default") is None


SOUGHT = {
    "args.invoice_id:7": lambda: {tasks.charge.enqueue(invoice_id=7, amount_cents=5).id, tasks.charge.enqueue(7, 6).id},
    "args.0:8": lambda: {tasks.charge.enqueue(8, amount_cents=7).id},
    "args.order.lines.0.sku:ü-1": lambda: {make_job(kwargs={"order": {"lines": [{"sku": "ü-1"}]}}).pk},
    "args.order.0:x": lambda: {make_job(kwargs={"order": {"0": "x"}}).pk, make_job(kwargs={"order": ["x", "y"]}).pk},
    "args.ok:true": lambda: {make_job(kwargs={"ok": True}).pk, make_job(kwargs={"ok": "true"}).pk},
    "args.n:1e2": lambda: {make_job(kwargs='{"n": 1e2}').pk, make_job(kwargs='{"n": "1e2"}').pk},
    "args.n:-0.50": lambda: {make_job(kwargs='{"n": -0.50}').pk},
    "args.n:007": lambda: {make_job(kwargs={"n": "007"}).pk},
    "args.n:null": lambda: {make_job(kwargs={"n": "null"}).pk},
    'args.s:"two words"': lambda: {make_job(kwargs={"s": "two words"}).pk},
    "args.s:[1]": lambda: {make_job(kwargs='{"s": [1]}').pk},
    "args.a.b.c.d.e:7": lambda: {make_job(kwargs={"a": {"b": {"c": {"d": {"e": 7}}}}}).pk},
    "args.order.-1:7": lambda: {make_job(kwargs={"order": [5, 7]}).pk, make_job(kwargs={"order": {"-1": 7}}).pk},
    "args.n:" + "9" * 400: lambda: {make_job(kwargs={"n": int("9" * 400)}).pk},
    "args.7:7": lambda: {make_job(kwargs={"7": 7}).pk, make_job(args=[0] * 7 + [7]).pk},
}


@pytest.mark.usefixtures("argument_index_there")
def test_with_its_index_an_argument_is_found_as_without_whatever_its_age(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {text: make() for text, make in SOUGHT.items()}
    make_job(args=[7], kwargs={"n": 100, "ok": False, "s": "two", "order": [["x"]]})
    with_it = {text: found(root, text) for text in SOUGHT}
    assert with_it == wanted
    argument_index.drop("default")
    assert {text: found(root, text) for text in SOUGHT} == wanted
    call_command("pgqueue_index", arguments=True, stdout=StringIO())
    fill(succeeded=30)
    monkeypatch.setattr(walks, "LOOKED_AT", 30)
    # A list or an object is nothing that it can answer.
    assert {text: found(root, text) for text in SOUGHT} == {**wanted, "args.s:[1]": set()}
    answer = root.get(LIST, {"q": "args.invoice_id:7"})
    assert answer.context["cl"].head == "2 jobs, the newest first"
    assert answer.context["cl"].limit_note == ""
    assert found(root, "args.invoice_id:7", state="dead") == set()
    assert found(root, "args.invoice_id:7 task:shop.*") == set()


@pytest.mark.usefixtures("argument_index_there")
def test_what_very_many_have_is_looked_for_page_by_page(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 5)
    monkeypatch.setattr(argument_index, "MOST", 3)
    jobs = [make_job(kwargs={"tenant_id": 7}).pk for _ in range(4)]
    fill(succeeded=4)
    assert found(root, "args.tenant_id:7") == {jobs[-1]}
    assert "5 jobs were looked at" in root.get(LIST, {"q": "args.tenant_id:7"}).content.decode()


@pytest.mark.usefixtures("argument_index_there")
def test_a_page_of_a_list_in_another_order_begins_at_the_first(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the index a list is the newest first, without it it may be in another order."""
    monkeypatch.setattr(JobAdmin, "list_per_page", 1)
    jobs = [make_job(kwargs={"tenant_id": 7}).pk for _ in range(3)]
    asked = {"q": "args.tenant_id:7", "state": "queued"}
    (next_url,) = [one["url"] for one in root.get(LIST, asked).context["cl"].page_links]
    assert [job.pk for job in root.get(f"{LIST}{next_url}").context["cl"].result_list] == [jobs[1]]
    argument_index.drop("default")
    answer = root.get(f"{LIST}{next_url}")
    assert [job.pk for job in answer.context["cl"].result_list] == [jobs[0]]
    (next_url,) = [one["url"] for one in answer.context["cl"].page_links]
    argument_index.make("default")
    assert [job.pk for job in root.get(f"{LIST}{next_url}").context["cl"].result_list] == [jobs[2]]


@pytest.mark.usefixtures("argument_index_there")
def test_so_is_what_its_index_takes_too_long_for(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task, kwargs) SELECT 'shop.charge', json_build_object('tenant_id', 7, 'n', i) "
            "FROM generate_series(1, 9000) AS i"
        )
    monkeypatch.setattr(argument_index, "SECONDS", 0.001)
    assert len(found(root, "args.tenant_id:7")) == 100


@pytest.mark.django_db(transaction=True)
def test_a_row_that_it_cannot_hold_is_told_and_nothing_is_left(root: Client) -> None:
    bad = make_job()
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE pgqueue_job SET kwargs = '{"a": "\\u0000"}' WHERE id = %s""", [bad.pk])
    with pytest.raises(CommandError, match=r"The index was not made: .*Unicode"):
        call_command("pgqueue_index", arguments=True)
    assert argument_index.is_whole("default") is None


@pytest.mark.django_db(transaction=True)
def test_two_who_make_it_at_once_leave_the_one_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    argument_index.make("default")
    seen = argument_index.is_whole
    # As the other one saw it a moment before.
    monkeypatch.setattr(argument_index, "is_whole", lambda using: None)
    with pytest.raises(CommandError, match="already exists"):
        call_command("pgqueue_index", arguments=True)
    try:
        assert seen("default")
    finally:
        argument_index.drop("default")


@pytest.mark.django_db(transaction=True)
def test_one_that_is_not_whole_is_not_used_and_made_anew(root: Client) -> None:
    job = make_job(kwargs={"a": 1})
    argument_index.make("default")
    with connection.cursor() as cursor:  # as it is after a build that was interrupted
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(%s)", [argument_index.NAME]
        )
    said = StringIO()
    call_command("pgqueue_index", stdout=said)
    assert "it is not whole" in said.getvalue()
    with CaptureQueriesContext(connection) as captured:
        assert found(root, "args.a:1") == {job.pk}
    assert not [one for one in captured if "@>" in one["sql"]]
    call_command("pgqueue_index", arguments=True, stdout=said)
    assert argument_index.is_whole("default")
    with CaptureQueriesContext(connection) as captured:
        assert found(root, "args.a:1") == {job.pk}
    (plan,) = [plan for sql, plan in plans(captured) if "@>" in sql]
    assert f"Bitmap Index Scan on {argument_index.NAME}" in plan
    call_command("pgqueue_index", drop=True, stdout=said)
    assert argument_index.is_whole("default") is None
    assert "there is none" in said.getvalue()
