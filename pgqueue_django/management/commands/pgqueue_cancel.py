"""``manage.py pgqueue_cancel``: cancel jobs that have not ended."""

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
        "Cancel jobs: by id, or --state of a queue or task. A running handler is interrupted, its outcome is void. "
        "Exit codes: 0 all moved, 1 some did not, 2 wrong options."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        selection.add_arguments(parser, [State.QUEUED, State.SCHEDULED, State.RETRYING, State.RUNNING])

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        left, count = selection.move(using, given, "cancel", transitions.cancel)
        self.stdout.write(selection.tell(using, "cancelled", count, left))
        if left:
            sys.exit(1)
