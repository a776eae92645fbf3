"""The JSON API: jobs that come over HTTP, what is refused and how, and what each actor sees."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import hypothesis
import pytest
from django.core.cache import cache
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from verbs import rows
from verbs.rows import DB, GRACE, claim_one, make_job, seconds_from_now

from pgqueue_django import options, queues, tasks, transitions
from pgqueue_django.access import Actor
from pgqueue_django.api import endpoint, enqueueing, limits, reading
from pgqueue_django.conf import RIGHTS
from pgqueue_django.models import Job, Queue, Schedule, Worker
from pgqueue_django.states import TRANSITIONS, State

from .api_tasks import charge, closed, django_charge, django_closed, pack

pytestmark = pytest.mark.django_db

# Readings of the whole queue are made over a connection of their own.
COMMITS = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])
API = "/pgqueue/api/v1/"
CHARGE = {"task": charge.path, "args": [7]}


def anybody(request: Any) -> Actor | None:
    """The rights that stand in a header: of an authenticator of a project's own."""
    given = request.headers.get("Rights")
    return None if given is None else Actor("tester", frozenset(given.split()))


@pytest.fixture(autouse=True)
def open_api(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [anybody]}
    settings.ROOT_URLCONF, settings.MIDDLEWARE = f"{__package__}.api_urls", []
    limits.forget()
    cache.clear()


