"""The payload of every job in every benchmark: an order with line items and uuids, 2,048 bytes of JSON.

64 variants, the same ones in every run of every system. Text, numbers and uuids, so it compresses about as well
as what a shop really sends: neither noise nor one letter repeated. No dependency: the peers' environments import
this module, too.
"""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

BYTES = 2048
VARIANTS = 64

_ADJECTIVES = "small quiet amber folding woollen plain heavy northern glazed striped oak early deep".split()  # noqa: SIM905
_THINGS = "teapot lamp notebook kettle blanket chair map basket drawer pencil window cup garden key".split()  # noqa: SIM905
_STREETS = ("Mill Lane", "Harbour Road", "Old Market", "Station Street", "Church Hill", "Long Acre", "Canal Side")
_TOWNS = ("Ashford", "Brackwell", "Cranleigh", "Dunmere", "Eastholm", "Farnley", "Gorsebury", "Hatherton")


def text(order: dict[str, Any]) -> str:
    """The order as compact JSON: exactly ``BYTES`` bytes."""
    return json.dumps(order, separators=(",", ":"))


def variants() -> list[dict[str, Any]]:
    """The 64 orders; always the same."""
    chance = random.Random(20_480)
    return [_order(number, chance) for number in range(VARIANTS)]


def _order(number: int, chance: random.Random) -> dict[str, Any]:
    order: dict[str, Any] = {
        "order": _uuid(chance),
        "number": 100_000 + number,
        "customer": number + 1,
        "email": f"customer{number}@shop.example",
        "ship_to": {
            "street": f"{chance.randrange(1, 200)} {chance.choice(_STREETS)}",
            "town": chance.choice(_TOWNS),
            "postcode": f"{chance.randrange(10_000, 99_999)}",
        },
        "placed_at": f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}T09:{chance.randrange(60):02}:00Z",
        "currency": "EUR",
        "lines": [],
        "note": "",
    }
    while True:
        line = {
            "sku": _uuid(chance),
            "title": f"{chance.choice(_ADJECTIVES)} {chance.choice(_ADJECTIVES)} {chance.choice(_THINGS)}",
            "quantity": chance.randrange(1, 9),
            "price_cents": chance.randrange(199, 49_999),
            "tax_rate": "0.19",
        }
        order["lines"].append(line)
        if len(text(order)) > BYTES:
            order["lines"].pop()
            break
    words = " ".join(chance.choice(_ADJECTIVES + _THINGS) for _ in range(BYTES // 4))
    order["note"] = words[: BYTES - len(text(order))]
    assert len(text(order)) == BYTES
    return order


def _uuid(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))
