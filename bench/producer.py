"""A producer process: makes jobs in one way for some seconds, as often as it is told. Started by ``bench.enqueue``.

Reads a JSON line ``{"how", "wakeups", "at", "seconds"}`` for each turn, starts at that moment of the machine's
monotonic clock, and answers with ``{"jobs", "seconds", "p50_ms", "p99_ms"}``; p50 and p99 are of one call.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import django

BULK = 1000
TEN = 10


def ways() -> dict[str, tuple[int, Callable[[], None]]]:
    """Name to (jobs per call, the call)."""
    from django.db import connection, transaction

    from bench import orders, tasks
    from pgqueue_django import enqueue_many
    from pgqueue_django.models import Job
    from pgqueue_django.states import State

    turn: Iterator[dict[str, Any]] = itertools.cycle(orders.variants())
    noop = tasks.noop
    backoff = noop.backoff.numbers()
    backoff_text = json.dumps(backoff)
    attempts = 5

    def row() -> dict[str, Any]:
        return {
            "task": noop.path,
            "queue_name": "default",
            "priority": 0,
            "state": State.QUEUED.value,
            "args": [next(turn)],
            "kwargs": {},
            "max_attempts": attempts,
            "backoff": backoff,
        }

    def enqueue() -> None:
        noop.enqueue(next(turn))

    def create() -> None:
        Job.objects.create(**row())

    def enqueue_10() -> None:
        with transaction.atomic():
            for _ in range(TEN):
                noop.enqueue(next(turn))

    def create_10() -> None:
        with transaction.atomic():
            for _ in range(TEN):
                Job.objects.create(**row())

    def many() -> None:
        enqueue_many([noop.call(next(turn)) for _ in range(BULK)])

    def bulk_create() -> None:
        Job.objects.bulk_create([Job(**row()) for _ in range(BULK)])

    columns = "task, queue_name, priority, state, args, kwargs, max_attempts, backoff"

    def texts() -> tuple[Any, ...]:
        return (noop.path, "default", 0, "queued", json.dumps([next(turn)]), "{}", attempts, backoff_text)

    def copy() -> None:
        with connection.cursor() as cursor, cursor.copy(f"COPY pgqueue_job ({columns}) FROM STDIN") as stream:
            for _ in range(BULK):
                stream.write_row(texts())

    def values() -> None:
        one = "(%s, %s, %s, %s, %s::json, %s::json, %s, %s::jsonb)"
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO pgqueue_job ({columns}) VALUES {', '.join([one] * BULK)} RETURNING id",
                [value for _ in range(BULK) for value in texts()],
            )
            cursor.fetchall()

    def unnest() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO pgqueue_job ({columns}) SELECT t, q, p, s, a::json, k::json, m, b::jsonb FROM "
                "unnest(%s::text[], %s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[]) "
                "AS given(t, q, p, s, a, k, m, b) RETURNING id",
                [list(column) for column in zip(*(texts() for _ in range(BULK)), strict=True)],
            )
            cursor.fetchall()

    def unnest_binary() -> None:
        # As unnest, but bound on the server: the arrays go as parameters instead of being written into the text.
        import psycopg

        with psycopg.Cursor(connection.connection) as cursor:
            cursor.execute(
                f"INSERT INTO pgqueue_job ({columns}) SELECT t, q, p, s, a::json, k::json, m, b::jsonb FROM "
                "unnest(%b::text[], %b::text[], %b::int[], %b::text[], %b::text[], %b::text[], %b::int[], %b::text[]) "
                "AS given(t, q, p, s, a, k, m, b) RETURNING id",
                [list(column) for column in zip(*(texts() for _ in range(BULK)), strict=True)],
            )
            cursor.fetchall()

    return {
        "enqueue": (1, enqueue),
        "create": (1, create),
        "enqueue, 10 in a transaction": (TEN, enqueue_10),
        "create, 10 in a transaction": (TEN, create_10),
        "enqueue_many": (BULK, many),
        "bulk_create": (BULK, bulk_create),
        "COPY": (BULK, copy),
        "VALUES": (BULK, values),
        "unnest": (BULK, unnest),
        "unnest, server-side": (BULK, unnest_binary),
    }


def main() -> None:
    django.setup()
    from django.db import connection

    from bench.meter import percentiles
    from pgqueue_django import wakeups

    calls = ways()
    send = wakeups.send_after_commit
    connection.ensure_connection()
    print("{}", flush=True)
    for line in sys.stdin:
        turn = json.loads(line)
        size, call = calls[turn["how"]]
        # Off: what producers would do if nobody had to be told.
        wakeups.send_after_commit = send if turn["wakeups"] else lambda using, hint: None
        time.sleep(max(0.0, turn["at"] - time.monotonic()))
        took: list[float] = []
        began = ended = time.monotonic()
        while ended - began < turn["seconds"]:
            before = ended
            call()
            ended = time.monotonic()
            took.append(ended - before)
        middle = percentiles(1000 * seconds for seconds in took)
        print(
            json.dumps(
                {
                    "jobs": size * len(took),
                    "seconds": ended - began,
                    "p50_ms": middle["p50"],
                    "p99_ms": middle["p99"],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
