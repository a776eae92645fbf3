"""Tasks that count with metrics of a project's own; a module of its own, since what it counts is on every page."""

from __future__ import annotations

import os

from prometheus_client import Counter, Gauge, Histogram

from pgqueue_django import PermanentError, task
from pgqueue_django.context import JobContext

from .handlers import SOON, note, wait_at

LUNCHES = Counter("machine_lunches", "What the handlers of these tests have eaten.", ["dish"])
WEIGHTS = Histogram("machine_weights", "And how heavy it was.", buckets=[1, 10])
LEVELS = {
    mode: Gauge(f"machine_level_{mode}", "One of each manner.", multiprocess_mode=mode)
    for mode in ("all", "liveall", "min", "max", "sum", "livesum", "mostrecent")
}


@task(takes_context=True, max_attempts=2, backoff=SOON)
def eat(context: JobContext, dish: str) -> None:
    """The ledger first: an event is the process and the dish."""
    note(f"{os.getpid()} {dish}", context.job_id)
    LUNCHES.labels(dish).inc()
    WEIGHTS.observe(len(dish))
    if dish == "bones":
        raise ValueError("cannot be eaten")
    if dish == "poison":
        raise PermanentError("never")


@task(atomic=True, timeout=30)
def eat_atomic(dish: str) -> None:
    note(f"{os.getpid()} {dish}")
    LUNCHES.labels(dish).inc()


@task
async def eat_async(dish: str) -> None:
    LUNCHES.labels(dish).inc()


@task
def eat_at(gate: str, dish: str) -> None:
    note("begun")
    LUNCHES.labels(dish).inc()
    wait_at(gate)


@task
def set_levels(level: float) -> None:
    for gauge in LEVELS.values():
        gauge.set(level)


@task
def eat_in_fork(dish: str) -> None:
    """As multiprocessing does, without what it keeps."""
    pid = os.fork()
    if not pid:
        LUNCHES.labels(dish).inc()
        os._exit(0)
    os.waitpid(pid, 0)
