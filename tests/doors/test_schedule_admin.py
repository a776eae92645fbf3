"""Schedules and queues in the admin: who may what, and what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from pgqueue_django import queues, schedules
from pgqueue_django.admin import schedules as schedule_admin
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule

pytestmark = pytest.mark.django_db

URL = "/admin/pgqueue_django/schedule/"
TASK = "testproject.shop.tasks.export_sales"
ARGS = "[7]"
Browser = Callable[..., Client]
VIEW = ("view_schedule",)
CHANGE = ("view_schedule", "change_schedule")
OPERATE = ("view_schedule", "run_schedule", "switch_schedule")


def make(name: str = "nightly", **columns: Any) -> Schedule:
    values = {"task": TASK, "line": "0 3 * * *", "args": [7], "kwargs": {}, **columns}
    return Schedule.objects.create(name=name, next_at=datetime(2030, 1, 1, 3, tzinfo=UTC), **values)


def form(**changes: Any) -> dict[str, Any]:
    values = {"name": "mine", "task": TASK, "args": ARGS, "kwargs": "{}", "line": "0 3 * * *", "zone": "UTC"}
    return {**values, "missed": "one", "overlap": "allow", "is_enabled": "on", **changes}


def act(client: Client, action: str, *rows: Schedule) -> Any:
    return client.post(URL, {"action": action, "_selected_action": [str(row.pk) for row in rows]}, follow=True)


def said(answer: Any) -> list[str]:
    return [str(one) for one in answer.context["messages"]]


def test_a_person_makes_one_and_its_next_tick_is_there(browser: Browser) -> None:
    client = browser("view_schedule", "add_schedule", "change_schedule")
    answer = client.post(URL + "add/", form(zone="Europe/Warsaw"), follow=True)
    assert answer.status_code == 200
    row = Schedule.objects.get()
    assert row.next_at is not None
    assert row.next_at > datetime.now(UTC)
    assert row.next_at.minute == 0
    page = client.get(f"{URL}{row.pk}/change/").content.decode()
    assert page.count(" 03:00:00") == 5, "the next five ticks, as the clocks there show them"
    assert "(Europe/Warsaw)" in page
    client.post(f"{URL}{row.pk}/change/", form(line="*/5 * * * *"))
    changed = Schedule.objects.get()
    assert changed.next_at is not None
    assert (changed.next_at - datetime.now(UTC)).total_seconds() <= 300


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"line": "0 0 30 2 *"}, "no date ever matches it"),
        ({"line": "R * * * *"}, "drawn by lot"),
        ({"zone": "Mars/Olympus"}, "is no time zone"),
        ({"task": "nowhere.at_all"}, "nowhere.at_all"),
        ({"kwargs": '{"wrong": 1}'}, "wrong"),
        ({"args": "{}"}, "a JSON array"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    browser: Browser, changes: dict[str, Any], why: str
) -> None:
    answer = browser("view_schedule", "add_schedule").post(URL + "add/", form(**changes))
    assert why in answer.content.decode()
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("right", ["run_schedule", "switch_schedule", "change_schedule"])
def test_to_run_to_switch_and_to_change_one_are_three_rights(browser: Browser, right: str) -> None:
    row = make()
    client = browser("view_schedule", right)
    act(client, "run_schedules", row)
    assert Job.objects.exists() == (right == "run_schedule")
    act(client, "skip_schedules", row)
    act(client, "disable_schedules", row)
    switched = Schedule.objects.get()
    assert (switched.skip_next, switched.is_enabled) == ((True, False) if right == "switch_schedule" else (False, True))
    # Nor by the form, whose switches are shown to who may change the rest.
    Schedule.objects.update(is_enabled=False, skip_next=False)
    client.post(f"{URL}{row.pk}/change/", {**form(name="nightly", missed="none"), "skip_next": "on"})
    changed = Schedule.objects.get()
    assert (changed.skip_next, changed.is_enabled) == (False, False)
    assert (changed.missed == "none") == (right == "change_schedule")


def test_who_may_look_may_not_act(browser: Browser) -> None:
    row = make()
    client = browser(*VIEW)
    assert "Run now" not in client.get(URL).content.decode()
    for action in ("run_schedules", "skip_schedules", "enable_schedules", "disable_schedules"):
        act(client, action, row)
    client.post(f"{URL}{row.pk}/change/", form(line="* * * * *"))
    kept = Schedule.objects.get()
    assert (kept.line, kept.is_enabled, kept.skip_next, Job.objects.count()) == ("0 3 * * *", True, False, 0)
    assert client.get(URL + "add/").status_code == 403
    assert client.get(f"{URL}{row.pk}/delete/").status_code == 403


def test_the_actions_do_what_they_say_and_log_who_did_it(browser: Browser) -> None:
    row = make()
    client = browser(*OPERATE)
    answer = act(client, "run_schedules", row)
    job = Job.objects.get()
    assert said(answer) == [f"nightly: Run now: job {job.pk}."]
    assert (job.task, job.idempotency_key) == (TASK, None)
    assert said(act(client, "skip_schedules", row)) == ["nightly: The next tick is skipped."]
    assert said(act(client, "skip_schedules", row)) == ["nightly: it was so already"]
    assert Schedule.objects.get().skip_next
    act(client, "disable_schedules", row)
    assert not Schedule.objects.get().is_enabled
    Schedule.objects.update(next_at=datetime(2020, 1, 1, tzinfo=UTC))
    act(client, "enable_schedules", row)
    enabled = Schedule.objects.get()
    assert enabled.is_enabled
    assert enabled.next_at is not None
    # What it missed while it was off is not made up for.
    assert enabled.next_at > datetime.now(UTC)
    assert LogEntry.objects.count() == 4


def test_arguments_are_shown_to_who_may_change_them_or_see_payloads(browser: Browser) -> None:
    row = make(args=["s3cret"])
    for rights, sees in ((VIEW, False), (CHANGE, True), ((*VIEW, "view_job_payload"), True)):
        page = browser(*rights).get(f"{URL}{row.pk}/change/").content.decode()
        assert ("s3cret" in page) == sees


def test_what_an_error_says_is_for_who_may_see_arguments(browser: Browser) -> None:
    row = make(error="ValueError: s3cret is no customer")
    for rights, sees in ((VIEW, False), (CHANGE, True), ((*VIEW, "view_job_payload"), True)):
        client = browser(*rights)
        for page in (client.get(f"{URL}{row.pk}/change/"), client.get(URL)):
            assert ("s3cret" in page.content.decode()) == sees
            assert ("failing" in page.content.decode()) != sees
    Schedule.objects.update(args=["s3cret"] * 40)
    for rights, told in ((OPERATE, "failing"), ((*OPERATE, "view_job_payload"), "too many positional arguments")):
        (text,) = said(act(browser(*rights), "run_schedules", row))
        assert told in text
    assert not Job.objects.exists()


@pytest.mark.parametrize("lookup", ["args__icontains=7", "args=1", "kwargs__a=1", "args__0=7", "error__contains=x"])
def test_no_lookup_guesses_at_arguments(browser: Browser, lookup: str) -> None:
    make()
    client = browser(*VIEW)
    assert client.get(f"{URL}?{lookup}").status_code == 400
    assert client.get(f"{URL}?is_code__exact=0&is_enabled__exact=1").status_code == 200


def test_a_module_of_no_app_is_not_imported_to_look_for_a_task(browser: Browser) -> None:
    sys.modules.pop("this", None)
    answer = browser("view_schedule", "add_schedule").post(URL + "add/", form(task="this.zen"))
    assert "is in no installed app" in answer.content.decode()
    assert "this" not in sys.modules


def test_a_queue_that_goes_on_already_is_said_to(browser: Browser) -> None:
    queues.pause("default", "mail", until=datetime(2020, 1, 1, tzinfo=UTC))
    row = Queue.objects.get()
    data = {"action": "resume_queues", "_selected_action": [row.pk]}
    answer = browser("view_queue", "pause_queue").post("/admin/pgqueue_django/queue/", data, follow=True)
    assert said(answer) == ["mail was not paused."]


def test_a_person_writes_only_what_was_changed(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have fired a tick since the page was read, or declared another line."""
    row = make()

    clean = schedule_admin.ScheduleForm.clean

    def clean_late(self: Any) -> dict[str, Any]:
        Schedule.objects.update(last_job_id=5, next_at=datetime(2031, 1, 1, tzinfo=UTC))
        return clean(self)

    monkeypatch.setattr(schedule_admin.ScheduleForm, "clean", clean_late)
    browser(*CHANGE).post(f"{URL}{row.pk}/change/", form(name="nightly", missed="none"))
    saved = Schedule.objects.get()
    assert (saved.missed, saved.last_job_id) == ("none", 5)
    assert saved.next_at == datetime(2031, 1, 1, tzinfo=UTC)


