"""``manage.py pgqueue_resume``: a paused queue goes on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.db import transaction

from pgqueue_django import audit, queues
from pgqueue_django.management import arguments, selection, trails


class Command(arguments.SuggestingCommand):
    help = "Let a paused queue go on, within a second. Exit code 1: it was not paused."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        trails.add_reason(parser)
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        trail = trails.trail(using, given, "resume", audit.told("queue", [given["queue"]]))
        with transaction.atomic(using=using):
            goes_on = queues.resume(using, given["queue"])
            trail.add(int(goes_on), int(not goes_on))
        if goes_on:
            self.stdout.write(f"{given['queue']} goes on")
            return
        hint = arguments.did_you_mean(given["queue"], sorted(queues.paused(using)))
        self.stdout.write(f"{given['queue']} is not paused.{hint}")
        sys.exit(1)
