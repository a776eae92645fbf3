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
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.utils import translation
from ground import catalogs
from verbs import rows

from doors.conftest import fill, log_in
from pgqueue_django import answers, audit, queues, schedules, walks
from pgqueue_django.admin import audit_log, listing
from pgqueue_django.models import Job, Queue, Schedule, Worker
from pgqueue_django.outcomes import Kind
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db

ADMIN = "/admin/pgqueue_django/"
LIST = f"{ADMIN}job/"
TASK = "testproject.shop.tasks.export_sales"
LATE = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


# -- no English is left: every message in a language of our own -----------------------------------------------

# What is shown as it is: names and texts of the project's own, of states in addresses, and of Python.
DATA = {TASK, "UTC", rows.BOOM.error_type}


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
        self._unseen = tag in ("script", "style", "pre")  # what is preformatted is JSON, and what Python said

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


def untranslated(answer: HttpResponse) -> list[str]:
    assert answer.status_code == 200, answer.status_code
    page = Page(answer.content.decode())
    assert marked("Job queue") in page.text, "the page is in no language of ours"
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
        searches = [f"{LIST}?q={text}" for text in (job.pk, 0, "queue:x", "x:y", "id:x", "args:1", "key:", "a+" * 11)]
        pages = (LIST, f"{LIST}?state={state}", f"{LIST}{job.pk}/change/", f"{LIST}problems/")
        for url in (*pages, *searches):
            assert untranslated(client.get(url)) == [], url
    for parked in Job.objects.filter(parked_at__isnull=False):
        assert untranslated(boss.get(f"{LIST}{parked.pk}/change/")) == []


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


@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_no_english_is_left_in_what_actions_say(
    marked_language: None, boss: Client, columns: dict[str, Any], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, *others = [rows.make_job(state, **columns) for state in ("dead", "queued", "running", "failed", "succeeded")]
    assert untranslated(act(boss, LIST, f"{verb}_jobs", job)) == []
    assert untranslated(act(boss, LIST, f"{verb}_jobs", job, *others)) == []
    assert untranslated(boss.post(f"{LIST}{job.pk}/{verb}/", follow=True)) == []
    assert untranslated(boss.post(f"{LIST}0/{verb}/", follow=True)) == []
    assert untranslated(boss.get(f"{LIST}{job.pk}/history/")) == []
    monkeypatch.setattr(listing, "LISTED", 2)
    assert untranslated(act(boss, LIST, f"{verb}_jobs", job, *others)) == []


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
        ({"line": "0 0 30 2 *"}, set()),
        ({"line": "1" * 300}, set()),
        ({"zone": "/"}, set()),
        ({"zone": ""}, set()),
        ({"args": "{}"}, set()),
        ({"args": "["}, set()),
        ({"task": "os.system"}, {"os", "system"}),
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


def test_no_english_is_left_in_the_audit_log(
    marked_language: None, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert untranslated(boss.get(f"{ADMIN}auditentry/")) == []
    for action in audit_log.ACTIONS:
        audit.Trail("default", actor=TASK, action=action, target=TASK, reason=TASK).add(1)
    monkeypatch.setattr(audit_log, "LOOKED_AT", 1)
    for query in ("", "?q=x", "?action=cancel", "?before=999999999"):
        answer = boss.get(f"{ADMIN}auditentry/{query}")
        assert untranslated(answer) == [], query
        assert bool(answer.context["cl"].limit_note) == (query[:2] in ("?q", "?a"))


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
