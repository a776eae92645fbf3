"""Requests that no client of ours would send, as a server hands them on: never a 500, never HTML.

Each answer is a problem document, or what the OpenAPI document says of that operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import io
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

import jsonschema_rs
import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from verbs.rows import make_job

from pgqueue_django.api import cursors, enqueueing
from pgqueue_django.walks import Cut
from tests.doors.opened.tasks import echo

from .api_tasks import charge, closed, pack
from .fuzzing import resolved, undocumented
from .test_openapi import DOCUMENT, OPERATIONS
from .websites import PGQUEUE, PREFIX, TOKEN, website

# Who sends a cookie is looked for among the users: all of the project's apps are there.
pytestmark = pytest.mark.django_db(transaction=True)

ROUTES = {
    operation: re.compile(re.sub(r"\\{(\w+)\\}", r"[^/]+", re.escape(operation[0])) + "/?")
    for operation in sorted(OPERATIONS)
}


@dataclass
class Asked:
    """``path`` is quoted, ``body`` comes in these pieces."""

    method: str = "GET"
    path: str = "/jobs"
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


def over_wsgi(asked: Asked) -> Answered:
    """With the length that was announced, as a server reads no further."""
    body = b"".join(asked.body)
    headers = {"Content-Length": f"{len(body)}", **asked.headers}
    if "Transfer-Encoding" in headers:
        del headers["Content-Length"]
    begun: list[Any] = []
    environ = {
        "REQUEST_METHOD": asked.method,
        "PATH_INFO": unquote_to_bytes(PREFIX + asked.path).decode("latin-1"),
        "QUERY_STRING": asked.query,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "HTTP_HOST": "testserver",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        environ[name] = environ.pop(f"HTTP_{name}", "")
    response: Any = WSGI(environ, lambda *begin: begun.append(begin))
    whole = b"".join(response)
    response.close()
    return Answered(int(begun[0][0][:3]), {name.lower(): value for name, value in begun[0][1]}, whole)


def over_asgi(asked: Asked) -> Answered:
    async def ask() -> Answered:
        scope = {
            "type": "http",
            "method": asked.method,
            "path": unquote_to_bytes(PREFIX + asked.path).decode(errors="replace"),
            # What is no UTF-8 Django refuses before any view; of too many fields beside a charset it fails there.
            "query_string": asked.query.rstrip("&").encode(),
            "headers": [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in {"Host": "testserver", **asked.headers}.items()
            ],
        }
        there = ApplicationCommunicator(ASGIHandler(), scope)
        for part in asked.body:
            await there.send_input({"type": "http.request", "body": part, "more_body": True})
        await there.send_input({"type": "http.request", "body": b"", "more_body": False})
        begin, whole, more = await there.receive_output(60), b"", True
        while more:
            part = await there.receive_output(60)
            whole, more = whole + part.get("body", b""), part.get("more_body", False)
        await there.wait(60)
        headers = {name.decode().lower(): value.decode() for name, value in begin["headers"]}
        return Answered(begin["status"], headers, whole)

    return asyncio.run(ask())


@cache
def _validator(path: str, method: str, status: int) -> tuple[Any, Any] | None:
    """Of an answer; None: it has no body. Raises AssertionError where the document does not know this status."""
    responses = OPERATIONS[path, method]["responses"]
    assert str(status) in responses, f"{method} {path} is not documented to answer {status}"
    content = resolved(DOCUMENT, responses[str(status)]).get("content")
    if content is None:
        return None
    ((_, media),) = content.items()
    schema = media["schema"]
    return schema, jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]})


def check(asked: Asked, answer: Answered) -> None:
    assert answer.status < 500 or (answer.status == HTTPStatus.NOT_IMPLEMENTED and "wait" in asked.query), answer
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "html" not in answer.headers.get("content-type", "")
    if asked.method.upper() == "HEAD":  # whose body the server leaves out
        return
    if answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        assert answer.body == b""
        return
    shown = json.loads(answer.body)
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert shown["status"] == answer.status
    else:
        assert answer.headers["content-type"] == "application/json"
    path = unquote_to_bytes(asked.path).decode(errors="replace")
    for (template, method), route in ROUTES.items():
        if method == asked.method.upper() and route.fullmatch(path):
            schema, validator = _validator(template, method, answer.status) or (None, None)
            validator.validate(shown)
            assert list(undocumented(DOCUMENT, schema, shown)) == []
            return
    assert answer.status >= 400


# -- what is asked ---------------------------------------------------------------------------------------------

NULS = '"' + "\\000" * 8 + '"'  # as a cookie
ODD_TEXT = st.text(st.characters(codec="latin-1"), max_size=20) | st.sampled_from(
    [
        "\x00",
        "a\nb",
        "%",
        "%zz",
        "\xff\xfe",
        "null",
        "0",
        "-1",
        "1e9",
        "NaN",
        "'; --",
        "../..",
        '"\\000\\000\\000\\000\\000"',
    ]
)
IDS = st.integers().map(str) | st.sampled_from(["0", "01", "1.0", "9" * 18, "9" * 19, "9" * 30, "9223372036854775807"])
NAMES = st.text(max_size=70) | st.sampled_from(["default", "a" * 63, "a" * 64, ".", "..", "a\n", "ä", "\x00"])


@st.composite
def paths(draw: Callable[[SearchStrategy[Any]], Any], job_id: int) -> str:
    template = draw(st.sampled_from(sorted(DOCUMENT["paths"])))
    id = draw(st.just(str(job_id)) | IDS)
    path = template.replace("{id}", quote(id, safe="")).replace("{name}", quote(draw(NAMES), safe=""))
    return path + draw(st.sampled_from(["", "", "", "/", "//", "%0A", "%00", "/..", "%2F", "%ff", "%e2%82", ";a=b"]))


MOMENTS = (
    "2026-11-30T00:00:00Z",
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00+12:00",
    "2040-01-01T00:00:00-16:50",
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\x00", "\ud800", 10**400, 2**63, -(2**63) - 1, 1e308, *MOMENTS])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
)
TASKS = st.sampled_from([charge.path, pack.path, closed.path, "os.system", "a..b", "", None, 7])
JOBS = st.fixed_dictionaries(
    {"task": TASKS}, optional=dict.fromkeys([*(set(enqueueing.FIELDS) - {"task"}), "resume_at", "reason"], VALUES)
)
OBJECTS = JOBS | st.fixed_dictionaries(
    {},
    optional={
        "jobs": st.lists(JOBS, max_size=3) | VALUES,
        "reason": VALUES,
        "resume_at": VALUES,
        "resume_after_seconds": VALUES,
        "state": VALUES,
    },
)
RAW = (
    st.binary(max_size=50)
    | st.integers(1, 200_000).map(lambda depth: b"[" * depth)
    | st.integers(60, 70).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth)
    | st.integers(4_000, 5_000).map(lambda digits: b'{"priority": ' + b"1" * digits + b"}")
    | st.sampled_from(
        [
            b'{"task": "a", "task": "b"}',
            b'{"args": [{"a": 1, "a": 1}]}',
            b'{"delay_seconds": 1e999}',
            b'{"delay_seconds": -Infinity}',
            b'{"reason": "\\ud800"}',
            b'{"reason": "\\u0000"}',
            b'{"\\ud800": 1}',
            b'{"reason": "\xff"}',
            b"\xef\xbb\xbf{}",
            b"\xef\xbb\xbf",
            b"{}{}",
            b"{} ",
            b"\x00",
            b" " * 1_048_577,
            b"[]",
            b"null",
            gzip.compress(b"{}"),
        ]
    )
)
BODIES = OBJECTS.map(lambda value: json.dumps(value).encode()) | RAW
ENCODED = st.tuples(BODIES, st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-32", "utf-7", "cp037"])).map(
    lambda pair: pair[0] if pair[1] == "utf-8" else pair[0].decode("utf-8", "replace").encode(pair[1], "replace")
)


@st.composite
def pieces(draw: Callable[[SearchStrategy[Any]], Any]) -> list[bytes]:
    body = draw(ENCODED)
    cut = draw(st.integers(0, len(body)))
    return [body[:cut], body[cut:]]


PARAMETERS = (
    *("state", "queue_name", "task", "idempotency_key", "limit", "cursor", "wait"),
    *("", "State", "id", "\x00", "\xe9"),
)


@st.composite
def queries(draw: Callable[[SearchStrategy[Any]], Any]) -> str:
    """Cursors of ours, too: for other filters, cut, and with something in them changed."""
    cursor = cursors.written(Cut((draw(st.integers(0, 2**63)),), True), draw(st.sampled_from([{}, {"state": "dead"}])))
    place = draw(st.integers(0, len(cursor)))
    bent = [
        cursor,
        cursor[:place],
        cursor[:place] + draw(ODD_TEXT) + cursor[place:],
        cursor[::-1],
        cursor + ":" + cursor,
    ]
    values = st.sampled_from([*bent, "dead", "queued", "0", "1", "200", charge.path, "default", "0001", "٣"]) | ODD_TEXT
    given = draw(st.lists(st.tuples(st.sampled_from(PARAMETERS), values), max_size=3))
    raw = draw(
        st.sampled_from(["", "", "", "&", "?", "%", "=&=", "limit=%C3", "limit=1;limit=2", "\xe9=1", "&" * 2_000])
    )
    # Nobody waits: there is no job that would end.
    return re.sub(r"wait=([1-9])", "wait=0", urlencode(given)) + raw


CONTENT_TYPES = (
    *("application/json", "application/json; charset=utf-8", "APPLICATION/JSON;charset=UTF8", "text/json", ""),
    *("application/json; charset=utf-16", "application/json; charset=nonsense", "application/json; charset", ";"),
    *("multipart/form-data", "multipart/form-data; boundary=\xff", "application/x-www-form-urlencoded", "a/b/c"),
    "application/json; charset*=utf-8''%ff",
)
HEADERS = st.fixed_dictionaries(
    {"Content-Type": st.sampled_from([*CONTENT_TYPES[:1] * 12, *CONTENT_TYPES]) | ODD_TEXT},
    optional={
        "Content-Encoding": st.sampled_from(["identity", "gzip", "Identity", ""]) | ODD_TEXT,
        "Transfer-Encoding": st.sampled_from(["chunked", "gzip, chunked", "identity"]),
        "Content-Length": st.sampled_from(
            ["0", "-1", "x", "1e3", "99999999999999999999", "", "٣".encode().decode("latin-1")]
        ),
        "If-None-Match": st.sampled_from(["*", "", '"', 'W/"x"', '"a", "b"', '"' + "0" * 32 + '"']) | ODD_TEXT,
        "If-Match": ODD_TEXT | st.sampled_from(["*", '"x"']),
        "If-Modified-Since": ODD_TEXT | st.just("Mon, 30 Nov 2026 00:00:00 GMT"),
        "If-Unmodified-Since": ODD_TEXT,
        "Range": st.just("bytes=0-1"),
        "Accept": ODD_TEXT | st.just("text/html"),
        "Accept-Language": ODD_TEXT,
        "Cookie": ODD_TEXT | ODD_TEXT.map(lambda text: f"sessionid={text}; csrftoken={text}"),
        "X-CSRFToken": ODD_TEXT,
        "X-HTTP-Method-Override": st.just("DELETE"),
        "Expect": st.just("100-continue"),
    },
)
KNOWN = {"Authorization": f"Bearer {TOKEN}"}
AUTHORIZATIONS = st.just(KNOWN) | ODD_TEXT.map(lambda text: {"Authorization": f"Bearer {text}"}) | st.just({})
METHODS = st.sampled_from(
    ["GET", "POST", "POST", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "get", "", "X" * 99]
)


@st.composite
def requests(draw: Callable[[SearchStrategy[Any]], Any], job_id: int) -> Asked:
    """Most of them with one thing wrong: what is wrong all over is refused at the first look."""
    path = draw(paths(job_id))
    wrong = draw(st.sets(st.sampled_from(["method", "query", "headers", "authorization"]), max_size=2))
    method = draw(METHODS) if "method" in wrong else "POST" if (path, "POST") in OPERATIONS else draw(METHODS)
    return Asked(
        method,
        path,
        draw(queries()) if "query" in wrong or method == "GET" else "",
        {
            **(draw(HEADERS) if "headers" in wrong else {"Content-Type": "application/json"}),
            **(draw(AUTHORIZATIONS) if "authorization" in wrong else KNOWN),
        },
        draw(pieces()) if method == "POST" else [],
    )


@pytest.fixture(autouse=True)
def open_api(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PGQUEUE = PGQUEUE
    settings.ALLOWED_HOSTS = ["testserver"]
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)  # as it is to be under ASGI


WSGI = WSGIHandler()


@pytest.mark.parametrize("over", [over_wsgi, over_asgi])
@pytest.mark.parametrize("cases", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_whatever_is_asked_is_answered_as_documented(over: Callable[[Asked], Answered], cases: int) -> None:
    job = make_job("scheduled", task=charge.path)

    @settings(max_examples=cases, suppress_health_check=list(HealthCheck))
    @given(requests(job.pk))
    def ask(asked: Asked) -> None:
        answer = over(asked)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:  # a busy machine: one of ten thousand
            answer = over(asked)
        check(asked, answer)

    ask()


# -- over the network ------------------------------------------------------------------------------------------

LINE = (
    f"POST {PREFIX}/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n".encode()
)
JSON = b"Content-Type: application/json\r\n"
BODY = json.dumps({"task": echo.path}).encode()
CHUNKED = JSON + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = JSON + b"Content-Length: %d\r\n\r\n" % len(BODY)
# What each server lets through, and what comes of it; None: whatever the server itself says, or nothing.
SENT: dict[str, tuple[bytes, int | None, int | None]] = {
    "plain": (LINE + LENGTH + BODY, 201, 201),
    "chunked": (LINE + CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), 201, 411),
    "many chunks": (LINE + CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n", 201, 411),
    "chunks without an end": (LINE + CHUNKED + b'5\r\n{"tas\r\n', None, 411),
    "no size of a chunk": (LINE + CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", None, 411),
    "chunks over the limit": (LINE + CHUNKED + b"100001\r\n" + b" " * 0x100001 + b"\r\n0\r\n\r\n", 413, None),
    "length over the limit": (LINE + JSON + b"Content-Length: 1048577\r\n\r\n" + b" " * 1048577, 413, None),
    "a length over the limit alone": (LINE + JSON + b"Content-Length: 1048577\r\n\r\n", None, 413),
    "no body": (LINE + JSON + b"Content-Length: 0\r\n\r\n", 400, 400),
    "no length": (LINE + JSON + b"\r\n", 400, 400),
    "less than announced": (LINE + JSON + b"Content-Length: 9999\r\n\r\n" + BODY, None, None),
    "two lengths": (LINE + b"Content-Length: 1\r\n" + LENGTH + BODY, None, None),
    "no number as a length": (LINE + JSON + b"Content-Length: 1e3\r\n\r\n" + BODY, None, None),
    "bytes in the name of a header": (LINE + b"X-\xff: y\r\n" + LENGTH + BODY, None, None),
    "bytes in headers": (LINE + b"X-Y: \xfe\r\nAccept-Language: \xff\r\n" + LENGTH + BODY, 201, 201),
    "a long header": (LINE + b"X-Long: " + b"a" * 60_000 + b"\r\n" + LENGTH + BODY, 201, 201),
    "a method of its own": (LINE.replace(b"POST", b"PROPFIND") + LENGTH + BODY, 405, 405),
    "NUL in the path": (LINE.replace(b"/jobs", b"/jobs%00") + LENGTH + BODY, 404, 404),
    "a line break in the path": (LINE.replace(b"/jobs", b"/jobs%0d%0aX:y") + LENGTH + BODY, 404, 404),
    "no UTF-8 in the path": (LINE.replace(b"/jobs", b"/jobs%ff") + LENGTH + BODY, 404, 404),
    "the whole address": (LINE.replace(b" /", b" http://127.0.0.1/") + LENGTH + BODY, None, None),
    "100-continue": (LINE + b"Expect: 100-continue\r\n" + LENGTH + BODY, 201, 201),
}


def said(port: int, sent: bytes, is_all: bool) -> Answered | None:
    """``is_all``: and the server learns that nothing more comes. None: nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        with contextlib.suppress(OSError):  # it may have answered before all of it was there
            line.sendall(sent)
            if is_all:
                line.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(line)
        try:
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, headers, response.read())
        except (ConnectionError, http.client.HTTPException):
            return None


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_what_a_server_lets_through_is_answered_and_the_server_lives_on(tmp_path: Path, interface: str) -> None:
    with website(tmp_path, interface) as site:
        for name, (sent, *expected) in SENT.items():
            status = expected[interface == "wsgi"]
            answer = said(site.port, sent, is_all=status is None)
            print(name, answer and answer.status)
            if status is None:
                assert answer is None or answer.status < 500, name
            else:
                assert answer is not None, name
                assert answer.status == status, (name, answer)
                kind = "application/problem+json" if status >= 400 else "application/json"
                assert answer.headers["content-type"] == kind, name
        assert "Traceback" not in site.log.read_text(errors="replace")


