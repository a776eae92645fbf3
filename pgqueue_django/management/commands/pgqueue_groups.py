"""``manage.py pgqueue_groups``: groups of users with the rights to look at the queue, to operate it, or all."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DatabaseError, router, transaction

from pgqueue_django.management.arguments import SuggestingCommand

APP = "pgqueue_django"
VIEWER = ("view_dashboard", "view_job", "view_queue", "view_worker", "view_schedule")
OPERATOR = (
    *VIEWER,
    *("view_job_payload", "requeue_job", "run_job_now", "cancel_job", "pause_queue", "run_schedule"),
    *("switch_schedule", "view_auditentry"),
)
GROUPS: dict[str, tuple[str, ...] | None] = {"Queue viewer": VIEWER, "Queue operator": OPERATOR, "Queue admin": None}
"""None: every right of this app."""
_LONGEST = 150  # of a group's name


class Command(SuggestingCommand):
    help = (
        "Make the groups Queue viewer, Queue operator and Queue admin, or give them the rights that they lack. It "
        "takes none away and puts nobody in: it may be run at each deployment. Exit code 2: it cannot be done here."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--prefix", default="", help='before the names: "Shop: " makes "Shop: Queue viewer"')

    def handle(self, **given: Any) -> None:
        needed = ("django.contrib.auth", "django.contrib.contenttypes")
        if missing := [app for app in needed if not apps.is_installed(app)]:
            text = f"{', '.join(missing)} not in INSTALLED_APPS: without them there are no groups."
            raise CommandError(text, returncode=2)
        prefix = given["prefix"]
        if len(prefix) + max(map(len, GROUPS)) > _LONGEST or "\0" in prefix:
            raise CommandError(f"--prefix: a group's name has at most {_LONGEST} characters.", returncode=2)
        try:
            said = list(_make(prefix))
        except DatabaseError as error:
            why = str(error).partition("\n")[0]
            raise CommandError(f"{why} Run manage.py migrate first.", returncode=2) from error
        for line in said:
            self.stdout.write(line)


def _make(prefix: str) -> list[str]:
    # Not above: where auth is not installed, its models cannot be imported.
    from django.contrib.auth.models import Group, Permission

    using = router.db_for_write(Group)
    said = []
    with transaction.atomic(using=using):
        # The rights that the models of this version have: a row may be left of one that they had.
        permissions = {row.codename: row for row in Permission.objects.using(using).filter(content_type__app_label=APP)}
        declared = _declared()
        if missing := sorted(declared - set(permissions)):
            raise CommandError(
                f"There is no permission {', '.join(missing)} yet. Run manage.py migrate first.", returncode=2
            )
        for name, rights in GROUPS.items():
            group, created = Group.objects.using(using).get_or_create(name=f"{prefix}{name}")
            wanted = declared if rights is None else set(rights)
            held = set(group.permissions.filter(content_type__app_label=APP).values_list("codename", flat=True))
            added = sorted(wanted - held)
            group.permissions.add(*(permissions[codename] for codename in added))
            said.append(_told(group.name, created, added, sorted(held - wanted)))
    return said


def _declared() -> set[str]:
    metas = [model._meta for model in apps.get_app_config(APP).get_models()]
    standard = {f"{action}_{meta.model_name}" for meta in metas for action in meta.default_permissions}
    return standard | {codename for meta in metas for codename, _ in meta.permissions}


def _told(name: str, created: bool, added: list[str], more: list[str]) -> str:
    if created:
        text = f"{name}: made, with {', '.join(added)}"
    elif added:
        text = f"{name}: given {', '.join(added)}"
    else:
        text = f"{name}: as it was"
    return f"{text}; it has more, which stay: {', '.join(more)}" if more else text
