"""Wagtail's own tasks go through our table and are run by ``pgqueue_worker``, from a page's save to its indexes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.images import ImageFile
from django.db import transaction
from django.test import Client
from PIL import Image as Pillow
from wagtail.images.models import Image
from wagtail.models import Page, ReferenceIndex, Site

from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.cms.models import Recipe
from tests.machine.workers import database_url

ROOT = Path(__file__).resolve().parents[2]
INDEX = "modelsearch.tasks.insert_or_update_object_task"
REFERENCES = "wagtail.tasks.update_reference_index_task"
DELETE_FILE = "wagtail.tasks.delete_file_from_storage_task"

pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture
def media(settings: Any, tmp_path: Path) -> Iterator[Path]:
    settings.MEDIA_ROOT = str(tmp_path)
    return tmp_path


@pytest.fixture
def drain(media: Path) -> Callable[[], str]:
    """A worker process that ends when nothing is due; what it said."""

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "testproject.manage", "pgqueue_worker", "--drain"],
            cwd=ROOT,
            env={
                "PATH": "/usr/bin:/bin",
                "DJANGO_SETTINGS_MODULE": "tests.cms.settings",
                "DATABASE_URL": database_url(),
                "CMS_MEDIA": str(media),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def picture(title: str) -> Image:
    file = BytesIO()
    Pillow.new("RGB", (20, 10), "red").save(file, "PNG")
    file.seek(0)
    return Image.objects.create(title=title, file=ImageFile(file, name=f"{title}.png"))


def recipe(title: str, **fields: Any) -> Recipe:
    page = Recipe(title=title, **fields)
    Page.objects.get(depth=1).add_child(instance=page)
    return page


def titles(words: str) -> list[str]:
    return [page.title for page in Page.objects.live().search(words)]


def by_task(*states: State) -> Counter[str]:
    return Counter(Job.objects.filter(state__in=states).values_list("task", flat=True))


def test_a_saved_page_is_found_once_a_worker_has_indexed_it(media: Path, drain: Callable[[], str]) -> None:
    photo = picture("pierogi")
    page = recipe("Pierogi ruskie", body="<p>Potatoes and quark</p>", photo=photo)
    other = recipe("Barszcz", body="<p>Beetroot</p>")
    waiting = by_task(State.QUEUED)
    assert (waiting[INDEX] >= 3, waiting[REFERENCES] >= 3) == (True, True)
    assert titles("quark") == []
    assert not ReferenceIndex.get_references_to(photo).exists()

    drain()
    assert by_task(*State) == by_task(State.SUCCEEDED) == waiting
    assert titles("quark") == [page.title]
    assert titles("beetroot") == [other.title]
    assert [int(one.object_id) for one in ReferenceIndex.get_references_to(photo)] == [page.pk]

    page.body = "<p>Potatoes and sauerkraut</p>"
    page.photo = None
    page.save()
    assert titles("quark") == [page.title]
    drain()
    assert (titles("quark"), titles("sauerkraut")) == ([], [page.title])
    assert not ReferenceIndex.get_references_to(photo).exists()


def test_nothing_is_indexed_of_what_was_rolled_back(drain: Callable[[], str]) -> None:
    with transaction.atomic():
        recipe("Bigos", body="<p>Cabbage</p>")
        transaction.set_rollback(True)
    assert not Job.objects.exists()


def test_a_deleted_image_takes_its_file_along(media: Path, drain: Callable[[], str]) -> None:
    photo = picture("kasza")
    drain()
    path = Path(photo.file.path)
    assert path.exists()
    assert path.is_relative_to(media)
    photo.delete()
    assert by_task(State.QUEUED)[DELETE_FILE] == 1
    assert path.exists()
    drain()
    assert by_task(State.QUEUED, State.RETRYING) == Counter()
    assert not path.exists()


def test_a_page_that_an_editor_publishes_in_the_browser_is_indexed(drain: Callable[[], str]) -> None:
    editor = User.objects.create_superuser("editor", "editor@example.com", "secret")
    root = Page.objects.get(depth=1)
    site = root.add_child(instance=Page(title="Site", slug="site"))
    Site.objects.all().delete()
    Site.objects.create(hostname="testserver", root_page=site, is_default_site=True)
    client = Client()
    client.force_login(editor)
    answer = client.post(
        f"/cms/pages/add/cms/recipe/{site.pk}/",
        {"title": "Kopytka", "slug": "kopytka", "body": "null", "action-publish": "publish", "comments-TOTAL_FORMS": 0,
         "comments-INITIAL_FORMS": 0},
    )  # fmt: skip
    assert answer.status_code == 302, answer.content[:2000]
    assert titles("kopytka") == []
    said = drain()
    assert titles("kopytka") == ["Kopytka"]
    assert not Job.objects.exclude(state=State.SUCCEEDED).exists(), said
