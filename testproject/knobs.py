"""Numbers that the demo takes from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Knobs = TypeVar("Knobs")

PREFIX = "DEMO_"


def read(kind: type[Knobs], environ: Mapping[str, str]) -> Knobs:
    """An instance of a dataclass whose fields are int or float, each as DEMO_<field> says, or its default.

    Raises ValueError naming the variable that is not such a number, or is negative.
    """
    given = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = PREFIX + field.name
        if text := environ.get(name):
            number = int if isinstance(field.default, int) else float
            try:
                given[field.name] = number(text)
            except ValueError:
                raise ValueError(f"{name}={text!r}: give a number such as {field.default}.") from None
            if given[field.name] < 0:
                raise ValueError(f"{name}={text!r}: give a number of at least 0.")
    return kind(**given)


def table(kind: type[Any]) -> str:
    """The names of all fields and their defaults, for a help text."""
    return "\n".join(f"  {PREFIX}{field.name:<18} {field.default}" for field in fields(kind))
