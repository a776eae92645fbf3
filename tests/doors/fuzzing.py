"""Answers against the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def undocumented(document: Any, schema: Any, value: Any, at: str = "") -> Iterator[str]:
    """Where in an answer something is that the document does not speak of: it lets answers grow, our tests do not."""
    schemas = list(_flat(document, schema))
    if isinstance(value, dict):
        known: dict[str, list[Any]] = {}
        for one in schemas:
            for name, inner in one.get("properties", {}).items():
                known.setdefault(name, []).append(inner)
        others = [one["additionalProperties"] for one in schemas if "additionalProperties" in one]
        for name, inner_value in value.items():
            if name in known or others:
                yield from undocumented(document, {"anyOf": known.get(name, others)}, inner_value, f"{at}/{name}")
            elif known:
                yield f"{at}/{name}"
    elif isinstance(value, list):
        items = [one["items"] for one in schemas if "items" in one]
        for place, item in enumerate(value if items else []):
            yield from undocumented(document, {"anyOf": items}, item, f"{at}/{place}")


def _flat(document: Any, schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all that it is put together from."""
    if not isinstance(schema, dict):
        return
    yield schema
    if "$ref" in schema:
        yield from _flat(document, resolved(document, schema))
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(word, ()):
            yield from _flat(document, inner)


def resolved(document: Any, one: Any) -> Any:
    """What a ``$ref`` stands for."""
    while "$ref" in one:
        found = document
        for step in one["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        one = found
    return one
