"""The status page for everybody: what it says, and above all what it does not."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from machine.workers import ROOT
from verbs import rows
from verbs.rows import make_job, wait_for

from doors.conftest import analyze, fill
from doors.mounting import mounted
from pgqueue_django import conf, queues, redaction, snapshot
from pgqueue_django.dashboard import public
from pgqueue_django.models import AuditEntry, Job, Schedule, Worker
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind

URL = "/status/"
# Over HTTP the page asks by a connection of its own: it sees what is committed.
COMMITTED = pytest.mark.django_db(transaction=True)
ROLLED_BACK = pytest.mark.django_db
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")


@pytest.fixture(autouse=True)
def no_status_of_the_test_before() -> None:
    public.shared.forget()


def text(using: str = "default") -> str:
    """The page without its door, which asks by another connection."""
    return public.page(public.take(using)).content.decode()


def fail(task: str, message: str, error_type: str = "shop.errors.CardError", **columns: Any) -> Job:
    job = make_job(task=task, **columns)
    dead = columns.get("queue_name") != "failing"
    failure = Failure(Kind.ERROR, error_type, message, f"Traceback\n{message}")
    rows.settle(rows.claim_one(job.pk), DeadLettered(failure) if dead else Failed(failure))
    return job


def worker(id: str, *, lease: float = 3600.0, age: float = 0.0, **columns: Any) -> Worker:
    values = {"name": id, "host": id, "pid": 4711, "concurrency": 8, "running": 3, "lease_seconds": lease, **columns}
    return Worker.objects.create(id=id, heartbeat_at=rows.database_now() - timedelta(seconds=age), **values)


# -- what it does not say --------------------------------------------------------------------------------------


def secrets() -> Iterator[str]:
    """A secret in every place where a project can have one."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER SEQUENCE pgqueue_job_id_seq RESTART WITH 770077001")
    made: list[str] = []

    def secret(place: str) -> str:
        made.append(f"Xq{place}")
        return made[-1]

    def columns() -> dict[str, Any]:
        return {
            "args": [secret("arg"), {"card": secret("nested")}],
            "kwargs": {secret("keyword"): secret("value")},
            "label": secret("label"),
            "idempotency_key": f"{secret('key')}-{len(made)}",
            "worker_id": secret("attempt"),
        }

    for state in ("queued", "scheduled", "running", "retrying", "succeeded", "failed", "dead", "cancelled"):
        job = make_job(state, task=f"{secret('module')}.tasks.charge", **columns())
        # None of these is what a verb takes here; all are what workers write.
        Job.objects.filter(pk=job.pk).update(
            progress={"fraction": 0.5, "message": secret("progress")},
            past_worker_ids=[secret("past")],
            trace={"traceparent": secret("trace")},
            result=secret("result") if state == "succeeded" else None,
        )
    for said in (
        f"could not connect to {secret('host')}.example.com port 5432: refused",
        f"permission denied: /srv/{secret('path')}/invoices.csv for {secret('mail')}@shop.example",
        f"duplicate key (email)=({secret('row')}) already exists, card 4111111111111111",
        f"user '{secret('quoted')}' and \"{secret('double')}\" failed with token={secret('token')}",
        f"{secret('first')} failed\n{secret('last')} {secret('name')} failed",
        f"https://{secret('user')}:{secret('password')}@10.11.12.13/{secret('url')}?{secret('query')}=1 timed out",
    ):
        fail(f"{secret('package')}.tasks.charge", said, error_type=f"{secret('errors')}.CardError")
    for lease in (3600.0, 0.001):
        worker(
            f"{secret('worker')}:4711-0a1b2c3d{lease:.0f}",
            name=secret("wname"),
            host=secret("whost"),
            lease=lease,
            age=5,
        )
    Worker.objects.update(queues=[secret("taken")], tasks=[secret("task")], version="7.7.7")
    queues.pause("default", "default", reason=secret("reason"), actor=secret("actor"))
    Schedule.objects.create(
        name=secret("schedule"), task=secret("stask"), args=[secret("sarg")], kwargs={"a": secret("skwarg")},
        line="0 3 * * *", zone="UTC", error=secret("serror"), next_at=rows.database_now() - timedelta(days=1),
    )  # fmt: skip
    AuditEntry.objects.create(actor=secret("auditor"), action="cancel", target=secret("target"), reason=secret("why"))
    # What only plain SQL can write.
    Job.objects.filter(pk=make_job().pk).update(queue_name=f"{secret('queue')} <i>", task=f"{secret('weird')}-task")
    odd = fail("shop.tasks.refund", "failed", error_type="Odd")
    path = f"/etc/{secret('type')}"
    Job.objects.filter(pk=odd.pk).update(error_type=path, task=f"/srv/{secret('file')}", queue_name=path)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_stat SET queue_name = %s WHERE queue_name = 'default'", [f"/{secret('stat')}"])
    yield from made


