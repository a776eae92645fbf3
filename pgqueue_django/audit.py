"""Who did what, through which door and why: one row for each action of a person or a program.

The only writer of ``AuditEntry``. A row is written in the transaction of the change that it tells of. An action that
takes several transactions adds to its row in each of them, so that what is in there has happened, wherever it was
stopped. One that was refused, to who may not or for what it says, or that has failed as a whole leaves none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from django.db import connections
from django.db.models import F

from .models import AuditEntry
from .payload import storable_text

MAX_TARGET = 500
MAX_REASON = 200
MAX_ACTOR = 150

Action = Literal[
    "requeue", "run_now", "cancel", "delete", "prune", "copy",
    "pause", "resume",
    "run_schedule", "skip_schedule", "enable_schedule", "disable_schedule",
    "add_schedule", "change_schedule", "delete_schedule",
]  # fmt: skip


class Trail:
    """One action. ``target`` says what was chosen, for people: ``job 7``, ``queue mail``, or a filter."""

    def __init__(self, using: str, *, actor: str, action: Action, target: str, reason: str = "") -> None:
        self._entries = AuditEntry.objects.using(using)
        self._told = {
            "actor": _cut(actor, MAX_ACTOR),
            "action": action,
            "target": _cut(target, MAX_TARGET),
            "reason": _cut(reason.strip(), MAX_REASON),
        }
        self._pk: int | None = None

    def add(self, changed: int, skipped: int = 0) -> None:
        """To be called inside the transaction of the change, once for each. Where nothing was chosen, nothing is told.

        What was chosen and left as it was is told: somebody has tried.
        """
        if not (changed or skipped):
            return
        more = {"changed": F("changed") + changed, "skipped": F("skipped") + skipped}
        # There may be none: the transaction that began the row may have been rolled back since.
        if self._pk is None or not self._entries.filter(pk=self._pk).update(**more):
            self._pk = self._entries.create(**self._told, changed=changed, skipped=skipped).pk


def _cut(text: str, most: int) -> str:
    text = storable_text(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def told(kind: str, names: Collection[object], among: str = "") -> str:
    """What was chosen, as a target: ``job 7``, or ``3 jobs (state=dead): 9, 8, 7``, as many as there is room for."""
    if len(names) == 1 and not among:
        return f"{kind} {next(iter(names))}"
    chosen_from = f" ({_cut(among, MAX_TARGET // 2)})" if among else ""
    text = f"{len(names)} {kind}{'' if len(names) == 1 else 's'}{chosen_from}:"
    for number, name in enumerate(names):
        following = f"{',' if number else ''} {name}"
        if len(text) + len(following) > MAX_TARGET - 3:
            return f"{text}, …"
        text += following
    return text


def prune(using: str, *, older_seconds: float, limit: int) -> int:
    """Rows that are older go, at most ``limit`` of them. Returns how many went."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM pgqueue_audit WHERE id = ANY(ARRAY(
                SELECT id FROM pgqueue_audit WHERE at < statement_timestamp() - make_interval(secs => %s)
                ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED))
            """,
            [older_seconds, limit],
        )
        return int(cursor.rowcount)
