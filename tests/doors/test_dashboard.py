"""The dashboard in the admin: who may what, what a frame holds for whom, what the buttons do, what many cost."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.http import HttpResponse
from django.test import Client
from django.urls import set_script_prefix
from django.utils import timezone
from verbs import rows
from verbs.rows import DB, GRACE, claim_one, make_job

from doors.conftest import fill, log_in
from doors.test_live import add, worker
from pgqueue_django import answers, queues, snapshot, stats, transitions
from pgqueue_django.admin import listing
from pgqueue_django.answers import SHARED_SECONDS
from pgqueue_django.dashboard import frames, live
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule
from pgqueue_django.outcomes import Failed, Failure, Kind
from pgqueue_django.states import State
from pgqueue_django.tasks import resolve

pytestmark = pytest.mark.django_db(transaction=True)

DASHBOARD = "/admin/pgqueue_django/job/dashboard/"
FRAME = f"{DASHBOARD}frame.json"
Browser = Callable[..., Client]
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e%(x)s"


@pytest.fixture(autouse=True)
def no_frame_is_left() -> Iterator[None]:
    yield
    frames.forget()


def frame(client: Client, query: str = "") -> dict[str, Any]:
    frames.forget()
    response = client.get(f"{FRAME}{query}")
    assert response.status_code == 200, response.content
    content: dict[str, Any] = response.json()
    return content


def table(content: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = [table for table in content["tables"] if table["key"] == key]
    return found


def cells(content: dict[str, Any], key: str) -> list[dict[str, dict[str, Any]]]:
    """The rows of a table, each by the names of its columns."""
    found = table(content, key)
    names = [column["key"] for column in found["columns"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in found["rows"]]


def tile(content: dict[str, Any], key: str) -> dict[str, str]:
    (found,) = [tile for tile in content["tiles"] if tile["key"] == key]
    return found


def schedule(name: str = "nightly", **columns: Any) -> Schedule:
    made = {"task": "testproject.shop.tasks.count_stock", "line": "0 3 * * *", "next_at": rows.database_now()}
    return Schedule.objects.create(name=name, **{**made, **columns})


# -- who may what ----------------------------------------------------------------------------------------------

PEOPLE: dict[str, tuple[str, ...] | None] = {
    "anonymous": None,
    "staff": (),
    "not staff": ("view_dashboard", "view_job"),
    "jobs only": ("view_job", "cancel_job", "pause_queue"),
    "viewer": ("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule"),
    "superuser": (),
}
SEE = {"viewer", "superuser"}


def visitor(who: str, person: Callable[..., User]) -> Client:
    rights = PEOPLE[who]
    if rights is None:
        return Client()
    return log_in(person(*rights, staff=who != "not staff", superuser=who == "superuser"))


@pytest.mark.parametrize("who", PEOPLE)
def test_who_may_look(who: str, person: Callable[..., User]) -> None:
    client = visitor(who, person)
    outside = who in ("anonymous", "not staff")
    for url in (DASHBOARD, f"{DASHBOARD}how/"):
        assert client.get(url).status_code == (200 if who in SEE else 302 if outside else 403), url
        assert client.post(url).status_code in (302, 403, 405), url
    # A script has no use for a page to log in.
    assert client.get(FRAME).status_code == (200 if who in SEE else 401 if outside else 403)
    assert client.get(f"{DASHBOARD}stream/").status_code == (204 if who in SEE else 401 if outside else 403)
    for url in (FRAME, f"{DASHBOARD}stream/"):
        assert client.post(url).status_code == 405
        response = client.get(url)
        assert response.status_code == 403 or "no-store" in response.headers["Cache-Control"]


TABLES = {
    "view_worker": ["queues", "workers"],
    "view_schedule": ["queues", "schedules"],
    "view_job": ["queues", "tasks", "running", "retrying", "dead", "failed"],
    "view_queue": ["queues"],
}


@pytest.mark.parametrize("right", TABLES)
def test_lists_are_for_those_who_may_see_what_is_in_them(right: str, browser: Browser) -> None:
    make_job("running", task="secret.task")
    make_job("dead", task="secret.task")
    worker("secret-host")
    schedule("secret-schedule")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET label = 'secret-label'")
    content = frame(browser("view_dashboard", right))
    assert [table["key"] for table in content["tables"]] == TABLES[right]
    text = json.dumps(content)
    assert ("secret-label" in text) == ("secret.task" in text) == (right == "view_job")
    assert ("secret-host" in text) == (right == "view_worker")
    assert ("secret-schedule" in text) == (right == "view_schedule")
    assert bool(content["feed"]) == (right == "view_job")
    assert "boom" not in text  # what an error said
    assert ("/pgqueue_django/job/?" in text) == (right == "view_job")


def test_what_errors_and_handlers_said_is_for_those_who_may_see_payloads(browser: Browser) -> None:
    make_job("dead")
    held = claim_one(make_job().pk)
    rows.heartbeat(held, progress={held.id: '{"fraction": 0.4, "message": "secret step"}'})
    rights = ("view_dashboard", "view_job")
    content = frame(browser(*rights))
    assert [cells(content, "dead")[0]["error"]["text"], cells(content, "running")[0]["progress"]["text"]] == [
        "ValueError", "40%",
    ]  # fmt: skip
    content = frame(browser(*rights, "view_job_payload"))
    assert [cells(content, "dead")[0]["error"]["text"], cells(content, "running")[0]["progress"]["text"]] == [
        "ValueError: boom", "40% secret step",
    ]  # fmt: skip


def test_who_paused_a_queue_and_why_is_for_those_who_may_see_queues(browser: Browser) -> None:
    queues.pause(DB, "mail", reason="provider down", actor="ana")
    assert cells(frame(browser("view_dashboard")), "queues")[0]["state"]["text"] == "paused"
    text = cells(frame(browser("view_dashboard", "view_queue")), "queues")[0]["state"]["text"]
    assert text == "paused by ana: provider down"


def test_each_viewer_has_a_frame_of_his_own(person: Callable[..., User]) -> None:
    """Of one reading: rights, language, time zone, window and the place of the project."""
    make_job("dead", task="secret.task")
    seer, other = (log_in(person("view_dashboard", *more)) for more in (("view_job", "view_job_payload"), ()))
    marks = []
    for client, language, prefix, inside in (
        (seer, "en", "/", "boom"),
        (other, "en", "/", "Waiting"),
        (seer, "pl", "/", "boom"),
        (seer, "en", "/shop/", "/shop/admin/"),
        (other, "en", "/", "Waiting"),
        (seer, "en", "/", "boom"),
    ):
        set_script_prefix(prefix)  # as the server's handler does
        try:
            page, shown = (client.get(url, headers={"Accept-Language": language}) for url in (DASHBOARD, FRAME))
        finally:
            set_script_prefix("/")
        content = shown.content.decode()
        assert inside in content
        assert ("secret.task" in content) == (client is seer)
        assert ("/shop/admin/" in content) == (prefix != "/")
        assert ("Waiting" in content) == (language == "en")
        marks.append(re.findall(r'data-viewer="(\w+)"', page.content.decode())[0])
    # By it the tabs of a browser know whose frames they may share.
    assert (len(set(marks)), marks[1], marks[0]) == (4, marks[4], marks[5])


def test_a_page_that_asks_by_itself_keeps_no_session_alive(person: Callable[..., User], settings: Any) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    settings.PGQUEUE = {"METRICS_PUBLIC": False, "LIVE": "sse"}
    client = log_in(person("view_dashboard"))
    ends_at = Session.objects.get().expire_date
    for url in (FRAME, f"{DASHBOARD}stream/"):
        assert client.get(url).status_code in (200, 204)
        assert Session.objects.get().expire_date == ends_at
    client.get(DASHBOARD)
    assert Session.objects.get().expire_date > ends_at


def test_a_length_beyond_the_last_bucket_is_said_to_be_one(browser: Browser) -> None:
    with connection.cursor() as cursor:
        stats.add(cursor, "w", [stats.Sample("default", "t", State.SUCCEEDED, 3600.0, 2.0)])
    content = frame(browser("view_dashboard"))
    assert tile(content, "pickup")["text"] == "≥ 5 min · ≥ 5 min"
    assert "≥" not in tile(content, "run")["text"]
    (pickup,) = [chart for chart in content["charts"] if chart["key"] == "pickup"]
    assert {line["text"] for line in pickup["series"]} == {"≥ 5 min"}


# -- what is in it ---------------------------------------------------------------------------------------------


def test_page_and_json_are_of_one_frame(browser: Browser) -> None:
    make_job("running")
    client = browser(superuser=True)
    page = client.get(DASHBOARD)
    content = frame(client)
    assert set(content) == {
        "number", "taken_at", "window", "problems", "tiles", "charts", "tables", "feed", "checklist",
    }  # fmt: skip
    shown = page.context["frame"]
    assert set(shown) == set(content)
    assert [tile["key"] for tile in content["tiles"]] == [
        "done", "failed", "pickup", "run", "waiting", "oldest", "slots",
    ]  # fmt: skip
    assert [tile["key"] for tile in shown["tiles"]] == [tile["key"] for tile in content["tiles"]]
    assert page.context["frame_url"] == FRAME
    assert b"testproject" not in page.content  # nothing but what is in the frame


def urls_in(content: Any) -> set[str]:
    if isinstance(content, list):
        return {url for one in content for url in urls_in(one)}
    if not isinstance(content, dict):
        return set()
    own = {content["url"]} if content.get("url") and "fields" not in content else set()
    return own | {url for one in content.values() for url in urls_in(one)}


@pytest.mark.parametrize("query", ["", "?window=hour", "?window=week"])
def test_each_task_has_its_failures_and_how_long_it_takes(query: str, browser: Browser) -> None:
    with connection.cursor() as cursor:
        stats.add(cursor, "w", [
            *[stats.Sample("mail", "shop.charge", State.SUCCEEDED, 0.003, 0.2)] * 6,
            *[stats.Sample("mail", "shop.charge", State.RETRYING, 0.003, 0.2)] * 2,
            stats.Sample("mail", "shop.ship", State.SUCCEEDED, None, 40.0),
        ])  # fmt: skip
    rows_of = cells(frame(browser("view_dashboard", "view_job"), query), "tasks")
    assert [(row["task"]["text"], row["done"]["text"], row["failed"]["text"]) for row in rows_of] == [
        ("shop.charge", "6", "2 (25.0%)"), ("shop.ship", "1", "0"),
    ]  # fmt: skip
    assert rows_of[0]["task"]["url"].endswith("/job/?task=shop.charge")
    assert rows_of[0]["failed"]["class"] == "pgq-failed"
    assert "class" not in rows_of[1]["failed"]
    assert re.fullmatch(r"\S+ ms · \S+ ms", rows_of[0]["pickup"]["text"]), rows_of
    assert rows_of[1]["pickup"]["text"] == "- · -"
    assert re.fullmatch(r"\S+ s · \S+ s", rows_of[1]["run"]["text"]), rows_of


def test_every_link_leads_somewhere(browser: Browser, settings: Any) -> None:
    settings.PGQUEUE = {
        "METRICS_PUBLIC": False,
        "PROBLEMS": {
            "oldest_due_seconds": 0,
            "failures": 0,
            "failure_rate": 0,
            "schedule_late_seconds": 0,
            "paused_seconds": 0,
            "unknown_task_seconds": 0,
        },
    }
    for state in State:
        make_job(state)
    worker("w", age=100)
    schedule(last_job_id=Job.objects.earliest("pk").pk)
    queues.pause(DB, "default")
    rows.move_clock(Job.objects.get(state="queued").pk, "run_after", -100)
    rows.move_clock(Job.objects.get(state="queued").pk, "enqueued_at", -100)
    add(State.DEAD, 20)
    make_job(State.SCHEDULED, parked=True)
    client = browser(superuser=True)
    found: set[str] = set()
    for window in frames.WINDOWS:
        content = frame(client, f"?window={window}")
        found |= urls_in(content)
        assert all(tile["url"] for tile in content["tiles"])
    assert len(content["problems"]) >= 4
    assert all(problem["url"] for problem in content["problems"])
    (unknown,) = [problem["url"] for problem in content["problems"] if "no live worker knows it" in problem["text"]]
    assert unknown.endswith("/job/?task=shop.tasks.charge&state=scheduled"), "parked jobs are old ones"
    assert len(found) > 20
    for url in found:
        assert client.get(url).status_code == 200, url


def test_a_queue_shows_what_it_has_and_that_a_count_has_an_end(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CAP", 6)
    for _ in range(8):
        make_job(queue_name="long")
    make_job("dead", queue_name="short")
    content = frame(browser("view_dashboard"))
    by_name = {row["queue"]["text"]: row for row in cells(content, "queues")}
    assert by_name["long"]["queued"]["text"] == "6+"
    assert by_name["short"]["dead"]["text"] == "1"
    assert by_name["short"]["queued"]["text"] == "0"
    assert tile(content, "waiting")["text"] == "6+"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_count (queue_name, state, jobs, counted_at) "
            "VALUES ('long', 'queued', 48200, statement_timestamp() - interval '40 s')"
        )
    content = frame(browser("view_dashboard"))
    by_name = {row["queue"]["text"]: row for row in cells(content, "queues")}
    assert (by_name["long"]["queued"]["text"], by_name["long"]["queued"]["title"]) == ("≈ 48,200", "counted 40 s ago")
    assert tile(content, "waiting")["note"].startswith("counted 4")


def test_a_running_job_shows_its_lease_and_how_far_it_is(browser: Browser) -> None:
    worker("w")
    for left in (25, 10, 3, -5):
        rows.move_clock(make_job("running", worker_id="w-1").pk, "lease_expires_at", left)
    shown = cells(frame(browser("view_dashboard", "view_job")), "running")
    assert [row["lease"].get("class") for row in shown] == ["pgq-over", "pgq-low", "pgq-half", None]
    assert shown[0]["lease"]["text"] == "lease expired, waiting for a worker to take it back"
    assert all(row["lease"]["until"] for row in shown)
    assert not any(row["actions"].get("buttons") for row in shown)


def test_a_lost_worker_is_marked(browser: Browser) -> None:
    worker("fresh")
    worker("gone", age=100)
    shown = table(frame(browser("view_dashboard", "view_worker")), "workers")["rows"]
    assert [row["class"] for row in shown] == ["", "pgq-lost"]
    assert shown[1]["cells"][1]["text"] == "lost, last seen 100 s ago"


def test_windows_of_the_past_and_only_those_that_there_are(browser: Browser) -> None:
    add(State.SUCCEEDED, 30)
    client = browser("view_dashboard")
    for window, length in live.WINDOWS.items():
        content = frame(client, f"?window={window}")
        chart = content["charts"][0]
        assert (content["window"], chart["seconds_per_point"]) == (window, length.seconds_per_point)
        assert len(chart["series"][0]["points"]) == length.points
        assert chart["series"][0]["points"][-1] > 0
    assert frame(client, "?window=%00x")["window"] == "live"


def test_charts_have_a_line_from_the_first_frame_on(browser: Browser) -> None:
    add(State.SUCCEEDED, 30)
    charts = {chart["key"]: chart for chart in frame(browser("view_dashboard"))["charts"]}
    assert set(charts) == {"throughput", "pickup", "run", "waiting"}
    done = charts["throughput"]["series"][0]["points"]
    assert len(done) == live.KEPT_SECONDS // live.SECONDS
    assert None not in done
    assert max(done) > 0


def test_nobody_looking_is_a_gap_in_what_waited(browser: Browser) -> None:
    make_job(queue_name="mail")
    client = browser("view_dashboard")
    frame(client)
    live.readings.forget()
    points = [dataclasses.replace(p, at=p.at - back) for back in (60, 58, 56, 4, 2) for p in live._watch._points]
    live._watch._points.clear()
    live._watch._points.extend(points)
    (chart,) = [chart for chart in client.get(FRAME).json()["charts"] if chart["key"] == "waiting"]
    (line,) = chart["series"]
    assert line["key"] == "queue-mail"
    seen = "".join("-" if point is None else str(int(point)) for point in line["points"])
    assert re.fullmatch(r"-{20,}1{2,3}-{20,}1{1,3}", seen), seen


def test_the_largest_queues_have_lines_of_their_own_and_the_rest_one() -> None:
    waits = [{f"q{number}": 10 - number for number in range(8)}, None, {"q7": 100, "other": 200}]
    series = list(frames._by_queue(waits))
    assert [(one["key"], one["points"]) for one in series] == [
        ("queue-q7", [3.0, None, 100.0]),
        ("queue-q0", [10.0, None, 0.0]),
        ("queue-q1", [9.0, None, 0.0]),
        ("queue-q2", [8.0, None, 0.0]),
        ("queue-q3", [7.0, None, 0.0]),
        ("other", [15.0, None, 200.0]),
    ]


def test_the_first_steps_are_there_until_there_was_a_job(browser: Browser) -> None:
    client = browser("view_dashboard")
    steps = frame(client)["checklist"]
    assert [step["done"] for step in steps] == [True, True, False, False]
    assert "manage.py pgqueue_worker" in steps[2]["code"]
    (path,) = re.findall(r"manage.py pgqueue_enqueue (\w+\.\S+)", steps[3]["code"])
    assert resolve(path).path == path
    worker("w")
    assert [step["done"] for step in frame(client)["checklist"]] == [True, True, True, False]
    job = make_job("succeeded")
    assert frame(client)["checklist"] is None
    Job.objects.filter(pk=job.pk).delete()
    assert frame(client)["checklist"] is None  # there was one


def test_each_reads_it_in_his_language(browser: Browser) -> None:
    client = browser("view_dashboard")
    english = client.get(FRAME, headers={"Accept-Language": "en"})
    german = client.get(FRAME, headers={"Accept-Language": "de"})
    assert english.headers["ETag"] != german.headers["ETag"]
    labels = [table(answer.json(), "queues")["columns"][0]["label"] for answer in (english, german)]
    assert labels == ["Queue", "Warteschlange"]


def test_each_reads_it_in_his_time_zone(browser: Browser) -> None:
    make_job("dead")
    client = browser("view_dashboard", "view_job")
    titles = set()
    for zone in ("Asia/Tokyo", "America/New_York"):
        with timezone.override(zone):
            (row,) = cells(client.get(FRAME).json(), "dead")
            titles.add(row["when"]["title"])
    assert len(titles) == 2


def test_hostile_texts_stay_texts(browser: Browser) -> None:
    for state in ("running", "dead", "failed", "retrying", "queued"):
        make_job(state)
    worker("w", version=HOSTILE[:40])
    schedule(HOSTILE)
    queues.pause(DB, "default", reason=HOSTILE, actor=HOSTILE)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET task = %s, label = %s, queue_name = %s, error_type = %s",
            [HOSTILE, HOSTILE, HOSTILE[:60], HOSTILE],
        )
    client = browser(superuser=True)
    content = frame(client)
    assert cells(content, "dead")[0]["task"]["text"] == f"{HOSTILE} · {HOSTILE}"
    assert HOSTILE in cells(content, "dead")[0]["error"]["text"]
    page = client.get(DASHBOARD).content.decode()
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") >= 10


# -- what many cost --------------------------------------------------------------------------------------------


def test_who_has_the_frame_of_now_is_told_so_in_a_304(browser: Browser) -> None:
    client = browser("view_dashboard")
    first = client.get(FRAME)
    again = client.get(FRAME, headers={"If-None-Match": first.headers["ETag"]})
    # The machine may have been busy for longer than a reading is good for.
    assert again.status_code == 304 or again.headers["ETag"] != first.headers["ETag"]
    if again.status_code == 304:
        assert again.content == b""
    rows.wait_for(lambda: client.get(FRAME, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200)
    assert client.get(FRAME, headers={"If-None-Match": '"another"'}).status_code == 200


def walks() -> int:
    """Walks over the table of jobs that the server has counted: of connections that are closed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT sum(idx_scan) + (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'pgqueue_job') "
            "FROM pg_stat_user_indexes WHERE relname = 'pgqueue_job'"
        )
        return int(cursor.fetchone()[0])


