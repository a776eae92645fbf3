"""Whatever stands in a job, a worker, a queue, a schedule or the log: on every page it is text, and nothing of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote as percent

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import Client
from verbs import rows

from pgqueue_django import answers
from pgqueue_django.dashboard import frames, public
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule, Stat, Worker
from pgqueue_django.options import QUEUE_NAME

from .hostile import HOSTILE

pytestmark = pytest.mark.django_db

ADMIN = "/admin/pgqueue_django"
PLAIN = "plain text"
STATES = ("failed", "running", "succeeded", "scheduled", "queued")


@dataclass(frozen=True)
class Shown:
    """One text in every field that is shown."""

    text: str
    jobs: dict[str, int]
    schedule: int
    entry: int

    @property
    def queue(self) -> str:
        return percent(quote(self.text[:63]), safe="")


def fill_with(text: str) -> Shown:
    """Where a verb would not take it, as plain SQL can have written it."""
    jobs = {}
    failed = dict.fromkeys(("attempt", "worker", "started_at", "ended_at", "kind"), text)
    history = [{**failed, "error_type": text, "message": text, "traceback": f"{text}\n{text}"}] * 2
    for state in STATES:
        job = rows.make_job(state)
        jobs[state] = job.pk
        Job.objects.filter(pk=job.pk).update(
            task=text[:255], queue_name=text[:63], label=text[:200], idempotency_key=f"{job.pk}{text}"[:200],
            worker_id=text[:120], args=[text, {text: text}], kwargs={text: [text]}, history=history,
            progress={"fraction": 0.5, "message": text}, past_worker_ids=[text],
            result={text: text} if state == "succeeded" else None,
        )  # fmt: skip
        if state == "failed":
            Job.objects.filter(pk=job.pk).update(error_type=text[:200], error_fingerprint=text[:16])
    with connection.cursor() as cursor:
        # Half a pair: no page can be encoded with it.
        broken = json.dumps([text])[:-1] + ', "\\ud800"]'
        cursor.execute("UPDATE pgqueue_job SET args = %s WHERE id = %s", [broken, jobs["queued"]])
    Worker.objects.create(
        id=text[:120], name=text[:100], host=text[:255], pid=1, queues=[text], tasks=[text], version=text[:40],
        concurrency=1, lease_seconds=0.001,
    )  # fmt: skip
    Queue.objects.create(
        name=text[:63], paused_at=rows.database_now(), reason=text[:200], actor=text[:150],
    )  # fmt: skip
    schedule = Schedule.objects.create(
        name=text[:100], task=text[:255], line=text[:200], zone=text[:64], error=text[:500],
        args=[text], kwargs={text: text}, next_at=rows.database_now(),
    )  # fmt: skip
    Stat.objects.update(queue_name=text[:63], task=text[:255], worker_id=text[:120])
    entry = AuditEntry.objects.create(actor=text[:150], action=text[:40], target=text[:500], reason=text[:200])
    for model, pk in ((Job, jobs["failed"]), (Schedule, schedule.pk), (Queue, text[:63])):
        content_type = ContentType.objects.get_for_model(model)
        LogEntry.objects.create(
            user_id=User.objects.values_list("pk", flat=True)[0],
            content_type=content_type, object_id=pk, object_repr=text[:200], action_flag=CHANGE, change_message=text,
        )  # fmt: skip
    return Shown(text, jobs, schedule.pk, entry.pk)


# -- the pages: a line for each --------------------------------------------------------------------------------

PAGES: dict[str, Callable[[Shown], str]] = {
    "index": lambda shown: "/admin/",
    "app": lambda shown: f"{ADMIN}/",
    "jobs": lambda shown: f"{ADMIN}/job/",
    "failed jobs": lambda shown: f"{ADMIN}/job/?state=failed",
    "failed job": lambda shown: f"{ADMIN}/job/{shown.jobs['failed']}/change/",
    "running job": lambda shown: f"{ADMIN}/job/{shown.jobs['running']}/change/",
    "succeeded job": lambda shown: f"{ADMIN}/job/{shown.jobs['succeeded']}/change/",
    "queued job": lambda shown: f"{ADMIN}/job/{shown.jobs['queued']}/change/",
    "history of a job": lambda shown: f"{ADMIN}/job/{shown.jobs['failed']}/history/",
    "problems": lambda shown: f"{ADMIN}/job/problems/",
    "workers": lambda shown: f"{ADMIN}/worker/",
    "queues": lambda shown: f"{ADMIN}/queue/",
    "queue": lambda shown: f"{ADMIN}/queue/{shown.queue}/change/",
    "history of a queue": lambda shown: f"{ADMIN}/queue/{shown.queue}/history/",
    "schedules": lambda shown: f"{ADMIN}/schedule/",
    "schedule": lambda shown: f"{ADMIN}/schedule/{shown.schedule}/change/",
    "dashboard": lambda shown: f"{ADMIN}/job/dashboard/",
    "how it works": lambda shown: f"{ADMIN}/job/dashboard/how/",
    "copy of a job": lambda shown: f"{ADMIN}/job/{shown.jobs['failed']}/copy/",
    "audit log": lambda shown: f"{ADMIN}/auditentry/",
    "audit entry": lambda shown: f"{ADMIN}/auditentry/{shown.entry}/change/",
    "status page": lambda shown: "/status/",
    "history of a schedule": lambda shown: f"{ADMIN}/schedule/{shown.schedule}/history/",
}
# What is asked for is the text itself: the answers differ, and are compared with nothing.
QUESTIONS: dict[str, Callable[[Shown], str]] = {
    "search": lambda shown: f"{ADMIN}/job/?q={percent(shown.text[:1000])}",
    "search of labels": lambda shown: f"{ADMIN}/job/?q={percent('label:' + json.dumps(shown.text[:100]))}",
    "search of errors": lambda shown: f"{ADMIN}/job/?q={percent('error:' + json.dumps(shown.text[:100]))}",
    "a state that is none": lambda shown: f"{ADMIN}/job/?state={percent(shown.text[:100])}",
    "a job that is none": lambda shown: f"{ADMIN}/job/{percent(quote(shown.text[:100]), safe='')}/change/",
    "search of the audit log": lambda shown: f"{ADMIN}/auditentry/?q={percent(shown.text[:100])}",
    "search of schedules": lambda shown: f"{ADMIN}/schedule/?q={percent(shown.text[:100])}",
}


@pytest.fixture(autouse=True)
def asked_over_the_connection_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests write is rolled back: another connection would not see it."""
    monkeypatch.setattr(answers, "answer", lambda ask, until, database=answers.of_the_jobs: ask(database()))


