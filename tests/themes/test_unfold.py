"""Every page of the jobs comes under django-unfold, with what it is for on it."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.doors.conftest import fill

pytestmark = pytest.mark.django_db
LIST = "/admin/pgqueue_django/job/"


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def text(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    found = answer.content.decode()
    assert "unfold/" in found, "its theme is not there, and nothing was shown"
    return found


def test_the_list_has_its_jobs_its_filters_and_its_pages(root: Client) -> None:
    fill(**{state.value: 40 for state in State})
    page = text(root, LIST)
    newest = Job.objects.latest("id")
    assert f'href="{LIST}{newest.pk}/change/' in page
    for words in ("320 jobs, the newest first", "?state=dead", 'class="pgq-filter"', "requeue_jobs", "pgq-cancelled"):
        assert words in page, words
    (following,) = re.findall(r'href="(\?[^"]*)" rel="next"', page)
    second = text(root, LIST + following.replace("&amp;", "&"))
    assert f'href="{LIST}{newest.pk - 100}/change/' in second
    assert 'rel="prev"' in second


def test_a_search_and_an_action(root: Client) -> None:
    fill(dead=3)
    job = Job.objects.latest("id")
    assert f"{LIST}{job.pk}/change/" in text(root, f"{LIST}?q={job.pk}&state=dead")
    data = {"action": "requeue_jobs", "_selected_action": [job.pk], "index": "0"}
    page = root.post(LIST, data, follow=True).content.decode()
    assert "1 requeued." in page
    assert Job.objects.get(pk=job.pk).state == "queued"


def test_the_page_of_a_job_and_the_problems(root: Client) -> None:
    fill(dead=3)
    job = Job.objects.latest("id")
    page = text(root, f"{LIST}{job.pk}/change/")
    assert job.task in page
    assert f'action="{LIST}{job.pk}/requeue/"' in page
    assert "Failed and dead jobs, by kind of error" in text(root, f"{LIST}problems/")


@pytest.mark.parametrize("model", ["queue", "schedule", "worker"])
def test_the_other_pages_are_there(model: str, root: Client) -> None:
    text(root, f"/admin/pgqueue_django/{model}/")


def test_the_dark_theme_has_the_colours_that_django_would_have(root: Client) -> None:
    page = text(root, LIST)
    assert page.index("pgqueue_django/admin.css") < page.index("pgqueue_django/unfold.css")
    path = finders.find("pgqueue_django/unfold.css")
    assert path
    with open(path) as file:
        own = file.read()
    dark = own[own.index("html.dark") :]
    asked = set()
    for name in ("admin", "dashboard"):
        with open(finders.find(f"pgqueue_django/{name}.css")) as file:
            asked |= set(re.findall(r"var\((--[a-z-]+), #", file.read()))
    assert "color-scheme: dark" in dark
    assert asked - set(re.findall(r"(--[a-z-]+):", dark)) == set()
