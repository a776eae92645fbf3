"""Pausing a queue: its jobs wait, whoever would claim them.

A paused queue is a row that says so; every other queue has none, so a worker asks for one short list a second and its
claims for nothing. What runs goes on.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q
from django.db.models.functions import Now

from . import wakeups
from .models import Queue


def pause(
    using: str, name: str, *, reason: str = "", actor: str = "", until: datetime | timedelta | None = None
) -> None:
    """Nothing of this queue is claimed any more, from within a second on; at ``until`` it goes on by itself."""
    resume_at = Now() + until if isinstance(until, timedelta) else until
    said = {"paused_at": Now(), "resume_at": resume_at, "reason": reason[:200], "actor": actor[:150]}
    Queue.objects.using(using).update_or_create(name=name, defaults=said)


def resume(using: str, name: str) -> bool:
    """Let it go on, within a second. False: it was not paused."""
    was_paused = name in paused(using)
    Queue.objects.using(using).filter(name=name).delete()
    if was_paused:
        wakeups.send_after_commit(using, name)
    return was_paused


def paused(using: str) -> frozenset[str]:
    """Names of the queues that are paused now."""
    rows = Queue.objects.using(using).filter(Q(resume_at=None) | Q(resume_at__gt=Now()), paused_at__isnull=False)
    return frozenset(rows.values_list("name", flat=True))
