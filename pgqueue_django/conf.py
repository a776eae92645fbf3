"""The settings: one dict ``PGQUEUE`` in the project's settings, each key with its default here.

The only reader of Django's settings. Read once, and again when a test overrides them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

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

PROBLEMS: Mapping[str, float] = {
    "unserved_seconds": 30.0,
    "oldest_due_seconds": 300.0,
    "unknown_task_seconds": 120.0,
    "schedule_late_seconds": 120.0,
    "failure_rate": 0.25,
    "failures": 10.0,
    "leases_expired": 10.0,
    "paused_seconds": 3600.0,
    "dead_rows": 100_000.0,
}
RIGHTS = (
    *("enqueue_job", "view_job", "view_job_payload", "requeue_job", "run_job_now", "cancel_job", "pause_queue"),
    *("view_queue", "view_worker", "view_schedule", "view_dashboard"),
)
"""What a token may be allowed to do: permissions of this app, as users have them."""

MAX_QUEUE_DEPTH = 100_000
ACTOR_NAME = r"[\w.@-]{1,100}"
_RATE = re.compile(r"([1-9][0-9]{0,8})/(s|min|h)")
_SECONDS = {"s": 1, "min": 60, "h": 3600}


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
    AUDIT_RETENTION: float | None = 400 * DAY
    """Age at which entries of the audit log are pruned; None keeps them for ever."""
    LISTEN: bool = True
    """False: workers only poll."""
    LISTEN_DATABASE: str | None = None
    """Alias in DATABASES that leads directly to the server where the jobs' own leads to a pooler; for LISTEN alone."""
    METRICS_TOKEN: str | None = None
    """A bearer token that opens the metrics page."""
    METRICS_PUBLIC: bool = False
    """True: the metrics page asks for nothing. For closed networks only."""
    LIVE: str = "poll"
    """How the dashboard keeps up: its page asks every two seconds; with ``"sse"``, under ASGI, a stream tells it."""
    PROBLEMS: Mapping[str, float] | None = None
    """From where on something is a problem; what is left out keeps its default."""
    TRACING: bool = False
    """True: OpenTelemetry spans of enqueues and attempts, linked through the job's row."""
    API_AUTH: Sequence[str | Callable[..., Any]] = ()
    """Who asks the JSON API: each is called with the request until one knows. Empty: the API is off."""
    API_TOKENS: Mapping[str, Mapping[str, Any]] | None = None
    """Bearer tokens of the JSON API by name: ``{"sha256": hex, "rights": [...], "expires": "2027-12-31" or None}``."""
    API_RATE: str | None = None
    """Requests of one actor to the JSON API: ``"100/s"``, ``"1000/min"``, ``"5000/h"``. None: no limit."""
    API_MAX_QUEUE_DEPTH: int | None = None
    """Jobs ready or waiting in a queue beyond which the JSON API enqueues no more there. None: no limit."""
    READ_ONLY: bool = False
    """True: neither the admin nor the JSON API has a route that changes something, whoever asks."""
    PUBLIC: bool = False
    """True: of ``pgqueue_django.urls`` there is the status page alone."""
    PUBLIC_DATABASE: str | None = None
    """Alias that the status page reads, a replica or a role that may only read. None: the one of the jobs."""

    @property
    def problems(self) -> Mapping[str, float]:
        return {**PROBLEMS, **(self.PROBLEMS or {})}

    @property
    def heartbeat(self) -> float:
        return self.HEARTBEAT if self.HEARTBEAT is not None else self.LEASE / 3

    @property
    def retention(self) -> Mapping[str, float | None]:
        return {**RETENTION, **(self.RETENTION or {})}

    @property
    def api_rate(self) -> tuple[int, int] | None:
        """Requests, and in how many seconds."""
        found = _RATE.fullmatch(self.API_RATE or "")
        return (int(found[1]), _SECONDS[found[2]]) if found else None


class Mistake(NamedTuple):
    """Something in ``settings.PGQUEUE`` that is not as it may be."""

    key: str
    problem: str
    remedy: str
    is_unknown: bool = False

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


@cache
def current() -> Settings:
    """The settings as they are now. Raises ImproperlyConfigured naming each wrong key and what it may be."""
    given = _given()
    if found := mistakes():
        raise ImproperlyConfigured(" ".join(map(str, found)))
    return replace(Settings(), **given)


def before_checks() -> Settings:
    """For decorators and parsers of command lines: the defaults where the settings are wrong.

    What is wrong the system checks say, and those are run only after all that.
    """
    return Settings() if mistakes() else current()


def is_read_only() -> bool:
    """Whether READ_ONLY is on. Also while another key is wrong: that must not open what was meant to be closed."""
    return _is_on("READ_ONLY")