def forget() -> None:
    """What others have read a moment ago."""
    frames.forget()
    answers.shared.forget()
    public.shared.forget()


def pages(client: Client, shown: Shown) -> Iterator[tuple[str, Any]]:
    forget()
    for name, url in {**PAGES, **QUESTIONS}.items():
        yield name, client.get(url(shown), follow=True)


# -- what a page is made of ------------------------------------------------------------------------------------

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Of these the values are ours alone.
FIXED = ("id", "class", "name", "type", "method", "role", "for", "rel", "src", "lang", "dir", "scope", "enctype")


class Skeleton(HTMLParser):
    """The tags of a page with their attributes, in order; ``unbalanced``: what closes what is not open, or never."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self._in_ticks = False
        self.feed(page)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        # How many numbers stand beside a chart is a matter of the second in which it is drawn.
        self._in_ticks = known.get("class") == "pgq-ticks" or (self._in_ticks and tag == "span")
        assert len(known) == len(attrs), f"an attribute twice: {tag} {attrs}"
        if tag not in VOID and tag not in ("path", "circle", "rect"):
            self._open.append(tag)
        if tag in ("a", "span"):
            # What can be looked for by its name is a link, and what cannot is none.
            tag, known = "text", {name: value for name, value in known.items() if name != "href"}
            if self._in_ticks:
                return
        # Of a message only listed words are there, and maybe none; and lines are lines.
        if known.get("class") != "said" and tag != "br":
            fixed = [f"{name}={re.sub(r'[0-9]+', 'N', str(known[name]))}" for name in FIXED if name in known]
            self.tags.append((tag, *sorted(known), *fixed))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self._open[-1:] == [tag]:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1:] == [tag]:
            self._open.pop()
        elif tag not in ("path", "circle", "rect"):
            self.unbalanced.append(f"</{tag}> in {self._open[-1:]}")


@pytest.fixture
def client(browser: Callable[..., Client]) -> Client:
    return browser(superuser=True)


_plain: dict[str, dict[str, Skeleton]] = {}


def plain(client: Client, like: str = PLAIN) -> dict[str, Skeleton]:
    """The same pages with a text that harms nobody; a queue can have its name where one can have that of ``like``."""
    text = PLAIN.replace(" ", "-") if QUEUE_NAME.fullmatch(like[:63]) else PLAIN
    if text not in _plain:
        with transaction.atomic():
            shown = fill_with(text)
            _plain[text] = {name: Skeleton(answer.content.decode()) for name, answer in pages(client, shown)}
            transaction.set_rollback(True)
    return _plain[text]


def test_there_are_fifty_of_them() -> None:
    assert len(set(HOSTILE)) == 50


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_text_is_text_on_every_page(number: int, client: Client) -> None:
    text = HOSTILE[number]
    expected = plain(client, text)
    shown = fill_with(text)
    wrong: dict[str, Any] = {}
    for name, answer in pages(client, shown):
        page = answer.content.decode()
        found = Skeleton(page)
        if answer.status_code != 200:
            wrong[name] = answer.status_code
        if re.search('[<>"&]', text) and text in page:
            wrong[name] = "it is there as it is"
        if found.unbalanced != expected[name].unbalanced:
            wrong[name] = found.unbalanced
        if name not in QUESTIONS and found.tags != expected[name].tags:
            wrong[name] = difference(expected[name].tags, found.tags)
        if any(text[:40] in f"{header}: {value}" for header, value in answer.headers.items()):
            wrong[name] = dict(answer.headers)
    assert wrong == {}


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_is_no_page_is_not_taken_for_one(number: int, client: Client) -> None:
    shown = fill_with(HOSTILE[number])
    for url in (
        f"{ADMIN}/job/dashboard/frame.json",
        f"{ADMIN}/job/{shown.jobs['succeeded']}/payload/args/",
        f"{ADMIN}/job/{shown.jobs['queued']}/payload/kwargs/",
        f"{ADMIN}/job/{shown.jobs['succeeded']}/payload/result/",
    ):
        forget()
        answer = client.get(url)
        assert answer.status_code == 200, url
        assert answer.headers["Content-Type"] in ("application/json", "text/plain; charset=utf-8"), url
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        json.loads(answer.content)


def difference(expected: list[tuple[str, ...]], found: list[tuple[str, ...]]) -> Any:
    """Where they begin to differ."""
    place = next(
        (place for place, both in enumerate(zip(expected, found, strict=False)) if both[0] != both[1]),
        min(len(expected), len(found)),
    )
    return expected[place : place + 3], found[place : place + 3]


def test_the_text_is_there_to_be_seen(client: Client) -> None:
    """Else the test above shows nothing: most of the pages show what was put into the rows."""
    shown = fill_with(PLAIN)
    for name, answer in pages(client, shown):
        if name in PAGES and name not in ("index", "app", "how it works", "status page"):
            assert PLAIN in answer.content.decode(), name


def test_our_own_pages_are_well_formed(client: Client) -> None:
    for name, found in plain(client).items():
        assert found.unbalanced == [], name
