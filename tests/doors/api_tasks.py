"""Tasks for the tests of the JSON API: open to it, and not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgqueue_django import job_options, task

try:
    from django.tasks import task as django_task
except ImportError:
    from django_tasks import task as django_task


@dataclass(frozen=True)
class Line:
    sku: str
    quantity: int


@task(api=True, queue_name="open", max_attempts=7)
def charge(invoice_id: int, amount: Any = None) -> None: ...


@task(api=True, queue_name="open")
def pack(lines: list[Line], **more: Any) -> None: ...


@task
def closed(invoice_id: int = 0) -> None: ...


@django_task(queue_name="open")
@job_options(api=True, max_attempts=3)
def django_charge(invoice_id: int) -> None: ...


@django_task
def django_closed(invoice_id: int = 0) -> None: ...
