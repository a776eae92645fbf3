"""The tasks that the benchmarks run."""

from __future__ import annotations

from typing import Any

from bench import gate, stamps
from bench.models import Customer, Receipt
from pgqueue_django import task


@task
def noop(order: dict[str, Any]) -> None:
    """Nothing: what is measured is the queue."""


@task
async def anoop(order: dict[str, Any]) -> None:
    """Nothing, on the event loop."""


@task
def bill(order: dict[str, Any]) -> None:
    """A small but real job: one read and one write with the ORM."""
    make_receipt(order)


@task
def started(order: dict[str, Any], number: int) -> None:
    """Says when it started."""
    stamps.stamp(number)


def make_receipt(order: dict[str, Any]) -> None:
    customer = Customer.objects.get(pk=order["customer"])
    total = sum(line["quantity"] * line["price_cents"] for line in order["lines"])
    Receipt.objects.create(
        customer=customer, order=order["order"], total_cents=total * (100 - customer.discount_percent) // 100
    )


gate.wait()
