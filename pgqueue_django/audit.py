"""Who did what, through which door and why: one row for each action of a person or a program.

A row is written in the transaction of the change that it tells of. An action that takes several transactions adds to
its row in each of them, so that what is in there has happened, wherever it was stopped.
"""

from __future__ import annotations

from django.db.models import F

from .models import AuditEntry

MAX_TARGET = 500
MAX_REASON = 200
MAX_ACTOR = 150


class Trail:
    """One action. ``target`` says what was chosen, for people: ``job 7``, ``queue mail``, or a filter."""

    def __init__(self, using: str, *, actor: str, action: str, target: str, reason: str = "") -> None:
        self._entries = AuditEntry.objects.using(using)
        self._told = {
            "actor": actor[:MAX_ACTOR],
            "action": action,
            "target": target[:MAX_TARGET],
            "reason": reason[:MAX_REASON],
        }
        self._pk: int | None = None

    def add(self, changed: int, skipped: int = 0) -> None:
        """To be called inside the transaction of the change, once for each."""
        if self._pk is None:
            self._pk = self._entries.create(**self._told, changed=changed, skipped=skipped).pk
        else:
            self._entries.filter(pk=self._pk).update(changed=F("changed") + changed, skipped=F("skipped") + skipped)
