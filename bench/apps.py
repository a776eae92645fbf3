"""What a benchmark changes in a worker, by the environment: never in the package, and each change fails loudly.

* ``BENCH_LOCK=plain``: the claim waits for locked rows (``FOR UPDATE`` instead of ``… SKIP LOCKED``).
* ``BENCH_PREFETCH=off``: a worker claims for its free slots only.
* ``BENCH_CLAIMS=file``: how long each claim took and how many jobs it got, a line each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created

CLAIM_MARK = "SET state = 'running'"  # in the claim statement, and in no other
SKIP = " SKIP LOCKED"


class BenchConfig(AppConfig):
    name = "bench"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if os.environ.get("BENCH_LOCK"):
            _choose_lock(os.environ["BENCH_LOCK"])
        if os.environ.get("BENCH_PREFETCH") == "off":
            _forbid_prefetch()
        if os.environ.get("BENCH_CLAIMS"):
            _time_claims(os.environ["BENCH_CLAIMS"])


def is_claim(sql: str) -> bool:
    return CLAIM_MARK in sql and SKIP in sql


def _choose_lock(mode: str) -> None:
    """Rewrite the claim on its way to the server. Both modes look at each statement, so that both pay for it."""
    said = False

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal said
        if is_claim(sql):
            if mode == "plain":
                sql = sql.replace(SKIP, "")
            if not said:
                said = True
                print(f"bench: claims with {mode}", file=sys.stderr, flush=True)
        return run(sql, params, many, context)

    def connected(connection: Any, **_: Any) -> None:
        if execute not in connection.execute_wrappers:
            connection.execute_wrappers.append(execute)

    connection_created.connect(connected, weak=False)


def _forbid_prefetch() -> None:
    from pgqueue_django.worker import supply

    prefetch = supply.Prefetch
    if not callable(prefetch.ahead):
        raise RuntimeError("the worker's prefetch is no longer where the benchmark looks for it")
    prefetch.ahead = lambda self, *, busy: 0  # type: ignore[method-assign]


def _time_claims(path: str) -> None:
    from pgqueue_django import transitions

    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    claim = transitions.claim

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        claimed = claim(*args, **kwargs)
        took = time.perf_counter() - began
        if claimed:
            os.write(file, f"{took:.6f} {len(claimed)}\n".encode())
        return claimed

    transitions.claim = timed
