"""``manage.py pgqueue_status``: the queue at this moment, from one snapshot."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from pgqueue_django import queues, snapshot
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.models import Schedule
from pgqueue_django.snapshot import COUNTED, Snapshot

_SCHEDULES = 20  # that are shown: the ones that are due first


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
                paused = queues.paused(using)
                planned = list(Schedule.objects.using(using).planned()[:_SCHEDULES])
            except (DatabaseError, InterfaceError) as error:
                raise CommandError(f"The database does not answer: {str(error).strip()}", returncode=4) from error
            if given["json"]:
                self.stdout.write(json.dumps(_plain(taken, paused, planned)))
            else:
                clear = "\x1b[H\x1b[2J" if given["watch"] is not None and self.stdout.isatty() else ""
                self.stdout.write(clear + "\n".join([_table(taken, paused), *_schedules(planned, taken.taken_at)]))
            if given["watch"] is None:
                return
            self.stdout.flush()
            try:
                time.sleep(given["watch"])
            except KeyboardInterrupt:
                return


def _plain(taken: Snapshot, paused: Collection[str], planned: Sequence[Schedule]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for depth in taken.depths:
        queue = found.setdefault(depth.queue_name, {"jobs": {}, "capped": []})
        queue["jobs"][str(depth.state)] = depth.jobs
        if depth.capped:
            queue["capped"].append(str(depth.state))
    for name, seconds in taken.oldest_due.items():
        found.setdefault(name, {"jobs": {}, "capped": []})["oldest_due_seconds"] = round(seconds, 3)
    schedules = [
        {"name": one.name, "task": one.task, "next_at": one.next_at and one.next_at.isoformat(), "error": one.error}
        for one in planned
    ]
    return {
        "taken_at": taken.taken_at.isoformat(),
        "workers": taken.workers,
        "queues": found,
        "paused": sorted(paused),
        "schedules": schedules,
    }


def _table(taken: Snapshot, paused: Collection[str]) -> str:
    rows = [["queue", *(str(state) for state in COUNTED), "oldest due"]]
    cells = {(depth.queue_name, depth.state): f"{depth.jobs:,}{'+' if depth.capped else ''}" for depth in taken.depths}
    for name in sorted({depth.queue_name for depth in taken.depths} | set(paused)):
        due = taken.oldest_due.get(name)
        waited = "" if due is None else f"{due:,.1f} s"
        rows.append(
            [
                f"{name} (paused)" if name in paused else name,
                *(cells.get((name, state), "0") for state in COUNTED),
                waited,
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row, widths[1:], strict=True))])
        for name, *row in rows
    ]
    if len(rows) == 1:
        lines.append("no jobs but those that succeeded or were cancelled")
    return "\n".join([f"{taken.taken_at:%Y-%m-%d %H:%M:%S %Z}   workers alive: {taken.workers}", "", *lines])


def _schedules(planned: Sequence[Schedule], now: datetime) -> Iterator[str]:
    if planned:
        yield ""
        width = max(len(one.name) for one in planned)
        for one in planned:
            ahead = "" if one.next_at is None else f"in {max(0.0, (one.next_at - now).total_seconds()):,.0f} s"
            yield f"{one.name.ljust(width)}  {ahead:>12}  {one.error}".rstrip()
