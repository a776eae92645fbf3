"""A producer of one system, in that system's virtualenv: ``python -m bench.peers.driver MODULE WHAT …``.

``install``; ``preload N`` (in bulk where the system can); ``enqueue one|many SECONDS``; ``latency N PER_SECOND``.
Prints one JSON line at the end. Nothing but the standard library and the system itself.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import itertools
import json
import statistics
import time
from typing import Any

from bench import orders

BULK = 1000
WARM_UP = 50


def batches(jobs: int) -> list[list[dict[str, Any]]]:
    variants = orders.variants()
    return [
        [variants[number % len(variants)] for number in range(start, min(start + BULK, jobs))]
        for start in range(0, jobs, BULK)
    ]


def preload(system: Any, jobs: int) -> Any:
    """Yields what is to be awaited by who awaits."""
    for batch in batches(jobs):
        if hasattr(system, "many"):
            yield system.many(batch)
        else:
            for order in batch:
                yield system.one(order)
    return {"jobs": jobs}


def enqueue(system: Any, how: str, seconds: float) -> Any:
    turn = itertools.cycle(orders.variants())
    bulk = [next(turn) for _ in range(BULK)]
    size = 1 if how == "one" else BULK
    for _ in range(50 if how == "one" else 1):
        yield system.one(next(turn)) if how == "one" else system.many(bulk)
    took = []
    began = ended = time.perf_counter()
    while ended - began < seconds:
        before = ended
        yield system.one(next(turn)) if how == "one" else system.many(bulk)
        ended = time.perf_counter()
        took.append(ended - before)
    return {
        "rate": size * len(took) / (ended - began),
        "enqueue_p50_ms": 1000 * statistics.median(took),
        "jobs": size * len(took),
    }


def latency(system: Any, jobs: int, per_second: float) -> Any:
    turn = itertools.cycle(orders.variants())
    sent = []
    began = time.perf_counter()
    for number in range(WARM_UP + jobs):
        wait = began + number / per_second - time.perf_counter()
        if wait > 0:
            yield asyncio.sleep(wait) if system.ASYNC else time.sleep(wait)
        sent.append(time.time())
        yield system.stamped(next(turn), number)
    return {"sent": sent, "warm_up": WARM_UP}


def install(system: Any) -> Any:
    yield system.install()
    return {}


def run(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def arun(steps: Any) -> Any:
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return end.value
        if inspect.isawaitable(step):
            await step


async def aopened(system: Any, steps: Any, opens: bool) -> Any:
    if opens and hasattr(system, "open"):
        await system.open()
    try:
        return await arun(steps)
    finally:
        if opens and hasattr(system, "close"):
            await system.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.driver", description=__doc__)
    parser.add_argument("module")
    parser.add_argument("what", choices=["install", "preload", "enqueue", "latency"])
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args()
    system = importlib.import_module(f"bench.peers.systems.{args.module}")
    opens = args.what != "install"
    if args.what == "install":
        steps = install(system)
    elif args.what == "preload":
        steps = preload(system, int(args.rest[0]))
    elif args.what == "enqueue":
        steps = enqueue(system, args.rest[0], float(args.rest[1]))
    else:
        steps = latency(system, int(args.rest[0]), float(args.rest[1]))
    if system.ASYNC:
        answer = asyncio.run(aopened(system, steps, opens))
    else:
        if opens and hasattr(system, "open"):
            system.open()
        try:
            answer = run(steps)
        finally:
            if opens and hasattr(system, "close"):
                system.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