class Api:
    """A client with some rights; ``post("jobs", {...})``."""

    def __init__(self, *rights: str) -> None:
        self._client = Client(headers={"Rights": " ".join(rights or RIGHTS)})

    def get(self, path: str, **headers: str) -> Any:
        return self._client.get(path if path.startswith("/") else API + path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(path, raw, **headers)

    def send(self, path: str, raw: bytes, content_type: str = "application/json", **headers: str) -> Any:
        return self._client.generic("POST", API + path, raw, headers=headers, CONTENT_TYPE=content_type)


@pytest.fixture
def api() -> Api:
    return Api()


def wrong(response: Any) -> dict[str, str]:
    """What is wrong, by pointer; of a 422."""
    assert response.status_code == 422, response.content
    assert Job.objects.count() == 0
    return {one["pointer"]: one["message"] for one in response.json()["errors"]}


# -- enqueueing ------------------------------------------------------------------------------------------------


def test_a_job_is_made_and_its_address_is_told(api: Api) -> None:
    response = api.post("jobs", {**CHARGE, "kwargs": {"amount": 5}, "priority": 3, "queue_name": "fast"})
    assert response.status_code == 201
    shown = response.json()
    job = Job.objects.get()
    assert shown["id"] == job.pk
    assert shown["created"] is True
    assert response.headers["Location"] == shown["url"]
    assert "Idempotency-Replayed" not in response.headers
    assert (job.task, job.args, job.kwargs) == (charge.path, [7], {"amount": 5})
    assert (job.queue_name, job.priority) == ("fast", 3)
    assert (job.state, job.max_attempts, job.idempotency_key) == ("queued", 7, None)
    assert api.get(shown["url"]).json()["id"] == job.pk


def test_every_option_of_the_python_api_is_there_under_its_name(api: Api) -> None:
    moment = datetime.now(UTC) + timedelta(days=2)
    given = {"queue_name": "q", "priority": -5, "idempotency_key": "k", "max_attempts": 2}
    shown = api.post("jobs", {**CHARGE, **given, "run_after": moment.isoformat()}).json()
    assert {name: shown[name] for name in given} == given
    assert shown["state"] == "scheduled"
    assert datetime.fromisoformat(shown["run_after"]) == moment
    late = api.post("jobs", {**CHARGE, "delay_seconds": 90.5}).json()
    assert seconds_from_now(Job.objects.get(pk=late["id"]).run_after) == pytest.approx(90.5, abs=GRACE)


def test_who_may_only_enqueue_learns_where_his_job_is_and_nothing_else() -> None:
    response = Api("enqueue_job").post("jobs", CHARGE)
    assert response.status_code == 201
    assert set(response.json()) == {"id", "url", "created", "state"}
    assert Api("enqueue_job").get(response.json()["url"]).status_code == 403


def test_a_repeat_of_the_same_is_the_same_job(api: Api) -> None:
    wanted = {**CHARGE, "kwargs": {"amount": {"b": 1.5, "a": [1]}}, "idempotency_key": "order-7", "priority": 3}
    first = api.post("jobs", wanted)
    other_order = {"amount": {"a": [1], "b": 1.5}}
    again = api.post("jobs", {**wanted, "kwargs": other_order, "run_after": "2030-01-01T00:00:00Z"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert again.json() == {**first.json(), "created": False}
    assert api.post("jobs", {**CHARGE, "idempotency_key": "order-8"}).status_code == 201
    assert api.post("jobs", {"task": pack.path, "args": [[]], "idempotency_key": "order-7"}).status_code == 201
    assert Job.objects.count() == 3


@pytest.mark.parametrize(
    "change",
    [
        {"args": [8]},
        {"args": [7.0]},  # 7 == 7.0 in Python, and not in JSON
        {"args": [True]},
        {"kwargs": {"amount": None}},
        {"priority": 4},
        {"queue_name": "other"},
        {"max_attempts": 1},
    ],
    ids=str,
)
def test_the_same_key_with_other_content_is_refused(api: Api, change: dict[str, Any]) -> None:
    # Of the options only those that the repeat names: who names none does not ask for one.
    wanted = {**CHARGE, "args": [1], "idempotency_key": "order-7", "priority": 3}
    assert api.post("jobs", wanted).status_code == 201
    assert api.post("jobs", {**CHARGE, "args": [1], "idempotency_key": "order-7"}).status_code == 200
    refused = api.post("jobs", {**wanted, **change})
    assert refused.status_code == 422
    assert refused.json()["code"] == "idempotency_key_reused"
    assert refused.json()["errors"][0]["pointer"] == "/idempotency_key"
    assert not re.search(r"\d", refused.json()["errors"][0]["message"])  # which job it is: it may be another's
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"args": 7}, "/args"),
        ({"args": [7, 8, 9]}, "/args"),
        ({"args": []}, "/kwargs/invoice_id"),
        ({"kwargs": []}, "/kwargs"),
        ({"kwargs": {"amonut": 1}}, "/kwargs/amonut"),
        ({"kwargs": {"amount": {"deep": ["\0"]}}}, "/kwargs/amount/deep/0"),
        ({"kwargs": {"amount": {"a/b~": "\ud800"}}}, "/kwargs/amount/a~1b~0"),
        ({"kwargs": {"self": 1}}, "/kwargs/self"),
        ({"args": ["x" * 300_000]}, ""),
        ({"queue_name": "no name"}, "/queue_name"),
        ({"queue_name": None}, "/queue_name"),
        ({"queue_name": "\0"}, "/queue_name"),
        ({"priority": 101}, "/priority"),
        ({"priority": "1"}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": 2**31}, "/max_attempts"),
        ({"idempotency_key": ""}, "/idempotency_key"),
        ({"idempotency_key": "k" * 201}, "/idempotency_key"),
        ({"idempotency_key": "\0"}, "/idempotency_key"),
        ({"idempotency_key": "\udfff"}, "/idempotency_key"),
        ({"run_after": "tomorrow"}, "/run_after"),
        ({"run_after": "2027-01-01T00:00:00"}, "/run_after"),
        ({"run_after": "2027-02-30T00:00:00Z"}, "/run_after"),
        ({"run_after": "9999-01-01T00:00:00Z"}, "/run_after"),
        ({"run_after": 1}, "/run_after"),
        ({"delay_seconds": -1}, "/delay_seconds"),
        ({"delay_seconds": "1"}, "/delay_seconds"),
        ({"delay_seconds": 1e300}, "/delay_seconds"),
        ({"delay_seconds": True}, "/delay_seconds"),
        ({"delay_seconds": 1, "run_after": "2027-01-01T00:00:00Z"}, "/delay_seconds"),
        ({"prioritiy": 1}, "/prioritiy"),
        ({"\ud800": 1}, "/\\ud800"),
        ({"task": None}, "/task"),
        ({"task": ["x"]}, "/task"),
        ({"task": "no.such.task"}, "/task"),
    ],
    ids=lambda value: str(value)[:60].encode("ascii", "backslashreplace").decode(),
)
def test_what_is_wrong_is_told_with_its_place_and_nothing_is_made(
    api: Api, change: dict[str, Any], pointer: str
) -> None:
    assert list(wrong(api.post("jobs", {**CHARGE, **change}))) == [pointer]


def test_all_that_is_wrong_is_told_at_once(api: Api) -> None:
    found = wrong(api.post("jobs", {**CHARGE, "priority": 1000, "queue_name": "?", "args": {}, "typo": 1}))
    assert set(found) == {"/priority", "/queue_name", "/args", "/typo"}


def test_of_very_much_that_is_wrong_a_part_is_told(api: Api) -> None:
    """Otherwise 0.9 MB of fields that do not exist are answered with 15 MB."""
    typos = {f"typo-{n}": 1 for n in range(50_000)}
    told = wrong(api.post("jobs", {**CHARGE, **typos}))
    assert len(told) == reading.MAX_ERRORS
    told = wrong(api.post("jobs:batch", {"jobs": [{**CHARGE, "typo": 1, "args": 5}] * 1000}))
    assert len(told) == reading.MAX_ERRORS


def test_arguments_that_the_task_annotates_are_checked_as_by_enqueue(api: Api) -> None:
    good = {"task": pack.path, "args": [[{"sku": "a", "quantity": 1}]]}
    assert set(wrong(api.post("jobs", {**good, "args": [[{"sku": "a", "quantity": "1"}]]}))) == {"/args/0/0/quantity"}
    assert api.post("jobs", good).status_code == 201