def is_public() -> bool:
    """Whether PUBLIC is on; as READ_ONLY."""
    return _is_on("PUBLIC")


def _is_on(key: str) -> bool:
    given = _given()
    return isinstance(given, Mapping) and bool(given.get(key))


def mistakes() -> list[Mistake]:
    """All that is wrong with the settings as they are now."""
    given = _given()
    if not isinstance(given, Mapping):
        return [Mistake("PGQUEUE", "settings.PGQUEUE is no dict", 'write PGQUEUE = {"LEASE": 30}, or leave it out.')]
    known = {field.name for field in fields(Settings)}
    found = [
        Mistake(
            str(key),
            f"settings.PGQUEUE: unknown {key}",
            f"{_meant(str(key), known)}known are {', '.join(sorted(known))}.",
            is_unknown=True,
        )
        for key in given
        if key not in known
    ]
    result = replace(Settings(), **{key: value for key, value in given.items() if key in known})
    found += (mistake for mistake in _wrong(result) if mistake is not None)
    wrong = {mistake.key for mistake in found}
    if not wrong & {"LEASE", "HEARTBEAT"} and result.heartbeat > result.LEASE / 2:
        found.append(
            Mistake(
                "HEARTBEAT",
                f'settings.PGQUEUE: "HEARTBEAT" ({result.heartbeat} s) is over half of "LEASE" ({result.LEASE} s)',
                "one late heartbeat would lose the jobs. Give a third of the lease or less.",
            )
        )
    return found


def _given() -> Any:
    return getattr(settings, "PGQUEUE", {})


def _meant(key: str, known: set[str]) -> str:
    close = get_close_matches(key.upper(), known, 1, 0.6)
    return f"did you mean {close[0]}? " if close else ""


def _wrong(given: Any) -> Iterator[Mistake | None]:
    for name in ("LEASE", "POLL_INTERVAL", "CHORE_INTERVAL"):
        yield _number(name, getattr(given, name), above=0, most=DAY)
    yield _number("SHUTDOWN_TIMEOUT", given.SHUTDOWN_TIMEOUT, above=-1, most=DAY)
    if given.HEARTBEAT is not None:
        yield _number("HEARTBEAT", given.HEARTBEAT, above=0, most=DAY)
    if given.TIMEOUT is not None:
        yield _number("TIMEOUT", given.TIMEOUT, above=0, most=366 * DAY)
    for name in ("LISTEN", "METRICS_PUBLIC", "TRACING", "READ_ONLY", "PUBLIC"):
        if not isinstance(value := getattr(given, name), bool):
            yield _mistake(name, value, "give True or False")
    if given.LIVE not in ("poll", "sse"):
        yield _mistake("LIVE", given.LIVE, 'give "poll" or "sse"')
    if given.TRACING is True and not _is_installed("opentelemetry.trace"):
        problem = 'settings.PGQUEUE["TRACING"] is True, and OpenTelemetry cannot be imported'
        yield Mistake("TRACING", problem, 'pip install "pgqueue_django[otel]"')
    for name, leads in (
        ("LISTEN_DATABASE", "that leads directly to the server of the jobs"),
        ("PUBLIC_DATABASE", "that the status page is to read the jobs by"),
    ):
        if (alias := getattr(given, name)) is None:
            continue
        postgresql = [one for one in connections if connections[one].vendor == "postgresql"]
        if alias not in postgresql:
            yield _mistake(name, alias, f"give the alias {leads}, one of {', '.join(postgresql)}, or None")
    for name in ("CONCURRENCY", "MAX_ATTEMPTS", "MAX_PAYLOAD_BYTES"):
        yield _whole(name, getattr(given, name), least=1, most=2**31 - 1)
    yield _whole("MAX_HISTORY", given.MAX_HISTORY, least=2, most=2**31 - 1, why=": the first failure and the newest")
    if given.MAX_FINISHED is not None:
        yield _whole("MAX_FINISHED", given.MAX_FINISHED, least=0, most=1_000_000)
    if given.METRICS_TOKEN is not None and not isinstance(given.METRICS_TOKEN, str):
        yield Mistake("METRICS_TOKEN", 'settings.PGQUEUE["METRICS_TOKEN"] is no text', "give a text, or None.")
    yield from _wrong_limits(given.PROBLEMS)
    yield from _wrong_api(given)
    yield _number("IDEMPOTENCY_RETENTION", given.IDEMPOTENCY_RETENTION, above=-1, most=36_500 * DAY)
    if given.AUDIT_RETENTION is not None:
        yield _number("AUDIT_RETENTION", given.AUDIT_RETENTION, above=-1, most=36_500 * DAY)
    if given.RETENTION is not None and not isinstance(given.RETENTION, Mapping):
        yield _mistake("RETENTION", given.RETENTION, "give a dict of ages by state, or None")
        return
    for state, age in (given.RETENTION or {}).items():
        if state not in RETENTION:
            yield Mistake(
                "RETENTION", f'settings.PGQUEUE["RETENTION"] names {state!r}', f"it has {', '.join(RETENTION)}."
            )
        elif age is not None:
            yield _number(f'RETENTION"]["{state}', age, above=-1, most=36_500 * DAY)


