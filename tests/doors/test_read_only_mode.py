"""READ_ONLY: every route that a project with everything has, with every method, as a superuser; nothing changes.

The routes are those of the admin of this app and of ``pgqueue_django.urls`` as they are without the mode, so that a new
one is in here by itself.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, reverse
from verbs import rows

from doors.mounting import mounted
from pgqueue_django import public_urls, queues, urls
from pgqueue_django.admin.rights import may
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule, Worker

from .api_tasks import charge

pytestmark = pytest.mark.django_db

READING = ("GET", "HEAD", "OPTIONS")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
API = {"API_AUTH": ["pgqueue_django.access.session"]}
TASK = "testproject.shop.tasks.export_sales"
# What a form of any of our pages, or a request to the API, may hold; each view takes its own.
FORMS: dict[str, dict[str, Any]] = {
    "queue": {"name": "fresh", "reason": "", "resume_at_0": "", "resume_at_1": ""},
    "schedule": {
        "name": "fresh",
        "task": TASK,
        "args": "[7]",
        "kwargs": "{}",
        "line": "0 3 * * *",
        "zone": "UTC",
        "missed": "one",
        "overlap": "allow",
        "is_enabled": "on",
    },
}
BODIES = [{}, {"task": charge.path, "args": [1]}, {"jobs": [{"task": charge.path, "args": [1]}]}]


@pytest.fixture(autouse=True)
def something_to_change() -> None:
    for state in ("queued", "scheduled", "running", "succeeded", "dead"):
        rows.make_job(state, task=charge.path, args=[1])
    queues.pause("default", "held")
    Worker.objects.create(id="w", name="w", host="h", pid=1, concurrency=1, lease_seconds=30)
    AuditEntry.objects.create(actor="ana", action="cancel", target="job 1")
    Schedule.objects.create(
        name="nightly", task=TASK, args=[7], kwargs={}, line="0 3 * * *", next_at=datetime(2030, 1, 1, 3, tzinfo=UTC)
    )


def contents() -> dict[str, str]:
    """Every row of every table of ours, and of the admin's log."""
    found = {}
    with connection.cursor() as cursor:
        for model in [*apps.get_app_config("pgqueue_django").get_models(), apps.get_model("admin", "LogEntry")]:
            table = connection.ops.quote_name(model._meta.db_table)
            cursor.execute(f"SELECT string_agg(one::text, E'\\n' ORDER BY one::text) FROM {table} AS one")
            found[model.__name__] = cursor.fetchone()[0]
    return found


def ours() -> dict[Any, Any]:
    return {model: one for model, one in admin.site._registry.items() if model._meta.app_label == "pgqueue_django"}


def rows_of(model: Any) -> list[Any]:
    return list(model._default_manager.using("default").values_list("pk", flat=True)) or [1]


def admin_routes() -> Iterator[tuple[str, str]]:
    """(model, URL) of each route, for each row where it is of one."""
    for model, one in ours().items():
        for pattern in one.get_urls():
            if not pattern.name:
                continue
            converters = list(pattern.pattern.converters)
            for pk in rows_of(model) if converters else [None]:
                arguments = {name: "args" if name == "part" else pk for name in converters}
                yield model._meta.model_name, reverse(f"admin:{pattern.name}", kwargs=arguments)


def api_routes() -> Iterator[str]:
    ids = [job.pk for job in Job.objects.all()]
    for pattern in flat(urls.urlpatterns):
        groups = set(pattern.pattern.regex.groupindex)
        for pk in ids if "id" in groups else ids[:1]:
            values = {name: pk if name == "id" else "held" for name in groups}
            if pattern.name != "api_nothing":
                yield reverse(f"pgqueue_django:{pattern.name}", kwargs=values)


def flat(patterns: list[Any]) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from flat(pattern.url_patterns)
        else:
            yield pattern


def requests() -> list[Callable[[Client], HttpResponse]]:
    """Everything that somebody could send to change something."""
    made: list[Callable[[Client], HttpResponse]] = []

    def add(method: str, url: str, data: Any, content_type: str = "") -> None:
        def send(client: Client) -> HttpResponse:
            if content_type:
                return client.generic(method, url, json.dumps(data), content_type=content_type)
            return client.post(url, data)

        send.__name__ = f"{method} {url}"
        made.append(send)

    for model, url in admin_routes():
        for method in CHANGING:
            add(method, url, {}, "application/json")
        chosen = {"post": "yes", "task": charge.path, "fingerprint": "", "until": "9999999999"}
        add("POST", url, {**chosen, **FORMS.get(model, {})})
    for model, one in ours().items():
        for action in one.actions or ():
            data = {"action": action, "_selected_action": rows_of(model), "index": "0", "post": "yes"}
            add("POST", reverse(f"admin:pgqueue_django_{model._meta.model_name}_changelist"), data)
    for url in api_routes():
        for method in CHANGING:
            for body in BODIES if method == "POST" else BODIES[:1]:
                add(method, url, body, "application/json")
    return made


@pytest.fixture
def root(browser: Callable[..., Client]) -> Client:
    client = browser(superuser=True)
    client.raise_request_exception = False
    return client


def test_nothing_changes_whatever_a_superuser_sends(root: Client, settings: Any) -> None:
    settings.PGQUEUE = API
    sent = requests()
    assert len(sent) > 150
    before = contents()
    with mounted(settings, READ_ONLY=True):
        refused = {send.__name__: send(root).status_code for send in sent}
    assert set(refused.values()) <= {404, 405}, refused
    assert contents() == before


