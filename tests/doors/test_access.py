"""Who asks: sessions with Django's CSRF check, tokens known by their SHA-256, and a project's own functions."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory

from pgqueue_django import access, checks, conf
from pgqueue_django.access import Actor
from pgqueue_django.models import Job

from .api_tasks import charge
from .conftest import log_in

TASKS = "/pgqueue/api/v1/tasks"
JOBS = "/pgqueue/api/v1/jobs"
TOKEN = "token-of-the-test"
SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
BOTH = ["pgqueue_django.access.token", "pgqueue_django.access.session"]


def entry(**changes: Any) -> dict[str, Any]:
    return {"sha256": SHA256, "rights": ["enqueue_job"], "expires": None, **changes}


@pytest.fixture
def tokens(settings: Any) -> Callable[..., None]:
    def put(**entries: Any) -> None:
        settings.PGQUEUE = {"API_AUTH": BOTH, "API_TOKENS": entries}

    put(test=entry())
    return put


def ask(authorization: str) -> int:
    return Client(headers={"Authorization": authorization}).get(TASKS).status_code


# -- tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN} ", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {SHA256}", 401),
        (f"Token {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer \xff\xe9", 401),
        ("Basic dGVzdDp0ZXN0", 401),
    ],
)
def test_a_token_comes_in_the_header_and_is_known_by_its_digest(authorization: str, status: int) -> None:
    assert ask(authorization) == status


@pytest.mark.django_db
@pytest.mark.usefixtures("tokens")
def test_a_token_in_the_url_is_none() -> None:
    assert Client().get(f"{TASKS}?token={TOKEN}&access_token={TOKEN}").status_code == 401


@pytest.mark.django_db
def test_a_token_is_void_from_its_day_on(tokens: Callable[..., None]) -> None:
    today = datetime.now(UTC).date()
    for day, status in ((today + timedelta(days=1), 200), (today, 401), (today - timedelta(days=1), 401)):
        tokens(test=entry(expires=day.isoformat()))
        assert ask(f"Bearer {TOKEN}") == status


@pytest.mark.django_db
def test_each_token_has_its_own_rights_and_name(tokens: Callable[..., None]) -> None:
    other = hashlib.sha256(b"other").hexdigest().upper()
    tokens(test=entry(), other=entry(sha256=other, rights=["pause_queue"]))
    assert ask(f"Bearer {TOKEN}") == 200
    assert ask("Bearer other") == 403
    client = Client(headers={"Authorization": "Bearer other"})
    assert client.post("/pgqueue/api/v1/queues/open/pause", {}, "application/json").json()["actor"] == "token:other"


@pytest.mark.django_db
@pytest.mark.usefixtures("tokens")
def test_no_token_is_logged_nor_shown(caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    settings.DEBUG = True
    with caplog.at_level(logging.DEBUG):
        for path in (TASKS, JOBS, "/pgqueue/api/v1/nothing"):
            response = Client(headers={"Authorization": f"Bearer {TOKEN}"}).get(path)
            assert TOKEN not in response.content.decode()
    assert TOKEN not in caplog.text
    assert SHA256 not in caplog.text


# -- sessions --------------------------------------------------------------------------------------------------


def post(client: Client, **headers: str) -> Any:
    return client.post(JOBS, {"task": charge.path, "args": [1]}, "application/json", headers=headers)


@pytest.mark.usefixtures("tokens")
def test_who_comes_by_a_session_needs_the_csrf_token_for_changes(person: Callable[..., User]) -> None:
    client = log_in(person("enqueue_job"), enforce_csrf_checks=True)
    assert client.get(TASKS).status_code == 200
    refused = post(client)
    assert refused.status_code == 403
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert "CSRF" in refused.json()["detail"]
    assert Job.objects.count() == 0
    client.cookies["csrftoken"] = "c" * 32
    assert post(client, **{"X-CSRFToken": "d" * 32}).status_code == 403
    assert post(client, **{"X-CSRFToken": "c" * 32, "Origin": "https://evil.example"}).status_code == 403
    assert Job.objects.count() == 0
    assert post(client, **{"X-CSRFToken": "c" * 32}).status_code == 201


@pytest.mark.usefixtures("tokens")
def test_a_form_of_another_site_changes_nothing(person: Callable[..., User]) -> None:
    client = log_in(person("enqueue_job", "pause_queue"), enforce_csrf_checks=True)
    for content_type in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        response = client.generic("POST", "/pgqueue/api/v1/queues/open/pause", b"", CONTENT_TYPE=content_type)
        assert response.status_code == 403


@pytest.mark.django_db
@pytest.mark.usefixtures("tokens")
def test_who_comes_by_a_token_needs_none() -> None:
    client = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {TOKEN}"})
    assert post(client).status_code == 201


@pytest.mark.usefixtures("tokens")
def test_a_token_goes_before_a_session_where_it_stands_first(person: Callable[..., User]) -> None:
    client = log_in(person(), enforce_csrf_checks=True)
    assert post(client, Authorization=f"Bearer {TOKEN}").status_code == 201


@pytest.mark.usefixtures("tokens")
def test_a_user_who_may_no_longer_log_in_is_nobody(person: Callable[..., User]) -> None:
    user = person(superuser=True)
    client = log_in(user)
    assert client.get(TASKS).status_code == 200
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert client.get(TASKS).status_code == 401


def test_without_the_middleware_of_users_a_session_is_nobody() -> None:
    assert access.session(RequestFactory().get("/")) is None


# -- a project's own -------------------------------------------------------------------------------------------


def by_header(request: Any) -> Actor | None:
    name = request.headers.get("X-Name")
    return Actor(name, {"enqueue_job"}) if name else None


@pytest.mark.django_db
@pytest.mark.parametrize("given", [by_header, f"{__name__}.by_header"], ids=["function", "name"])
def test_a_projects_own_function_says_who_it_is(settings: Any, given: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [given]}
    assert Client(headers={"X-Name": "somebody"}).get(TASKS).status_code == 200
    assert Client().get(TASKS).status_code == 401


# -- the settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"API_AUTH": "pgqueue_django.access.token"}, "API_AUTH"),
        ({"API_AUTH": ["token"]}, "API_AUTH"),
        ({"API_AUTH": [5]}, "API_AUTH"),
        ({"API_TOKENS": []}, "API_TOKENS"),
        ({"API_TOKENS": {"a b": entry()}}, "'a b'"),
        ({"API_TOKENS": {"ci": SHA256}}, "'ci'"),
        ({"API_TOKENS": {"ci": entry(sha256=TOKEN)}}, '"sha256"'),
        ({"API_TOKENS": {"ci": entry(sha256="0" * 63)}}, '"sha256"'),
        ({"API_TOKENS": {"ci": entry(sha256=None)}}, '"sha256"'),
        ({"API_TOKENS": {"ci": {"rights": []}}}, '"sha256"'),
        ({"API_TOKENS": {"ci": entry(rights="enqueue_job")}}, '"rights"'),
        ({"API_TOKENS": {"ci": entry(rights=["enqueue"])}}, '"rights"'),
        ({"API_TOKENS": {"ci": entry(expires="soon")}}, '"expires"'),
        ({"API_TOKENS": {"ci": entry(expires=5)}}, '"expires"'),
        ({"API_TOKENS": {"ci": entry(scopes=[])}}, "scopes"),
        ({"API_RATE": 5}, "API_RATE"),
        ({"API_RATE": "5/day"}, "API_RATE"),
        ({"API_RATE": "0/s"}, "API_RATE"),
        ({"API_MAX_QUEUE_DEPTH": 0}, "API_MAX_QUEUE_DEPTH"),
        ({"API_MAX_QUEUE_DEPTH": 100_001}, "API_MAX_QUEUE_DEPTH"),
        ({"API_MAX_QUEUE_DEPTH": True}, "API_MAX_QUEUE_DEPTH"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_an_error_that_names_it(settings: Any, given: dict[str, Any], named: str) -> None:
    settings.PGQUEUE = given
    (mistake,) = conf.mistakes()
    assert named in mistake.problem
    assert TOKEN not in str(mistake)


def test_right_settings_are_taken(settings: Any) -> None:
    settings.PGQUEUE = {
        "API_AUTH": (by_header, "pgqueue_django.access.token"),
        "API_TOKENS": {"ci@example.org": {"sha256": SHA256, "rights": conf.RIGHTS}, "b": entry(expires="2027-12-31")},
        "API_RATE": "1000/min",
        "API_MAX_QUEUE_DEPTH": 100_000,
    }
    assert conf.mistakes() == []
    assert conf.current().api_rate == (1000, 60)


@pytest.mark.django_db
def test_the_rights_of_tokens_are_permissions_of_the_app() -> None:
    known = Permission.objects.filter(content_type__app_label="pgqueue_django")
    assert set(conf.RIGHTS) <= set(known.values_list("codename", flat=True))


@pytest.mark.parametrize("name", ["pgqueue_django.access.tokn", "nowhere.at.all", "pgqueue_django.access.conf"])
def test_an_authenticator_that_is_none_is_found_by_the_checks(settings: Any, name: str) -> None:
    settings.PGQUEUE = {"API_AUTH": [name]}
    (found,) = checks.authenticators()
    assert found.id == "pgqueue.E007"
    assert name in found.msg
    settings.PGQUEUE = {"API_AUTH": BOTH}
    assert list(checks.authenticators()) == []


# -- the command -----------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_command_makes_a_token_and_the_entry_for_it(settings: Any) -> None:
    out = StringIO()
    call_command("pgqueue_token", "ci", "--right", "enqueue_job", "--expires", "2999-01-01", stdout=out)
    made = re.search(r"\bpgq_\S{40,}", out.getvalue())
    assert made
    entries = eval("{" + out.getvalue().rpartition(":\n")[2].strip() + "}")
    assert made[0] not in str(entries)
    settings.PGQUEUE = {"API_AUTH": BOTH, "API_TOKENS": entries}
    assert conf.mistakes() == []
    assert ask(f"Bearer {made[0]}") == 200
    again = StringIO()
    call_command("pgqueue_token", "ci", "--right", "enqueue_job", stdout=again)
    assert made[0] not in again.getvalue()
    assert '"expires": None' in again.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [["ci"], ["a b", "--right", "view_job"], ["ci", "--right", "viewjob"],
     ["ci", "--right", "view_job", "--expires", "soon"]],
)  # fmt: skip
def test_the_command_refuses_what_the_settings_would(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("pgqueue_token", *arguments)