def test_without_time_zones_the_next_ticks_are_shown(browser: Browser, settings: Any) -> None:
    row = make()
    settings.USE_TZ = False
    try:
        assert "2030-01-05 03:00:00" in browser(*CHANGE).get(f"{URL}{row.pk}/change/").content.decode()
    finally:
        settings.USE_TZ = True


def test_one_that_is_deleted_as_it_is_to_run_is_passed_over(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    run_now = schedules.run_now

    def late(using: str, id: int) -> int:
        Schedule.objects.filter(pk=id).delete()
        return run_now(using, id)

    monkeypatch.setattr(schedules, "run_now", late)
    assert act(browser(*OPERATE), "run_schedules", make(), make("hourly")).status_code == 200
    assert [(entry.changed, entry.skipped) for entry in AuditEntry.objects.all()] == [(0, 2)]


def test_one_whose_task_is_gone_says_so_when_it_is_to_run(browser: Browser) -> None:
    row = make(task="nowhere.at_all")
    assert "nowhere.at_all" in act(browser(*OPERATE), "run_schedules", row).content.decode()
    assert not Job.objects.exists()


def test_what_the_code_declares_is_switched_but_not_changed_nor_deleted(browser: Browser) -> None:
    row = make(is_code=True)
    client = browser(*CHANGE, "switch_schedule", "delete_schedule")
    client.post(f"{URL}{row.pk}/change/", {**form(line="* * * * *"), "is_enabled": "", "skip_next": "on"})
    changed = Schedule.objects.get()
    assert (changed.line, changed.name, changed.skip_next) == ("0 3 * * *", "nightly", True)
    assert client.post(f"{URL}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Schedule.objects.exists()


def test_hostile_text_is_text(browser: Browser) -> None:
    make("<script>alert(1)</script>", line="<b>", zone="<i>", error="<img src=x>")
    page = browser(*CHANGE).get(URL).content.decode()
    for text in ("<script>alert", "<b>", "<img src=x>"):
        assert text not in page


# -- queues ----------------------------------------------------------------------------------------------------

QUEUES = "/admin/pgqueue_django/queue/"


def test_a_person_pauses_and_resumes_a_queue(browser: Browser) -> None:
    client = browser("view_queue", "pause_queue")
    client.post(QUEUES + "add/", {"name": "mail", "reason": "provider down"})
    row = Queue.objects.get()
    assert (row.reason, row.actor.startswith("user-")) == ("provider down", True)
    assert queues.paused("default") == {"mail"}
    client.post(QUEUES, {"action": "resume_queues", "_selected_action": ["mail"]})
    assert queues.paused("default") == frozenset()
    assert LogEntry.objects.filter(change_message="Resumed.").count() == 1


@pytest.mark.parametrize(
    "given", [{"name": "no queue"}, {"name": "mail", "resume_at_0": "9999-12-31", "resume_at_1": "23:59:59"}]
)
def test_what_is_no_queue_or_no_time_is_refused(browser: Browser, given: dict[str, str]) -> None:
    browser("view_queue", "pause_queue").post(QUEUES + "add/", given)
    assert not Queue.objects.exists()


def test_who_may_look_at_queues_may_not_pause_them(browser: Browser) -> None:
    queues.pause("default", "mail")
    client = browser("view_queue")
    assert "mail" in client.get(QUEUES).content.decode()
    assert client.post(QUEUES + "add/", {"name": "other"}).status_code == 403
    client.post(QUEUES, {"action": "resume_queues", "_selected_action": ["mail"]})
    assert queues.paused("default") == {"mail"}
