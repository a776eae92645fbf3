"""What people see is in their language, all of it; what machines read is the same in each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import django
import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from django.contrib.admin import site
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import translation
from ground import catalogs
from verbs import rows

from doors.conftest import fill, log_in
from pgqueue_django import answers, audit, problems, queues, redaction, schedules, snapshot, transitions, walks
from pgqueue_django.admin import audit_log, copies, listing
from pgqueue_django.admin.actions import VERBS
from pgqueue_django.dashboard import frames, live, public, related, wording
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule, Worker
from pgqueue_django.outcomes import Kind
from pgqueue_django.problems import Rule, Severity
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db

ADMIN = "/admin/pgqueue_django/"
LIST = f"{ADMIN}job/"
DASHBOARD = f"{LIST}dashboard/"
TASK = "testproject.shop.tasks.export_sales"
LATE = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


# -- no English is left: every message in a language of our own -----------------------------------------------

# What is shown as it is: names and texts of the project's own, of states in addresses, and of Python.
DATA = {TASK, "UTC", rows.BOOM.error_type, rows.BOOM.message}


def marked(text: str) -> str:
    return f"⟦{text}⟧"


@pytest.fixture(scope="module")
def marked_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every message of ours and of Django's is itself, in brackets."""
    pseudo = Catalog(locale="en_GB")
    files = sorted(Path(django.__path__[0]).glob("**/locale/en/LC_MESSAGES/django.po"))
    assert len(files) > 5, "where are Django's own messages?"
    known = [catalogs.extracted()]
    for path in files:
        with path.open("rb") as file:
            known.append(read_po(file))
    for message in (message for catalog in known for message in catalog if message.id):
        text = tuple(map(marked, message.id)) if isinstance(message.id, tuple) else marked(message.id)
        pseudo.add(message.id, text, context=message.context)
    path = tmp_path_factory.mktemp("locale")
    (path / "en_GB" / "LC_MESSAGES").mkdir(parents=True)
    with (path / "en_GB" / "LC_MESSAGES" / "django.mo").open("wb") as file:
        write_mo(file, pseudo)
    return path


@pytest.fixture
def marked_language(marked_catalogue: Path, settings: Any) -> Iterator[None]:
    """A language of our own: what is in no brackets, nobody can translate."""
    settings.LOCALE_PATHS = [str(marked_catalogue)]
    settings.LANGUAGE_CODE = "en-gb"
    translation.activate("en-gb")
    assert translation.gettext("Job queue") == marked("Job queue")
    yield
    translation.deactivate()


class Page(HTMLParser):
    """All that a page shows: its text, and the attributes that are shown or read out."""

    SHOWN = ("title", "placeholder", "aria-label")  # and no alt: those of Django's signs are in English
    UNSEEN = ("script", "style", "pre", "code", "textarea")  # what is preformatted is JSON, and what Python said

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.attributes: list[str] = []
        self._unseen = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        names = (*self.SHOWN, "value") if known.get("type") == "submit" else self.SHOWN
        self.attributes += [str(known[name]) for name in names if known.get(name)]
        self.attributes += json.loads(known.get("data-words") or "{}").values()  # those of the script
        self._unseen = tag in self.UNSEEN

    def handle_endtag(self, tag: str) -> None:
        self._unseen = False

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.text += f"{data}\n"


def left(text: str) -> list[str]:
    """Words that are in no brackets, and no data."""
    while (shorter := re.sub("⟦[^⟦⟧]*⟧", "", text)) != text:
        text = shorter
    for data in sorted(DATA, key=len, reverse=True):
        text = text.replace(data, "")
    return re.findall(r"[^\W\d_]+", text)


def untranslated(answer: HttpResponse, status: int = 200, shows: str = "Job queue") -> list[str]:
    assert answer.status_code == status, answer.status_code
    page = Page(answer.content.decode())
    assert marked(shows) in page.text, "the page is in no language of ours"
    return [word for text in (page.text, *page.attributes) for word in left(text)]


def act(client: Client, url: str, action: str, *chosen: Any) -> HttpResponse:
    data = {"action": action, "_selected_action": [str(row.pk) for row in chosen], "index": "0"}
    return client.post(url, data, follow=True)