def settled_walks() -> int:
    """Once those who have just closed their connections have said what they did."""
    seen = [-1, walks()]
    began = time.monotonic()

    def is_still() -> bool:
        seen.append(walks())
        return seen[-1] == seen[-2] and time.monotonic() > began + 0.3

    rows.wait_for(is_still)
    return seen[-1]


def test_a_hundred_viewers_cost_the_database_what_one_does(person: Callable[..., User]) -> None:
    fill(queued=50, running=20, dead=20, succeeded=50)
    viewers = [log_in(person("view_dashboard", "view_job")) for _ in range(100)]
    viewers[0].get(FRAME)
    rows.wait_for(lambda: time.monotonic() > live.readings._asked_at + SHARED_SECONDS)
    before = settled_walks()
    viewers[0].get(FRAME)
    one = settled_walks() - before
    assert one > 5
    rows.wait_for(lambda: time.monotonic() > live.readings._asked_at + SHARED_SECONDS)
    began = time.monotonic()
    bodies = [viewer.get(FRAME).content for viewer in viewers]
    took = time.monotonic() - began
    numbers = {json.loads(body)["number"] for body in bodies}
    assert len(numbers) <= 1 + took / SHARED_SECONDS
    assert len(set(bodies)) == len(numbers)
    assert settled_walks() - before == one * (1 + len(numbers))


