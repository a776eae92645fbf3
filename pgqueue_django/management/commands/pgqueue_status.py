"""``manage.py pgqueue_status``: the queue at this moment, from one snapshot."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from pgqueue_django import snapshot
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.snapshot import COUNTED, Snapshot


class Command(SuggestingCommand):
    help = "Show what is in the queues, how long the oldest due job has waited, and how many workers are alive."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object, a line each time")
        parser.add_argument(
            "--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="again and again (every 2 s)"
        )
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        if given["watch"] is not None and not 0.1 <= given["watch"] <= 3600:
            raise CommandError("--watch: give 0.1 to 3600 seconds.", returncode=2)
        while True:
            try:
                taken = snapshot.take(using)
            except (DatabaseError, InterfaceError) as error:
                raise CommandError(f"The database does not answer: {str(error).strip()}", returncode=4) from error
            if given["json"]:
                self.stdout.write(json.dumps(_plain(taken)))
            else:
                clear = "\x1b[H\x1b[2J" if given["watch"] is not None and self.stdout.isatty() else ""
                self.stdout.write(clear + _table(taken))
            if given["watch"] is None:
                return
            self.stdout.flush()
            try:
                time.sleep(given["watch"])
            except KeyboardInterrupt:
                return


def _plain(taken: Snapshot) -> dict[str, Any]:
    queues: dict[str, dict[str, Any]] = {}
    for depth in taken.depths:
        queue = queues.setdefault(depth.queue_name, {"jobs": {}, "capped": []})
        queue["jobs"][str(depth.state)] = depth.jobs
        if depth.capped:
            queue["capped"].append(str(depth.state))
    for name, seconds in taken.oldest_due.items():
        queues.setdefault(name, {"jobs": {}, "capped": []})["oldest_due_seconds"] = round(seconds, 3)
    return {"taken_at": taken.taken_at.isoformat(), "workers": taken.workers, "queues": queues}


def _table(taken: Snapshot) -> str:
    rows = [["queue", *(str(state) for state in COUNTED), "oldest due"]]
    cells = {(depth.queue_name, depth.state): f"{depth.jobs:,}{'+' if depth.capped else ''}" for depth in taken.depths}
    for name in sorted({depth.queue_name for depth in taken.depths}):
        due = taken.oldest_due.get(name)
        waited = "" if due is None else f"{due:,.1f} s"
        rows.append([name, *(cells.get((name, state), "0") for state in COUNTED), waited])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row, widths[1:], strict=True))])
        for name, *row in rows
    ]
    if len(rows) == 1:
        lines.append("no jobs but those that succeeded or were cancelled")
    return "\n".join([f"{taken.taken_at:%Y-%m-%d %H:%M:%S %Z}   workers alive: {taken.workers}", "", *lines])
