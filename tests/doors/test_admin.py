"""The admin of the jobs: who may what, what it does, what it shows to whom, and what it asks of the database."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from verbs import rows

from doors.conftest import fill, log_in
from pgqueue_django import admin as job_admin
from pgqueue_django import transitions
from pgqueue_django.admin import actions
from pgqueue_django.models import AuditEntry, Job, Worker
from pgqueue_django.outcomes import DeadLettered, Failure, Kind
from pgqueue_django.states import FINISHED, TRANSITIONS, State

pytestmark = pytest.mark.django_db

LIST = "/admin/pgqueue_django/job/"
TASK = "testproject.shop.tasks.export_sales"
Browser = Callable[..., Client]


def page(job: Job, what: str = "change") -> str:
    return f"{LIST}{job.pk}/{what}/"


def act(client: Client, action: str, *jobs: Job, **more: str) -> HttpResponse:
    data = {"action": action, "_selected_action": [str(job.pk) for job in jobs], "index": "0", **more}
    return client.post(LIST, data, follow=True)


def said(response: HttpResponse) -> str:
    return " ".join(str(message) for message in response.context["messages"])


# -- who may what ----------------------------------------------------------------------------------------------

PEOPLE: dict[str, tuple[str, ...] | None] = {
    "anonymous": None,
    "staff": (),
    "not staff": ("view_job", "requeue_job", "cancel_job"),
    "viewer": ("view_job",),
    "payload": ("view_job", "view_job_payload"),
    "requeuer": ("view_job", "requeue_job"),
    "canceller": ("view_job", "cancel_job"),
    "blind": ("requeue_job", "cancel_job"),  # acts, but may not see
    "runner": ("view_job", "run_job_now"),
    "deleter": ("view_job", "delete_job"),
    "superuser": (),
}
SEE = {"viewer", "payload", "requeuer", "canceller", "runner", "deleter", "superuser"}
MAY = {
    "requeue": {"requeuer", "superuser"},
    "run_now": {"runner", "superuser"},
    "cancel": {"canceller", "superuser"},
    "delete_finished": {"deleter", "superuser"},
}
ACTIONS = {
    "requeue": "requeue_jobs",
    "run_now": "run_jobs_now",
    "cancel": "cancel_jobs",
    "delete_finished": "delete_finished_jobs",
}
ARROWS = {"requeue": "requeue", "run_now": "run_now", "cancel": "cancel", "delete_finished": "delete"}
START = {"requeue": "dead", "run_now": "scheduled", "cancel": "queued", "delete_finished": "dead"}


def button(job: Job, verb: str) -> str:
    return page(job, verb.replace("_", "-"))


def state_of(job: Job) -> str:
    return Job.objects.filter(pk=job.pk).values_list("state", flat=True).first() or "gone"


@pytest.fixture
def visitor(person: Callable[..., User]) -> Callable[[str], Client]:
    def make(who: str) -> Client:
        rights = PEOPLE[who]
        if rights is None:
            return Client()
        return log_in(person(*rights, staff=who != "not staff", superuser=who == "superuser"))

    return make


@pytest.mark.parametrize("who", PEOPLE)
def test_who_may_look(who: str, visitor: Callable[[str], Client]) -> None:
    client, job = visitor(who), rows.make_job("dead")
    outside = who in ("anonymous", "not staff")
    for url in (LIST, page(job), page(job, "history")):
        status = client.get(url).status_code
        assert status == (200 if who in SEE else 302 if outside else 403), url


@pytest.mark.parametrize("who", PEOPLE)
def test_nobody_adds_changes_or_deletes(who: str, visitor: Callable[[str], Client]) -> None:
    client, job = visitor(who), rows.make_job("dead")
    before = rows.row(job.pk)
    for url in (f"{LIST}add/", page(job), page(job, "delete")):
        assert client.post(url, {"state": "queued", "post": "yes"}).status_code in (302, 403, 405), url
    act(client, "delete_selected", job, post="yes")
    assert rows.row(job.pk) == before
    assert client.get(f"{LIST}add/").status_code != 200
    assert client.get(page(job, "delete")).status_code != 200


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("verb", MAY)
def test_who_may_act_from_the_list(who: str, verb: str, visitor: Callable[[str], Client]) -> None:
    client, job = visitor(who), rows.make_job(START[verb])
    client.get(LIST, {"action": ACTIONS[verb], "_selected_action": job.pk, "index": "0"})
    assert state_of(job) == job.state, "a GET changed something"
    act(client, ACTIONS[verb], job)
    assert (state_of(job) != job.state) == (who in MAY[verb])
    rows_of = LogEntry.objects.filter(object_id=job.pk)
    assert rows_of.count() == (1 if who in MAY[verb] else 0)


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("verb", MAY)
def test_who_may_act_from_the_page_of_a_job(who: str, verb: str, visitor: Callable[[str], Client]) -> None:
    client, job = visitor(who), rows.make_job(START[verb])
    if who in SEE:
        offered = f'action="{button(job, verb)}"' in client.get(page(job)).content.decode()
        assert offered == (who in MAY[verb])
    got = client.get(button(job, verb))
    assert got.status_code in (302, 405), got.status_code
    assert state_of(job) == job.state, "a GET changed something"
    answer = client.post(button(job, verb))
    assert (state_of(job) != job.state) == (who in MAY[verb])
    assert LogEntry.objects.filter(object_id=job.pk).count() == (1 if who in MAY[verb] else 0)
    if who not in MAY[verb]:
        assert answer.status_code == (302 if who in ("anonymous", "not staff") else 403)


@pytest.mark.parametrize("who", sorted(SEE))
def test_the_list_offers_only_what_one_may(who: str, visitor: Callable[[str], Client]) -> None:
    client = visitor(who)
    rows.make_job()
    text = client.get(LIST).content.decode()
    offered = set(re.findall(r'<option value="(\w+)"', text))
    assert offered == {ACTIONS[verb] for verb, people in MAY.items() if who in people}


@pytest.mark.parametrize("url", ["list", "requeue", "cancel"])
def test_a_forged_post_without_a_csrf_token_does_nothing(url: str, person: Callable[..., User]) -> None:
    client = log_in(person(superuser=True), enforce_csrf_checks=True)
    job = rows.make_job("queued" if url == "cancel" else "dead")
    answer = act(client, "requeue_jobs", job) if url == "list" else client.post(page(job, url))
    assert answer.status_code == 403
    assert rows.state_of(job.pk) == job.state


# -- what the actions do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["list", "page"])
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", MAY)
def test_an_action_moves_what_its_verb_moves_and_says_what_it_did(
    verb: str, state: State, place: str, browser: Browser
) -> None:
    client, job = browser(superuser=True), rows.make_job(state)
    answer = act(client, ACTIONS[verb], job) if place == "list" else client.post(button(job, verb), follow=True)
    done = {"requeue": "requeued", "cancel": "cancelled", "run_now": "made ready", "delete_finished": "deleted"}[verb]
    arrow = TRANSITIONS[ARROWS[verb]]
    if state in arrow.sources:
        assert state_of(job) in (arrow.targets or {"gone"})
        assert said(answer) == f"1 {done}."
        assert answer.redirect_chain[-1][0] == (LIST if place == "list" or verb == "delete_finished" else page(job))
    else:
        assert state_of(job) == state
        assert said(answer) == f"0 {done}, 1 skipped: it is {state}."


def test_who_deleted_a_job_is_in_the_log_although_the_job_is_gone(person: Callable[..., User]) -> None:
    user, job = person(superuser=True), rows.make_job("succeeded")
    act(log_in(user), "delete_finished_jobs", job)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user_id, entry.action_flag) == (str(job.pk), user.pk, DELETION)
    assert entry.object_repr == str(job)


def test_the_message_counts_what_was_skipped_and_why(browser: Browser) -> None:
    jobs = [rows.make_job(state) for state in ("dead", "failed", "succeeded", "running", "queued", "queued")]
    assert said(act(browser(superuser=True), "requeue_jobs", *jobs[:4])) == "3 requeued, 1 skipped: it is running."
    answer = act(browser(superuser=True), "requeue_jobs", *jobs[3:])
    assert said(answer) == "0 requeued, 3 skipped: 2 queued, 1 running."


def test_what_is_gone_is_said_to_be_gone(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rows.make_job("dead")
    real = actions.VERBS["requeue"]

    def pruned_meanwhile(using: str, ids: Any) -> set[int]:
        transitions.delete(using, ids)
        return real.move(using, ids)

    monkeypatch.setitem(actions.VERBS, "requeue", dataclasses.replace(real, move=pruned_meanwhile))
    assert said(act(browser(superuser=True), "requeue_jobs", job)) == "0 requeued, 1 skipped: it is gone."


def test_each_moved_job_has_a_log_entry_of_who_did_it(person: Callable[..., User]) -> None:
    user = person(superuser=True)
    jobs = [rows.make_job("dead") for _ in range(3)]
    act(log_in(user), "requeue_jobs", *jobs, rows.make_job("running"))
    entries = LogEntry.objects.all()
    assert {(entry.object_id, entry.user_id) for entry in entries} == {(str(job.pk), user.pk) for job in jobs}
    assert {entry.get_change_message() for entry in entries} == {"Requeued."}


@pytest.mark.parametrize(("jobs", "entries"), [(100, 100), (101, 0)])
def test_jobs_of_small_actions_alone_have_it_in_their_history(jobs: int, entries: int, browser: Browser) -> None:
    fill(dead=jobs)
    act(browser(superuser=True), "requeue_jobs", Job.objects.latest("id"), select_across="1")
    assert LogEntry.objects.count() == entries
    assert AuditEntry.objects.get().changed == jobs


# -- what is shown to whom -------------------------------------------------------------------------------------

SECRETS = ("secret-arg", "secret-key", "secret-result", "secret-message", "secret-trace")


def job_with_secrets() -> Job:
    job = rows.make_job(args=["secret-arg"], kwargs={"secret-key": 1}, max_attempts=1)
    held = rows.claim_one(job.pk)
    rows.settle(held, DeadLettered(Failure(Kind.ERROR, "shop.CardError", "secret-message", "secret-trace")))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET state = 'succeeded', result = '\"secret-result\"' WHERE id = %s", [job.pk]
        )
    return job


@pytest.mark.parametrize("who", sorted(SEE))
def test_payload_is_for_who_may_see_it(who: str, visitor: Callable[[str], Client]) -> None:
    client, job = visitor(who), job_with_secrets()
    answer = client.get(page(job))
    text = answer.content.decode()
    shown = {secret for secret in SECRETS if secret in text}
    assert shown == (set(SECRETS) if who in ("payload", "superuser") else set())
    for fact in ("shop.CardError", "error"):
        assert fact in text
    if who not in ("payload", "superuser"):
        assert "2 arguments, not shown to you." in text
        flat = repr([value for context in answer.context for value in context.dicts])
        assert not any(secret in flat for secret in SECRETS), "the template could reach it"


@pytest.mark.parametrize(
    "query",
    ["args__0=secret-arg", "args__contains=secret", "result__icontains=secret", "history__0__message__startswith=s",
     "kwargs__has_key=secret-key", "task__exact=x", "state__exact=dead", "id__gt=0", "queue_name__startswith=d"],
)  # fmt: skip
def test_a_lookup_in_the_url_is_refused(query: str, browser: Browser) -> None:
    assert browser("view_job").get(f"{LIST}?{query}").status_code == 400


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></details><svg onload=alert(1)>",
    "'\"><b onmouseover=alert(1)>",
    "{{ 7|add:7 }}{% debug %}",
    "javascript:alert(1)//<x>",
]


class Tags(HTMLParser):
    """What a browser would make of it: tags, and attributes that run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.inline += [name for name, _ in attrs if name == "style"]
        self.inline += [
            value for name, value in attrs if name in ("href", "src", "action") and "javascript:" in str(value)
        ]
        if tag == "style" or (tag == "script" and not dict(attrs).get("src")):
            self.inline.append(tag)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("state", ["dead", "succeeded", "running", "queued"])
