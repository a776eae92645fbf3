"""Tasks for test_tasks.py: functions of a module, as tasks are."""

from __future__ import annotations

from dataclasses import dataclass

from pgqueue_django import JobContext, task


@dataclass(frozen=True)
class Amount:
    cents: int


@task(queue_name="billing", priority=10, max_attempts=3)
def charge(invoice_id: int, amount_cents: int = 0) -> dict[str, int]:
    return {"invoice": invoice_id, "cents": amount_cents}


@task
async def remind(invoice_id: int) -> str:
    return f"reminded {invoice_id}"


@task(takes_context=True)
def export(context: JobContext, report_id: int) -> int:
    return report_id


@task
def refund(amount: Amount) -> int:
    return amount.cents


@task(label=lambda invoice_id, note="-", **_: f"invoice {invoice_id}, {note}")
def labelled(invoice_id: int, note: str = "-", urgent: bool = False) -> int:
    return invoice_id


@task(takes_context=True, label="a report")
def report(context: JobContext, report_id: int) -> int:
    return report_id


@task(label=lambda: "never called with arguments")
def mislabelled(invoice_id: object) -> None: ...


def _plain() -> None:
    """Not a task."""


hidden = task(_plain)