@COMMITTED
def test_no_secret_is_on_the_page_or_in_its_headers() -> None:
    hidden = list(secrets())
    assert len(hidden) > 100
    answer = Client().get(URL)
    assert answer.status_code == 200
    whole = f"{answer.headers}\n{answer.content.decode()}"
    found = [secret for secret in hidden if secret.lower() in whole.lower()]
    assert found == []
    parts = ("Xq", "77007700", "4111", "10.11", "example", "@", "4711", "/srv", "/etc", "0a1b2c3d", "7.7.7", "5432")
    for trace in parts:
        assert trace.lower() not in whole.lower(), trace
    # And yet it says what it is for.
    for said in (
        "CardError", "charge", "default", "paused", "could not connect to … port … refused", "timed out",
        "A schedule is late.", "A worker has not been heard of.", "w-",
    ):  # fmt: skip
        assert said in whole, said


@ROLLED_BACK
def test_what_a_template_is_given_are_texts_and_numbers_alone() -> None:
    list(secrets())
    seen = public.take("default")
    plain = (str, int, float, bool, type(None))

    def check(value: Any) -> None:
        if isinstance(value, dict):
            list(map(check, [*value, *value.values()]))
        elif isinstance(value, list | tuple | set):
            list(map(check, value))
        elif hasattr(value, "__dataclass_fields__"):
            list(map(check, vars(value).values()))
        else:
            assert isinstance(value, plain) or type(value).__name__ == "datetime", repr(value)
            assert "Xq" not in str(value)

    check(seen)


# -- what it says ----------------------------------------------------------------------------------------------


@ROLLED_BACK
def test_an_empty_queue_without_a_worker_says_so() -> None:
    page = text()
    assert "No worker is running." in page
    assert "No job is waiting or running." in page
    assert "No job has failed, or is dead." in page


@ROLLED_BACK
def test_a_queue_that_is_well_says_so() -> None:
    worker("w")
    make_job("queued")
    page = text()
    assert '<p class="verdict good"><bdi>All is well.</bdi></p>' in page
    assert '<ul class="told">' not in page


@ROLLED_BACK
def test_what_is_wrong_is_said_in_words() -> None:
    worker("w", queues=["mail"])
    fail("shop.tasks.charge", "boom", queue_name="billing")
    late = make_job("queued", queue_name="billing")
    rows.move_clock(late.pk, "run_after", -400)
    rows.move_clock(late.pk, "enqueued_at", -400)
    page = text()
    assert '<p class="verdict error"><bdi>Jobs that should run do not.</bdi></p>' in page
    assert "<li><bdi>Queue billing: no worker takes its jobs.</bdi></li>" in page
    assert "<li><bdi>Queue billing: a job has been waiting for 7 min.</bdi></li>" in page


@ROLLED_BACK
def test_each_queue_has_its_numbers() -> None:
    for state, many in (("queued", 3), ("scheduled", 2), ("retrying", 1), ("running", 4)):
        for _ in range(many):
            make_job(state, queue_name="mail")
    for _ in range(12):
        make_job("succeeded", queue_name="bulk")
    make_job("dead", queue_name="bulk")
    seen = {one.name: one for one in public.take("default").queues}
    assert sorted(seen) == ["bulk", "mail"]
    # Of so many seconds: five minutes, and what has passed of this one.
    for one, done, failed in ((seen["bulk"], 12, 1), (seen["mail"], 0, 1)):
        for rate, count in ((one.done_a_minute, done), (one.failed_a_minute, failed)):
            assert count * 60 / (public.PACE_SECONDS + 60) <= rate <= count * 60 / public.PACE_SECONDS
    page = " ".join(re.sub(r"<[^>]+>", " ", text()).split())
    assert re.search(r"mail 3 3 4 \d+ (ms|s) 0 0\.\d+ ", page), page
    assert re.search(r"bulk 0 0 0 - (2|2\.\d) 0\.\d+ ", page), page


@ROLLED_BACK
def test_a_number_that_is_cut_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CAP", 2)
    monkeypatch.setattr(snapshot, "READY", 2)
    for _ in range(3):
        make_job("queued", queue_name="mail")
    assert '<td class="number">2+</td>' in text()


