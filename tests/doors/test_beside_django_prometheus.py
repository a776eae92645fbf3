"""Our metrics on django-prometheus' page, and its engine under our workers: a project in processes of its own.

Where django-prometheus cannot be installed, the page of a project without it, and a view of prometheus_client alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client
from django.urls import path
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from verbs import rows

from doors.test_metrics import TOKEN, samples
from doors.test_snapshot import add
from pgqueue_django import answers, enqueue_many, task_by_name
from pgqueue_django.models import Job
from pgqueue_django.prometheus import beside
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db(transaction=True)

PROJECT = Path(__file__).parent / "prometheus_project"
ROOT = Path(__file__).resolve().parents[2]
wait_for = rows.wait_for
Browser = Callable[..., Client]


# -- whose page it is, and in which words ----------------------------------------------------------------------


def theirs(request: HttpRequest) -> HttpResponse:
    """As ExportToDjangoView, or in OpenMetrics."""
    if "openmetrics" in request.GET:
        text = openmetrics.generate_latest(prometheus_client.REGISTRY)
        return HttpResponse(text, content_type=openmetrics.CONTENT_TYPE_LATEST)
    text = prometheus_client.generate_latest(prometheus_client.REGISTRY)
    return HttpResponse(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


OTHERS = {
    "html": lambda request: HttpResponse("<p>metrics</p>"),
    "refused": lambda request: HttpResponse("no\n", status=403, content_type="text/plain"),
    "packed": lambda request: HttpResponse(b"...", content_type="text/plain", headers={"Content-Encoding": "gzip"}),
    "streamed": lambda request: StreamingHttpResponse([b"a 1\n"], content_type="text/plain"),
}
urlpatterns = [
    path("metrics", beside(theirs)),
    path("plain", theirs),
    *(path(name, beside(view)) for name, view in OTHERS.items()),
]
OWN_URLS = pytest.mark.urls(__name__)


@pytest.fixture
def token(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_TOKEN": TOKEN}


def ask(address: str = "/metrics", client: Client | None = None) -> HttpResponse:
    return (client or Client()).get(address, headers={"Authorization": f"Bearer {TOKEN}"})


@OWN_URLS
def test_ours_follow_theirs(token: None) -> None:
    rows.make_job(State.QUEUED, queue_name="billing")
    answer = ask()
    assert answer["Content-Type"] == prometheus_client.CONTENT_TYPE_LATEST
    found = samples(answer.content.decode())
    assert "python_info" in found
    assert found["pgqueue_up"] == {(): 1}
    assert found["pgqueue_jobs"]["billing", "queued"] == 1
    assert "private" in answer["Cache-Control"], "or a cache in front of it would show ours to others"


@OWN_URLS
def test_the_end_of_openmetrics_stays_last(token: None) -> None:
    add("billing", "shop.tasks.charge", State.SUCCEEDED, 0.1, 0.1)
    answer = ask("/metrics?openmetrics")
    assert answer["Content-Type"] == openmetrics.CONTENT_TYPE_LATEST
    assert answer.content.count(b"# EOF\n") == 1
    found = samples(answer.content.decode(), parse_openmetrics)
    assert "python_info" in found
    assert found["pgqueue_up"] == {(): 1}


@OWN_URLS
@pytest.mark.parametrize(
    ("rights", "options", "both"),
    [(("view_dashboard",), {}, True), (("view_job",), {}, False), ((), {"superuser": True}, True)],
)
def test_ours_is_for_who_may_see_it(rights: Any, options: Any, both: bool, browser: Browser) -> None:
    answer = browser(*rights, **options).get("/metrics")
    assert answer.status_code == 200
    assert (b"pgqueue_up" in answer.content) == both
    assert b"python_info" in answer.content


@OWN_URLS
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_for_who_may_not_it_is_as_it_was(token: None, headers: dict[str, str]) -> None:
    answer, before = (Client().get(address, headers=headers) for address in ("/metrics", "/plain"))
    lines = [
        [re.sub(" [^ ]+$", "", line) for line in one.content.decode().splitlines() if not line.startswith("#")]
        for one in (answer, before)
    ]
    assert lines[0] == lines[1], "but for what has grown"
    assert answer["Content-Type"] == before["Content-Type"]
    assert answer.get("Cache-Control") == before.get("Cache-Control")
    assert "Authorization" in answer["Vary"], "or a cache in front of it would show this one to who may see ours"


@OWN_URLS
def test_for_all_where_the_settings_say_so(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": True}
    assert b"pgqueue_up 1" in Client().get("/metrics").content


@OWN_URLS
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_page_of_metrics_is_left_alone(token: None, name: str) -> None:
    answer = ask(f"/{name}")
    expected = OTHERS[name](None)
    assert answer.status_code == expected.status_code
    assert answer.getvalue() == expected.getvalue()


@OWN_URLS
@pytest.mark.parametrize("address", ["/metrics", "/metrics?openmetrics"])
@pytest.mark.parametrize("with_session", [False, True])
def test_theirs_comes_without_a_database(
    address: str, with_session: bool, token: None, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser("view_dashboard") if with_session else Client()
    headers = {} if with_session else {"Authorization": f"Bearer {TOKEN}"}
    answers.shared.forget()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        there = {"HOST": "127.0.0.1", "PORT": reserved.getsockname()[1]}
        monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **there})
        answer = client.get(address, headers=headers)
    assert answer.status_code == 200
    parse = parse_openmetrics if "?" in address else parse_text
    found = samples(answer.content.decode(), parse)
    assert "python_info" in found
    assert {name: series for name, series in found.items() if name.startswith("pgqueue")} == {"pgqueue_up": {(): 0}}


@OWN_URLS
def test_theirs_comes_where_nobody_can_say_who_asks(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    client = browser("view_dashboard")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_session RENAME TO somewhere_else")
        try:
            answer = client.get("/metrics")
        finally:
            cursor.execute("ALTER TABLE somewhere_else RENAME TO django_session")
    assert answer.status_code == 200
    assert b"python_info" in answer.content
    assert b"pgqueue" not in answer.content
    assert [record.levelname for record in caplog.records if record.name == "pgqueue_django"] == ["ERROR"]


# -- a project of its own --------------------------------------------------------------------------------------


class Started:
    """A process of the project, with its log in a file."""

    def __init__(self, log: Path, *words: str, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error::ResourceWarning", "manage.py", *words],
                cwd=PROJECT,
                env=environment,
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def port(self) -> int:
        found = wait_for(lambda: re.search(r"on port (\d+)", self.log), 30)
        return int(found[1])

    def page(self, address: str = "/metrics", **headers: str) -> dict[str, dict[tuple[str, ...], float]]:
        return samples(self.get(address, **headers)[1])

    def get(self, address: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{address}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


OPEN = {"Authorization": "Bearer open-sesame"}
Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("serve", multiprocess=True)``."""
    parameters = connections["default"].get_connection_params()
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    database: dict[str, Any] = {word: str(parameters[name]) for name, word in names.items() if parameters.get(name)}
    shared = tmp_path / "shared"
    shared.mkdir()
    started: list[Started] = []

    def run(*words: str, multiprocess: bool = False, alone: bool = False, **changes: Any) -> Started:
        settings = {"ENGINE": "django.db.backends.postgresql", **database, **changes}
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
            "PROJECT_DATABASE": json.dumps(settings),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            **({"PROMETHEUS_MULTIPROC_DIR": str(shared)} if multiprocess else {}),
            **({"ALONE": "1"} if alone else {}),
        }
        started.append(Started(tmp_path / f"{len(started)}.log", *words, environment=environment))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(10)
        print(f"--- {one.process.args}\n{one.log[-3000:]}")


