"""*Copy with changes*: a new job of the same task, validated as the code's own are, once for each form."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Barrier
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from verbs import rows

from doors import api_tasks, copy_tasks
from doors.conftest import log_in
from pgqueue_django import transitions
from pgqueue_django.admin import copies
from pgqueue_django.models import AuditEntry, Job
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db

LIST = "/admin/pgqueue_django/job/"
TASK = copy_tasks.send.path
MAY = ("view_job", "view_job_payload", "copy_job")
Browser = Callable[..., Client]


def url(job: Job | int, what: str = "copy") -> str:
    return f"{LIST}{job if isinstance(job, int) else job.pk}/{what}/"


def old_job(state: str = "dead", **columns: Any) -> Job:
    return rows.make_job(
        state, **{"task": TASK, "args": [17], "kwargs": {"note": "a"}, "queue_name": "slow", **columns}
    )


def form(**changes: str) -> dict[str, str]:
    values = {"args": "[18]", "kwargs": "{}", "queue_name": "slow", "priority": "0", "run_after": "", "reason": ""}
    return {**values, "token": "t-1", **changes}


def typed(client: Client, job: Job) -> dict[str, str]:
    """What the form holds as it is shown, to be sent as it is."""
    shown = client.get(url(job)).context["form"]
    return {name: str(shown[name].value() if shown[name].value() is not None else "") for name in shown.fields}


def made(job: Job) -> list[Job]:
    return list(Job.objects.exclude(pk=job.pk).order_by("pk"))


def said(answer: HttpResponse) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


# -- who may ---------------------------------------------------------------------------------------------------

PEOPLE: dict[str, tuple[str, ...] | None] = {
    "anonymous": None,
    "staff": (),
    "viewer": ("view_job",),
    "reader": ("view_job", "view_job_payload"),
    "without seeing payloads": ("view_job", "copy_job"),
    "without seeing jobs": ("view_job_payload", "copy_job"),
    "without copying": ("view_job", "view_job_payload", "requeue_job", "cancel_job", "delete_job", "enqueue_job"),
    "copier": MAY,
}


@pytest.mark.parametrize("who", PEOPLE)
def test_who_may_copy(who: str, browser: Browser) -> None:
    rights, job = PEOPLE[who], old_job()
    client = Client() if rights is None else browser(*rights)
    before = rows.row(job.pk)
    status = {"anonymous": 302, "copier": 200}.get(who, 403)
    answer = client.get(url(job))
    assert answer.status_code == status
    assert ("17" in answer.content.decode()) == (who == "copier")
    assert client.post(url(job), form()).status_code == (302 if who == "copier" else status)
    assert len(made(job)) == (1 if who == "copier" else 0)
    assert AuditEntry.objects.count() == LogEntry.objects.count() // 2 == len(made(job))
    assert rows.row(job.pk) == before
    if rights and "view_job" in rights:
        offered = f'href="{url(job)}"' in client.get(url(job, "change")).content.decode()
        assert offered == (who == "copier")


def test_who_is_not_staff_copies_nothing(person: Callable[..., User]) -> None:
    job, client = old_job(), log_in(person(*MAY, staff=False))
    assert client.post(url(job), form()).status_code == 302
    assert made(job) == []


def test_a_forged_post_without_a_csrf_token_makes_nothing(person: Callable[..., User]) -> None:
    job, client = old_job(), log_in(person(*MAY), enforce_csrf_checks=True)
    assert client.post(url(job), form()).status_code == 403
    assert made(job) == []


@pytest.mark.parametrize("method", ["put", "patch", "delete", "options"])
def test_other_methods_make_nothing(method: str, browser: Browser) -> None:
    job = old_job()
    assert getattr(browser(*MAY), method)(url(job), form()).status_code == 405
    assert made(job) == []


def test_to_look_at_the_form_makes_nothing(browser: Browser) -> None:
    job = old_job()
    browser(*MAY).get(url(job), form())
    assert made(job) == []


# -- what is made ----------------------------------------------------------------------------------------------


def test_a_new_job_is_made_by_the_tasks_own_way_and_the_old_one_stays(person: Callable[..., User]) -> None:
    job = old_job(idempotency_key="order-17", label="of old", max_attempts=1)
    before = rows.row(job.pk)
    user = person(*MAY)
    answer = log_in(user).post(
        url(job),
        form(kwargs='{"note": "b"}', priority="5", queue_name="other", reason="the number was wrong"),
        follow=True,
    )
    (new,) = made(job)
    assert answer.redirect_chain[-1][0] == url(new, "change")
    assert said(answer) == f"Job {new.pk} was made of job {job.pk}."
    assert (new.task, new.args, new.kwargs, new.state) == (TASK, [18], {"note": "b"}, "queued")
    assert (new.queue_name, new.priority, new.copy_of) == ("other", 5, job.pk)
    assert (new.label, new.max_attempts, new.backoff["base"]) == ("parcel 18", 7, 9)
    assert new.idempotency_key != "order-17"
    assert rows.row(job.pk) == before
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target) == (user.username, "copy", f"job {job.pk}")
    assert (entry.reason, entry.changed, entry.skipped) == ("the number was wrong", 1, 0)
    logged = {(one.object_id, one.action_flag, one.user_id, one.get_change_message()) for one in LogEntry.objects.all()}
    assert logged == {
        (str(new.pk), ADDITION, user.pk, f"Made of job {job.pk}."),
        (str(job.pk), CHANGE, user.pk, f"Copied with changes: job {new.pk}."),
    }


@pytest.mark.parametrize("state", State)
def test_a_job_of_any_state_is_copied_and_what_is_unfinished_is_said_to_run_as_well(
    state: State, browser: Browser
) -> None:
    job, client = old_job(state), browser(*MAY)
    before = rows.row(job.pk)
    text = client.get(url(job)).content.decode()
    assert ("it will run as well" in text) == (state in ("queued", "scheduled", "running", "retrying"))
    client.post(url(job), typed(client, job))
    (new,) = made(job)
    assert new.state == ("scheduled" if state == "scheduled" else "queued")
    assert (new.args, new.kwargs, new.queue_name, new.copy_of) == ([17], {"note": "a"}, "slow", job.pk)
    assert rows.row(job.pk) == before


def test_a_moment_is_waited_for(browser: Browser, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Warsaw"
    job, client = old_job(), browser(*MAY)
    assert "in the time zone Europe/Warsaw." in client.get(url(job)).content.decode()
    client.post(url(job), form(run_after="2040-07-31 12:00:00"))
    (new,) = made(job)
    assert (new.state, new.run_after) == ("scheduled", datetime(2040, 7, 31, 10, tzinfo=UTC))


def test_numbers_and_letters_go_through_the_form_as_they_are(browser: Browser) -> None:
    job, client = old_job(args="[12345678901234567890123]", kwargs={"note": "中 <b>&amp;"}), browser(*MAY)
    sent = typed(client, job)
    assert "12345678901234567890123" in sent["args"]
    client.post(url(job), sent)
    (new,) = made(job)
    assert (new.args, new.kwargs) == (job.args, job.kwargs)


def test_a_dataclass_is_made_of_its_fields(browser: Browser) -> None:
    job = old_job()
    browser(*MAY).post(url(job), form(kwargs='{"parcel": {"weight": 3}}'))
    assert [new.kwargs for new in made(job)] == [{"parcel": {"weight": 3}}]


def test_a_task_of_djangos_own_framework_is_copied_too(browser: Browser) -> None:
    job = old_job(task=api_tasks.django_charge.module_path, kwargs={})
    browser(*MAY).post(url(job), form())
    (new,) = made(job)
    assert (new.args, new.max_attempts, new.copy_of) == ([18], 3, job.pk)


# -- what is refused -------------------------------------------------------------------------------------------

WRONG = {
    "no JSON": ({"args": "[18"}, "args", "This is no JSON"),
    "no array": ({"args": '{"a": 1}'}, "args", "Arguments are a JSON array."),
    "no object": ({"kwargs": "[]"}, "kwargs", "Keywords are a JSON object."),
    "nothing": ({"args": " "}, "args", "This field is required."),
    "NaN": ({"args": "[NaN]"}, "args", "NaN is no number of JSON"),
    "infinite": ({"kwargs": '{"more": 1e999}'}, "kwargs", "larger than a number can be"),
    "twice": ({"kwargs": '{"more": 1, "more": 2}'}, "kwargs", "is there twice"),
    "NUL": ({"kwargs": '{"note": "a\\u0000b"}'}, "kwargs", "NUL"),
    "bare NUL": ({"args": '["a\0b"]'}, "args", "Null characters are not allowed."),
    "surrogate": ({"args": '["\\ud800"]'}, "args", "surrogate"),
    "deep": ({"args": "[" * 5000 + "]" * 5000}, "args", ""),
    "deeper": ({"args": "[" * 200_000 + "]" * 200_000}, "args", ""),
    "digits": ({"args": f"[{'9' * 5000}]"}, "args", "This is no JSON"),
    "too many": ({"args": "[1, 2]"}, "args", "too many positional arguments"),
    "missing": ({"args": "[]"}, "args", "number"),
    "unknown name": ({"kwargs": '{"nte": "a"}'}, "kwargs", "nte"),
    "too large": ({"args": json.dumps(["x" * 300_000])}, "args", "MAX_PAYLOAD_BYTES"),
    "no field of it": ({"kwargs": '{"parcel": {"height": 3}}'}, "kwargs", "is no field of Parcel"),
    "its own check": ({"kwargs": '{"parcel": {"weight": 13}}'}, "args", "KeyError"),
    "queue": ({"queue_name": "a b"}, "queue_name", "Give 1 to 63 characters A-Za-z0-9_.-"),
    "long queue": ({"queue_name": "q" * 64}, "queue_name", "63"),
    "priority": ({"priority": "101"}, "priority", "100"),
    "no priority": ({"priority": "1.5"}, "priority", "whole number"),
    "moment": ({"run_after": "soon"}, "run_after", "Enter a valid date/time."),
    "far": ({"run_after": "9999-01-01 00:00:00"}, "run_after", "Give a year before 9000."),
    "too far": ({"run_after": "2999-01-01 00:00:00"}, "run_after", "36,500 days"),
    "long reason": ({"reason": "r" * 201}, "reason", "200"),
    "no token": ({"token": ""}, "token", "This field is required."),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_at_its_field_what_was_typed_is_kept_and_nothing_is_made(
    case: str, browser: Browser
) -> None:
    changes, field, why = WRONG[case]
    job = old_job()
    sent = form(reason="because", **changes) if "reason" not in changes else form(**changes)
    with rows.statements() as statements:
        answer = browser(*MAY).post(url(job), sent)
    assert answer.status_code == 200
    shown = answer.context["form"]
    assert list(shown.errors) == [field]
    assert why in " ".join(shown.errors[field])
    for name, value in sent.items():
        assert shown[name].value() == value
    page = html.unescape(answer.content.decode())
    assert "Nothing was made yet" in page
    assert why in page
    assert made(job) == []
    assert not AuditEntry.objects.exists()
    assert not LogEntry.objects.exists()
    assert not [sql for sql in statements if sql.startswith("INSERT") and "pgqueue" in sql]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("nowhere.tasks.gone", "is in no installed app."),
        ("antigravity.fly", "is in no installed app."),
        ("testproject.shop.tasks.gone", "There is no such task here"),
        ("doors.copy_tasks.no_task", "There is no such task here"),
    ],
)
def test_a_task_that_this_process_does_not_know_is_said_to_be_unknown(task: str, why: str, browser: Browser) -> None:
    job, client = old_job(task=task), browser(*MAY)
    assert client.get(url(job)).status_code == 200
    answer = client.post(url(job), form())
    assert why in " ".join(answer.context["form"].non_field_errors())
    assert why in html.unescape(answer.content.decode())
    assert made(job) == []


def test_arguments_too_long_for_a_form_are_said_to_be(browser: Browser) -> None:
    job = old_job()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET args = %s WHERE id = %s", [json.dumps(["x" * copies.MAX_EDITED]), job.pk]
        )
    answer = browser(*MAY).get(url(job), follow=True)
    assert answer.redirect_chain[-1][0] == url(job, "change")
    assert said(answer) == "The arguments are too long to be changed here."


@pytest.mark.parametrize("args", ["[" * 900 + "]" * 900, '{"no": "array"}', r'["\ud800"]', "3"])
def test_odd_arguments_of_plain_sql_can_be_looked_at(args: str, browser: Browser) -> None:
    job = old_job()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET args = %s WHERE id = %s", [args, job.pk])
    assert browser(*MAY).get(url(job)).status_code == 200


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_job_that_is_gone_says_so(method: str, browser: Browser) -> None:
    job = old_job()
    transitions.delete(rows.DB, [job.pk])
    answer = getattr(browser(*MAY), method)(url(job), form(), follow=True)
    assert f"There is no job {job.pk}" in said(answer)
    assert not Job.objects.exists()


HOSTILE = "</textarea><script>alert(1)</script>"


def test_hostile_text_stays_in_its_field(browser: Browser) -> None:
    job = old_job(args=[HOSTILE], label=HOSTILE)
    client = browser(*MAY)
    for answer in (client.get(url(job)), client.post(url(job), form(args=HOSTILE, kwargs=HOSTILE, reason=HOSTILE))):
        text = answer.content.decode()
        assert HOSTILE not in text
        assert "alert(1)" in text
        assert not re.search(r"\sstyle=|<script(?![^>]*\ssrc=)", text)


# -- once ------------------------------------------------------------------------------------------------------


def test_a_form_that_is_sent_twice_makes_one_job(browser: Browser) -> None:
    job, client = old_job(), browser(*MAY)
    sent = typed(client, job)
    client.post(url(job), sent)
    answer = client.post(url(job), {**sent, "reason": "again"}, follow=True)
    (new,) = made(job)
    assert said(answer).endswith(f"This form has already made job {new.pk}; there is no second one.")
    assert answer.redirect_chain[-1][0] == url(new, "change")
    assert (AuditEntry.objects.count(), LogEntry.objects.count()) == (1, 2)


def test_a_form_that_was_opened_again_or_changed_makes_another(browser: Browser) -> None:
    job, client = old_job(), browser(*MAY)
    sent = typed(client, job)
    for changes in ({}, {"args": "[20]"}, {"priority": "1"}, {"run_after": "2040-01-01 00:00:00"}, typed(client, job)):
        client.post(url(job), {**sent, **changes})
    assert len(made(job)) == 5


@pytest.mark.django_db(transaction=True)
def test_four_that_are_sent_at_once_make_one_job(person: Callable[..., User]) -> None:
    job, user, together = old_job(), person(*MAY), Barrier(4)
    clients = [log_in(user) for _ in range(4)]

    def send(client: Client) -> int:
        together.wait(10)
        return client.post(url(job), form()).status_code

    rivals = [rows.Rival(lambda client=client: send(client)) for client in clients]  # type: ignore[misc]
    assert [rival.result() for rival in rivals] == [302] * 4
    assert len(made(job)) == 1
    assert (AuditEntry.objects.count(), LogEntry.objects.count()) == (1, 2)


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_logged_is_not_made(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    job, client = old_job(), browser(*MAY)
    client.raise_request_exception = False
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_audit ADD CONSTRAINT refused CHECK (reason <> 'refuse')")
    try:
        assert client.post(url(job), form(reason="refuse")).status_code == 500
        assert made(job) == []
        assert not LogEntry.objects.exists()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE pgqueue_audit DROP CONSTRAINT refused")
    assert client.post(url(job), form()).status_code == 302


def test_what_stands_for_the_copy_already_is_no_other_jobs_copy(browser: Browser) -> None:
    first = transitions.copy(rows.DB, rows.new(idempotency_key="k"), 7)
    assert transitions.copy(rows.DB, rows.new(idempotency_key="k"), 8) == transitions.Enqueued(first.id, created=False)
    assert Job.objects.get(pk=first.id).copy_of == 7


def test_two_jobs_are_copied_apart_whatever_their_forms_say(browser: Browser) -> None:
    jobs, client = [old_job(), old_job()], browser(*MAY)
    for job in jobs:
        client.post(url(job), form())
    assert sorted(Job.objects.exclude(copy_of=None).values_list("copy_of", flat=True)) == [job.pk for job in jobs]


def test_the_copy_costs_the_enqueue_nothing(browser: Browser) -> None:
    """One INSERT as ever; only a copy takes a second statement."""
    with rows.statements() as sent:
        transitions.enqueue(rows.DB, rows.new())
    assert len(sent) == 1
    assert "copy_of" not in sent[0]
    with rows.statements() as sent:
        transitions.copy(rows.DB, rows.new(), 7)
    assert [sql.split()[0] for sql in sent] == ["INSERT", "UPDATE"]
