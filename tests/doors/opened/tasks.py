"""Tasks that take whatever a client thinks of."""

from __future__ import annotations

from typing import Any

from pgqueue_django import Backoff, task


@task(api=True)
def echo(*args: Any, **kwargs: Any) -> Any:
    return {"args": args, "kwargs": kwargs}


@task(api=True, backoff=Backoff(base=3600, factor=1))
def fail(*args: Any, **kwargs: Any) -> None:
    """Dead after its first attempt, or waiting for an hour."""
    raise ValueError(f"{args!r} {kwargs!r}")