def test_a_frame_is_made_once_for_all_who_see_the_same(
    person: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    drawing = frames._Drawing

    class Counted(drawing):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            made.append(args[0])
            super().__init__(*args)

    monkeypatch.setattr(frames, "_Drawing", Counted)
    same = [log_in(person("view_dashboard", "view_job")) for _ in range(10)]
    numbers = {client.get(FRAME).json()["number"] for client in same}
    assert len(made) == len(numbers)
    other = log_in(person("view_dashboard"))
    assert other.get(FRAME).json()["number"]
    assert len({viewer.rights for viewer in made}) == 2


def test_frames_of_people_who_left_are_forgotten(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_KEPT", 3)
    client = browser("view_dashboard")
    for language in ("en", "de", "pl", "en-gb", "fr"):
        assert client.get(FRAME, headers={"Accept-Language": language}).status_code == 200
    assert len(frames._kept) == 3


# -- buttons ---------------------------------------------------------------------------------------------------

RIGHTS = {
    "pause": ("pause_queue",),
    "resume": ("pause_queue",),
    "requeue_dead": ("requeue_job",),
    "requeue": ("view_job", "requeue_job"),
    "run_now": ("view_job", "run_job_now"),
    "cancel": ("view_job", "cancel_job"),
    "run_schedule": ("view_schedule", "run_schedule"),
    "skip_schedule": ("view_schedule", "switch_schedule"),
    "disable_schedule": ("view_schedule", "switch_schedule"),
    "enable_schedule": ("view_schedule", "switch_schedule"),
}
EVERYTHING = (
    *("view_dashboard", "view_job", "view_job_payload", "view_queue", "view_worker", "view_schedule", "requeue_job"),
    *("run_job_now", "cancel_job", "pause_queue", "run_schedule", "switch_schedule"),
)


def press(client: Client, verb: str, **fields: Any) -> HttpResponse:
    return client.post(f"{DASHBOARD}{verb.replace('_', '-')}/", fields, follow=True)


def said(response: HttpResponse) -> list[str]:
    return [str(message) for message in response.context["messages"]]


class Place:
    """Something for each button to act on."""

    def __init__(self) -> None:
        self.dead, self.waiting, self.running = make_job("dead"), make_job("scheduled"), make_job("running")
        self.on = schedule("on")
        self.off = schedule("off", is_enabled=False)
        queues.pause(DB, "paused", actor="ana", reason="why")
        self.fields: dict[str, dict[str, Any]] = {
            "pause": {"queue": "default", "reason": "too slow"},
            "resume": {"queue": "paused"},
            "requeue_dead": {"queue": "default"},
            "requeue": {"job": self.dead.pk},
            "run_now": {"job": self.waiting.pk},
            "cancel": {"job": self.running.pk},
            "run_schedule": {"schedule": self.on.pk},
            "skip_schedule": {"schedule": self.on.pk},
            "disable_schedule": {"schedule": self.on.pk},
            "enable_schedule": {"schedule": self.off.pk},
        }

    def all_rows(self) -> list[Any]:
        return [
            list(model.objects.order_by("pk").values())  # type: ignore[attr-defined]
            for model in (Job, Queue, Schedule, AuditEntry, LogEntry)
        ]


@pytest.mark.parametrize("verb", RIGHTS)
def test_a_button_is_for_those_who_have_its_right_alone(verb: str, person: Callable[..., User]) -> None:
    place = Place()
    before = place.all_rows()
    others = tuple(right for right in EVERYTHING if right not in RIGHTS[verb][-1:])
    clients = {
        "anonymous": Client(),
        "not staff": log_in(person(*EVERYTHING, staff=False)),
        "viewer": log_in(person("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule")),
        "all but its right": log_in(person(*others)),
        "all but the dashboard": log_in(person(*EVERYTHING[1:])),
        "without a token": log_in(person(*EVERYTHING), enforce_csrf_checks=True),
    }
    for who, client in clients.items():
        response = client.post(f"{DASHBOARD}{verb.replace('_', '-')}/", place.fields[verb])
        assert response.status_code == (302 if who in ("anonymous", "not staff") else 403), who
        assert "dashboard" not in response.headers.get("Location", "").partition("?")[0]
        assert place.all_rows() == before, who
    for right in RIGHTS[verb][:-1]:  # who may not see it does not learn by it what it is called
        blind = log_in(person(*(one for one in EVERYTHING if one != right)))
        assert press(blind, verb, **place.fields[verb]).status_code == 403
        assert place.all_rows() == before
    full = log_in(person(*EVERYTHING))
    assert full.get(f"{DASHBOARD}{verb.replace('_', '-')}/").status_code == 405
    assert place.all_rows() == before
    only = log_in(person("view_dashboard", *RIGHTS[verb]))
    response = press(only, verb, **place.fields[verb])
    assert response.redirect_chain == [(DASHBOARD, 302)]
    assert len(said(response)) == 1
    assert place.all_rows() != before


def buttons_of(client: Client) -> set[str]:
    found = set()
    for shown in frame(client)["tables"]:
        for row in shown["rows"]:
            for cell in row["cells"]:
                found |= {button["url"].rstrip("/").rpartition("/")[2] for button in cell.get("buttons", ())}
    return {name.replace("-", "_") for name in found}


def test_only_those_buttons_are_drawn_that_somebody_may_press(browser: Browser) -> None:
    Place()
    make_job("retrying")
    seen = ("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule")
    assert buttons_of(browser(*seen)) == set()
    assert buttons_of(browser(*EVERYTHING)) == set(RIGHTS)
    for verb, rights in RIGHTS.items():
        assert verb in buttons_of(browser(*seen, rights[-1]))
        without = [right for right in EVERYTHING if right != rights[-1]]
        assert verb not in buttons_of(browser(*without))


def test_a_pause_keeps_who_and_why_and_is_in_the_log(browser: Browser) -> None:
    client = browser("view_dashboard", "pause_queue")
    assert said(press(client, "pause", queue="mail", reason=" provider\0 down ")) == [
        "mail is paused: what runs goes on, nothing new begins."
    ]
    row = Queue.objects.get(name="mail")
    assert (row.actor, row.reason) == ("user-0", "provider down")
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target, entry.reason, entry.changed) == (
        "user-0", "pause", "queue mail", "provider down", 1,
    )  # fmt: skip
    assert said(press(client, "resume", queue="mail")) == ["mail goes on."]
    assert said(press(client, "resume", queue="mail")) == ["mail was not paused."]
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "changed", "skipped"))[1:] == [
        ("resume", 1, 0), ("resume", 0, 1),
    ]  # fmt: skip