def test_a_task_that_is_not_open_is_answered_as_one_that_does_not_exist(api: Api) -> None:
    assert api.post("jobs", {"task": closed.path}).content == api.post("jobs", {"task": "nothing.at.all"}).content
    assert api.post("jobs", {"task": "os.system", "args": ["true"]}).status_code == 422
    assert Job.objects.count() == 0


@pytest.mark.parametrize("task", [charge, django_charge], ids=["ours", "djangos"])
def test_a_task_whose_jobs_go_to_another_database_is_not_open(
    api: Api, monkeypatch: pytest.MonkeyPatch, settings: Any, task: Any
) -> None:
    """Its id is there, and here it may be that of somebody else's job."""
    monkeypatch.setitem(connections.settings, "elsewhere", connections.settings["default"])
    path = task.path if task is charge else task.module_path
    assert api.post("jobs", {"task": path, "args": [7]}).status_code == 201
    if task is charge:
        monkeypatch.setitem(tasks._known, path, charge.using(database="elsewhere"))
    else:
        backend = {**settings.TASKS["default"], "OPTIONS": {"database": "elsewhere"}}
        settings.TASKS = {"default": backend}
    Job.objects.all().delete()
    assert set(wrong(api.post("jobs", {"task": path, "args": [7]}))) == {"/task"}
    assert path not in [one["task"] for one in Api("enqueue_job").get("tasks").json()["tasks"]]


