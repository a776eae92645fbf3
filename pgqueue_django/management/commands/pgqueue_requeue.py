"""``manage.py pgqueue_requeue``: send jobs that have ended back to their queues."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from pgqueue_django import transitions
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.states import State


class Command(SuggestingCommand):
    help = (
        "Send failed, dead, cancelled or succeeded jobs back to their queues, with all their attempts: by id, or "
        "--state failed|dead of a queue or task. Exit codes: 0 all moved, 1 some did not, 2 wrong options."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        selection.add_arguments(parser, [State.DEAD, State.FAILED])

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        left, count = selection.move(using, given, "requeue", transitions.requeue)
        self.stdout.write(selection.tell(using, "requeued", count, left))
        if left:
            sys.exit(1)
