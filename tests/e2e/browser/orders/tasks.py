"""Tasks that end as their arguments say."""

from __future__ import annotations

import time
from pathlib import Path

from pgqueue_django import JobContext, PermanentError, task


class CardDeclined(PermanentError):
    """What a card processor says."""


@task(queue_name="billing", label=lambda order_id, *args, **kwargs: f"order {order_id}")
def charge(order_id: int, amount_cents: int, tenant_id: int = 1) -> dict[str, int]:
    if amount_cents <= 0:
        raise CardDeclined(f"order {order_id}: nothing to charge")
    return {"charged": amount_cents}


@task(queue_name="mail")
def welcome(address: str) -> str:
    return f"Welcome, {address}"


@task(queue_name="reports", takes_context=True)
def export(context: JobContext, gate: str) -> str:
    """Runs until the file ``gate`` is there, and says that it is half done."""
    context.progress(0.5, "day 10 of 20")
    while not Path(gate).exists():
        if context.cancelled:
            return "cancelled"
        time.sleep(0.01)
    return "written"
