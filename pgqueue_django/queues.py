"""Pausing a queue: its jobs wait, whoever would claim them.

A paused queue is a row that says so; every other queue has none, so a worker asks for one short list a second and its
claims for nothing. What runs goes on.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q
from django.db.models.functions import Now

from . import wakeups
from .exceptions import InvalidOption
from .models import Queue

IS_PAUSED = Q(paused_at__isnull=False) & (Q(resume_at=None) | Q(resume_at__gt=Now()))


def pause(
    using: str, name: str, *, reason: str = "", actor: str = "", until: datetime | timedelta | None = None
) -> None:
    """Nothing of this queue is claimed any more, from within a second on; at ``until`` it goes on by itself.

    Raises InvalidOption for a length that is none.
    """
    if isinstance(until, timedelta) and until <= timedelta(0):
        raise InvalidOption(f"until={until!r}: the queue would not be paused; give a length of more than 0.")
    resume_at = Now() + until if isinstance(until, timedelta) else until
    said = {"paused_at": Now(), "resume_at": resume_at, "reason": reason[:200], "actor": actor[:150]}
    Queue.objects.using(using).update_or_create(name=name, defaults=said)


def resume(using: str, name: str) -> bool:
    """Let it go on, within a second. False: it was not paused."""
    moved, _ = Queue.objects.using(using).filter(IS_PAUSED, name=name).delete()
    if moved:
        wakeups.send_after_commit(using, name)
    # Of a pause that has ended by itself nothing is left to say either; one that has just begun stays.
    Queue.objects.using(using).filter(name=name, resume_at__lte=Now()).delete()
    return bool(moved)


def paused(using: str) -> frozenset[str]:
    """Names of the queues that are paused now."""
    return frozenset(Queue.objects.using(using).filter(IS_PAUSED).values_list("name", flat=True))