@pytest.fixture
def boss(db: None) -> Client:
    """Who may do everything here, and sees nothing of the shop, which is in English."""
    user = User.objects.create(username="1", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgqueue_django"))
    return log_in(user)


@pytest.fixture
def onlooker(person: Callable[..., User]) -> Client:
    user = person("view_job")
    user.username = "2"
    user.save()
    return log_in(user)


@pytest.fixture
def columns() -> dict[str, Any]:
    return {"task": TASK, "queue_name": "7", "args": [1], "kwargs": {"2": 3}, "worker_id": "5"}


@pytest.mark.parametrize("state", State)
def test_no_english_is_left_on_the_pages_of_jobs(
    marked_language: None, boss: Client, onlooker: Client, columns: dict[str, Any], state: State
) -> None:
    job = rows.make_job(state, label="=", idempotency_key="==", **columns)
    kinds = [
        {
            "kind": str(kind),
            "attempt": 1,
            "worker": "5",
            "started_at": str(LATE),
            "message": "!",
            "traceback": ".",
            "ended_at": str(LATE + timedelta(seconds=5)),
            "error_type": "?",
        }
        for kind in Kind
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET history = %s, progress = %s WHERE id = %s",
            [json.dumps(kinds), json.dumps({"fraction": 0.5, "message": "="}), job.pk],
        )
    rows.make_job("scheduled", parked=True, **columns)
    for client in (boss, onlooker):
        texts = (
            job.pk,
            0,
            "queue:x",
            "x:y",
            "id:x",
            "args:1",
            "args.a:1",
            "fp:x",
            "key:",
            "a+" * 11,
            "a" * 999,
            "%00x",
        )
        searches = [f"{LIST}?q={text}" for text in texts]
        pages = (LIST, f"{LIST}?state={state}", f"{LIST}{job.pk}/change/", f"{LIST}problems/")
        for url in (*pages, *searches):
            assert untranslated(client.get(url)) == [], url
    for parked in Job.objects.filter(parked_at__isnull=False):
        assert untranslated(boss.get(f"{LIST}{parked.pk}/change/")) == []


@pytest.mark.parametrize("state", [None, *State])
def test_no_english_is_left_on_the_pages_of_a_long_list(
    marked_language: None, boss: Client, columns: dict[str, Any], state: State | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site._registry[Job], "list_per_page", 1)
    for _ in range(3):
        rows.make_job(state or "queued", **columns)
    first = boss.get(LIST, {"state": state} if state else {})
    second = boss.get(LIST + first.context["cl"].page_links[-1]["url"])
    assert len(second.context["cl"].page_links) == 3
    for answer in (first, second):
        assert untranslated(answer) == []


@pytest.mark.parametrize("state", [None, *State])
def test_no_english_is_left_where_a_list_is_cut(
    marked_language: None, boss: Client, columns: dict[str, Any], state: State | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "LOOKED_AT", 2)
    for _ in range(5):
        rows.make_job(state or "queued", **columns)
    answer = boss.get(LIST, {"state": state} if state else {})
    assert answer.context["cl"].limit_note
    assert untranslated(answer) == []
    second = boss.get(LIST + answer.context["cl"].further_url)
    assert len(second.context["cl"].page_links) == 3
    assert untranslated(second) == []


def test_no_english_is_left_in_filters(marked_language: None, boss: Client, columns: dict[str, Any]) -> None:
    rows.make_job("dead", **columns)
    Worker.objects.create(id="5", name="1", host="2", pid=1, concurrency=8, lease_seconds=30, tasks=[TASK])
    for name, value in (("queue", 7), ("task", TASK), ("worker", 5), ("error", rows.BOOM.error_type), ("since", "24h")):
        answer = boss.get(LIST, {name: value})
        assert len(answer.context["cl"].result_list) == 1, name
        assert untranslated(answer) == [], name


ACTIONS = {
    "requeue": ("requeue_jobs", "dead"),
    "run_now": ("run_jobs_now", "scheduled"),
    "cancel": ("cancel_jobs", "queued"),
    "delete_finished": ("delete_finished_jobs", "dead"),
}


@pytest.mark.parametrize("verb", ACTIONS)
def test_no_english_is_left_in_what_actions_say(
    marked_language: None, boss: Client, columns: dict[str, Any], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, state = ACTIONS[verb]
    job, *others = [rows.make_job(one, **columns) for one in (state, *State)]
    one, none = (reverse(f"admin:pgqueue_django_job_{verb}", args=[pk]) for pk in (job.pk, 0))
    assert untranslated(boss.post(one, follow=True)) == []
    logged = boss.get(f"{LIST}{job.pk}/history/", follow=True)
    assert (str(VERBS[verb].logged) in logged.content.decode()) == (verb != "delete_finished")
    assert untranslated(logged) == []
    assert untranslated(boss.post(none, follow=True)) == []
    for chosen in ([others[0]], [job, *others]):
        assert untranslated(act(boss, LIST, action, *chosen)) == []
    monkeypatch.setattr(site._registry[Job], "list_per_page", 1)
    monkeypatch.setattr(listing, "LISTED", 2)
    data = {"select_across": "1", "action": action, "_selected_action": [others[0].pk], "index": "0"}
    answer = boss.post(LIST, data, follow=True)
    assert len(answer.context["messages"]) == 2
    assert untranslated(answer) == []


def test_no_english_is_left_on_the_pages_of_workers_and_queues(marked_language: None, boss: Client) -> None:
    worker = {"name": "1", "host": "2", "pid": 12345, "queues": ["7"], "concurrency": 8, "lease_seconds": 30}
    Worker.objects.create(id="1", memory_bytes=10**8, skew_seconds=-0.25, version="0.1", **worker)
    Worker.objects.create(id="2", **worker)
    queues.pause("default", "7", reason="=", actor="1")
    for url in ("worker/", "queue/", "queue/add/", "queue/7/change/", "queue/7/history/", ""):
        assert untranslated(boss.get(ADMIN + url)) == [], url
    for name, year in (("?", 2000), ("8", 9999)):
        form = {"name": name, "reason": "", "resume_at_0": f"{year}-01-01", "resume_at_1": "00:00"}
        answer = boss.post(f"{ADMIN}queue/add/", form)
        assert answer.context["errors"]
        assert untranslated(answer) == []
    assert (
        untranslated(
            boss.post(
                f"{ADMIN}queue/add/", {"name": "9", "reason": "", "resume_at_0": "", "resume_at_1": ""}, follow=True
            )
        )
        == []
    )
    assert untranslated(act(boss, f"{ADMIN}queue/", "resume_queues", *Queue.objects.all())) == []
    assert untranslated(boss.get(f"{ADMIN}queue/9/history/", follow=True)) == []


def schedule_form(**changes: Any) -> dict[str, Any]:
    form = {"name": "1", "task": TASK, "args": "[7]", "kwargs": "{}", "line": "0 3 * * *", "zone": "UTC"}
    return {**form, "missed": "one", "overlap": "allow", "is_enabled": "on", **changes}


@pytest.mark.parametrize(
    ("changes", "foreign"),
    [
        ({"line": "1 2 3"}, set()),
        ({"line": "R * * * *"}, {"R", "H"}),
        ({"line": "? 1 2 3 ü"}, {"ü"}),
        ({"line": "0 ü * * *"}, {"ü"}),
        ({"line": "0 0 ü * *"}, {"ü"}),
        ({"line": "0 0 * ü *"}, {"ü"}),
        ({"line": "0 0 * * * ü"}, {"ü"}),
        ({"line": "0 0 30 2 *"}, set()),
        ({"line": "1" * 300}, set()),
        ({"zone": "/"}, set()),
        ({"zone": ""}, set()),
        ({"args": "{}"}, set()),
        ({"args": "["}, set()),
        ({"task": "os.system"}, {"os", "system"}),
        ({"task": "nowhere.nothing"}, {"nowhere", "nothing"}),
        ({"task": "testproject.shop.tasks.nothing"}, {"testproject", "shop", "tasks", "nothing"}),
        ({"kwargs": '{"1": 1}'}, set()),
    ],
)
def test_no_english_is_left_in_what_is_wrong_with_a_schedule(
    marked_language: None, boss: Client, changes: dict[str, Any], foreign: set[str]
) -> None:
    answer = boss.post(f"{ADMIN}schedule/add/", schedule_form(**changes))
    assert answer.context["errors"]
    assert set(untranslated(answer)) <= foreign


def test_no_english_is_left_on_the_pages_of_schedules(marked_language: None, boss: Client) -> None:
    made = boss.post(f"{ADMIN}schedule/add/", schedule_form(), follow=True)
    assert untranslated(made) == []
    row = Schedule.objects.get()
    code = Schedule.objects.create(name="2", is_code=True, task=TASK, line="0 0 * * *", args=[7], kwargs={})
    for url in ("", "add/", f"{row.pk}/change/", f"{code.pk}/change/", f"{row.pk}/history/", f"{row.pk}/delete/"):
        assert untranslated(boss.get(f"{ADMIN}schedule/{url}")) == [], url
    for action in ("run_schedules", "skip_schedules", "disable_schedules", "enable_schedules"):
        assert untranslated(act(boss, f"{ADMIN}schedule/", action, row)) == [], action
    Schedule.objects.filter(pk=row.pk).update(line="1 2 3", is_enabled=False)
    assert untranslated(act(boss, f"{ADMIN}schedule/", "enable_schedules", row)) == []
    for url in ("", f"{row.pk}/change/", f"{row.pk}/history/"):
        assert untranslated(boss.get(f"{ADMIN}schedule/{url}")) == [], url


LONG = "x" * 20_000
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 41, in charge
    card.pay()
  File "/usr/lib/python3.13/http/client.py", line 9, in request
    self.send()
ValueError: 3
"""


def write(job: Job, **columns: Any) -> None:
    """What no verb writes."""
    with connection.cursor() as cursor:
        for name, value in columns.items():
            cursor.execute(f"UPDATE pgqueue_job SET {name} = %s WHERE id = %s", [value, job.pk])


def test_no_english_is_left_in_what_is_to_be_known_of_a_job(
    marked_language: None,
    boss: Client,
    onlooker: Client,
    columns: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, expired, cancelled = (rows.make_job(state, **columns) for state in ("dead", "running", "running"))
    entry = {"worker": "5", "started_at": str(LATE), "ended_at": str(LATE + timedelta(seconds=5)), "kind": "error"}
    failures = [{**entry, "attempt": n, "traceback": TRACEBACK} for n in (1, 2, 30, 31)]
    write(job, history=json.dumps(failures), args=json.dumps([LONG]))
    rows.move_clock(expired.pk, "lease_expires_at", -1)
    transitions.cancel(rows.DB, [cancelled.pk])
    original = rows.make_job("succeeded", **columns)
    for _ in range(related.MAX_COPIES + 1):
        made = transitions.copy(rows.DB, rows.new(task=TASK, queue_name="7"), original.pk)
    lost = rows.make_job("running", **columns)
    write(lost, copy_of=2**40, history=json.dumps([{}]))
    pages = [job.pk, expired.pk, cancelled.pk, original.pk, made.id, lost.pk]
    for client in (boss, onlooker):
        for pk in pages:
            assert untranslated(client.get(f"{LIST}{pk}/change/")) == [], pk
    Worker.objects.create(id="9", name="9", host="9", pid=1, concurrency=1, lease_seconds=30)
    monkeypatch.setattr(snapshot, "CAP", 1)
    for url in (*(f"{LIST}{pk}/change/" for pk in pages), f"{LIST}problems/"):
        assert untranslated(boss.get(url)) == [], url


def test_no_english_is_left_in_a_copy_with_changes(
    marked_language: None, boss: Client, columns: dict[str, Any]
) -> None:
    job, done = rows.make_job("queued", **columns), rows.make_job("succeeded", **columns)
    url, words = f"{LIST}{job.pk}/copy/", {"export", "id", "int", "dict", "str"}  # its signature
    assert set(untranslated(boss.get(url))) == words
    assert set(untranslated(boss.get(f"{LIST}{done.pk}/copy/"))) == words
    right = {"args": "[7]", "kwargs": "{}", "queue_name": "7", "priority": "0", "run_after": "", "token": "1"}
    wrong: list[dict[str, str]] = [
        {"args": "{}", "kwargs": "[]", "queue_name": "?", "priority": "1000", "run_after_0": "9999-01-01"},
        {"args": "", "kwargs": "", "queue_name": "", "priority": "?", "run_after": "?", "token": ""},
        {"args": "["},
        {"args": "[1, 2, 3]"},
        {"run_after": "9999-01-01 00:00"},
        {"run_after": "2999-01-01 00:00"},
    ]
    for changes in wrong:
        answer = boss.post(url, {**right, **changes})
        assert answer.context["form"].errors, changes
        assert set(untranslated(answer)) == words, changes
    for _ in range(2):
        made = boss.post(url, right, follow=True)
        assert len(made.context["messages"]) == 1
        (key,) = Job.objects.filter(pk=made.context["number"]).values_list("idempotency_key", flat=True)
        assert untranslated(made) == re.findall("[a-z]+", key)
    assert untranslated(boss.get(f"{LIST}{job.pk}/history/")) == []
    assert untranslated(boss.get(f"{LIST}{made.context['number']}/history/")) == []
    write(job, args=json.dumps(["x" * (copies.MAX_EDITED + 1)]))
    assert untranslated(boss.get(url, follow=True)) == []


def test_no_english_is_left_in_the_audit_log(
    marked_language: None, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = f"{ADMIN}auditentry/"
    assert untranslated(boss.get(log)) == []
    for action in audit_log.ACTIONS:
        audit.Trail(rows.DB, actor="1", action=action, target="2", reason="3").add(1, 2)
    monkeypatch.setattr(site._registry[AuditEntry], "list_per_page", 2)
    first = boss.get(log)
    monkeypatch.setattr(audit_log, "LOOKED_AT", 3)
    found, none = boss.get(log, {"q": "1"}), boss.get(log, {"q": "?"})
    assert none.context["cl"].limit_note
    second = boss.get(log + first.context["cl"].older_url)
    assert second.context["cl"].newest_url
    for answer in (first, found, none, second, boss.get(log, {"action": "prune"})):
        assert untranslated(answer) == []


# -- the dashboard and the status page

# What is no text in a frame, by its name; "p50" and "p95" are names of lines.
NO_TEXT = {"key", "url", "class", "at", "until", "taken_at", "ends_at", "window", "scale", "severity", "code", "fields"}
NO_TEXT |= {"path", "box", "grid"}
SIGNS = {"p50", "p95", "/s"}


def texts(frame: Any) -> Iterator[str]:
    if isinstance(frame, dict):
        for name, value in frame.items():
            if name not in NO_TEXT:
                yield from texts(value)
    elif isinstance(frame, list):
        for value in frame:
            yield from texts(value)
    elif isinstance(frame, str):
        yield frame


def seen_and_sent(client: Client, window: str = "live") -> list[str]:
    """What is not translated on the dashboard's page and in the frame that its script asks for."""
    frames.forget()
    query = f"?window={window}"
    found = untranslated(client.get(f"{DASHBOARD}{query}"))
    content = client.get(f"{DASHBOARD}frame.json{query}").json()
    said = list(texts(content))
    assert len(said) > 30
    return [word for word in found + [word for text in said for word in left(text)] if word not in ("p", "s")]


@pytest.fixture
def busy(columns: dict[str, Any]) -> None:
    """Something of all that the dashboard can tell."""
    for state in State:
        rows.make_job(state, label="=", **columns)
    for left_seconds in (-5, 3, 1000):
        job = rows.make_job("running", **columns)
        rows.move_clock(job.pk, "lease_expires_at", left_seconds)
        write(job, progress=json.dumps({"fraction": 0.5, "message": "="}))
    rows.make_job("retrying", queue_name="8", task=TASK, due=True)
    late = rows.make_job(queue_name="9", task=TASK)
    rows.move_clock(late.pk, "run_after", -10_000)
    rows.move_clock(rows.make_job(queue_name="10", task=TASK).pk, "run_after", -10_000)
    made = {"host": "2", "pid": 12345, "concurrency": 8, "lease_seconds": 30}
    Worker.objects.create(id="5", name="1", queues=["7"], memory_bytes=10**8, skew_seconds=-5.25, version="0", **made)
    Worker.objects.create(id="6", name="2", **made)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_worker SET heartbeat_at = heartbeat_at - interval '100 s' WHERE id = '6'")
    for name, until in (("9", None), ("11", timedelta(hours=1))):
        queues.pause(rows.DB, name, reason="=", actor="1", until=until)
    plan = {"task": TASK, "line": "0 3 * * *", "args": [], "kwargs": {}, "next_at": rows.database_now()}
    Schedule.objects.create(name="1", last_fired_at=LATE, last_job_id=late.pk, skip_next=True, **plan)
    Schedule.objects.create(name="2", is_enabled=False, **plan)
    Schedule.objects.create(name="3", error="?", **{**plan, "next_at": LATE})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("window", frames.WINDOWS)
def test_no_english_is_left_on_the_dashboard(
    marked_language: None, boss: Client, person: Callable[..., User], busy: None, window: str
) -> None:
    seen = ("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule")
    viewer = person(*seen)
    viewer.username = "3"
    viewer.save()
    for client in (boss, log_in(viewer)):
        assert seen_and_sent(client, window) == []


@pytest.mark.django_db(transaction=True)
def test_no_english_is_left_where_the_dashboard_has_no_more_room(
    marked_language: None, boss: Client, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_QUEUES", 1)
    monkeypatch.setattr(frames, "MAX_SERIES", 1)
    fill(running=live.MAX_RUNNING + 1)
    Job.objects.filter(task__startswith="shop").update(task=TASK, queue_name="7", worker_id="5")
    made = {"host": "2", "pid": 1, "concurrency": 8, "lease_seconds": 30}
    Worker.objects.bulk_create(Worker(id=f"{n}", name=f"{n}", **made) for n in range(100, 101 + live.MAX_WORKERS))
    assert seen_and_sent(boss) == []
    monkeypatch.setattr(snapshot, "CAP", 1)
    assert seen_and_sent(boss) == []
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_count (queue_name, state, jobs, counted_at) "
            "VALUES ('7', 'queued', 1000, statement_timestamp())"
        )
    assert seen_and_sent(boss) == []
    monkeypatch.setattr(live.pasts["hour"], "reading", silent)
    assert seen_and_sent(boss, "hour") == []


def silent(*_: Any) -> Any:
    raise answers.Unanswered("no answer")


@pytest.mark.django_db(transaction=True)
def test_no_english_is_left_where_there_is_nothing_yet(marked_language: None, boss: Client) -> None:
    assert seen_and_sent(boss) == []
    Worker.objects.create(id="1", name="1", host="2", pid=1, concurrency=8, lease_seconds=30)
    assert seen_and_sent(boss) == []


@pytest.mark.django_db(transaction=True)
def test_no_english_is_left_in_what_the_buttons_of_the_dashboard_say(
    marked_language: None, boss: Client, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LISTED", 1)
    for state in ("dead", "dead", "scheduled", "running"):
        rows.make_job(state, **columns)
    jobs = {job.state: job.pk for job in Job.objects.all()}
    plan = {"task": TASK, "line": "0 3 * * *", "args": [7], "kwargs": {}, "next_at": rows.database_now()}
    schedule = Schedule.objects.create(name="1", **plan).pk
    broken = Schedule.objects.create(name="2", is_enabled=False, **{**plan, "line": "1 2 3"}).pk
    for verb, fields in (
        *[(verb, {"queue": "7"}) for verb in ("pause", "resume", "resume", "requeue_dead")],
        *[("requeue", {"job": job}) for job in (jobs["dead"], jobs["dead"], 0)],
        *[("run_now", {"job": jobs["scheduled"]}), ("cancel", {"job": jobs["running"]})],
        *[(f"{verb}_schedule", {"schedule": schedule}) for verb in ("run", "skip", "skip", "disable", "enable")],
        *[("enable_schedule", {"schedule": pk}) for pk in (schedule, broken, 0)],
    ):
        answer = boss.post(f"{DASHBOARD}{verb.replace('_', '-')}/", fields, follow=True)
        assert answer.context["messages"], verb
        assert [word for word in untranslated(answer) if word not in ("p", "s", "reports")] == [], verb
    for url in (f"job/{jobs['dead']}", f"schedule/{schedule}"):
        assert untranslated(boss.get(f"{ADMIN}{url}/history/")) == [], url


def test_no_english_is_left_in_how_it_works_but_the_names_of_the_verbs(marked_language: None, boss: Client) -> None:
    verbs = {"enqueue", "promote", "claim", "heartbeat", "settle", "release", "reap", "cancel", "requeue", "prune"}
    assert set(untranslated(boss.get(f"{DASHBOARD}how/"))) == {*verbs, "run", "now"}


@pytest.mark.parametrize("why", ["OperationalError: gone", "ProgrammingError: no table"])
def test_no_english_is_left_where_the_dashboard_has_no_database(
    marked_language: None, boss: Client, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def reading(*_: Any) -> Any:
        raise answers.Unanswered(why)

    monkeypatch.setattr(answers.pings, "reading", reading)
    assert untranslated(boss.get(DASHBOARD), 503, "Queue dashboard") == []


@pytest.mark.django_db(transaction=True)
def test_no_english_is_left_on_the_status_page(
    marked_language: None, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A task goes by its own name, and a worker by a number of its own.
    names = {"export", "sales", *re.findall("[a-z]+", "".join(redaction.worker(id) for id in ("5", "6")))}

    def words(status: int = 200) -> set[str]:
        public.shared.forget()
        return set(untranslated(Client().get("/status/"), status, "Status of the job queue"))

    monkeypatch.setattr(public, "MAX_QUEUES", 1)
    assert words() == names
    Worker.objects.all().delete()
    assert words() == {"export", "sales"}
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgqueue_job, pgqueue_stat, pgqueue_count, pgqueue_queue")
    assert words() == set()
    monkeypatch.setattr(public.shared, "reading", silent)
    assert words(503) == set()


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.django_db(transaction=True)
def test_no_english_is_left_in_what_is_wrong(
    marked_language: None, boss: Client, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = re.findall(r"%\((\w+)\)", problems.TEXTS[rule])
    found = [problems.Problem(rule, dict.fromkeys([*names, "seconds"], 7))]
    monkeypatch.setattr(problems, "find", lambda taken: found)
    answers.shared.forget()
    assert untranslated(boss.get(f"{LIST}problems/")) == []
    assert seen_and_sent(boss) == []
    assert wording.problem_text(found[0]) in boss.get(DASHBOARD).content.decode()


@pytest.mark.parametrize("severity", [None, *Severity])
def test_no_english_is_left_in_what_is_told_to_everybody(marked_language: None, severity: Severity | None) -> None:
    told = tuple(public.Told(rule, "7", 100.0) for rule in public._TEXTS) if severity else ()
    seen = public.Status(LATE, severity, told, 1, 8, 1, (), (), ())
    assert untranslated(public.page(seen), shows="Status of the job queue") == []


def test_no_english_is_left_in_why_the_metrics_are_closed(marked_language: None, onlooker: Client) -> None:
    for client, status in ((Client(), 401), (onlooker, 403)):
        answer = client.get("/pgqueue/metrics")
        assert answer.status_code == status
        assert left(answer.content.decode()) == []


def test_the_search_for_english_knows_it_when_it_sees_it() -> None:
    assert left(marked("state") + " (UTC), 12:30") == []
    assert left(marked(f"{marked('3 requeued')}, 1 skipped.")) == []
    assert left(f"{marked('3 requeued')}, 1 skipped.") == ["skipped"]
    assert Page('<p title="a">b<script>c</script><input type="submit" value="d">').attributes == ["a", "d"]


# -- real languages --------------------------------------------------------------------------------------------

# ruff: noqa: RUF001 - the comma and the colon of Chinese

# Words of the list, of a dead job's page, and of what requeueing it says; a moment; a skew; a percentage.
SPOKEN = {
    "pl": (
        ["Kolejka zadań", "Stan", "Kiedy", "Przywróć wybrane zadania do kolejki", "martwe", "w kolejce", "temu"],
        ["Nieudane próby", "Klucz idempotencji", "Argumenty", "Przywróć do kolejki", "Ślad stosu", "błąd", "50%"],
        "1 zadanie przywrócono do kolejki, pominięto 2: 1 w kolejce, 1 zaplanowane.",
        ("14.03.2026 15:09:26", "14.03.2026 15:09", "-0,250 s"),
    ),
    "de": (
        ["Auftragswarteschlange", "Zustand", "Wann", "Ausgewählte Aufträge neu einreihen", "tot", "eingereiht", "vor "],
        [
            "Fehlgeschlagene Versuche",
            "Idempotenzschlüssel",
            "Argumente",
            "Neu einreihen",
            "Fehler",
            "50\u00a0%",
        ],
        "1 Auftrag neu eingereiht, 2 übersprungen: 1 eingereiht, 1 geplant.",
        ("14.03.2026 15:09:26", "14.03.2026 15:09", "-0,250 s"),
    ),
    "zh-hans": (
        ["作业队列", "状态", "时间", "将所选作业重新入队", "死信", "排队中", "前"],
        ["失败的尝试", "幂等键", "参数", "重新入队", "回溯", "错误", "50%"],
        "1 个作业已重新入队，跳过 2 个：1 排队中, 1 已计划。",
        ("2026/03/14 15:09:26", "2026/03/14 15:09", "-0.250 秒"),
    ),
}


@pytest.mark.parametrize("language", SPOKEN)
def test_the_admin_speaks_the_language_of_who_asks(
    boss: Client, columns: dict[str, Any], language: str, settings: Any
) -> None:
    in_list, in_page, report, (moment, short, skew) = SPOKEN[language]
    boss.defaults["HTTP_ACCEPT_LANGUAGE"] = language
    dead = rows.make_job("dead", idempotency_key="==", **columns)
    others = [rows.make_job("queued", **columns), rows.make_job("scheduled", **columns)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET progress = %s, enqueued_at = %s", ['{"fraction": 0.5}', LATE])
    Worker.objects.create(
        id="1", name="1", host="2", pid=12345, concurrency=8, lease_seconds=30, skew_seconds=-0.25, memory_bytes=10**8
    )
    listed = Page(boss.get(LIST).content.decode()).text
    assert [word for word in in_list if word not in listed] == []
    assert short in listed
    shown = Page(boss.get(f"{LIST}{dead.pk}/change/").content.decode()).text
    assert [word for word in in_page if word not in shown] == []
    assert moment in shown
    assert skew in Page(boss.get(f"{ADMIN}worker/").content.decode()).text
    answer = act(boss, LIST, "requeue_jobs", dead, *others)
    assert [str(message) for message in answer.context["messages"]] == [report]
    wrong = boss.post(f"{ADMIN}schedule/add/", schedule_form(line="0 0 30 2 *"))
    with translation.override(language):
        why = translation.gettext("%(line)r: no date ever matches it.") % {"line": "0 0 30 2 *"}
    assert wrong.context["adminform"].form.errors["line"] == [why]
    assert "no date" not in why


# -- machines --------------------------------------------------------------------------------------------------


@pytest.fixture
def grouping(settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = "de"


def test_names_that_are_numbers_are_written_without_separators(
    grouping: None, boss: Client, columns: dict[str, Any]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), 1233999)")
    job = rows.make_job("dead", **columns)
    Worker.objects.create(id="1", name="1", host="2", pid=3123456, concurrency=8, lease_seconds=30)
    row = Schedule.objects.create(name="2", task=TASK, line="0 0 * * *", args=[7], kwargs={}, last_job_id=job.pk)
    for url, number in (
        (LIST, job.pk),
        (f"{LIST}{job.pk}/change/", job.pk),
        (f"{ADMIN}worker/", 3123456),
        (f"{ADMIN}schedule/{row.pk}/change/", job.pk),
    ):
        text = boss.get(url).content.decode()
        assert str(number) in text, url
        assert f"{number:,}".replace(",", ".") not in text, url


@pytest.mark.django_db(transaction=True)
def test_the_metrics_are_the_same_in_each_language(columns: dict[str, Any], settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": True}
    fill(queued=3 * 1234)  # in three queues
    plain = Client().get("/pgqueue/metrics").content
    assert b"1234.0" in plain
    settings.USE_THOUSAND_SEPARATOR = True
    for language in ("de", "pl", "zh-hans"):
        answers.shared.forget()
        answer = Client(headers={"accept-language": language}).get("/pgqueue/metrics")
        assert answer.headers["Content-Language"] == language, "or it was not asked in that language"
        assert same_moment(answer.content) == same_moment(plain)


def same_moment(page: bytes) -> list[bytes]:
    """Without how long jobs have waited, which goes on."""
    return [line for line in page.splitlines() if not line.startswith(b"pgqueue_oldest_due_seconds{")]


def test_health_is_the_same_in_each_language(grouping: None) -> None:
    answer = Client(headers={"accept-language": "de"}).get("/pgqueue/healthz")
    assert answer.json()["status"] == "ok"
    assert isinstance(answer.json()["db_ms"], float)


@pytest.mark.parametrize("command", [("pgqueue_status",), ("pgqueue_status", "--json"), ("pgqueue_jobs", "--json")])
def test_commands_write_the_same_in_each_language(
    command: tuple[str, ...], columns: dict[str, Any], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    fill(dead=1200)

    def written() -> str:
        call_command(*command)
        return re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", "", capsys.readouterr().out)  # when it was asked

    plain = written()
    assert "dead" in plain
    with translation.override("de"):
        assert written() == plain


def test_why_a_schedule_does_not_fire_is_stored_in_english() -> None:
    """Workers write it, for all who read it."""
    past = datetime.now(UTC) - timedelta(hours=1)
    Schedule.objects.create(name="1", task=TASK, line="0 0 30 2 *", args=[7], kwargs={}, next_at=past)
    with translation.override("de"):
        schedules.fire("default")
    assert Schedule.objects.get().error == "'0 0 30 2 *': no date ever matches it."
