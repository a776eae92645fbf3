"""How much is too much: requests of one actor, and jobs that already wait in a queue. Both are a 429."""

from __future__ import annotations

import hashlib
import logging
import threading
import time

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


def room(using: str, queue_name: str, jobs: int) -> None:
    """Raises Problem when ``API_MAX_QUEUE_DEPTH`` leaves no room for so many jobs more in this queue."""
    most = conf.current().API_MAX_QUEUE_DEPTH
    if most is None:
        return
    place = using, queue_name
    counted = _depths.get(place)
    if counted is None or time.monotonic() >= counted[0] + COUNTED_SECONDS:
        with index_walks(using) as cursor:
            cursor.execute(_DEPTH, {"queue": queue_name, "most": most})
            counted = time.monotonic(), cursor.fetchone()[0]
        with _lock:
            if len(_depths) >= _QUEUES:
                _depths.clear()
            _depths[place] = counted
    with _lock:
        counted_at, depth = _depths.get(place, counted)
        if depth + jobs > most:
            detail = f"{depth:,} jobs wait in queue {queue_name}, and it takes {most:,}."
            raise Problem(429, "queue_full", detail, headers={"Retry-After": "5"})
        _depths[place] = counted_at, depth + jobs


def forget() -> None:
    """For tests: the next request counts anew."""
    _depths.clear()
