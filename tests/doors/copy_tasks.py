"""Tasks whose jobs are copied with other arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgqueue_django import Backoff, task


@dataclass(frozen=True)
class Parcel:
    weight: int

    def __post_init__(self) -> None:
        if self.weight == 13:
            raise KeyError("no thirteen here")


@task(
    queue_name="mail",
    priority=3,
    max_attempts=7,
    backoff=Backoff(base=9),
    label=lambda number, **_: f"parcel {number}",
)
def send(number: int, *, note: str = "", parcel: Parcel | None = None, more: Any = None) -> None: ...


def no_task(number: int) -> None: ...