@ROLLED_BACK
def test_the_newest_failures_come_first_and_are_few() -> None:
    for number in range(public.MAX_FAILURES + 3):
        fail("shop.tasks.charge", "boom", f"shop.E{number}", queue_name="failing" if number % 2 else "mail")
    for place, job in enumerate(Job.objects.order_by("id")):
        rows.move_clock(job.pk, "finished_at", place - 100)
    shown = [one.error for one in public.take("default").failures]
    assert shown == [f"E{number}" for number in range(public.MAX_FAILURES + 2, 2, -1)]


@ROLLED_BACK
def test_those_that_ended_in_one_moment_are_told_whatever_is_known_of_them() -> None:
    jobs = [fail("shop.tasks.charge", "timed out").pk for _ in range(2)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET finished_at = statement_timestamp() WHERE id = ANY(%s)", [jobs])
        cursor.execute("UPDATE pgqueue_job SET error_type = NULL, history = '[]' WHERE id = %s", [jobs[0]])
    assert len(public.take("default").failures) == 2


@ROLLED_BACK
def test_workers_have_labels_and_those_that_are_gone_for_long_do_not_stay() -> None:
    worker("alive")
    worker("late", lease=1, age=60)
    worker("gone", lease=1, age=1000)
    labels = {one.label: one.is_alive for one in public.take("default").worker_lines}
    assert labels == {redaction.worker("alive"): True, redaction.worker("late"): False}


@ROLLED_BACK
def test_more_queues_than_are_listed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "MAX_QUEUES", 2)
    for name in ("a", "b", "c", "d"):
        make_job(queue_name=name)
    assert "And 2 queues more." in text()


# -- how it answers --------------------------------------------------------------------------------------------


@COMMITTED
def test_it_answers_get_and_head_alone_and_is_kept_by_nobody() -> None:
    answers = {method: Client().generic(method, URL) for method in METHODS}
    assert {method: answer.status_code for method, answer in answers.items()} == {
        method: 200 if method in ("GET", "HEAD") else 405 for method in METHODS
    }
    assert answers["POST"].headers["Allow"] == "GET, HEAD"
    assert answers["HEAD"].content == b""
    headers = answers["GET"].headers
    assert headers["X-Robots-Tag"] == "noindex, nofollow"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert {"no-store", "private", "no-cache"} <= set(headers["Cache-Control"].replace(",", "").split())
    assert not answers["GET"].cookies
    assert "Cookie" not in headers.get("Vary", "")


@COMMITTED
@pytest.mark.parametrize("query", ["state=%00", "state[]=x&limit=-1", "limit=9e999", "state=<script>", "%ff"])
def test_parameters_are_ignored(query: str) -> None:
    answer = Client().get(f"{URL}?{query}")
    assert answer.status_code == 200
    assert "script>" not in answer.content.decode().replace("</script>", "")


@COMMITTED
def test_all_who_ask_within_a_second_get_one_reading() -> None:
    def moments() -> set[str]:
        return {re.findall(r'<time datetime="([^"]+)"', Client().get(URL).content.decode())[-1] for _ in range(5)}

    first = moments()
    assert len(first) == 1
    wait_for(lambda: not moments() & first, public.shared.seconds + rows.GRACE)


@COMMITTED
def test_it_asks_the_requests_own_connection_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with ATOMIC_REQUESTS: its BEGIN could wait for ever."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(headers={"Cookie": "sessionid=abc"})
    with CaptureQueriesContext(connection) as asked:
        assert client.get(URL).status_code == 200
    assert asked.captured_queries == []


@COMMITTED
def test_the_projects_login_middleware_lets_everybody_through(settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert Client().get(URL).status_code == 200


@COMMITTED
def test_it_speaks_the_language_of_who_asks() -> None:
    """The reading is shared and has none; Django's own translation of a format shows it."""
    worker("w")
    first = Client(headers={"Accept-Language": "de"}).get(URL)
    assert '<html lang="de" dir="ltr">' in first.content.decode()
    assert '<html lang="en" dir="ltr">' in Client().get(URL).content.decode()


@ROLLED_BACK
@pytest.mark.parametrize("name", ["_PACE", "_WORKERS", "_FAILURES"])
def test_no_reading_scans_a_large_table(name: str) -> None:
    fill(succeeded=3000, failed=2000, dead=2000)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, pickup_counts, run_counts) "
            "SELECT statement_timestamp() - make_interval(mins => i), 'w', 'q', 't', '{}', '{}' "
            "FROM generate_series(1, 5000) AS i"
        )
        cursor.execute(
            "INSERT INTO pgqueue_worker (id, name, host, pid, queues, concurrency, lease_seconds, heartbeat_at) "
            "SELECT 'w' || i, 'w', 'h', 1, '[]', 1, 30, statement_timestamp() - make_interval(mins => i) "
            "FROM generate_series(1, 5000) AS i"
        )
    analyze()
    params = {"workers": public.MAX_WORKERS, "news": 900, "failures": public.MAX_FAILURES, "characters": 100}
    with snapshot.index_walks("default") as cursor:
        cursor.execute(f"EXPLAIN {getattr(public, name)}", params)
        planned = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan" not in planned, planned
    assert "Index" in planned