def all_done(count: int) -> bool:
    return Job.objects.filter(state=State.SUCCEEDED).count() == count


def test_two_web_processes_and_two_of_a_worker(start: Start) -> None:
    """Multiprocess mode: each page is the sum of its own processes, and ours is the queue's on the web's."""
    pytest.importorskip("django_prometheus")
    webs = [start("serve", multiprocess=True) for _ in range(2)]
    # Nobody but LISTEN tells it in time.
    words = ("--metrics-port", "127.0.0.1:0", "--processes", "2", "--concurrency", "2", "--poll-interval", "60")
    worker = start("pgqueue_worker", *words, multiprocess=True)
    wait_for(lambda: worker.page().get("pgqueue_worker_processes") == {(): 2}, 30)
    for web in webs:
        assert web.get("/order/10")[0] == 200
    wait_for(lambda: all_done(20), 30)
    pages = [wait_for(lambda web=web: counted(web.page(**OPEN), 20), 20) for web in webs]
    for page in pages:
        assert page["pgqueue_up"] == {(): 1}
        assert page["pgqueue_workers"] == {(): 2}
        assert page["pgqueue_run_seconds_count"] == {("kitchen.tasks.cook",): 20}
        # Of both web processes, whoever answers: two orders, and the pages before.
        assert page["django_http_responses_total_by_status_view_method_total"]["GET", "200", "kitchen.views.order"] == 2
        assert page["django_db_execute_total"]["default", "postgresql"] >= 20
        assert not [name for name in page if name.startswith(("pgqueue_worker_", "kitchen"))]
    page = wait_for(lambda: worked(worker.page(), 20), 20)
    assert page["kitchen_cooked_total"] == {("soup",): 20}
    assert page["django_db_execute_total"]["default", "postgresql"] >= 20
    assert not [name for name in page if name.startswith("django_http")]
    worker.process.terminate()
    assert worker.process.wait(20) == 0


