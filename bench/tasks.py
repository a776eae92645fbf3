"""The tasks that the benchmarks run."""

from __future__ import annotations

import time
from typing import Any

from bench import gate, stamps
from bench.models import Customer, Receipt
from pgqueue_django import Backoff, task
from pgqueue_django.context import JobContext
from testproject import ledger


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


# No number of kills makes one dead, and what is measured is not how long it backs off.
@task(max_attempts=100, backoff=Backoff(base=0.1, factor=1, cap=0.1), takes_context=True)
def deliver(context: JobContext, milliseconds: int) -> None:
    """Tells the ledger of its begin and its end, and takes its time between them."""
    with ledger.delivery(context.job_id, context.attempt):
        time.sleep(milliseconds / 1000)


def make_receipt(order: dict[str, Any]) -> None:
    customer = Customer.objects.get(pk=order["customer"])
    total = sum(line["quantity"] * line["price_cents"] for line in order["lines"])
    Receipt.objects.create(
        customer=customer, order=order["order"], total_cents=total * (100 - customer.discount_percent) // 100
    )


gate.wait()