def test_requeue_of_a_queue_takes_its_dead_jobs_in_steps_and_says_what_it_did(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in ((transitions, "BATCH", 2), (listing, "LISTED", 9)):
        monkeypatch.setattr(module, name, value)
    mine = [make_job("dead", queue_name="mail").pk for _ in range(5)]
    other, failed = make_job("dead", queue_name="other"), make_job("failed", queue_name="mail")
    client = browser("view_dashboard", "requeue_job", "view_job")
    assert said(press(client, "requeue_dead", queue="mail")) == ["5 requeued."]
    assert set(Job.objects.filter(state="queued").values_list("pk", flat=True)) == set(mine)
    assert rows.state_of(other.pk) == "dead"
    assert rows.state_of(failed.pk) == "failed"
    assert said(press(client, "requeue_dead", queue="mail")) == ["0 requeued."]
    fill(dead=30)
    messages = said(press(client, "requeue_dead", queue="q1"))
    assert messages == ["3 requeued.", "Looked for among the newest 9 dead jobs: there may be more."]


def test_a_job_that_has_moved_on_is_left_and_said_to_be(browser: Browser) -> None:
    client = browser(*EVERYTHING)
    job = make_job("succeeded")
    assert said(press(client, "cancel", job=job.pk)) == ["0 cancelled, 1 skipped: it is succeeded."]
    transitions.delete(DB, [job.pk])
    (text,) = said(press(client, "cancel", job=job.pk))
    assert text.startswith("There is no such job any more.")


def test_what_has_succeeded_since_is_not_run_again_by_a_button_that_was_beside_a_dead_job(browser: Browser) -> None:
    client = browser(*EVERYTHING)
    job = make_job("succeeded")
    assert said(press(client, "requeue", job=job.pk)) == ["0 requeued, 1 skipped: it is succeeded."]
    page = f"/admin/pgqueue_django/job/{job.pk}/requeue/"
    for state in ("dead", "failed"):
        assert said(client.post(page, {"state": state}, follow=True)) == ["0 requeued, 1 skipped: it is succeeded."]
    assert rows.state_of(job.pk) == "succeeded"
    shown = client.get(f"/admin/pgqueue_django/job/{job.pk}/change/").content.decode()
    assert '<input type="hidden" name="state" value="succeeded">' in shown
    assert said(client.post(page, {"state": "succeeded"}, follow=True)) == ["1 requeued."]


def test_statistics_that_take_too_long_are_asked_for_once_and_said_to_be_missing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def too_long(using: str, seconds: int) -> Any:
        asked.append(seconds)
        raise OperationalError("canceling statement due to statement timeout")

    monkeypatch.setattr(live, "_take_records", too_long)
    frame(browser("view_dashboard"))
    assert asked == [], "who does not see the table does not wait for it"
    for rights in ((), ("view_job_payload",), ("requeue_job",)):
        content = browser("view_dashboard", "view_job", *rights).get(FRAME).json()
        shown = table(content, "tasks")
        assert (shown["rows"], shown["note"]) == ([], "")
        assert shown["empty"] == "The statistics of this window took too long to read."
    assert len(asked) == 1


def test_schedules_run_skip_and_are_switched(browser: Browser) -> None:
    client, row = browser(*EVERYTHING), schedule()
    made = said(press(client, "run_schedule", schedule=row.pk))
    job = Job.objects.get()
    assert made == [f"nightly: #{job.pk}"]
    assert job.task == row.task
    press(client, "skip_schedule", schedule=row.pk)
    assert Schedule.objects.get().skip_next
    press(client, "disable_schedule", schedule=row.pk)
    assert not Schedule.objects.get().is_enabled
    press(client, "enable_schedule", schedule=row.pk)
    again = Schedule.objects.get()
    assert again.is_enabled
    assert again.next_at is not None
    assert again.next_at > rows.database_now()
    assert said(press(client, "enable_schedule", schedule=row.pk)) == ["nightly: it was so already"]
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "target", "changed", "skipped")) == [
        ("run_schedule", "schedule nightly", 1, 0),
        ("skip_schedule", "schedule nightly", 1, 0),
        ("disable_schedule", "schedule nightly", 1, 0),
        ("enable_schedule", "schedule nightly", 1, 0),
        ("enable_schedule", "schedule nightly", 0, 1),
    ]
    assert LogEntry.objects.count() == 4