def counted(page: Any, attempts: int) -> Any:
    return page if sum(page.get("pgqueue_run_seconds_count", {}).values()) == attempts else None


def worked(page: Any, attempts: int) -> Any:
    return page if sum(page.get("pgqueue_worker_attempts_total", {}).values()) == attempts else None


@pytest.mark.parametrize("how", ["kept", "closed", "pool"])
def test_a_worker_on_its_engine(start: Start, how: str) -> None:
    """Plain, atomic and async handlers, each on connections that it counts; one worker process, so no files."""
    pytest.importorskip("django_prometheus")
    changes: dict[str, Any] = {
        "kept": {"CONN_MAX_AGE": None},
        "closed": {"CONN_MAX_AGE": 0},
        "pool": {"OPTIONS": {"pool": {"min_size": 1, "max_size": 2}}},
    }[how]
    if how == "pool":
        pytest.importorskip("psycopg_pool")
    words = ("--metrics-port", "127.0.0.1:0", "--concurrency", "2", "--poll-interval", "60")
    worker = start("pgqueue_worker", *words, **changes)
    web = start("serve")
    wait_for(lambda: "tasks: " in worker.log, 30)
    enqueue_many(
        task_by_name(f"kitchen.tasks.{name}").call("soup")
        for name in ("cook", "cook_atomic", "cook_async")
        for _ in range(10)
    )
    wait_for(lambda: all_done(30), 30)
    page = wait_for(lambda: worked(worker.page(), 30), 20)
    assert page["kitchen_cooked_total"] == {("soup",): 30}
    assert page["django_db_execute_total"]["default", "postgresql"] >= 30
    assert "python_info" in page
    page = wait_for(lambda: counted(web.page(**OPEN), 30), 20)
    assert "python_info" in page
    assert not [name for name in page if name.startswith("pgqueue_worker_")]
    assert "pgqueue_up" not in web.page()
    worker.process.terminate()
    assert worker.process.wait(20) == 0
    assert "Traceback" not in worker.log


def test_its_page_comes_without_a_database(start: Start) -> None:
    pytest.importorskip("django_prometheus")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        web = start("serve", HOST="127.0.0.1", PORT=str(reserved.getsockname()[1]))
        page = web.page(**OPEN)
    assert "django_http_requests_before_middlewares_total" in page
    assert page["pgqueue_up"] == {(): 0}


def test_a_project_without_it_has_ours_alone(start: Start) -> None:
    web = start("serve", alone=True)
    worker = start("pgqueue_worker", "--metrics-port", "127.0.0.1:0", "--processes", "2", alone=True)
    assert web.get("/order/3")[0] == 200
    wait_for(lambda: all_done(3), 30)
    page = wait_for(lambda: counted(web.page("/pgqueue/metrics", **OPEN), 3), 20)
    assert page["pgqueue_up"] == {(): 1}
    assert wait_for(lambda: worked(worker.page(), 3), 20)["kitchen_cooked_total"] == {("soup",): 3}
    assert web.get("/metrics")[0] == 404
