"""Who may what, over every URL of the package: the table below is all of it, and nothing may be missing in it.

A view without an entry fails, and so does a method that an entry does not name: it has to be a 405.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver
from verbs.rows import make_job

from pgqueue_django import public_urls, urls

from .api_tasks import charge

TOKEN = "token-of-the-test"
VIEWER = {"view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule"}
OPERATOR = {*VIEWER, "view_job_payload", "requeue_job", "run_job_now", "cancel_job", "pause_queue"}
TOKENS = {"enqueue_job"}
ALL = {*OPERATOR, *TOKENS}
# None: nobody knows who it is.
ROLES: dict[str, set[str] | None] = {
    "anonymous": None,
    "staff": set(),
    "viewer": VIEWER,
    "operator": OPERATOR,
    "blind": OPERATOR - VIEWER,  # may do it all, and see nothing
    "admin": ALL,
    "token": TOKENS,
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True)
class Need:
    """Rights without which it is a 403; ``public``: it asks for nothing. ``ok``: what who has them is answered."""

    rights: frozenset[str] = frozenset()
    ok: int = 200
    public: bool = False
    one_of: bool = False
    tokens: bool = True

    def expected(self, role: str) -> int:
        held = ROLES[role]
        if self.public:
            return self.ok
        if held is None or (role == "token" and not self.tokens):
            return 401
        allowed = bool(self.rights & held) if self.one_of else self.rights <= held
        return self.ok if allowed else 403


@dataclass(frozen=True)
class Url:
    """``path`` below ``root``, with ``{job}``. Of what is not in ``methods``, HEAD is as GET and the rest a 405."""

    path: str
    methods: dict[str, Need]
    body: dict[str, Any] = field(default_factory=dict)
    state: str = "queued"  # of the job
    options: int = 204
    other: int = 405
    root: str = "/pgqueue/"

    def expected(self, role: str, method: str) -> int:
        name = "GET" if method == "HEAD" else method
        if name in self.methods:
            return self.methods[name].expected(role)
        return self.options if method == "OPTIONS" else self.other


def needs(*rights: str, **how: Any) -> Need:
    return Need(frozenset(rights), **how)


JOB = {"task": charge.path, "args": [1]}
NOTHING = {"options": 404, "other": 404}

# By the names of the URLconf. Health and metrics answer OPTIONS as any method that they do not have.
MATRIX = {
    "metrics": Url("metrics", {"GET": needs("view_dashboard", tokens=False)}, options=405),
    "livez": Url("livez", {"GET": needs(public=True)}, options=405),
    "healthz": Url("healthz", {"GET": needs(public=True)}, options=405),
    "healthz_queues": Url("healthz/queues", {"GET": needs(public=True)}, options=405),
    "api": Url("api/v1", {}, **NOTHING),
    "api_nothing": Url("api/v1/nothing", {}, **NOTHING),
    "api_jobs": Url("api/v1/jobs", {"GET": needs("view_job"), "POST": needs("enqueue_job", ok=201)}, JOB),
    "api_batch": Url("api/v1/jobs:batch", {"POST": needs("enqueue_job", ok=201)}, {"jobs": [JOB]}),
    "api_job": Url("api/v1/jobs/{job}", {"GET": needs("view_job")}),
    "api_cancel": Url("api/v1/jobs/{job}/cancel", {"POST": needs("view_job", "cancel_job")}),
    "api_requeue": Url("api/v1/jobs/{job}/requeue", {"POST": needs("view_job", "requeue_job")}, state="dead"),
    "api_run_now": Url("api/v1/jobs/{job}/run-now", {"POST": needs("view_job", "run_job_now")}, state="scheduled"),
    "api_queues": Url("api/v1/queues", {"GET": needs("view_queue")}),
    "api_pause": Url("api/v1/queues/open/pause", {"POST": needs("pause_queue")}),
    "api_resume": Url("api/v1/queues/open/resume", {"POST": needs("pause_queue")}),
    "api_requeue_queue": Url("api/v1/queues/open/requeue", {"POST": needs("requeue_job")}),
    "api_snapshot": Url("api/v1/snapshot", {"GET": needs("view_dashboard")}),
    "api_workers": Url("api/v1/workers", {"GET": needs("view_worker")}),
    "api_schedules": Url("api/v1/schedules", {"GET": needs("view_schedule")}),
    "api_openapi": Url("api/v1/openapi.json", {"GET": needs()}),
    "api_tasks": Url("api/v1/tasks", {"GET": needs("view_job", "enqueue_job", one_of=True)}),
    "status": Url("", {"GET": needs(public=True)}, options=405, root="/status/"),
}


def named(patterns: list[Any]) -> Iterator[str | None]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from named(pattern.url_patterns)
        else:
            assert isinstance(pattern, URLPattern)
            yield pattern.name


def test_every_url_of_the_package_is_in_the_matrix() -> None:
    found = [*named(urls.urlpatterns), *named(public_urls.urlpatterns)]
    assert sorted(map(str, found)) == sorted(MATRIX)


@pytest.fixture(autouse=True)
def open_api(settings: Any) -> None:
    settings.PGQUEUE = {
        "API_AUTH": ["pgqueue_django.access.token", "pgqueue_django.access.session"],
        "API_TOKENS": {
            "test": {"sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "rights": sorted(TOKENS), "expires": None}
        },
    }


@pytest.fixture
def client_of(browser: Callable[..., Client]) -> Callable[[str], Client]:
    def make(role: str) -> Client:
        if role == "token":
            return Client(headers={"Authorization": f"Bearer {TOKEN}"})
        if role == "anonymous":
            return Client()
        return browser(superuser=True) if role == "admin" else browser(*sorted(ROLES[role] or ()))

    return make


@pytest.mark.django_db
@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", MATRIX)
def test_everybody_may_what_the_matrix_says_and_nothing_else(
    client_of: Callable[[str], Client], name: str, role: str, slash: str
) -> None:
    url, client = MATRIX[name], client_of(role)
    answered = {}
    for method in METHODS:
        job = make_job(url.state, task=charge.path, queue_name="open") if "{job}" in url.path else None
        path = f"{url.root}{url.path.format(job=job and job.pk)}{slash if url.path else ''}"
        response = client.generic(method, path, _body(url, method), content_type="application/json")
        answered[method] = response.status_code
        if url.path.startswith("api/"):
            _check_api(response)
    assert answered == {method: url.expected(role, method) for method in METHODS}


def _body(url: Url, method: str) -> bytes:
    return json.dumps(url.body).encode() if method == "POST" else b""


def _check_api(response: Any) -> None:
    """What holds of every answer of the API."""
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "no-cache" in response.headers["Cache-Control"]
    assert "private" in response.headers["Cache-Control"]
    assert "Access-Control-Allow-Origin" not in response.headers
    if response.status_code >= 400:
        assert response.headers["Content-Type"] == "application/problem+json"
    if response.status_code >= 400 and response.request["REQUEST_METHOD"] != "HEAD":
        document = response.json()
        assert document["status"] == response.status_code
        assert {"type", "title", "code", "detail"} <= set(document)
    if response.status_code == 401:
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="pgqueue"'
    if response.status_code in (204, 405):
        assert "OPTIONS" in response.headers["Allow"]


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name in MATRIX if name.startswith("api")])
def test_off_until_somebody_may_every_url_says_how_to_switch_it_on(settings: Any, name: str) -> None:
    settings.PGQUEUE = {}
    response = Client().get(f"/pgqueue/{MATRIX[name].path.format(job=1)}")
    assert response.status_code == 404
    _check_api(response)
    assert response.json()["code"] == "off"
    assert "API_AUTH" in response.json()["detail"]


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name in MATRIX if name.startswith("api")])
def test_the_projects_own_login_middleware_lets_programs_through(settings: Any, name: str) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    client = Client(headers={"Authorization": f"Bearer {TOKEN}"})
    for method in ("GET", "POST"):
        response = client.generic(method, f"/pgqueue/{MATRIX[name].path.format(job=1)}", b"{}", "application/json")
        assert response.status_code != 302
        _check_api(response)
