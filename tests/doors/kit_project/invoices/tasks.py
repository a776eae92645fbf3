"""The jobs of the project."""

from datetime import timedelta

from django.db import transaction

from pgqueue_django import Backoff, JobContext, periodic, task

from .models import Invoice


class Busy(Exception):
    """The provider is."""


@task(queue_name="billing", max_attempts=3, takes_context=True, backoff=Backoff(base=60, factor=1, cap=60))
def charge(context: JobContext, number: int, busy_until: int = 1) -> int:
    if context.attempt < busy_until:
        raise Busy
    Invoice.objects.filter(number=number).update(is_paid=True)
    return number


@task
def remind(number: int) -> None:
    invoice = Invoice.objects.get(number=number)
    invoice.reminders += 1
    invoice.save()


@task
async def bill(number: int) -> None:
    await Invoice.objects.acreate(number=number)


@task(atomic=True, timeout=30)
def bill_atomically(number: int) -> None:
    Invoice.objects.create(number=number)


@periodic("0 3 * * *", tz="Europe/Warsaw")
@task
def remind_all() -> None:
    for invoice in Invoice.objects.filter(is_paid=False):
        remind.enqueue(invoice.number)


def make_invoice(number: int) -> None:
    """What a view would do."""
    with transaction.atomic():
        Invoice.objects.create(number=number)
        charge.enqueue(number)
        remind.using(run_after=timedelta(days=14)).enqueue(number)


def make_invoice_later(number: int) -> None:
    """And one that does not trust its own transaction."""
    Invoice.objects.create(number=number)
    transaction.on_commit(lambda: charge.enqueue(number) and None)
