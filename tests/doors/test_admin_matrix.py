"""Who may what, over every page and action of the admin: the tables below are all of it, and nothing may be missing.

A page without a row fails, so that a new one cannot be forgotten: give it a ``Page`` in ``MATRIX``, with who may GET
it, who may POST to it and what. Each POST comes with a valid CSRF token, as from somebody who forges what his pages
do not offer. Whoever may not has changed no row; whoever may has, and has left one entry in the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import transaction
from django.http import HttpResponse
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client
from django.urls import URLPattern, URLResolver
from verbs.rows import make_job

from doors.conftest import log_in
from pgqueue_django import queues
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule, Worker

from .test_problems_page import fail
from .test_schedule_admin import TASK, form, make

pytestmark = pytest.mark.django_db

BASE = "/admin/pgqueue_django/"
APP = apps.get_app_config("pgqueue_django")
RIGHTS = sorted(
    {
        *(codename for model in APP.get_models() for codename, _ in model._meta.permissions),
        *(f"{verb}_{model._meta.model_name}" for model in APP.get_models() for verb in model._meta.default_permissions),
    }
)
VIEWER = {"view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule"}
OPERATOR = {
    *VIEWER,
    *("view_job_payload", "requeue_job", "run_job_now", "cancel_job", "pause_queue", "run_schedule"),
    *("switch_schedule", "view_auditentry"),
}
# None: who is sent to the login page. The three groups are those that pgqueue_groups makes.
ROLES: dict[str, set[str] | None] = {
    "anonymous": None,
    "not staff, with every right": None,
    "staff": set(),
    "viewer": VIEWER,
    "operator": OPERATOR,
    "admin": set(RIGHTS),
    **{f"only {right}": {right} for right in RIGHTS},
    # Who sees the pages and has one right to act: where two of those are mixed up, neither above would notice.
    **{f"viewer with {right}": {*VIEWER, right} for right in RIGHTS if right not in VIEWER},
}


@dataclass(frozen=True)
class Need:
    """All of these rights, or ``one_of`` them. ``ok``: what who has them is answered, and others with ``no``.

    ``outside``: what who is not let into the admin is answered; 302 leads to the login page.
    """

    rights: frozenset[str] = frozenset()
    ok: int = 200
    one_of: bool = False
    no: int = 403
    outside: int = 302
    nobody: bool = False

    def allows(self, held: set[str]) -> bool:
        if self.nobody:
            return False
        return bool(self.rights & held) if self.one_of else self.rights <= held

    def expected(self, held: set[str] | None) -> int:
        if held is None:
            return self.outside
        return self.ok if self.allows(held) else self.no


def needs(*rights: str, **how: Any) -> Need:
    return Need(frozenset(rights), **how)


NOBODY = needs(nobody=True)
NO_METHOD = needs(nobody=True, no=405)


@dataclass(frozen=True)
class Page:
    """Who may GET it, and who may POST ``data`` to it. ``changes``: whoever may POST has then changed something."""

    get: Need
    post: Need
    data: Callable[[World], dict[str, Any]] = field(default=lambda world: {})
    changes: bool = True
    state: str = "dead"
    """Of the job that the page is of."""


class World:
    """One of each, to be looked at and acted on."""

    def __init__(self) -> None:
        self.failed = fail("declined")
        self.jobs = {state: make_job(state).pk for state in ("dead", "queued", "scheduled")}
        self.jobs["known"] = make_job("dead", task=TASK, args=[7]).pk
        queues.pause("default", "mail")
        self.schedule = make(args=[7])
        self.off = make("off", is_enabled=False)
        self.worker = Worker.objects.create(id="w", name="w", host="h", pid=1, concurrency=1, lease_seconds=30)
        self.entry = AuditEntry.objects.create(actor="ann", action="cancel", target="job 1")

    def pk(self, model: str, state: str) -> Any:
        found = {"queue": "mail", "schedule": self.schedule.pk, "worker": "w", "auditentry": self.entry.pk}
        return self.jobs[state] if model == "job" else found[model]

    @staticmethod
    def rows() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for model in (Job, Queue, Schedule, Worker):
            found[model.__name__] = list(model._default_manager.order_by("pk").values())
        return found


def plain(model: str, see: Need, *, add: Page | None = None, change: Need = NOBODY, **how: Any) -> dict[str, Page]:
    """The pages that Django makes of any model."""
    looks = Page(see, see, changes=False)
    return {
        f"{model}/": looks,
        f"{model}/add/": add or Page(NOBODY, NOBODY),
        f"{model}/<path:object_id>/history/": looks,
        f"{model}/<path:object_id>/delete/": how.get("delete", Page(NOBODY, NOBODY)),
        f"{model}/<path:object_id>/change/": Page(see, change, how.get("data", lambda world: {})),
        # An address of old versions of Django, which leads to the page of the row.
        f"{model}/<path:object_id>/": Page(needs(ok=302), needs(ok=302), changes=False),
    }


def pressed(*rights: str, **data: Callable[[World], Any]) -> Page:
    """A button of the dashboard."""
    need = needs("view_dashboard", *rights, ok=302)
    return Page(NO_METHOD, need, lambda world: {name: value(world) for name, value in data.items()})


def live(status: int, **how: Any) -> Page:
    """What the dashboard asks for; a POST is refused before anybody is asked who he is."""
    return Page(needs("view_dashboard", ok=status, **how), needs(nobody=True, no=405, outside=405))


def on_job(right: str, state: str) -> Page:
    return pressed("view_job", right, job=lambda world: world.jobs[state])


def on_schedule(right: str, name: str = "schedule") -> Page:
    return pressed("view_schedule", right, schedule=lambda world: getattr(world, name).pk)


def button(right: str, state: str) -> Page:
    return Page(NO_METHOD, needs("view_job", right, ok=302), state=state)


SEE_JOBS = needs("view_job")
SEE_QUEUES = needs("view_queue", "pause_queue", one_of=True)
SEE_SCHEDULES = needs("view_schedule", "change_schedule", one_of=True)
PAUSE, CHANGE = needs("pause_queue", ok=302), needs("change_schedule", ok=302)


def of_group(world: World) -> dict[str, Any]:
    job = world.failed
    return {"task": job.task, "fingerprint": job.error_fingerprint, "until": "9" * 10}


# By the routes of the URLconf, below /admin/pgqueue_django/.
MATRIX: dict[str, Page] = {
    **plain("job", SEE_JOBS, change=NO_METHOD),
    "job/problems/": Page(SEE_JOBS, needs("view_job", "requeue_job", ok=302), of_group),
    "job/<int:pk>/requeue/": button("requeue_job", "dead"),
    "job/<int:pk>/run-now/": button("run_job_now", "scheduled"),
    "job/<int:pk>/cancel/": button("cancel_job", "queued"),
    "job/<int:pk>/delete-finished/": button("delete_job", "dead"),
    "job/<int:pk>/payload/<str:part>/": Page(needs("view_job", "view_job_payload"), NO_METHOD),
    "job/<int:pk>/copy/": Page(
        needs("view_job", "view_job_payload", "copy_job"),
        needs("view_job", "view_job_payload", "copy_job", ok=302),
        lambda world: {"args": "[8]", "kwargs": "{}", "queue_name": "default", "priority": "0", "token": "t" * 22},
        state="known",
    ),
    "job/dashboard/": live(200),
    "job/dashboard/frame.json": live(200, outside=401),
    "job/dashboard/stream/": live(204, outside=401),
    "job/dashboard/how/": Page(needs("view_dashboard"), NO_METHOD),
    "job/dashboard/pause/": pressed("pause_queue", queue=lambda world: "other"),
    "job/dashboard/resume/": pressed("pause_queue", queue=lambda world: "mail"),
    "job/dashboard/requeue-dead/": pressed("requeue_job", queue=lambda world: "default"),
    "job/dashboard/requeue/": on_job("requeue_job", "dead"),
    "job/dashboard/run-now/": on_job("run_job_now", "scheduled"),
    "job/dashboard/cancel/": on_job("cancel_job", "queued"),
    "job/dashboard/run-schedule/": on_schedule("run_schedule"),
    "job/dashboard/skip-schedule/": on_schedule("switch_schedule"),
    "job/dashboard/disable-schedule/": on_schedule("switch_schedule"),
    "job/dashboard/enable-schedule/": on_schedule("switch_schedule", "off"),
    **plain(
        "queue",
        SEE_QUEUES,
        add=Page(needs("pause_queue"), PAUSE, lambda world: {"name": "other"}),
        change=PAUSE,
        data=lambda world: {"reason": "another"},
    ),
    **plain(
        "schedule",
        SEE_SCHEDULES,
        add=Page(needs("add_schedule"), needs("add_schedule", ok=302), lambda world: form()),
        change=CHANGE,
        data=lambda world: form(name="nightly", missed="none"),
        delete=Page(needs("delete_schedule"), needs("delete_schedule", ok=302), lambda world: {"post": "yes"}),
    ),
    **plain("worker", needs("view_worker")),
    **plain("auditentry", needs("view_auditentry")),
}


@dataclass(frozen=True)
class Act:
    """An action of a list: who may, and on which row."""

    need: Need
    row: Callable[[World], Any]
    data: dict[str, str] = field(default_factory=dict)


ACTIONS: dict[str, dict[str, Act]] = {
    "job": {
        "requeue_jobs": Act(needs("view_job", "requeue_job"), lambda world: world.jobs["dead"]),
        "run_jobs_now": Act(needs("view_job", "run_job_now"), lambda world: world.jobs["scheduled"]),
        "cancel_jobs": Act(needs("view_job", "cancel_job"), lambda world: world.jobs["queued"]),
        "delete_finished_jobs": Act(needs("view_job", "delete_job"), lambda world: world.jobs["dead"]),
    },
    "queue": {"resume_queues": Act(needs("pause_queue"), lambda world: "mail")},
    "schedule": {
        "run_schedules": Act(needs("view_schedule", "run_schedule"), lambda world: world.schedule.pk),
        "skip_schedules": Act(needs("view_schedule", "switch_schedule"), lambda world: world.schedule.pk),
        "enable_schedules": Act(needs("view_schedule", "switch_schedule"), lambda world: world.off.pk),
        "disable_schedules": Act(needs("view_schedule", "switch_schedule"), lambda world: world.schedule.pk),
        "delete_selected": Act(
            needs("view_schedule", "delete_schedule"), lambda world: world.schedule.pk, {"post": "yes"}
        ),
    },
    "worker": {},
    "auditentry": {},
}


# -- nothing is missing ----------------------------------------------------------------------------------------


def routes() -> Iterator[str]:
    for one in admin.site.get_urls():
        prefix = str(one.pattern)
        if not prefix.startswith("pgqueue_django/"):
            continue
        inner = one.url_patterns if isinstance(one, URLResolver) else [one]
        for pattern in inner:
            assert isinstance(pattern, URLPattern), f"{prefix}{pattern.pattern}: this test walks one level"
            route = prefix if pattern is one else f"{prefix}{pattern.pattern}"
            yield route.removeprefix("pgqueue_django/")


def test_every_page_of_the_admin_is_in_the_matrix() -> None:
    found = set(routes())
    new, gone = sorted(found - set(MATRIX)), sorted(set(MATRIX) - found)
    assert not new, f"nobody has said who may open {new}: give each a Page in MATRIX"
    assert not gone, f"MATRIX has {gone}, which the admin has not"


def test_every_action_of_a_list_is_in_the_table(browser: Callable[..., Client]) -> None:
    client = browser(superuser=True)
    World()
    for model in sorted({route.partition("/")[0] for route in MATRIX}):
        page = client.get(f"{BASE}{model}/").content.decode()
        chooser = re.search(r'<select name="action".*?</select>', page, re.DOTALL)
        offered = set(re.findall(r'<option value="(\w+)"', chooser[0])) if chooser else set()
        known = set(ACTIONS.get(model, {}))
        assert offered == known, f"{model}: nobody has said who may {offered - known}: give each an Act in ACTIONS"


# -- and it is so ----------------------------------------------------------------------------------------------


def visitor(role: str) -> Client:
    """With a CSRF token that is good."""
    token = _get_new_csrf_string()
    client = Client(enforce_csrf_checks=True, headers={"X-CSRFToken": token})
    if role != "anonymous":
        user = User.objects.create(username="ann", is_staff=role != "not staff, with every right")
        if role in ("viewer", "operator", "admin"):
            call_command("pgqueue_groups", stdout=StringIO())
            user.groups.add(Group.objects.get(name=f"Queue {role}"))
        else:
            held = RIGHTS if ROLES[role] is None else sorted(ROLES[role] or ())
            user.user_permissions.set(
                Permission.objects.filter(content_type__app_label="pgqueue_django", codename__in=held)
            )
        client.force_login(user)
    client.cookies["csrftoken"] = token
    return client


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def address(route: str, page: Page, world: World) -> str:
    pk = world.pk(route.partition("/")[0], page.state) if "<" in route else ""
    return BASE + re.sub("<[^>]+>", str(pk), route.replace("<str:part>", "args"))


@pytest.mark.parametrize("role", ROLES)
def test_everybody_may_open_and_change_what_the_matrix_says_and_nothing_else(role: str) -> None:
    client, world, held = visitor(role), World(), ROLES[role]
    before, wrong = world.rows(), list[str]()
    for route, page in MATRIX.items():
        url = address(route, page, world)
        for method, need in (("GET", page.get), ("POST", page.post)):
            told = AuditEntry.objects.count()
            with undone():
                answer = client.generic("GET", url) if method == "GET" else client.post(url, page.data(world))
                changed, entries = world.rows() != before, AuditEntry.objects.count() - told
            may = held is not None and need.allows(held)
            acts = method == "POST" and page.changes and may
            if answer.status_code != need.expected(held):
                wrong.append(f"{method} {route}: {answer.status_code} instead of {need.expected(held)}")
            if changed != acts:
                wrong.append(f"{method} {route}: {'changed something' if changed else 'changed nothing'}")
            if entries != acts:
                wrong.append(f"{method} {route}: {entries} entries in the audit log")
            if held is None and need.outside == 302 and not _is_login(answer):
                wrong.append(f"{method} {route}: does not lead to the login page")
    assert not wrong, f"{role}: " + "; ".join(wrong)


def _is_login(answer: HttpResponse) -> bool:
    return answer.status_code == 302 and answer["Location"].startswith("/admin/login/")


@pytest.mark.parametrize("role", ROLES)
def test_everybody_may_act_from_the_lists_as_the_table_says_and_no_more(role: str) -> None:
    client, world, held = visitor(role), World(), ROLES[role]
    before, wrong = world.rows(), list[str]()
    for model, known in ACTIONS.items():
        for name, act in known.items():
            told = AuditEntry.objects.count()
            with undone():
                data = {"action": name, "_selected_action": [act.row(world)], "index": "0", **act.data}
                answer = client.post(f"{BASE}{model}/", data)
                changed, entries = world.rows() != before, AuditEntry.objects.count() - told
            may = held is not None and act.need.allows(held)
            if changed != may or entries != may:
                wrong.append(f"{model} {name}: {answer.status_code}, changed: {changed}, entries: {entries}")
    assert not wrong, f"{role}: " + "; ".join(wrong)


def test_without_a_csrf_token_nobody_changes_anything(person: Callable[..., User]) -> None:
    client, world = log_in(person(superuser=True), enforce_csrf_checks=True), World()
    before = world.rows()
    for route, page in MATRIX.items():
        assert client.post(address(route, page, world), page.data(world)).status_code == 403, route
    for model, known in ACTIONS.items():
        for name, act in known.items():
            data = {"action": name, "_selected_action": [act.row(world)], "index": "0", **act.data}
            assert client.post(f"{BASE}{model}/", data).status_code == 403, name
    assert (world.rows(), AuditEntry.objects.count()) == (before, 1)