def test_the_same_requests_change_things_without_the_mode(root: Client, settings: Any) -> None:
    """Else the test above shows nothing."""
    settings.PGQUEUE = API
    before, done = contents(), set()
    for send in requests():
        with transaction.atomic():
            send(root)
            if contents() != before:
                done.add(re.sub(r"\d+", "N", send.__name__))
            transaction.set_rollback(True)
    for url in ("job/", "job/N/requeue/", "job/N/cancel/", "queue/add/", "schedule/add/", "schedule/"):
        assert f"POST /admin/pgqueue_django/{url}" in done, (url, done)
    for url in ("jobs", "jobs:batch", "jobs/N/cancel", "jobs/N/requeue", "queues/held/pause", "queues/held/resume"):
        assert any(one.startswith(f"POST /pgqueue/api/vN/{url}") for one in done), (url, done)


def test_no_view_lets_a_post_through_either_where_its_route_was_mounted_before(root: Client, settings: Any) -> None:
    """The settings of a process that were read too late: nobody has a right that changes something."""
    settings.PGQUEUE = API
    sent = requests()
    before = contents()
    settings.PGQUEUE = {**API, "READ_ONLY": True}
    for send in sent:
        send(root)
    assert contents() == before


def test_everything_can_be_looked_at_and_offers_nothing(root: Client, settings: Any) -> None:
    settings.PGQUEUE = API
    with mounted(settings, READ_ONLY=True):
        routes = dict.fromkeys(url for _, url in admin_routes())
        assert len(routes) > 20
        for url in routes:
            answer = root.get(url)
            if url.endswith("/dashboard/stream/"):
                assert answer.status_code == 204  # under WSGI there is none
                continue
            assert answer.status_code == 200, url
            if not answer.headers["Content-Type"].startswith("text/html"):
                continue
            page = answer.content.decode()
            content = page[page.index('id="content"') : page.index('id="footer"')]
            forms = re.findall(r'<form[^>]*method="post"[^>]*>', content)
            # Django's own are there without anything to send.
            assert not [form for form in forms if not re.search(r'id="(changelist-form|\w+_form)"', form)], (url, forms)
            assert not re.search(r'name="(action|_selected_action|_save\w*|_continue|_addanother)"', content), url
            assert not re.search(r'class="(addlink|deletelink)"', content), url
        for path in ("jobs", "queues", "snapshot", "workers", "schedules", "tasks", "openapi.json"):
            assert root.get(f"/pgqueue/api/v1/{path}").status_code == 200, path
        assert root.get(f"/pgqueue/api/v1/jobs/{Job.objects.values_list('pk', flat=True)[0]}").status_code == 200
        for path in ("livez", "healthz", "metrics"):
            assert root.get(f"/pgqueue/{path}").status_code in (200, 503)


def test_the_document_of_the_api_has_what_there_is(root: Client, settings: Any) -> None:
    settings.PGQUEUE = API
    whole = root.get("/pgqueue/api/v1/openapi.json").json()
    with mounted(settings, READ_ONLY=True):
        document = root.get("/pgqueue/api/v1/openapi.json").json()
        for path, item in whole["paths"].items():
            url = "/pgqueue/api/v1" + path.replace("{id}", "1").replace("{name}", "held")
            for method in set(item) - {"parameters"}:
                answer = root.generic(method.upper(), url, b"{}", "application/json")
                if method in document["paths"].get(path, {}):
                    assert method == "get"
                    assert answer.status_code in (200, 404)
                else:
                    assert answer.status_code in (404, 405), (method, path)
                    assert answer.json()["code"] in ("not_found", "method")
    assert sum(len(set(item) - {"parameters"}) for item in document["paths"].values()) == 8
    assert root.get("/pgqueue/api/v1/openapi.json").json() == whole


def test_a_post_to_what_can_be_read_says_what_can_be_done(root: Client, settings: Any) -> None:
    settings.PGQUEUE = API
    with mounted(settings, READ_ONLY=True):
        answer = root.post("/pgqueue/api/v1/jobs", {"task": charge.path}, content_type="application/json")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


def test_rights_to_view_stay_and_others_are_nobodys(settings: Any, rf: Any, person: Callable[..., Any]) -> None:
    request = rf.get("/")
    request.user = person(superuser=True)
    for mode in (False, True):
        settings.PGQUEUE = {"READ_ONLY": mode}
        assert may(request, "view_job_payload")
        assert may(request, "requeue_job") is not mode
    settings.PGQUEUE = {"READ_ONLY": True}
    for one in ours().values():
        assert one.has_view_permission(request)
        assert not one.has_add_permission(request)
        assert not one.has_change_permission(request)
        assert not one.has_delete_permission(request)
        assert one.get_actions(request) == {}


def test_the_commands_are_as_ever(settings: Any) -> None:
    settings.PGQUEUE = {"READ_ONLY": True}
    job = rows.make_job("dead")
    call_command("pgqueue_requeue", str(job.pk), stdout=io.StringIO())
    call_command("pgqueue_pause", "mail", stdout=io.StringIO())
    assert rows.state_of(job.pk) == "queued"
    assert Queue.objects.filter(name="mail").exists()


def test_the_status_page_is_the_same(settings: Any) -> None:
    settings.PGQUEUE = {}
    with mounted(settings, READ_ONLY=True, PUBLIC=True):
        assert urls.urlpatterns == public_urls.urlpatterns