def test_a_schedule_that_cannot_run_says_why_and_leaves_nothing(browser: Browser) -> None:
    client = browser(*EVERYTHING)
    lost = schedule("lost", task="no.such.task")
    (text,) = said(press(client, "run_schedule", schedule=lost.pk))
    assert text.startswith("lost: ")
    assert "no.such.task" in text
    broken = schedule("broken", line="no line", is_enabled=False)
    (text,) = said(press(client, "enable_schedule", schedule=broken.pk))
    assert text.startswith("broken: ")
    (text,) = said(press(client, "run_schedule", schedule=broken.pk + 1))
    assert text == "There is no such schedule any more."
    assert (Job.objects.count(), AuditEntry.objects.count(), LogEntry.objects.count()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("pause", {}), ("pause", {"queue": "a b"}), ("pause", {"queue": "\0"}), ("resume", {"queue": "x" * 64}),
        ("cancel", {"job": "-1"}), ("cancel", {"job": "9" * 30}), ("cancel", {}), ("run_schedule", {"schedule": "²"}),
    ],
)  # fmt: skip
def test_what_no_page_of_ours_would_send_is_a_400(verb: str, fields: dict[str, Any], browser: Browser) -> None:
    client = browser(*EVERYTHING)
    assert press(client, verb, **fields).status_code == 400


