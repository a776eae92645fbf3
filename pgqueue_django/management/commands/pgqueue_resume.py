"""``manage.py pgqueue_resume``: a paused queue goes on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from pgqueue_django import queues
from pgqueue_django.management import arguments, selection


class Command(arguments.SuggestingCommand):
    help = "Let a paused queue go on, within a second. Exit code 1: it was not paused."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        if queues.resume(using, given["queue"]):
            self.stdout.write(f"{given['queue']} goes on")
            return
        hint = arguments.did_you_mean(given["queue"], sorted(queues.paused(using)))
        self.stdout.write(f"{given['queue']} is not paused.{hint}")
        sys.exit(1)
