"""``manage.py pgqueue_prune``: delete finished jobs by hand. Workers prune by themselves what is due."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from pgqueue_django import transitions
from pgqueue_django.management import arguments, selection, trails
from pgqueue_django.states import FINISHED, State

_TELL_SECONDS = 10.0


class Command(arguments.SuggestingCommand):
    help = (
        "Delete finished jobs: those whose retention is over, or with --older-than all that ended so long ago, but for "
        "idempotency keys that are still kept. In small steps; it may be stopped and started again at any time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--older-than", type=arguments.age, metavar="AGE", help="14d, 36h, 90m, 30s or 2w")
        parser.add_argument(
            "--state", action="append", choices=[str(state) for state in FINISHED], help="only these (may be repeated)"
        )
        parser.add_argument("--dry-run", action="store_true", help="count them, and delete none")
        trails.add_reason(parser)
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        age: float | None = given["older_than"]
        if age is None and (given["state"] or given["dry_run"]):
            raise CommandError("--state and --dry-run go with --older-than.", returncode=2)
        states = [State(state) for state in given["state"] or FINISHED]
        which = "jobs whose retention is over"
        if age is not None:
            which = f"{', '.join(states)} jobs that ended {timedelta(seconds=age)} ago or before"
        trail = trails.trail(using, given, "prune", which)
        count, after = 0, 0
        tell_at = time.monotonic() + _TELL_SECONDS
        while True:
            with transaction.atomic(using=using):
                if age is None:
                    moved = transitions.prune(using)
                    more = moved == transitions.BATCH
                else:
                    moved, following = transitions.prune_older(
                        using, states, older_seconds=age, after=after, dry_run=given["dry_run"]
                    )
                    more, after = following is not None, following or 0
                if not given["dry_run"]:
                    trail.add(moved)
            count += moved
            if not more:
                break
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + _TELL_SECONDS
                self.stderr.write(f"{count:,} so far" + (f", up to #{after}" if after else ""))
        self.stdout.write(f"{count:,} jobs {'would go' if given['dry_run'] else 'deleted'}")