def test_hostile_text_is_text_on_every_page(hostile: str, state: str, browser: Browser) -> None:
    job = rows.make_job(
        state, task=hostile, args=[hostile], kwargs={hostile: hostile}, label=hostile, idempotency_key=hostile
    )
    entry = {
        "attempt": hostile, "worker": hostile, "started_at": hostile, "ended_at": hostile, "kind": hostile,
        "error_type": hostile, "message": hostile, "traceback": hostile,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET queue_name = %s, worker_id = %s, result = %s, history = %s, progress = %s "
            "WHERE id = %s",
            [hostile, hostile, json.dumps({hostile: [hostile]}), json.dumps([entry, hostile, 5, None]),
             json.dumps({"fraction": 0.5, "message": hostile}), job.pk],
        )  # fmt: skip
    Worker.objects.create(
        id=hostile, name=hostile, host=hostile, pid=1, queues=[hostile], concurrency=1, lease_seconds=30
    )
    client = browser(superuser=True)
    other = "cancel" if state in FINISHED else "requeue"
    answers = [
        client.get(LIST),
        client.get(page(job)),
        client.get(page(job, "history")),
        client.get("/admin/pgqueue_django/worker/"),
        act(client, f"{other}_jobs", job),  # skipped: the message says why
        act(client, "requeue_jobs" if other == "cancel" else "cancel_jobs", job),
        client.get(page(job, "history")),  # now with an entry
        client.get("/admin/"),
        client.get(f"{LIST}{hostile.replace('/', '')}/change/", follow=True),
        client.get(LIST, {"q": hostile}),
        client.get(LIST, {"state": hostile}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        text = answer.content.decode()
        assert hostile not in text or "<" not in hostile, answer.request
        parsed = Tags(text)
        assert not parsed.handlers, answer.request
        assert not parsed.inline, answer.request
        assert "b" not in parsed.tags
        assert "14{" not in text
    shown = answers[1].content.decode()
    assert shown.count("alert(1)") >= 10 or "alert" not in hostile, "it is to be shown, as text"


def test_the_page_of_a_job_needs_nothing_of_its_history_to_be_well_formed(browser: Browser) -> None:
    job = rows.make_job("dead")
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE pgqueue_job SET history = '{"not": "a list"}', progress = '3', args = '{}' """)
    assert browser(superuser=True).get(page(job)).status_code == 200


def test_times_and_attempts_are_in_the_list(browser: Browser) -> None:
    for state in State:
        rows.make_job(state, label=f"label {state}")
    text = browser("view_job").get(LIST).content.decode()
    for state in State:
        assert f'<span class="pgq-state pgq-{state}">{state}</span>' in text
        assert f"label {state}" in text
    for words in ("due in 60 min", "ready for ", " ago</time>", ">1/5<", ">0/5<", ">1/1<"):
        assert words in text, words


@pytest.mark.parametrize("number", ["0", "-1", "x", "9" * 30, str(2**63), "1_000", "٣"])
def test_a_job_that_cannot_exist_is_said_to_be_missing(number: str, browser: Browser) -> None:
    client = browser(superuser=True)
    answer = client.get(f"{LIST}{number}/change/", follow=True)
    assert answer.status_code == 200
    assert "There is no job" in said(answer)
    assert client.get(LIST, {"q": number}).context["cl"].result_count == 0


def test_acting_on_a_missing_job_says_so(browser: Browser) -> None:
    client = browser(superuser=True)
    assert "There is no job 77" in said(client.post(f"{LIST}77/requeue/", follow=True))
    assert client.post(f"{LIST}{10**25}/cancel/", follow=True).status_code == 200


def test_what_plain_sql_has_written_does_not_break_the_page(browser: Browser) -> None:
    """A surrogate is JSON to PostgreSQL, and nothing that a page can be encoded with."""
    job = rows.make_job("dead")
    with connection.cursor() as cursor:
        odd = r'["\ud800", "\u0000"]'
        cursor.execute("UPDATE pgqueue_job SET args = %s::json, result = %s::json WHERE id = %s", [odd, odd, job.pk])
    response = browser("view_job", "view_job_payload").get(page(job))
    assert response.status_code == 200
    assert "ud800" in response.content.decode()


@pytest.mark.urls(__name__)
def test_who_may_not_see_one_job_has_no_page_of_it(browser: Browser) -> None:
    """Also by an admin that decides of each job, as those of projects do."""
    client = browser(superuser=True)
    home = "/team/pgqueue_django/job/"
    for label, status, moved in (("private", 403, "dead"), ("open", 200, "queued")):
        job = rows.make_job("dead", queue_name="ours", label=label, args=["secret"], task=TASK)
        pages = ("change", "payload/args", "copy")
        assert [client.get(f"{home}{job.pk}/{page}/").status_code for page in pages] == [status] * 3
        for url, data in ((f"{home}{job.pk}/requeue/", {}), (f"{home}dashboard/requeue/", {"job": job.pk})):
            assert client.post(url, data, follow=True).status_code == status
        assert rows.state_of(job.pk) == moved
        form = {"args": "[]", "kwargs": "{}", "queue_name": "ours", "priority": "0", "token": "t"}
        assert client.post(f"{home}{job.pk}/copy/", form, follow=True).status_code == status


class OtherBase(admin.ModelAdmin):
    """As another theme's ModelAdmin would be."""


class JobAdminOfAnotherTheme(job_admin.JobAdminMixin, OtherBase):
    pass


other_site = admin.AdminSite(name="operations")
other_site.register(Job, JobAdminOfAnotherTheme)


class JobAdminOfATeam(job_admin.JobAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """As a project has it that shows each team its own queue."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return super().get_queryset(request).filter(queue_name="ours")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and (obj is None or obj.label != "private")


team_site = admin.AdminSite(name="team")
team_site.register(Job, JobAdminOfATeam)
urlpatterns = [path("ops/", other_site.urls), path("team/", team_site.urls), path("admin/", admin.site.urls)]


@pytest.mark.urls(__name__)
def test_what_an_admin_leaves_out_nobody_moves_by_it(browser: Browser) -> None:
    failure = Failure(Kind.ERROR, "shop.CardError", "declined")
    jobs = [rows.make_job("queued", queue_name=queue, task="shop.charge") for queue in ("ours", "theirs")]
    for job in jobs:
        rows.settle(rows.claim_one(job.pk), DeadLettered(failure))
        job.refresh_from_db()
    ours, theirs = jobs
    client = browser(superuser=True)
    home = "/team/pgqueue_django/job/"
    group = {"task": ours.task, "fingerprint": ours.error_fingerprint, "until": "9" * 10}
    assert said(client.post(f"{home}problems/", group, follow=True)) == "1 requeued."
    for url, data in (
        (f"{home}dashboard/requeue-dead/", {"queue": "theirs"}),
        (f"{home}dashboard/requeue/", {"job": theirs.pk}),
        (f"{home}{theirs.pk}/requeue/", {}),
        (home, {"action": "requeue_jobs", "_selected_action": [theirs.pk]}),
        (f"{home}?state=dead", {"action": "requeue_jobs", "_selected_action": [theirs.pk], "select_across": "1"}),
    ):
        assert client.post(url, data, follow=True).status_code == 200
    assert [rows.state_of(job.pk) for job in jobs] == ["queued", "dead"]
    assert "theirs" not in "".join(AuditEntry.objects.values_list("target", flat=True).exclude(changed=0))


@pytest.mark.urls(__name__)
def test_the_mixin_serves_another_theme_on_another_site(browser: Browser) -> None:
    client, job = browser(superuser=True), rows.make_job("dead")
    assert client.get("/ops/pgqueue_django/job/").status_code == 200
    text = client.get(f"/ops/pgqueue_django/job/{job.pk}/change/").content.decode()
    assert 'href="/admin/' not in text
    answer = client.post(f"/ops/pgqueue_django/job/{job.pk}/requeue/")
    assert answer.headers["Location"] == f"/ops/pgqueue_django/job/{job.pk}/change/"
    assert rows.state_of(job.pk) == "queued"


class Router:
    """Reads go to a replica that is not there."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model in (Job, Worker) else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "default"


def test_the_admin_reads_from_where_jobs_are_written(browser: Browser, settings: Any) -> None:
    job = rows.make_job("dead")
    client = browser(superuser=True)
    settings.DATABASE_ROUTERS = [Router()]
    for url in (LIST, f"{LIST}?state=dead", page(job), page(job, "history"), "/admin/pgqueue_django/worker/"):
        assert client.get(url).status_code == 200, url
    assert said(act(client, "requeue_jobs", job)) == "1 requeued."
    assert said(client.post(page(job, "cancel"), follow=True)) == "1 cancelled."
