"""``manage.py pgqueue_pause``: nothing of a queue is claimed until it is resumed."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from pgqueue_django import audit, queues
from pgqueue_django.exceptions import InvalidOption
from pgqueue_django.management import arguments, selection, trails
from pgqueue_django.options import QUEUE_NAME


class Command(arguments.SuggestingCommand):
    help = "Pause a queue: its jobs wait, what runs goes on. Workers heed it within a second. pgqueue_resume ends it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        trails.add_reason(parser)
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
        trail = trails.trail(using, given, "pause", audit.told("queue", [name]))
        try:
            with transaction.atomic(using=using):
                queues.pause(using, name, reason=given["reason"], actor=trails.operator(), until=length)
                trail.add(1)
        except InvalidOption as error:
            raise CommandError(f"--for: {error}", returncode=2) from error
        self.stdout.write(f"{name} is paused{f', for {length}' if length else ''}")