def test_the_path_of_a_task_never_causes_an_import(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    text = f"from pgqueue_django import task\nopen({str(ran)!r}, 'w')\n@task(api=True)\ndef bait(): ...\n"
    (tmp_path / "bait_of_the_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert set(wrong(api.post("jobs", {"task": "bait_of_the_test.bait"}))) == {"/task"}
    assert not ran.exists()
    import bait_of_the_test  # type: ignore[import-not-found]  # noqa: F401

    try:
        assert ran.exists()  # or it was no bait
        assert api.post("jobs", {"task": "bait_of_the_test.bait"}).status_code == 201
    finally:
        options.declared.pop("bait_of_the_test.bait")


def test_a_module_that_failed_half_way_is_not_run_again_for_a_client(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the error has been declared, as a task that is open."""
    ran, path = tmp_path / "ran", "half_of_the_test.bait"
    text = f"from pgqueue_django import task\nopen({str(ran)!r}, 'a').write('.')\n@task(api=True)\ndef bait(): ...\n"
    (tmp_path / "half_of_the_test.py").write_text(text + "1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        import_module("half_of_the_test")
    try:
        assert path in options.declared
        assert set(wrong(api.post("jobs", {"task": path}))) == {"/task"}
        assert path not in [one["task"] for one in api.get("tasks").json()["tasks"]]
        assert ran.read_text() == "."
    finally:
        options.declared.pop(path)


def test_a_task_of_djangos_own_is_open_by_its_job_options(api: Api) -> None:
    shown = api.post("jobs", {"task": django_charge.module_path, "args": [7]}).json()
    assert (shown["queue_name"], shown["max_attempts"]) == ("open", 3)
    assert api.post("jobs", {"task": django_closed.module_path}).status_code == 422
    assert api.post("jobs", {"task": django_charge.module_path}).json()["errors"][0]["pointer"] == "/kwargs/invoice_id"


def test_tasks_of_an_app_that_nobody_has_imported_yet_are_found(api: Api) -> None:
    assert api.post("jobs", {"task": "testproject.shop.tasks.count_stock"}).status_code == 201


# -- batches ---------------------------------------------------------------------------------------------------


def test_a_batch_is_made_as_a_whole_and_answered_in_order(api: Api) -> None:
    jobs = [{**CHARGE, "args": [n]} for n in range(1000)]
    response = api.post("jobs:batch", {"jobs": jobs})
    assert response.status_code == 201
    ids = [one["id"] for one in response.json()["jobs"]]
    made = Job.objects.in_bulk(ids)
    assert [made[id].args for id in ids] == [[n] for n in range(1000)]


def test_a_batch_with_one_wrong_job_makes_none(api: Api) -> None:
    jobs: list[Any] = [dict(CHARGE) for _ in range(20)]
    jobs[17] = {"task": charge.path, "kwargs": {"invoice_id": "\0"}}
    jobs[18] = 5
    assert list(wrong(api.post("jobs:batch", {"jobs": jobs}))) == ["/jobs/17/kwargs/invoice_id", "/jobs/18"]


def test_a_batch_with_a_reused_key_makes_none(api: Api) -> None:
    api.post("jobs", {**CHARGE, "idempotency_key": "a"})
    jobs = [CHARGE, {**CHARGE, "idempotency_key": "b"}, {**CHARGE, "idempotency_key": "a", "args": [8]}]
    refused = api.post("jobs:batch", {"jobs": jobs})
    assert refused.status_code == 422
    assert refused.json()["code"] == "idempotency_key_reused"
    assert refused.json()["errors"][0]["pointer"] == "/jobs/2/idempotency_key"
    assert Job.objects.count() == 1


def test_a_repeat_of_a_batch_makes_what_is_missing(api: Api) -> None:
    jobs = [{**CHARGE, "idempotency_key": name} for name in "ab"]
    first = api.post("jobs:batch", {"jobs": jobs})
    again = api.post("jobs:batch", {"jobs": jobs})
    assert (first.status_code, again.status_code) == (201, 200)
    assert [one["created"] for one in again.json()["jobs"]] == [False, False]
    more = api.post("jobs:batch", {"jobs": [*jobs, {**CHARGE, "idempotency_key": "c"}]})
    assert more.status_code == 201
    assert [one["created"] for one in more.json()["jobs"]] == [False, False, True]
    assert Job.objects.count() == 3


def test_two_of_one_batch_with_one_key_are_one_job_or_an_error(api: Api) -> None:
    keyed = {**CHARGE, "idempotency_key": "a"}
    assert api.post("jobs:batch", {"jobs": [keyed, {**keyed, "args": [8]}]}).status_code == 422
    assert Job.objects.count() == 0
    first, second = api.post("jobs:batch", {"jobs": [keyed, keyed]}).json()["jobs"]
    assert first["id"] == second["id"]


@pytest.mark.parametrize(
    "body", [{}, {"jobs": []}, {"jobs": {}}, {"jobs": [CHARGE] * 1001}, {"jobs": [CHARGE], "x": 1}]
)
def test_a_batch_has_1_to_1000_jobs_and_nothing_else(api: Api, body: Any) -> None:
    wrong(api.post("jobs:batch", body))


@COMMITS
def test_201_comes_after_the_commit_whatever_the_project_sets(
    api: Api, monkeypatch: pytest.MonkeyPatch, second_connection: Any
) -> None:
    """With ATOMIC_REQUESTS the view would still be in a transaction that may fail."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    seen = []
    made = endpoint.reply

    def reply(*args: Any, **kwargs: Any) -> Any:
        seen.append(second_connection.execute("SELECT count(*) FROM pgqueue_job").fetchone()[0])
        return made(*args, **kwargs)

    monkeypatch.setattr("pgqueue_django.api.views.reply", reply)
    assert api.post("jobs", CHARGE).status_code == 201
    assert api.post("jobs", {**CHARGE, "idempotency_key": "a"}).status_code == 201
    assert api.post("jobs:batch", {"jobs": [CHARGE, CHARGE]}).status_code == 201
    assert seen == [1, 2, 4]
    assert api.get(f"jobs/{Job.objects.first().pk}").status_code == 200  # type: ignore[union-attr]


# -- bodies ----------------------------------------------------------------------------------------------------

NESTED = b'{"task": "x", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"task": NaN}', 400),
        (b'{"task": -Infinity}', 400),
        (b'{"args": [1e999]}', 400),
        (b'{"args": [' + b"9" * 5000 + b"]}", 400),
        (b'{"task": "a", "task": "b"}', 400),
        (b'{"kwargs": {"a": {"b": 1, "b": 1}}}', 400),
        (b'{"\\ud800": 1, "\\ud800": 1}', 400),
        (b'{"task": "\xff"}', 400),
        (b'{"args": ' + b"[" * 64 + b"]" * 64 + b"}", 400),
        (NESTED, 400),
        (b"\xfe\xff\x00{\x00}", 400),
        (b"x" * (reading.MAX_BYTES + 1), 413),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_is_no_strict_json_is_refused(api: Api, raw: bytes, status: int) -> None:
    response = api.send("jobs", raw)
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/problem+json"


def test_a_body_within_the_limits_is_taken(api: Api) -> None:
    deep = json.dumps({**CHARGE, "kwargs": {"amount": json.loads("[" * 62 + "]" * 62)}}).encode()
    assert api.send("jobs", deep).status_code == 201
    assert api.send("jobs", b"\xef\xbb\xbf" + json.dumps(CHARGE).encode()).status_code == 201
    padded = json.dumps(CHARGE).encode()
    assert api.send("jobs", padded + b" " * (reading.MAX_BYTES - len(padded))).status_code == 201
    assert api.send("jobs", padded, "application/json; charset=UTF-8").status_code == 201


TYPES = (
    *("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
    *("application/json-patch+json", "application/json; charset=latin-1"),
)


@pytest.mark.parametrize("content_type", TYPES)
def test_only_json_is_taken(api: Api, content_type: str) -> None:
    assert api.send("jobs", json.dumps(CHARGE).encode(), content_type).status_code == 415


def test_a_packed_body_is_not_unpacked(api: Api) -> None:
    assert api.post("jobs", CHARGE, **{"Content-Encoding": "gzip"}).status_code == 415


def test_the_projects_own_limit_holds_too(api: Api, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert api.post("jobs", {**CHARGE, "kwargs": {"amount": "x" * 1000}}).status_code == 413
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    assert api.post("jobs", {**CHARGE, "kwargs": {"amount": "x" * 1000}}).status_code == 201


def test_a_body_is_refused_by_its_length_before_it_is_read(api: Api) -> None:
    class Unread:
        def read(self, *_: Any) -> bytes:
            raise AssertionError("it was read")

        readline = read

    too_long = {"CONTENT_LENGTH": str(reading.MAX_BYTES + 1), "wsgi.input": Unread()}
    response = api._client.generic("POST", f"{API}jobs", b"", **too_long)
    assert response.status_code == 413


def test_under_wsgi_a_body_without_a_length_is_asked_for_one(api: Api) -> None:
    headers = {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}
    assert api._client.generic("POST", f"{API}jobs", b"", "application/json", **headers).status_code == 411


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from([charge.path, pack.path, closed.path, "2027-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from([*enqueueing.FIELDS, "jobs", "reason", "resume_at", "resume_after_seconds", "state"])
PATHS = ("jobs", "jobs:batch", "queues/open/pause", "queues/open/requeue")


@hypothesis.settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(path=st.sampled_from(PATHS), body=st.dictionaries(FIELDS, VALUES, max_size=5), task=st.booleans())
def test_no_body_whatsoever_is_a_fault_of_ours(api: Api, path: str, body: dict[str, Any], task: bool) -> None:
    if task:
        body["task"] = charge.path
    raw = json.dumps({"jobs": [body]} if path == "jobs:batch" and task else body).encode()
    assert api.send(path, raw).status_code in (200, 201, 400, 422)


@hypothesis.settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(name=st.sampled_from(["state", "queue_name", "task", "limit", "cursor", "idempotency_key"]), value=st.text())
def test_no_query_whatsoever_is_a_fault_of_ours(api: Api, name: str, value: str) -> None:
    query = urlencode({name: value.encode("utf-8", "surrogatepass"), "task": charge.path})
    assert api.get(f"jobs?{query}").status_code in (200, 400)


# -- one job ---------------------------------------------------------------------------------------------------

PAYLOAD = {"args", "kwargs", "result", "idempotency_key"}


def test_what_a_job_was_given_and_failed_of_is_for_those_who_may_read_it() -> None:
    job = make_job("failed", task=charge.path, args=["secret-1"], idempotency_key="secret-2")
    transitions.requeue(DB, [job.pk])
    held = claim_one(job.pk)
    rows.heartbeat(held, progress={held.id: '{"fraction": 0.5, "message": "secret-3"}'})
    openly = Api("view_job").get(f"jobs/{job.pk}")
    assert "secret" not in openly.content.decode()
    assert "boom" not in openly.content.decode()
    assert not PAYLOAD & set(openly.json())
    assert openly.json()["progress"] == {"fraction": 0.5}
    (attempt,) = openly.json()["history"]
    assert attempt["error_type"] == "ValueError"
    assert not {"message", "traceback"} & set(attempt)
    shown = Api("view_job", "view_job_payload").get(f"jobs/{job.pk}").json()
    assert shown["args"] == ["secret-1"]
    assert shown["progress"] == {"fraction": 0.5, "message": "secret-3"}
    assert shown["history"][0]["message"] == "boom"
    listed = Api("view_job").get("jobs").json()["jobs"]
    assert not PAYLOAD & set(listed[0])


@pytest.mark.parametrize("column", ["args", "kwargs", "progress", "history", "result"])
@pytest.mark.parametrize("value", ['"secret-1"', '["secret-1"]', '{"fraction": "secret-1"}', "7", "null"])
def test_what_plain_sql_has_written_is_shown_as_it_is_to_those_who_may(column: str, value: str) -> None:
    job = make_job("queued")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_job SET {column} = %s WHERE id = %s", [value, job.pk])
    response = Api("view_job").get(f"jobs/{job.pk}")
    assert response.status_code == 200
    assert "secret" not in response.content.decode()
    shown = Api("view_job", "view_job_payload").get(f"jobs/{job.pk}")
    assert shown.status_code == 200
    assert column == "history" or shown.json()[column] == json.loads(value)


def test_moments_are_utc_with_microseconds(api: Api) -> None:
    job = make_job("succeeded")
    shown = api.get(f"jobs/{job.pk}").json()
    assert shown["finished_at"] == job.finished_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # type: ignore[union-attr]
    assert shown["result"] == "ok"


def test_the_etag_changes_when_what_is_seen_changes_and_only_then(api: Api) -> None:
    job = make_job("queued", task=charge.path)
    first = api.get(f"jobs/{job.pk}")
    etag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    same = api.get(f"jobs/{job.pk}", **{"If-None-Match": etag})
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
    assert Api("view_job").get(f"jobs/{job.pk}").headers["ETag"] != etag
    seen = {etag}
    held = claim_one(job.pk)

    def changed() -> bool:
        response = api.get(f"jobs/{job.pk}", **{"If-None-Match": etag})
        seen.add(response.headers["ETag"])
        return bool(response.status_code == 200)

    assert changed()
    rows.heartbeat(held, progress={held.id: '{"fraction": 0.5, "message": "half"}'})
    assert changed()
    rows.settle(held, rows.ending(State.SUCCEEDED))
    assert changed()
    assert len(seen) == 4


@pytest.mark.parametrize("id", ["0", "00", "01", "-1", "1.0", "x", "9223372036854775808", "9" * 19, "9" * 40, "%D9%A1"])
def test_what_is_no_id_is_not_found(api: Api, id: str) -> None:
    for path in (f"jobs/{id}", f"jobs/{id}/cancel"):
        response = api.get(path) if path.endswith(id) else api.post(path)
        assert response.status_code == 404
        assert response.headers["Content-Type"] == "application/problem+json"


def test_the_largest_id_is_looked_for(api: Api) -> None:
    assert api.get(f"jobs/{2**63 - 1}").json()["code"] == "not_found"


@pytest.mark.parametrize(
    "path", ["nothing", "", "jobs%0A", "%0A", "jobs/1%0A", "jobs//", "queues/no%20name/pause", "../x", "jobs:batch%00"]
)
def test_whatever_else_is_asked_for_is_a_problem_document(api: Api, path: str) -> None:
    response = api.get(path)
    assert response.status_code == 404
    assert response.headers["Content-Type"] == "application/problem+json"


# -- by hand ---------------------------------------------------------------------------------------------------

VERBS = {"cancel": "cancel", "requeue": "requeue", "run-now": "run_now"}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("path", VERBS)
def test_each_verb_moves_what_it_may_and_says_the_state_of_the_rest(api: Api, path: str, state: State) -> None:
    job = make_job(state)
    response = api.post(f"jobs/{job.pk}/{path}")
    law = TRANSITIONS[VERBS[path]]
    if state in law.sources:
        assert response.status_code == 200
        assert response.json()["state"] == rows.state_of(job.pk)
        assert response.json()["state"] in law.targets
    else:
        assert response.status_code == 409
        assert (response.json()["code"], response.json()["state"]) == ("wrong_state", state)
        assert rows.state_of(job.pk) == state
    assert api.post(f"jobs/{job.pk + 1}/{path}").status_code == 404


def test_a_verb_takes_no_fields(api: Api) -> None:
    job = make_job("queued")
    assert api.post(f"jobs/{job.pk}/cancel", {"force": True}).status_code == 422
    assert rows.state_of(job.pk) == State.QUEUED
    assert api.post(f"jobs/{job.pk}/cancel", {}).status_code == 200


# -- queues and the rest ---------------------------------------------------------------------------------------


@COMMITS
def test_a_queue_is_paused_by_name_with_a_reason_and_goes_on(api: Api) -> None:
    make_job(queue_name="open")
    paused = api.post("queues/open/pause", {"reason": "the bank is away", "resume_after_seconds": 600})
    assert paused.status_code == 200
    (row,) = Queue.objects.all()
    assert (row.name, row.reason, row.actor) == ("open", "the bank is away", "tester")
    assert row.resume_at is not None
    assert seconds_from_now(row.resume_at) == pytest.approx(600, abs=GRACE)
    assert queues.paused(DB) == {"open"}
    (listed,) = api.get("queues").json()["queues"]
    assert (listed["name"], listed["jobs"], listed["paused"]) == ("open", {"queued": 1}, True)
    assert listed["reason"] == "the bank is away"
    resumed = api.post("queues/open/resume")
    assert resumed.json() == {"name": "open", "paused": False}
    assert queues.paused(DB) == set()
    assert api.post("queues/open/resume").status_code == 200


def test_moments_are_the_same_where_the_project_has_no_time_zones(api: Api, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    moment = "2099-01-01T12:00:00.000000Z"
    assert api.post("queues/open/pause", {"resume_at": moment}).json()["resume_at"] == moment
    assert list(wrong(api.post("queues/open/pause", {"resume_at": "2020-01-01T00:00:00Z"}))) == ["/resume_at"]
    first, second = (api.post("jobs", {**CHARGE, "run_after": moment}).json() for _ in range(2))
    assert first["run_after"] == moment
    assert abs(datetime.fromisoformat(first["enqueued_at"]) - datetime.now(UTC)) < timedelta(seconds=GRACE)
    page = api.get("jobs?state=scheduled&limit=1").json()
    assert (page["jobs"][0]["id"], page["jobs"][0]["run_after"]) == (first["id"], moment)
    assert [one["id"] for one in api.get(page["next"]).json()["jobs"]] == [second["id"]]
    with timezone.override("Asia/Tokyo"):  # as a middleware may do for each user
        assert api.get(f"jobs/{first['id']}").json()["run_after"] == moment


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": 5}, "/reason"),
        ({"reason": "x" * 201}, "/reason"),
        ({"reason": "\0"}, "/reason"),
        ({"reason": "\ud800"}, "/reason"),
        ({"resume_at": "2020-01-01T00:00:00Z"}, "/resume_at"),
        ({"resume_at": "9500-01-01T00:00:00Z"}, "/resume_at"),
        ({"resume_at": "2099-01-01T00:00:00"}, "/resume_at"),
        ({"resume_after_seconds": 0}, "/resume_after_seconds"),
        ({"resume_after_seconds": 1e-9}, "/resume_after_seconds"),
        ({"resume_after_seconds": 1e12}, "/resume_after_seconds"),
        ({"resume_after_seconds": True}, "/resume_after_seconds"),
        ({"resume_at": "2099-01-01T00:00:00Z", "resume_after_seconds": 5}, "/resume_after_seconds"),
        ({"until": "2099-01-01T00:00:00Z"}, "/until"),
    ],
    ids=lambda value: str(value)[:50].encode("ascii", "backslashreplace").decode(),
)
def test_a_pause_that_cannot_be_meant_is_refused(api: Api, body: Any, pointer: str) -> None:
    assert list(wrong(api.post("queues/open/pause", body))) == [pointer]
    assert Queue.objects.count() == 0


def test_a_queue_is_requeued_in_bounded_steps(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 3)
    ours = {make_job("dead", queue_name="open").pk for _ in range(4)}
    others = [make_job("dead"), make_job("failed", queue_name="open"), make_job("cancelled", queue_name="open")]
    assert api.post("queues/open/requeue").json() == {"requeued": 3, "more": True}
    assert api.post("queues/open/requeue", {"state": "dead"}).json() == {"requeued": 1, "more": False}
    assert api.post("queues/open/requeue").json() == {"requeued": 0, "more": False}
    assert {rows.state_of(id) for id in ours} == {State.QUEUED}
    assert [rows.state_of(job.pk) for job in others] == [job.state for job in others]
    assert api.post("queues/open/requeue", {"state": "failed"}).json() == {"requeued": 1, "more": False}
    assert api.post("queues/open/requeue", {"state": "succeeded"}).status_code == 422


def test_workers_and_schedules_are_listed(api: Api) -> None:
    Worker.objects.create(id="w-1", name="w", host="h", pid=7, concurrency=8, lease_seconds=30)
    Worker.objects.create(id="w-2", name="w", host="h", pid=8, concurrency=8, lease_seconds=0)
    shown = api.get("workers").json()["workers"]
    assert {one["id"]: one["alive"] for one in shown} == {"w-1": True, "w-2": False}
    Schedule.objects.create(name="nightly", task=charge.path, line="0 3 * * *", args=["secret"], error="secret is none")
    (schedule,) = api.get("schedules").json()["schedules"]
    assert (schedule["name"], schedule["args"], schedule["error"]) == ("nightly", ["secret"], "secret is none")
    (hidden,) = Api("view_schedule").get("schedules").json()["schedules"]
    assert "secret" not in str(hidden)
    assert hidden["error"] == "failing"
    assert "secret" in Api("view_schedule", "change_schedule").get("schedules").content.decode()


def test_tasks_are_listed_for_a_producer_those_that_he_may(api: Api) -> None:
    shown = {one["task"]: one for one in api.get("tasks").json()["tasks"]}
    assert shown[charge.path]["parameters"] == "(invoice_id: int, amount: Any = None) -> None"
    assert (shown[charge.path]["queue_name"], shown[charge.path]["max_attempts"]) == ("open", 7)
    assert shown[closed.path]["api"] is False
    mine = {one["task"] for one in Api("enqueue_job").get("tasks").json()["tasks"]}
    assert charge.path in mine
    assert closed.path not in mine


@COMMITS
def test_the_snapshot_is_that_of_the_metrics(api: Api) -> None:
    make_job(queue_name="open")
    make_job("dead", queue_name="open")
    shown = api.get("snapshot").json()
    assert {(one["queue_name"], one["state"], one["jobs"]) for one in shown["depths"]} == {
        ("open", "queued", 1),
        ("open", "dead", 1),
    }
    assert shown["attempts"][0]["dead"] == 1
    assert len(shown["attempts"][0]["run_counts"]) == len(shown["bounds_seconds"]) + 1


# -- limits ----------------------------------------------------------------------------------------------------


def test_an_actor_who_asks_too_often_is_told_when_to_come_back(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [anybody], "API_RATE": "3/h"}
    api = Api()
    assert [api.get("tasks").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = api.get("tasks")
    assert refused.json()["code"] == "rate"
    assert 1 <= int(refused.headers["Retry-After"]) <= 3600


def test_a_cache_that_is_away_stops_nobody(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": "x"}}
    settings.PGQUEUE = {"API_AUTH": [anybody], "API_RATE": "1/h"}
    assert [Api().get("tasks").status_code for _ in range(2)] == [200, 200]
    assert "cannot be counted" in caplog.text


@pytest.mark.parametrize("state", ["queued", "scheduled", "retrying"])
def test_a_full_queue_takes_no_more_and_others_do(settings: Any, api: Api, state: str) -> None:
    settings.PGQUEUE = {"API_AUTH": [anybody], "API_MAX_QUEUE_DEPTH": 4}
    for _ in range(2):
        make_job(state, queue_name="open")
    make_job("succeeded", queue_name="open")
    assert api.post("jobs", CHARGE).status_code == 201
    too_many = api.post("jobs:batch", {"jobs": [CHARGE, CHARGE]})
    assert too_many.status_code == 429
    assert "3" not in too_many.json()["detail"]  # how many there are
    assert api.post("jobs", CHARGE).status_code == 201
    refused = api.post("jobs", CHARGE)
    assert refused.status_code == 429
    assert refused.json()["code"] == "queue_full"
    assert int(refused.headers["Retry-After"]) > 0
    assert api.post("jobs", {**CHARGE, "queue_name": "other"}).status_code == 201
    limits.forget()
    assert api.post("jobs", CHARGE).status_code == 429


def test_the_queues_of_a_batch_are_counted_in_one_statement(settings: Any, api: Api) -> None:
    """Each of its own walked along all that waits: a batch for a thousand queues cost seconds, and was a 503."""
    settings.PGQUEUE = {"API_AUTH": [anybody], "API_MAX_QUEUE_DEPTH": 3}
    make_job("scheduled", queue_name="q7")
    for _ in range(2):
        make_job("queued", queue_name="q8")
    statements = []
    for count in (2, 1000):
        limits.forget()
        jobs = [{**CHARGE, "queue_name": f"other{count}-{number}"} for number in range(count - 2)]
        with CaptureQueriesContext(connection) as captured:
            answered = api.post("jobs:batch", {"jobs": [*jobs, *({**CHARGE, "queue_name": f"q{n}"} for n in (7, 8))]})
        assert answered.status_code == (201 if count == 2 else 429)
        statements.append(sum("LIMIT 3" in one["sql"] for one in captured))
    assert statements == [1, 1]
    assert "q8" in answered.json()["detail"]  # q7 has room for one


# -- what goes wrong -------------------------------------------------------------------------------------------


def test_what_nobody_expected_is_logged_and_not_shown(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(*_: Any, **__: Any) -> Any:
        raise ValueError("secret-of-the-test")

    monkeypatch.setattr("pgqueue_django.walks.page", burst)
    response = api.get("jobs")
    assert response.status_code == 500
    assert response.json()["code"] == "error"
    assert "secret-of-the-test" not in response.content.decode()
    assert "secret-of-the-test" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("query", ["?sate=queued", "?state=x", "?limit=0", "?limit=201", "?limit=x", "?limit=-1",
                                   "?cursor=x", "?state=queued&state=dead", "?task=%00", "?queue_name=%20",
                                   "?idempotency_key=a", "?limit=%D9%A1"])  # fmt: skip
def test_a_query_that_cannot_be_meant_is_refused(api: Api, query: str) -> None:
    response = api.get(f"jobs{query}")
    assert response.status_code == 400
    assert response.headers["Content-Type"] == "application/problem+json"


def test_who_did_what_is_logged_and_no_arguments_are(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pgqueue_django"):
        id = api.post("jobs", {**CHARGE, "kwargs": {"amount": "secret-of-the-test"}}).json()["id"]
        api.post(f"jobs/{id}/cancel")
    assert f"api: tester enqueued #{id}" in caplog.text
    assert f"api: tester cancelled #{id}" in caplog.text
    assert "secret-of-the-test" not in caplog.text


def test_a_repeat_is_not_logged_as_one_who_enqueued(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """It may be somebody else's who has made the job."""
    keyed = {**CHARGE, "idempotency_key": "a"}
    with caplog.at_level(logging.INFO, "pgqueue_django"):
        made = api.post("jobs", keyed).json()["id"]
        api.post("jobs", keyed)
        more = api.post("jobs:batch", {"jobs": [keyed, CHARGE]}).json()["jobs"][1]["id"]
    assert [record.getMessage().rstrip() for record in caplog.records if record.name == "pgqueue_django"] == [
        f"api: tester enqueued #{made}",
        f"api: tester repeated the enqueueing of #{made}",
        f"api: tester enqueued #{more}",
        f"api: tester repeated the enqueueing of #{made}",
    ]