# -- what was found so -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/jobs", {"priority": 6.0, "max_attempts": 3.0}, 201),  # to JSON Schema it is an integer
        ("/jobs", {"priority": 6.5}, 422),
        ("/jobs", {"priority": "6"}, 422),
        ("/jobs", {"run_after": "2040-01-01T00:00:00-16:50"}, 201),  # more than PostgreSQL takes
        ("/jobs", {"run_after": "0001-01-01T00:00:00+12:00"}, 422),  # before the first year, in UTC
        ("/jobs", {"run_after": "9999-12-31T23:59:59-12:00"}, 422),
        ("/queues/open/pause", {"resume_after_seconds": 5e-324}, 422),  # as a timedelta it is nothing
    ],
)
def test_numbers_and_moments_at_their_edges(path: str, body: dict[str, Any], status: int) -> None:
    body |= {"task": charge.path, "args": [1]} if path == "/jobs" else {}
    answer = over_wsgi(Asked("POST", path, headers={**KNOWN, "Content-Type": "application/json"}, body=[_json(body)]))
    assert answer.status == status, answer


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def test_who_does_not_wait_is_answered_at_once() -> None:
    asked = Asked(path=f"/jobs/{make_job('scheduled').pk}", query="wait=0", headers=KNOWN)
    answer = over_asgi(asked)
    assert answer.status == 200
    assert json.loads(answer.body)["state"] == "scheduled"
    check(asked, answer)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_match_with_what_it_is_no_more_is_a_problem_document(method: str) -> None:
    path = f"/jobs/{make_job('scheduled').pk}"
    asked = Asked(method, path, headers={**KNOWN, "If-Match": '"x"'})
    answer = over_asgi(asked)
    assert answer.status == HTTPStatus.PRECONDITION_FAILED
    check(asked, answer)


def test_too_many_parameters_are_refused() -> None:
    answer = over_wsgi(Asked(query="&" * 2000, headers=KNOWN))
    assert (answer.status, json.loads(answer.body)["code"]) == (400, "refused")


@pytest.mark.parametrize("over", [over_wsgi, over_asgi])
def test_a_session_that_no_database_can_hold_is_nobodys(over: Callable[[Asked], Answered]) -> None:
    answer = over(Asked(headers={"Cookie": f"sessionid={NULS}"}))
    assert answer.status == HTTPStatus.UNAUTHORIZED, answer


@pytest.mark.parametrize("page", ["metrics", "healthz/queues"])
def test_such_a_session_is_nobodys_on_the_other_pages_either(client: Client, page: str) -> None:
    answer = client.get(f"/pgqueue/{page}", headers={"Cookie": f"sessionid={NULS}"})
    assert answer.status_code == (HTTPStatus.UNAUTHORIZED if page == "metrics" else HTTPStatus.OK)
