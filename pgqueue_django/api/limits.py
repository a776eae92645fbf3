"""How much is too much: requests of one actor, and jobs that already wait in a queue. Both are a 429."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping

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
_DEPTHS = """
    WITH waiting AS (
        SELECT queue_name, count(*) AS jobs FROM (
            SELECT queue_name FROM pgqueue_job WHERE state IN ('scheduled', 'retrying')
            ORDER BY run_after LIMIT %(most)s) AS first
        WHERE queue_name = ANY(%(queues)s) GROUP BY queue_name)
    SELECT told.queue_name, ready.jobs + COALESCE(waiting.jobs, 0)
    FROM unnest(%(queues)s::text[]) AS told(queue_name) CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM pgqueue_job WHERE state = 'queued' AND queue_name = told.queue_name
            ORDER BY queue_name, priority DESC, run_after, id LIMIT %(most)s) AS first) AS ready
    LEFT JOIN waiting ON waiting.queue_name = told.queue_name
"""


def take(using: str, jobs: Mapping[str, int]) -> None:
    """Room for so many jobs more in each of these queues, or raises Problem where ``API_MAX_QUEUE_DEPTH`` leaves none.

    What is then not made is to be given back.
    """
    most = conf.current().API_MAX_QUEUE_DEPTH
    if most is None:
        return
    counted = _counted(using, jobs, most)
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


def _counted(using: str, names: Iterable[str], most: int) -> dict[str, tuple[float, int]]:
    """When the jobs of each queue were counted, and how many there are by that and by what was taken since."""
    found: dict[str, tuple[float, int]] = {}
    old: dict[str, tuple[float, int] | None] = {}
    now = time.monotonic()
    with _lock:
        for name in names:
            known = _depths.get((using, name))
            if known is not None and now < known[0] + COUNTED_SECONDS:
                found[name] = known
                continue
            old[name] = known
            if known is not None:
                _depths[using, name] = now, known[1]  # others go by that meanwhile, instead of all counting at once
    if not old:
        return found
    with index_walks(using) as cursor:
        cursor.execute(_DEPTHS, {"queues": list(old), "most": most})
        depths = dict(cursor.fetchall())
    with _lock:
        if len(_depths) >= _QUEUES:
            _depths.clear()
        for name, known in old.items():
            meanwhile = _depths.get((using, name))
            if meanwhile is not None and known is None:
                found[name] = meanwhile  # somebody was first, and others have taken room by his count
                continue
            taken = 0 if meanwhile is None or known is None else max(0, meanwhile[1] - known[1])
            found[name] = _depths[using, name] = now, depths[name] + taken
    return found


def forget() -> None:
    """For tests: the next request counts anew."""
    _depths.clear()