def test_who_looks_at_a_window_comes_back_to_it(browser: Browser) -> None:
    client, job = browser(*EVERYTHING), make_job("running")
    (button,) = cells(frame(client, "?window=hour"), "running")[0]["actions"]["buttons"]
    assert button["fields"] == {"job": job.pk, "window": "hour"}
    response = client.post(button["url"], button["fields"])
    assert response.headers["Location"] == f"{DASHBOARD}?window=hour"
    assert rows.state_of(job.pk) == State.CANCELLED
    forged = client.post(button["url"], {"job": job.pk, "window": "//evil.example"})
    assert forged.headers["Location"] == DASHBOARD


def test_the_message_of_a_new_failure_is_shown(browser: Browser) -> None:
    client = browser("view_dashboard", "view_job", "view_job_payload")
    job = make_job("dead")
    frame(client)
    transitions.requeue(DB, [job.pk])
    rows.settle(claim_one(job.pk), Failed(Failure(Kind.ERROR, "KeyError", "second", "")))
    rows.wait_for(
        lambda: [row["error"]["text"] for row in cells(client.get(FRAME).json(), "failed")] == ["KeyError: second"]
    )


# -- what plain SQL, and very many, make of it -------------------------------------------------------------------


def seen_by_all(reading: live.Reading, zone: str = "UTC") -> dict[str, Any]:
    rights = frozenset({"view_job", "view_job_payload", "view_worker", "view_schedule", "view_queue"})
    return frames.of(frames.Viewer("en", ZoneInfo(zone), rights, "admin"), reading).content


