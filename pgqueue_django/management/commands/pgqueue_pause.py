"""``manage.py pgqueue_pause``: nothing of a queue is claimed until it is resumed."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from pgqueue_django import queues
from pgqueue_django.exceptions import InvalidOption
from pgqueue_django.management import arguments, selection
from pgqueue_django.options import QUEUE_NAME


class Command(arguments.SuggestingCommand):
    help = "Pause a queue: its jobs wait, what runs goes on. Workers heed it within a second. pgqueue_resume ends it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("--reason", default="", help="shown to people")
        parser.add_argument(
            "--for", dest="length", type=arguments.age, metavar="AGE", help="it goes on after 30m, 2h ..."
        )
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        name = given["queue"]
        if not QUEUE_NAME.fullmatch(name):
            raise CommandError(f"{name!r} is no queue: give 1 to 63 characters A-Za-z0-9_.-", returncode=2)
        length = None if given["length"] is None else timedelta(seconds=given["length"])
        try:
            queues.pause(using, name, reason=given["reason"], actor=f"cli:{_user()}", until=length)
        except InvalidOption as error:
            raise CommandError(f"--for: {error}", returncode=2) from error
        self.stdout.write(f"{name} is paused{f', for {length}' if length else ''}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user has no name
        return "?"
