"""``pgqueue_groups``: three groups with the rights to look, to operate and to do all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import connection

import pgqueue_django
from pgqueue_django.management.commands.pgqueue_groups import OPERATOR, VIEWER

from .test_commands import Answer

pytestmark = pytest.mark.django_db
ROOT = Path(pgqueue_django.__file__).parents[1]


def rights(name: str) -> set[str]:
    found = Permission.objects.filter(group__name=name)
    assert {one.content_type.app_label for one in found} <= {"pgqueue_django", "auth"}
    return set(found.values_list("codename", flat=True))


def ours() -> set[str]:
    return set(Permission.objects.filter(content_type__app_label="pgqueue_django").values_list("codename", flat=True))


def test_it_makes_three_groups_and_says_with_what() -> None:
    answer = Answer("pgqueue_groups")
    assert answer.code == 0
    assert [line.partition(":")[0] for line in answer.lines] == ["Queue viewer", "Queue operator", "Queue admin"]
    assert answer.lines[0] == f"Queue viewer: made, with {', '.join(sorted(VIEWER))}"
    assert rights("Queue viewer") == set(VIEWER)
    assert rights("Queue operator") == set(OPERATOR)
    assert set(OPERATOR) - set(VIEWER) == {
        *("view_job_payload", "requeue_job", "run_job_now", "cancel_job", "pause_queue", "run_schedule"),
        *("switch_schedule", "view_auditentry"),
    }
    assert rights("Queue admin") == ours()
    assert {"delete_job", "change_schedule", "enqueue_job", "copy_job"} <= ours()


def test_who_is_put_into_one_may() -> None:
    Answer("pgqueue_groups")
    user = User.objects.create(username="ann")
    user.groups.add(Group.objects.get(name="Queue operator"))
    assert user.has_perm("pgqueue_django.cancel_job")
    assert not user.has_perm("pgqueue_django.delete_job")


def test_it_may_be_run_again_and_puts_back_what_was_taken_away() -> None:
    Answer("pgqueue_groups")
    before = {group.pk: rights(group.name) for group in Group.objects.all()}
    assert [line.partition(": ")[2] for line in Answer("pgqueue_groups").lines] == ["as it was"] * 3
    viewer = Group.objects.get(name="Queue viewer")
    viewer.permissions.remove(Permission.objects.get(codename="view_worker"))
    assert Answer("pgqueue_groups").lines[0] == "Queue viewer: given view_worker"
    assert {group.pk: rights(group.name) for group in Group.objects.all()} == before


def test_what_somebody_has_added_stays_and_is_said() -> None:
    Answer("pgqueue_groups")
    viewer = Group.objects.get(name="Queue viewer")
    viewer.permissions.add(*Permission.objects.filter(codename__in=["cancel_job", "view_user"]))
    viewer.user_set.add(User.objects.create(username="ann"))
    assert Answer("pgqueue_groups").lines[0] == "Queue viewer: as it was; it has more, which stay: cancel_job"
    assert rights("Queue viewer") == {*VIEWER, "cancel_job", "view_user"}
    assert viewer.user_set.count() == 1


def test_names_with_a_prefix() -> None:
    Answer("pgqueue_groups", "--prefix", "Shop: ")
    names = ["Shop: Queue admin", "Shop: Queue operator", "Shop: Queue viewer"]
    assert sorted(Group.objects.values_list("name", flat=True)) == names
    answer = Answer("pgqueue_groups", "--prefix", "x" * 140)
    assert (answer.code, Group.objects.count()) == (2, 3)
    assert "at most 150 characters" in answer.err


def test_a_right_that_an_older_version_had_is_left_alone() -> None:
    job = Permission.objects.get(codename="cancel_job").content_type
    Permission.objects.create(content_type=job, codename="paint_job", name="Can paint jobs")
    assert Answer("pgqueue_groups").code == 0
    assert "paint_job" not in rights("Queue admin")


def test_before_the_migrations_it_says_so_and_makes_nothing() -> None:
    Permission.objects.filter(codename="copy_job").delete()
    answer = Answer("pgqueue_groups")
    assert answer.code == 2
    assert answer.err == "There is no permission copy_job yet. Run manage.py migrate first."
    assert not Group.objects.exists()


def test_without_the_tables_it_says_so() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE auth_permission RENAME TO elsewhere")
    answer = Answer("pgqueue_groups")
    assert answer.code == 2
    assert 'relation "auth_permission" does not exist' in answer.err
    assert answer.err.endswith("Run manage.py migrate first.")


BARE = """
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(INSTALLED_APPS=[{apps}"pgqueue_django"], DATABASES={{}})
django.setup()
call_command("pgqueue_groups")
"""


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (
            "",
            "django.contrib.auth, django.contrib.contenttypes not in INSTALLED_APPS: without them there are no groups.",
        ),
        (
            '"django.contrib.contenttypes", ',
            "django.contrib.auth not in INSTALLED_APPS: without them there are no groups.",
        ),
        # This one Django says itself, before any command runs.
        ('"django.contrib.auth", ', "ContentType"),
    ],
)
def test_without_the_apps_it_says_which(installed: str, says: str) -> None:
    """In a process of its own: what an app has imported stays."""
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(apps=installed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode != 0
    assert says in done.stderr.splitlines()[-1]


def test_help_says_what_it_does(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        call_command("pgqueue_groups", "--help")
    assert "takes none away" in " ".join(capsys.readouterr().out.split())
