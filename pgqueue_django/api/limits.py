"""How much is too much: requests of one actor, and jobs that already wait in a queue. Both are a 429."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping

from django.core.cache import cache

from pgqueue_django import conf
from pgqueue_django.snapshot import index_walks

from .errors import Problem

logger = logging.getLogger("pgqueue_django")

COUNTED_SECONDS = 1.0
"""How old the depth of a queue may be; what this process has enqueued meanwhile is added."""
_QUEUES = 1_000  # whose depths a process remembers

_depths: dict[tuple[str, str], tuple[float, int]] = {}
_lock = threading.Lock()


def rate(name: str) -> None:
    """Raises Problem when this actor has asked more often than ``API_RATE`` allows, counted in Django's cache.

    Per calendar second, minute or hour. A cache that does not answer lets everybody pass: it is no reason to stop.
    """
    allowed = conf.current().api_rate
    if allowed is None:
        return
    most, seconds = allowed
    now = time.time()
    # What an actor is called may be no key for a cache.
    key = f"pgqueue_django:rate:{hashlib.sha256(name.encode()).hexdigest()[:32]}:{seconds}:{int(now // seconds)}"
    try:
        cache.add(key, 0, timeout=2 * seconds)
        count = cache.incr(key)
    except Exception as error:
        logger.warning("api: requests cannot be counted: %s: %s", type(error).__name__, error)
        return
    if count > most:
        detail = f"At most {conf.current().API_RATE} requests are taken."
        raise Problem(429, "rate", detail, headers={"Retry-After": str(int(seconds - now % seconds) + 1)})


# The walks end at the limit. Waiting jobs are in one index for all queues: of those the first so many are looked at.
_DEPTH = """
    SELECT (SELECT count(*) FROM (
                SELECT FROM pgqueue_job WHERE state = 'queued' AND queue_name = %(queue)s
                ORDER BY queue_name, priority DESC, run_after, id LIMIT %(most)s) AS ready)
         + (SELECT count(*) FROM (
                SELECT queue_name FROM pgqueue_job WHERE state IN ('scheduled', 'retrying')
                ORDER BY run_after LIMIT %(most)s) AS waiting WHERE queue_name = %(queue)s)
"""


def take(using: str, jobs: Mapping[str, int]) -> None:
    """Room for so many jobs more in each of these queues, or raises Problem where ``API_MAX_QUEUE_DEPTH`` leaves none.

    What is then not made is to be given back.
    """
    most = conf.current().API_MAX_QUEUE_DEPTH
    if most is None:
        return
    counted = {name: _counted(using, name, most) for name in jobs}
    with _lock:
        depths = {name: _depths.get((using, name), counted[name]) for name in jobs}
        for name, more in jobs.items():
            if depths[name][1] + more > most:
                # Not how many there are: that is for those who may see queues.
                detail = f"There is no room in queue {name}, which takes {most:,} jobs."
                raise Problem(429, "queue_full", detail, headers={"Retry-After": "5"})
        for name, more in jobs.items():
            counted_at, depth = depths[name]
            _depths[using, name] = counted_at, depth + more


def give_back(using: str, jobs: Mapping[str, int]) -> None:
    """Of the room that was taken, so much was not needed."""
    with _lock:
        for name, less in jobs.items():
            if (found := _depths.get((using, name))) is not None:
                _depths[using, name] = found[0], max(0, found[1] - less)


def _counted(using: str, queue_name: str, most: int) -> tuple[float, int]:
    """When the jobs of this queue were counted, and how many there are by that and by what was taken since."""
    place, now = (using, queue_name), time.monotonic()
    with _lock:
        before = _depths.get(place)
        if before is not None:
            if now < before[0] + COUNTED_SECONDS:
                return before
            _depths[place] = now, before[1]  # others go by that meanwhile, instead of all counting at once
    with index_walks(using) as cursor:
        cursor.execute(_DEPTH, {"queue": queue_name, "most": most})
        (depth,) = cursor.fetchone()
    with _lock:
        meanwhile = _depths.get(place)
        if meanwhile is not None and before is None:
            return meanwhile  # somebody was first, and others have taken room by his count
        if meanwhile is not None and before is not None:
            depth += max(0, meanwhile[1] - before[1])
        if len(_depths) >= _QUEUES:
            _depths.clear()
        _depths[place] = now, depth
        return _depths[place]


def forget() -> None:
    """For tests: the next request counts anew."""
    _depths.clear()
