"""What people type to find jobs: ``task:shop.* args.tenant_id:7 error:CardError``, read into conditions.

Each term names what it looks at; terms are joined by AND. A bare number is a job's id, any other bare word a key. What
a term asks of a row is one condition of SQL with its values apart; how many rows are asked is the caller's matter.
Raises ``SearchError``, with where and why, for what it cannot read, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop

MAX_LENGTH = 500
MAX_TERMS = 10
MAX_DEPTH = 5
MAX_PLACES = 100
"""Tasks in which a named argument is looked for by its place, too."""
_MAX_ID = 2**63 - 1

_TERM = re.compile(r'(?P<field>[a-z_]+(?:\.[^\s:"]*)?):(?P<value>"[^"]*"|\S*)|(?P<bare>"[^"]*"|\S+)')
FIELDS = ("id", "key", "task", "queue", "worker", "label", "error", "fp", "args")


class SearchError(ValueError):
    """``position``: of the character, from 0, at which the text cannot be read on. ``reason``: one of ``REASONS``."""

    def __init__(self, reason: str, position: int, **facts: Any) -> None:
        super().__init__(REASONS[reason] % facts)
        self.reason = reason
        self.position = position
        self.facts = facts


REASONS: Mapping[str, str] = {
    "long": gettext_noop("A search has at most %(most)d characters."),
    "many": gettext_noop("A search has at most %(most)d terms."),
    "field": gettext_noop("There is no %(field)s:, there are %(known)s."),
    "empty": gettext_noop("Nothing stands after %(field)s:"),
    "id": gettext_noop("%(value)s is no number of a job."),
    "fp": gettext_noop("%(value)s is no fingerprint of an error: those have 16 hex digits."),
    "path": gettext_noop("After args. stands the name of an argument, as in args.tenant_id:7, up to %(most)d deep."),
    "nul": gettext_noop("No job holds a NUL."),
}


class Condition(NamedTuple):
    """One condition on a row of ``pgqueue_job``, called ``job``, and its parameters."""

    sql: str
    params: tuple[Any, ...]
    reads_payload: bool = False  # arguments, or what errors said: for those who may see them
    wider: Condition | None = None
    """What an index on arguments can answer: true of all rows of which this is true, and of some others."""


@dataclass(frozen=True)
class Query:
    """A search that was read. ``ids``: it names jobs, which are found whatever their age; None: it does not."""

    conditions: tuple[Condition, ...]
    ids: tuple[int, ...] | None = None
    fingerprint: str | None = None
    """It asks for the failed and dead jobs of one kind of error, which have an index of their own."""
    key: str | None = None
    """It asks for an idempotency key, of which there is one at the most in each task."""
    told: str = ""
    """The terms as others may read them: of those that read payload, what they look at and not what for."""

    @property
    def params(self) -> list[Any]:
        return [value for condition in self.conditions for value in condition.params]

    @property
    def reads_payload(self) -> bool:
        return any(condition.reads_payload for condition in self.conditions)


Positions = Callable[[str], Iterable[tuple[str, int]]]
"""Tasks that have a parameter of this name, each with its place among the positional arguments."""


def read(text: str, positions: Positions = lambda name: ()) -> Query:
    """``positions`` tells where a named argument stands that was passed without its name. Raises SearchError."""
    if len(text) > MAX_LENGTH:
        raise SearchError("long", MAX_LENGTH, most=MAX_LENGTH)
    if (nul := text.find("\0")) >= 0:
        raise SearchError("nul", nul)
    conditions = list[Condition]()
    ids: tuple[int, ...] | None = None
    fingerprint: str | None = None
    told = list[str]()
    key: str | None = None
    for number, found in enumerate(_TERM.finditer(text)):
        if number == MAX_TERMS:
            raise SearchError("many", found.start(), most=MAX_TERMS)
        if found["field"] is None:
            field, value, at = "", found["bare"].strip('"'), found.start()
            field = "id" if re.fullmatch(r"#?[0-9]+", value) else "key"
        else:
            field, value, at = found["field"], found["value"].strip('"'), found.start("value")
        if not value:
            raise SearchError("empty", at, field=field)
        told.append(found.group())
        if field == "id":
            named = tuple(_ids(value, at))
            ids = named if ids is None else tuple(id for id in ids if id in named)
        elif field == "fp":
            if not re.fullmatch(r"[0-9a-f]{16}", value) or fingerprint not in (None, value):
                raise SearchError("fp", at, value=value[:40])
            fingerprint = value
        else:
            key = value if field == "key" else key
            conditions.append(_condition(field, value, at if found["field"] is None else found.start(), positions))
            if conditions[-1].reads_payload:
                told[-1] = f"{field}:…"
    return Query(tuple(conditions), ids, fingerprint, key, " ".join(told))


def _ids(value: str, at: int) -> Iterator[int]:
    for one in value.split(","):
        number = one.removeprefix("#")
        if not (number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= _MAX_ID):
            raise SearchError("id", at, value=one[:40])
        yield int(number)


def _condition(field: str, value: str, at: int, positions: Positions) -> Condition:
    name, _, path = field.partition(".")
    if name not in FIELDS or (path and name != "args"):
        raise SearchError("field", at, field=field[:40], known=", ".join(f"{one}:" for one in FIELDS))
    match name:
        case "args":
            return _argument(path, value, at, positions)
        case "label":
            return Condition("job.label ILIKE %s", (f"%{_literal(value)}%",))
        case "error":
            like = f"%{_literal(value)}%"
            return Condition(
                "(job.error_type ILIKE %s OR job.history -> -1 ->> 'message' ILIKE %s)",
                (like, like),
                reads_payload=True,
            )
        case "key":
            # A key may hold what somebody has paid for.
            return Condition("job.idempotency_key = %s", (value,), reads_payload=True)
        case _:
            column = {"task": "task", "queue": "queue_name", "worker": "worker_id"}[name]
            if value.endswith("*"):
                return Condition(f"job.{column} LIKE %s", (f"{_literal(value[:-1])}%",))
            return Condition(f"job.{column} = %s", (value,))


def _literal(text: str) -> str:
    """For LIKE: every character as it is."""
    return re.sub(r"([\\%_])", r"\\\1", text)


def _argument(path: str, value: str, at: int, positions: Positions) -> Condition:
    """One whose value reads like this, be it a text or a number; by its name, or by its place from 0."""
    steps = path.split(".") if path else []
    if not 0 < len(steps) <= MAX_DEPTH or not all(steps):
        raise SearchError("path", at, most=MAX_DEPTH)
    name, *inner = steps
    # Of json as it stands: a cast to jsonb reads all of it, and fails for what plain SQL may have written.
    params: list[Any]
    parts, params = ["job.kwargs #>> %s::text[] = %s"], [[name, *inner], value]
    if name.isascii() and name.isdecimal():
        parts.append("job.args #>> %s::text[] = %s")
        params += [[name, *inner], value]
    places = list(islice(positions(name), MAX_PLACES))
    for task, place in places:
        parts.append("(job.task = %s AND job.args #>> %s::text[] = %s)")
        params += [task, [str(place), *inner], value]
    wider = _containing(steps, value, bool(places))
    return Condition(f"({' OR '.join(parts)})", tuple(params), reads_payload=True, wider=wider)


def _containing(steps: Sequence[str], value: str, has_places: bool) -> Condition | None:
    """The same in terms of what ``jsonb`` contains, which knows no place in a list; None: of a list or an object."""
    if value[0] in "[{":
        return None
    values = [json.dumps(value), *_scalar(value)]
    for step in reversed(steps[1:]):
        values = [form for inner in values for form in _forms(step, inner)]
    named = [f"{{{json.dumps(steps[0])}: {inner}}}" for inner in values]
    placed = [f"[{inner}]" for inner in values] if has_places or steps[0].isdecimal() else []
    parts = ["job.kwargs::jsonb @> %s::jsonb"] * len(named) + ["job.args::jsonb @> %s::jsonb"] * len(placed)
    return Condition(f"({' OR '.join(parts)})", (*named, *placed))


def _forms(step: str, inner: str) -> Iterator[str]:
    yield f"{{{json.dumps(step)}: {inner}}}"
    if re.fullmatch(r"[+-]?[0-9]+", step):  # a place from the end, too
        yield f"[{inner}]"


def _scalar(text: str) -> Iterator[str]:
    """The text itself, where it is a number, true or false in JSON, and a number that jsonb can hold."""
    if text in ("true", "false") or re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", text):
        yield text