@ROLLED_BACK
def test_nothing_can_be_written_while_it_reads() -> None:
    with pytest.raises(DatabaseError, match="read-only transaction"), snapshot.index_walks("default") as cursor:
        cursor.execute("INSERT INTO pgqueue_chore (name) VALUES ('x')")
    make_job()  # and afterwards everything can


@pytest.mark.parametrize("alias", ["elsewhere", "", 1])
def test_an_alias_that_there_is_not_is_an_error_of_the_checks(alias: Any, settings: Any) -> None:
    settings.PGQUEUE = {"PUBLIC_DATABASE": alias}
    with pytest.raises(SystemCheckError, match=r"(?s)PUBLIC_DATABASE.*one of default"):
        call_command("check", "--tag", "pgqueue")


@COMMITTED
def test_the_shop_links_it() -> None:
    assert f'href="{URL}"' in Client().get("/").content.decode()
    assert Client().get(URL).status_code == 200


# -- modes -----------------------------------------------------------------------------------------------------

OURS = ("metrics", "livez", "healthz", "healthz/queues", "api/v1", "api/v1/jobs", "api/v1/openapi.json", "x")


@COMMITTED
def test_in_public_mode_only_the_page_answers(settings: Any) -> None:
    with mounted(settings, PUBLIC=True, API_AUTH=["pgqueue_django.access.session"], METRICS_PUBLIC=True):
        for path in OURS:
            for method in METHODS:
                assert Client().generic(method, f"/pgqueue/{path}").status_code == 404, (method, path)
        answer = Client().get("/pgqueue/")
        assert "Status of the job queue" in answer.content.decode()
        assert Client().post("/pgqueue/").status_code == 405
    assert Client().get("/pgqueue/").status_code == 404
    assert Client().get("/pgqueue/livez").status_code == 200


@pytest.mark.parametrize("key", ["PUBLIC", "READ_ONLY"])
def test_a_mode_is_on_while_another_key_is_wrong(key: str, settings: Any) -> None:
    settings.PGQUEUE = {key: True, "LEASE": -1}
    assert conf.is_public() == (key == "PUBLIC")
    assert conf.is_read_only() == (key == "READ_ONLY")
    settings.PGQUEUE = {}
    assert not conf.is_public()
    assert not conf.is_read_only()


# -- a project with nothing else -------------------------------------------------------------------------------


@COMMITTED
@pytest.mark.parametrize("interface", ["wsgi", "asgi"])
def test_a_project_without_sessions_users_and_admin_has_the_page(interface: str, tmp_path: Path) -> None:
    worker("w")
    fail("shop.tasks.charge", "connection refused")
    parameters = connection.get_connection_params()
    words = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    database = {word: str(parameters[name]) for name, word in words.items() if parameters.get(name)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "doors.bare_project", interface, f"{port}"],
            cwd=ROOT / "tests",
            env={
                **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                "BARE_DATABASE": json.dumps({"ENGINE": "django.db.backends.postgresql", **database}),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: server.poll() is not None or socket.socket().connect_ex(("127.0.0.1", port)) == 0, 30)
        assert server.poll() is None, log.read_text()
        with urlopen(f"http://127.0.0.1:{port}{URL}", timeout=10) as answer:
            page = answer.read().decode()
            assert answer.headers["X-Robots-Tag"] == "noindex, nofollow"
            assert answer.headers["Set-Cookie"] is None
        assert "CardError" in page
        assert 'href="/static/pgqueue_django/status.css"' in page
    finally:
        server.kill()
        server.wait(10)


def test_the_page_has_nothing_inline(db: None) -> None:
    page = public.page(public.take("default")).content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", page)
    script = (ROOT / "pgqueue_django/static/pgqueue_django/status.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
