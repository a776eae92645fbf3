"""The settings: one dict ``PGQUEUE`` in the project's settings, each key with its default here.

The only reader of Django's settings. Read once, and again when a test overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.dispatch import receiver

DAY = 24 * 3600.0

RETENTION: Mapping[str, float | None] = {
    "succeeded": 7 * DAY,
    "cancelled": 7 * DAY,
    "failed": 30 * DAY,
    "dead": 30 * DAY,
}


@dataclass(frozen=True)
class Settings:
    """All lengths are seconds."""

    LEASE: float = 30.0
    """How long a claimed job belongs to its worker without a heartbeat."""
    HEARTBEAT: float | None = None
    """Between two heartbeats; a third of the lease when None."""
    POLL_INTERVAL: float = 1.0
    """How often an idle worker looks for jobs that no notification told it of."""
    CHORE_INTERVAL: float = 1.0
    """How often expired leases are looked for, and the longest wait of a job that has become due."""
    SHUTDOWN_TIMEOUT: float = 30.0
    """How long a stopping worker lets its handlers finish before it gives their jobs back."""
    CONCURRENCY: int = 8
    """Slots of a worker: threads and coroutines together."""
    MAX_ATTEMPTS: int = 5
    TIMEOUT: float | None = None
    """Of tasks that name none. None: an attempt may run for ever."""
    MAX_PAYLOAD_BYTES: int = 256 * 1024
    """Of the arguments of one job, and of its result."""
    MAX_HISTORY: int = 20
    """Failed attempts that a job remembers: the first and the newest."""
    RETENTION: Mapping[str, float | None] | None = None
    """Age at which finished jobs are pruned, by state; a state left out keeps its default, None keeps for ever."""
    MAX_FINISHED: int | None = None
    """Finished jobs that are kept at the most, whatever their age. None: their age alone decides."""
    IDEMPOTENCY_RETENTION: float = DAY
    """A finished job with an idempotency key is kept at least this long."""
    LISTEN: bool = True
    """False: workers only poll."""
    LISTEN_DATABASE: str | None = None
    """Alias in DATABASES that leads directly to the server where the jobs' own leads to a pooler; for LISTEN alone."""
    METRICS_TOKEN: str | None = None
    """A bearer token that opens the metrics page."""
    METRICS_PUBLIC: bool = False
    """True: the metrics page asks for nothing. For closed networks only."""

    @property
    def heartbeat(self) -> float:
        return self.HEARTBEAT if self.HEARTBEAT is not None else self.LEASE / 3

    @property
    def retention(self) -> Mapping[str, float | None]:
        return {**RETENTION, **(self.RETENTION or {})}


@cache
def current() -> Settings:
    """The settings as they are now. Raises ImproperlyConfigured naming the key and what it may be."""
    given = getattr(settings, "PGQUEUE", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("settings.PGQUEUE is a dict of options.")
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(set(given) - known):
        raise ImproperlyConfigured(
            f"settings.PGQUEUE: unknown {', '.join(unknown)}. Known: {', '.join(sorted(known))}."
        )
    result = replace(Settings(), **given)
    for name in ("LEASE", "POLL_INTERVAL", "CHORE_INTERVAL"):
        _number(name, getattr(result, name), above=0, most=DAY)
    _number("SHUTDOWN_TIMEOUT", result.SHUTDOWN_TIMEOUT, above=-1, most=DAY)
    if result.HEARTBEAT is not None:
        _number("HEARTBEAT", result.HEARTBEAT, above=0, most=DAY)
    if result.TIMEOUT is not None:
        _number("TIMEOUT", result.TIMEOUT, above=0, most=366 * DAY)
    for name in ("LISTEN", "METRICS_PUBLIC"):
        if not isinstance(getattr(result, name), bool):
            raise ImproperlyConfigured(f'settings.PGQUEUE["{name}"] is True or False.')
    if (alias := result.LISTEN_DATABASE) is not None:
        postgresql = [name for name in connections if connections[name].vendor == "postgresql"]
        if alias not in postgresql:
            raise ImproperlyConfigured(
                f'settings.PGQUEUE["LISTEN_DATABASE"] is {alias!r}; give the alias that leads directly to the server '
                f"of the jobs, one of {', '.join(postgresql)}, or None."
            )
    for name in ("CONCURRENCY", "MAX_ATTEMPTS", "MAX_PAYLOAD_BYTES", "MAX_HISTORY"):
        if not isinstance(getattr(result, name), int):
            raise ImproperlyConfigured(f'settings.PGQUEUE["{name}"] is a whole number.')
        _number(name, getattr(result, name), above=0, most=2**31 - 1)
    if result.MAX_FINISHED is not None:
        if not isinstance(result.MAX_FINISHED, int):
            raise ImproperlyConfigured('settings.PGQUEUE["MAX_FINISHED"] is a whole number, or None.')
        _number("MAX_FINISHED", result.MAX_FINISHED, above=-1, most=1_000_000)
    if result.MAX_HISTORY < 2:
        raise ImproperlyConfigured('settings.PGQUEUE["MAX_HISTORY"] is at least 2: the first failure and the newest.')
    if result.METRICS_TOKEN is not None and not isinstance(result.METRICS_TOKEN, str):
        raise ImproperlyConfigured('settings.PGQUEUE["METRICS_TOKEN"] is a text, or None.')
    _number("IDEMPOTENCY_RETENTION", result.IDEMPOTENCY_RETENTION, above=-1, most=36_500 * DAY)
    if result.heartbeat > result.LEASE / 2:
        raise ImproperlyConfigured(
            f'settings.PGQUEUE: "HEARTBEAT" ({result.heartbeat} s) is over half of "LEASE" ({result.LEASE} s); '
            "one late heartbeat would lose the jobs. Give a third of the lease or less."
        )
    if stray := sorted(set(result.retention) - set(RETENTION)):
        raise ImproperlyConfigured(f'settings.PGQUEUE["RETENTION"]: {", ".join(stray)}; it has {", ".join(RETENTION)}.')
    for state, age in result.retention.items():
        if age is not None:
            _number(f'RETENTION"]["{state}', age, above=-1, most=36_500 * DAY)
    return result


def _number(name: str, value: Any, *, above: float, most: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= most:
        least = "at least 0" if above < 0 else f"more than {above:g}"
        raise ImproperlyConfigured(f'settings.PGQUEUE["{name}"] is {value!r}; give a number {least}, up to {most:g}.')


def is_debug() -> bool:
    """Whether this is somebody's own machine."""
    return bool(settings.DEBUG)


def time_zone() -> str:
    """The project's, for schedules that name none."""
    return str(settings.TIME_ZONE)


@receiver(setting_changed)
def _forget(*, setting: str, **_: Any) -> None:
    if setting == "PGQUEUE":
        current.cache_clear()