def _wrong_limits(given: Any) -> Iterator[Mistake | None]:
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield _mistake("PROBLEMS", given, "give a dict of limits, or None")
        return
    for name, limit in given.items():
        if name not in PROBLEMS:
            yield Mistake("PROBLEMS", f'settings.PGQUEUE["PROBLEMS"] names {name!r}', f"it has {', '.join(PROBLEMS)}.")
        else:
            yield _number(f'PROBLEMS"]["{name}', limit, above=-1, most=1e9)


def _wrong_api(given: Any) -> Iterator[Mistake | None]:
    auth = given.API_AUTH
    if not isinstance(auth, list | tuple) or not all(callable(one) or _is_dotted(one) for one in auth):
        remedy = 'give a list such as ["pgqueue_django.access.token", "pgqueue_django.access.session"]'
        yield _mistake("API_AUTH", auth, remedy)
    if given.API_RATE is not None and not (isinstance(given.API_RATE, str) and _RATE.fullmatch(given.API_RATE)):
        yield _mistake("API_RATE", given.API_RATE, 'give "100/s", "1000/min", "5000/h", or None')
    if given.API_MAX_QUEUE_DEPTH is not None:
        yield _whole("API_MAX_QUEUE_DEPTH", given.API_MAX_QUEUE_DEPTH, least=1, most=MAX_QUEUE_DEPTH)
    tokens = given.API_TOKENS
    if tokens is not None and not isinstance(tokens, Mapping):
        # Not what it is: somebody may have written a token there.
        yield Mistake("API_TOKENS", 'settings.PGQUEUE["API_TOKENS"] is no dict', "give entries by name, or None.")
        return
    for name, entry in (tokens or {}).items():
        where = f'settings.PGQUEUE["API_TOKENS"][{name!r:.100}]'
        for problem, remedy in _wrong_token(name, entry):
            yield Mistake("API_TOKENS", f"{where}{problem}", f"{remedy}.")


def _wrong_token(name: object, entry: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(name, str) or not re.fullmatch(ACTOR_NAME, name):
        yield " has no fit name", "give 1 to 100 letters, digits, '_', '.', '@' or '-'"
    if not isinstance(entry, Mapping):
        yield " is no dict", "take the entry that manage.py pgqueue_token prints"
        return
    if unknown := sorted(map(str, set(entry) - {"sha256", "rights", "expires"})):
        yield f" has an unknown {', '.join(unknown)}", "it has sha256, rights and expires"
    sha256, rights, expires = entry.get("sha256"), entry.get("rights"), entry.get("expires")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        yield '["sha256"] is no SHA-256', "give 64 hex digits, as manage.py pgqueue_token prints them: not the token"
    if not isinstance(rights, list | tuple | set | frozenset) or not set(map(str, rights)) <= set(RIGHTS):
        yield f'["rights"] is {rights!r:.100}', f"give a list of {', '.join(RIGHTS)}"
    if expires is not None:
        try:
            date.fromisoformat(expires)
        except (TypeError, ValueError):
            yield f'["expires"] is {expires!r:.100}', 'give the first day on which it is void, "2027-12-31", or None'


def _is_dotted(name: object) -> bool:
    return isinstance(name, str) and all(map(str.isidentifier, name.split("."))) and "." in name


def _number(name: str, value: Any, *, above: float, most: float) -> Mistake | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and above < value <= most:
        return None
    least = "at least 0" if above < 0 else f"more than {above:g}"
    return _mistake(name, value, f"give a number {least}, up to {most:g}")


def _whole(name: str, value: Any, *, least: int, most: int, why: str = "") -> Mistake | None:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return None
    return _mistake(name, value, f"give a whole number of at least {least}{why}, up to {most}")


def _mistake(name: str, value: Any, remedy: str) -> Mistake:
    return Mistake(name, f'settings.PGQUEUE["{name}"] is {value!r:.100}', f"{remedy}.")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False


def is_debug() -> bool:
    """Whether this is somebody's own machine."""
    return bool(settings.DEBUG)


def upload_limit() -> float:
    """Bytes of a request's body that the project takes."""
    limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return float("inf") if limit is None else limit


def time_zone() -> str:
    """The project's, for schedules that name none."""
    return str(settings.TIME_ZONE)


@receiver(setting_changed)
def _forget(*, setting: str, **_: Any) -> None:
    if setting == "PGQUEUE":
        current.cache_clear()
