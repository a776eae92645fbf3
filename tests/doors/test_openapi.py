"""openapi.json against the views: every URL, method, right, limit and answer.

The document is kept by hand; what it says and the code does not do, or the other way round, fails here.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.urls import include, re_path, resolve
from verbs.rows import make_job

import pgqueue_django.api
from pgqueue_django import audit, options, transitions
from pgqueue_django.access import Actor
from pgqueue_django.api import enqueueing, errors, reading, urls, views
from pgqueue_django.api import waiting as waiting_module
from pgqueue_django.conf import RIGHTS
from pgqueue_django.models import Job, Queue, Schedule, Worker
from pgqueue_django.outcomes import Kind
from pgqueue_django.problems import Rule, Severity
from pgqueue_django.states import State

from .api_tasks import charge
from .fuzzing import resolved, undocumented
from .websites import PREFIX

SOURCE = Path(pgqueue_django.api.__file__).parent
DOCUMENT: dict[str, Any] = json.loads((SOURCE / "openapi.json").read_text())
OPERATIONS = {
    (path, method.upper()): operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method != "parameters"
}
VALUES = {"id": "1", "name": "default"}

urlpatterns = [re_path("^elsewhere/", include("pgqueue_django.urls"))]


def anybody(request: HttpRequest) -> Actor | None:
    """The rights that stand in a header."""
    given = request.headers.get("Rights")
    return None if given is None else Actor("tester", frozenset(given.split()))


@pytest.fixture(autouse=True)
def open_api(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [anybody]}


def ask(path: str, method: str = "GET", rights: Any = RIGHTS, **headers: str) -> Any:
    headers["Rights"] = " ".join(rights)
    return Client().generic(method, f"{PREFIX}{path}", b"", "application/json", headers=headers)


# -- the document ----------------------------------------------------------------------------------------------


def test_every_url_is_in_the_document_and_the_other_way_round() -> None:
    named = {pattern.name for pattern in urls.urlpatterns} - {"api_nothing"}
    documented = [resolve(f"{PREFIX}{path.format(**VALUES)}").url_name for path in DOCUMENT["paths"]]
    assert sorted(documented) == sorted(map(str, named))


@pytest.mark.django_db
@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_every_method_is_in_the_document_and_the_other_way_round(path: str) -> None:
    allowed = set(ask(path.format(**VALUES), "OPTIONS").headers["Allow"].split(", "))
    assert {method for documented, method in OPERATIONS if documented == path} == allowed - {"HEAD", "OPTIONS"}


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_rights_are_those_that_the_view_asks_for(path: str, method: str) -> None:
    operation = OPERATIONS[path, method]
    stated, one_of = set(operation["x-rights"]), operation.get("x-one-of", False)
    there = path.format(**VALUES)

    def may(*rights: str) -> bool:
        status: int = ask(there, method, rights).status_code
        assert status < 500
        return status != HTTPStatus.FORBIDDEN

    assert may() == (not stated)
    for right in RIGHTS:
        if one_of:
            assert may(right) == (right in stated)
        else:
            assert may(*(set(RIGHTS) - {right})) == (right not in stated)
    assert may(*stated)


def _objects(one: Any) -> Iterator[dict[str, Any]]:
    if isinstance(one, dict):
        yield one
    for inner in one.values() if isinstance(one, dict) else one if isinstance(one, list) else ():
        yield from _objects(inner)


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    used = {one["$ref"] for one in _objects(DOCUMENT) if "$ref" in one}
    components = {
        f"#/components/{kind}/{name}"
        for kind, named in DOCUMENT["components"].items()
        for name in named
        if kind != "securitySchemes"
    }
    # That of a method which a path does not have, it cannot say of that path.
    assert used == components - {"#/components/responses/MethodNotAllowed"}


def _schema(name: str) -> Any:
    return DOCUMENT["components"]["schemas"][name]


def _body(path: str) -> Any:
    body = resolved(DOCUMENT, DOCUMENT["paths"][path]["post"]["requestBody"])
    return resolved(DOCUMENT, body["content"]["application/json"]["schema"])


def _parameters(path: str) -> dict[str, Any]:
    return {one["name"]: one["schema"] for one in DOCUMENT["paths"][path]["get"]["parameters"]}


NEW_JOB = _schema("NewJob")["properties"]
LIMITS = [
    (set(_schema("State")["enum"]), set(State)),
    (_schema("QueueName")["pattern"], f"^{options.QUEUE_NAME.pattern}$"),
    (set(NEW_JOB), set(enqueueing.FIELDS)),
    ((NEW_JOB["priority"]["minimum"], NEW_JOB["priority"]["maximum"]), (-options.MAX_PRIORITY, options.MAX_PRIORITY)),
    (NEW_JOB["max_attempts"]["maximum"], options._MAX_INT),
    (NEW_JOB["delay_seconds"]["maximum"], options.MAX_WAIT.total_seconds()),
    (_body("/jobs:batch")["properties"]["jobs"]["maxItems"], enqueueing.MAX_BATCH),
    (_parameters("/jobs")["limit"]["maximum"], views._MAX_LIMIT),
    (_parameters("/jobs")["limit"]["default"], views._LIMIT),
    (_parameters("/jobs/{id}")["wait"]["maximum"], waiting_module.MAX_SECONDS),
    (DOCUMENT["components"]["parameters"]["Id"]["schema"]["maximum"], views._MAX_ID),
    (_schema("Reason")["maxLength"], Queue._meta.get_field("reason").max_length),
    (_schema("Reason")["maxLength"], audit.MAX_REASON),
    (_schema("IdempotencyKey")["maxLength"], Job._meta.get_field("idempotency_key").max_length),
    (set(_schema("Attempt")["properties"]["kind"]["enum"]), set(Kind)),
    (set(_schema("QueueProblem")["properties"]["rule"]["enum"]), set(Rule)),
    (set(_schema("QueueProblem")["properties"]["severity"]["enum"]), set(Severity)),
    (set(_schema("Schedule")["properties"]["missed"]["enum"]), set(Schedule.Missed.values)),
    (set(_schema("Schedule")["properties"]["overlap"]["enum"]), set(Schedule.Overlap.values)),
    (set(_schema("Queue")["properties"]["jobs"]["propertyNames"]["enum"]), set(State) - {"succeeded", "cancelled"}),
    *(
        (listed["properties"][name]["maxItems"], views.MAX_LISTED)
        for name in ("queues", "workers", "schedules")
        for listed in [
            DOCUMENT["paths"][f"/{name}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        ]
    ),
]


@pytest.mark.parametrize(("documented", "real"), LIMITS)
def test_limits_are_those_of_the_code(documented: object, real: object) -> None:
    assert documented == real


def test_numbers_in_its_sentences_are_those_of_the_code() -> None:
    said = {
        ("paths", "/queues/{name}/requeue", "post", "description"): f"{transitions.BATCH:,}",
        ("paths", "/jobs:batch", "post", "summary"): f"{enqueueing.MAX_BATCH:,}",
        ("components", "responses", "TooLarge", "description"): f"{reading.MAX_BYTES:,}",
        ("components", "responses", "BadRequest", "description"): f"{reading.MAX_DEPTH} levels",
        ("components", "schemas", "NewJob", "properties", "run_after", "description"): f"{options.MAX_WAIT.days:,}",
    }
    for steps, number in said.items():
        one: Any = DOCUMENT
        for step in steps:
            one = one[step]
        assert number in one


def test_every_code_of_a_problem_is_in_the_document() -> None:
    found: dict[str, set[Any]] = {"Problem": set(), "Wrong": set()}
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in found:
                code = node.args[1]
                assert isinstance(code, ast.Constant), ast.unparse(node)
                found[ast.unparse(node.func)].add(code.value)
    problem = _schema("Problem")["properties"]
    assert set(problem["code"]["enum"]) == found["Problem"]
    assert set(problem["errors"]["items"]["properties"]["code"]["enum"]) == found["Wrong"]
    assert {"type", "title", "status", "code", "detail"} == set(json.loads(errors.not_found().response().content))


def _examples(content: dict[str, Any]) -> Iterator[Any]:
    if "example" in content:
        yield content["example"]
    yield from (one["value"] for one in content.get("examples", {}).values())


def test_examples_are_what_their_schema_allows() -> None:
    checked = 0
    for one in _objects(DOCUMENT):
        if isinstance(schema := one.get("schema"), dict):
            validator = jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]})
            for example in _examples(one):
                validator.validate(example)
                checked += 1
    assert checked > 5


# -- how it is served ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_it_is_served_to_everybody_who_is_known() -> None:
    response = ask("/openapi.json", rights=())
    assert response.status_code == 200
    assert response.json() == DOCUMENT
    assert Client().get(f"{PREFIX}/openapi.json").status_code == 401
    again = ask("/openapi.json", rights=(), **{"If-None-Match": response.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.django_db
def test_it_says_where_the_project_has_mounted_it(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    response = Client().get("/elsewhere/api/v1/openapi.json", headers={"Rights": ""})
    (server,) = response.json()["servers"]
    assert server["url"] == "/elsewhere/api/v1"
    assert Client().get(f"{server['url']}/jobs", headers={"Rights": "view_job"}).status_code == 200


def _check_headers(path: str, method: str, response: Any) -> None:
    responses = {
        **OPERATIONS[path, method]["responses"],
        "405": DOCUMENT["components"]["responses"]["MethodNotAllowed"],
    }
    headers = resolved(DOCUMENT, responses[str(response.status_code)])["headers"]
    assert headers
    for name, header in headers.items():
        schema = resolved(DOCUMENT, header)["schema"]
        value = response.headers[name]
        jsonschema_rs.validator_for(schema).validate(int(value) if schema.get("type") == "integer" else value)


@pytest.mark.django_db
def test_headers_are_there_as_documented(settings: Any) -> None:
    def post(**headers: str) -> Any:
        body = {"task": charge.path, "args": [1], "idempotency_key": "k"}
        return Client().post(f"{PREFIX}/jobs", body, "application/json", headers=headers)

    everything = {"Rights": " ".join(RIGHTS)}
    for status, headers in ((201, everything), (200, everything), (401, {})):
        response = post(**headers)
        assert response.status_code == status
        _check_headers("/jobs", "POST", response)
    make_job("queued")
    _check_headers("/jobs", "GET", Client().get(f"{PREFIX}/jobs?limit=1", headers=everything))
    there = f"/jobs/{post(**everything).json()['id']}"
    shown = ask(there)
    _check_headers("/jobs/{id}", "GET", shown)
    _check_headers("/jobs/{id}", "GET", ask(there, **{"If-None-Match": shown.headers["ETag"]}))
    _check_headers("/jobs/{id}", "GET", ask(there, "PUT"))
    settings.PGQUEUE = {"API_AUTH": [anybody], "API_RATE": "1/h"}
    ask(there)
    limited = ask(there)
    assert limited.status_code == 429
    _check_headers("/jobs/{id}", "GET", limited)


# -- what those see who may not read everything ----------------------------------------------------------------


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])
@pytest.mark.parametrize("rights", [RIGHTS, sorted({*RIGHTS} - {"view_job_payload"})], ids=["all", "no payload"])
def test_answers_are_as_documented_for_those_who_may_read_arguments_and_those_who_may_not(rights: list[str]) -> None:
    job = make_job("retrying")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET progress = %s", ['{"fraction": 0.5, "message": "half"}'])
    make_job("running", queue_name="other")
    Queue.objects.create(name="other", paused_at=datetime.now(UTC), reason="why", actor="who")
    Worker.objects.create(id="w-1", name="w", host="h", pid=1, concurrency=8, lease_seconds=30, queues=["a"])
    Schedule.objects.create(name="nightly", task=job.task, line="0 3 * * *")
    for path, method in OPERATIONS:
        if method != "GET" or path == "/openapi.json":
            continue
        response = ask(path.format(id=job.pk), rights=rights)
        assert response.status_code == 200
        content = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(schema).validate(response.json())
        assert list(undocumented(DOCUMENT, content["schema"], response.json())) == []