def test_ten_thousand_queues_are_added_up_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task, queue_name, state, run_after) SELECT 't', 'q' || i, 'scheduled', "
            "statement_timestamp() + interval '1 hour' FROM generate_series(1, %s) AS i",
            [snapshot.CAP],
        )
    reading = live._Watch().take(DB)
    began = time.process_time()
    content = seen_by_all(reading)
    assert time.process_time() - began < 1 + GRACE  # each name beside each depth was 100,000,000 looks
    assert len(table(content, "queues")["rows"]) == frames.MAX_QUEUES
    assert table(content, "queues")["note"] == "The first 50 of 10,000 queues."


def test_of_the_queues_that_a_worker_takes_some_are_named() -> None:
    worker("w", queues=[f"q{number}" for number in range(1000)])
    ((row,), many) = cells(seen_by_all(live._Watch().take(DB)), "workers"), frames.MAX_TAKEN
    assert row["queues"]["text"] == ", ".join(f"q{number}" for number in range(many)) + f" + {1000 - many}"


@pytest.mark.parametrize(
    ("zone", "at"), [("America/New_York", "0001-01-01 00:00Z"), ("Asia/Tokyo", "9999-12-31 23:59Z")]
)
def test_moments_that_there_are_not_in_everybodys_time_zone_cost_nobody_the_page(zone: str, at: str) -> None:
    make_job("running")
    make_job("dead")
    queues.pause(DB, "mail")
    schedule()
    worker("w")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET started_at = %s WHERE state = 'running'", [at])
        cursor.execute("UPDATE pgqueue_job SET finished_at = %s WHERE state = 'dead'", [at])
        cursor.execute("UPDATE pgqueue_queue SET paused_at = %s, resume_at = 'infinity'", [at])
        cursor.execute("UPDATE pgqueue_schedule SET last_fired_at = %s, next_at = %s", [at, at])
        cursor.execute("UPDATE pgqueue_worker SET heartbeat_at = %s", [at])
    watch = live._Watch()
    watch.take(DB)
    content = seen_by_all(watch.take(DB), zone)
    assert [row["when"]["text"] for row in cells(content, "dead")] == ["-"]
    assert [row["started"]["text"] for row in cells(content, "running")] == ["-"]


def test_no_transaction_of_a_request_is_begun_before_the_database_has_answered(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ATOMIC_REQUESTS it would be, without a deadline."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    answered, asked = answers.pings.reading, list[bool]()

    def reading() -> float:
        asked.append(connection.in_atomic_block)
        return answered()

    monkeypatch.setattr(answers.pings, "reading", reading)
    client = browser("view_dashboard")
    for url in (DASHBOARD, FRAME, f"{DASHBOARD}stream/"):
        assert client.get(url).status_code < 300
    assert asked == [False] * 3
