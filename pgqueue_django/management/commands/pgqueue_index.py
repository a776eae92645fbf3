"""``manage.py pgqueue_index``: an index that not everybody wants, since it costs each enqueue."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from psycopg.errors import DuplicateTable

from pgqueue_django import argument_index
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand

_STATES = {None: "there is none", True: "it is there", False: "it is not whole: make it again, or drop it"}


class Command(SuggestingCommand):
    help = (
        "Make or drop the index on arguments, with which a search for one looks at all jobs instead of the newest "
        "10,000. It costs each enqueue and each step of a job. Beside running workers; it waits for transactions that "
        "are open. Without --arguments and --drop it says whether there is one. Exit codes: 0 done, 1 not made."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--arguments", action="store_true", help="make it")
        what.add_argument("--drop", action="store_true", help="drop it")
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        if given["drop"]:
            argument_index.drop(using)
        elif given["arguments"] and not argument_index.is_whole(using):
            try:
                argument_index.make(using)
            except DatabaseError as error:
                # One of this name that has come meanwhile is somebody else's.
                if not isinstance(error.__cause__, DuplicateTable):
                    argument_index.drop(using)
                raise CommandError(f"The index was not made: {error}".strip()) from error
        self.stdout.write(f"{argument_index.NAME}: {_STATES[argument_index.is_whole(using)]}")
