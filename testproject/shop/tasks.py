"""The background jobs of the shop.

A handler may run more than once: a worker can be killed after the effect and before the job is settled. So each
of them either repeats harmlessly (a key that the other side knows, a row that exists once) or is `atomic`.
"""

from __future__ import annotations

import smtplib
from dataclasses import dataclass

from django.core.mail import send_mail
from django.db.models import Count, Sum
from django.utils import timezone

from pgqueue_django import Backoff, JobContext, PermanentError, Retry, task

from . import partners, pdf
from .models import (
    Campaign,
    Charge,
    Delivery,
    Export,
    Invoice,
    Order,
    OrderLine,
    Receipt,
    ReviewRequest,
    StockMovement,
    WarehouseNotice,
)

SENDER = "shop@shop.example"
EXPORT_DAYS = 20

quick = Backoff(base=0.5, factor=2, cap=30)


@dataclass(frozen=True)
class CardCharge:
    order_id: int
    amount_cents: int


@task(queue_name="billing", priority=10, max_attempts=8, timeout=15, backoff=quick)
def charge_card(charge: CardCharge) -> dict[str, str]:
    """Takes the money. The processor charges once per key, however often it is asked."""
    try:
        reference = partners.charge_card(f"order-{charge.order_id}", charge.amount_cents)
    except partners.Busy as busy:
        raise Retry("the card processor is busy", delay=busy.retry_after) from busy
    except partners.Declined as declined:
        raise PermanentError(f"card declined: {declined}") from declined
    Charge.objects.get_or_create(
        order_id=charge.order_id,
        defaults={"reference": reference, "amount_cents": charge.amount_cents},
    )
    return {"reference": reference}


@task(queue_name="mail", timeout=20, backoff=quick)
def send_receipt(order_id: int) -> None:
    """Thanks the customer. The mail server often has a bad moment; a second copy would do no harm."""
    order = Order.objects.get(pk=order_id)
    _send(order.email, f"Your order {order.pk}", f"Thank you, {order.customer}: {order.total} in all.")
    Receipt.objects.get_or_create(order=order)


@task(queue_name="documents", api=True)
def make_invoice(order_id: int) -> dict[str, int]:
    """Draws the invoice: work for the processor only."""
    order = Order.objects.get(pk=order_id)
    lines = [f"Invoice {order.pk:08}", order.customer, order.email, ""]
    lines += [
        f"{line.quantity} x {line.product.name}   {line.amount}" for line in order.lines.select_related("product")
    ]
    document = pdf.page([*lines, "", f"Total {order.total}"], pdf.seal(order.pk))
    Invoice.objects.update_or_create(order=order, defaults={"pdf": document})
    return {"bytes": len(document)}


@task(atomic=True, timeout=10)
def book_stock(order_id: int) -> int:
    """Takes the goods from the stock: these rows and the end of this job are one commit, so exactly once."""
    lines = OrderLine.objects.filter(order_id=order_id).order_by("pk")
    movements = [StockMovement(line=line, quantity=-line.quantity) for line in lines]
    return len(StockMovement.objects.bulk_create(movements))


@task(queue_name="partners", max_attempts=4, timeout=2, backoff=quick)
async def tell_warehouse(order_id: int) -> None:
    """Announces the order to a warehouse that often does not answer: then the timeout ends the attempt."""
    await partners.tell_warehouse(order_id)
    await WarehouseNotice.objects.aget_or_create(order_id=order_id)


@task(queue_name="mail", priority=-10, timeout=20, backoff=quick)
def ask_for_review(order_id: int) -> None:
    """Asks what the customer thinks. Enqueued with the order, for a few days later."""
    order = Order.objects.get(pk=order_id)
    _send(order.email, f"How do you like your order {order.pk}?", f"Tell us, {order.customer}!")
    ReviewRequest.objects.get_or_create(order=order)


@task(queue_name="mail", priority=-20, timeout=20, backoff=quick)
def send_newsletter(campaign_id: int, recipient: int) -> None:
    """One copy of a newsletter; they are enqueued many at once and give way to the receipts."""
    campaign = Campaign.objects.get(pk=campaign_id)
    # Every list of addresses has its dead ones.
    domain = "gone.example" if recipient % 50 == 49 else "mail.example"
    _send(f"reader{recipient}@{domain}", campaign.subject, "Everything is cheaper this week.")
    Delivery.objects.filter(campaign=campaign, recipient=recipient).update(delivered_at=timezone.now())


@task(queue_name="reports", takes_context=True)
def export_sales(context: JobContext, export_id: int) -> dict[str, int]:
    """Writes the sales of each product in dollars, at the rates of many days: slow, and says how far it is."""
    sales = list(
        OrderLine.objects.values("product__name")
        .annotate(orders=Count("order_id"), sold=Sum("quantity"))
        .order_by("product__name")
    )
    rows = ["day,product,orders,sold,euro_in_dollars"]
    for day in range(EXPORT_DAYS):
        if context.cancelled:
            break
        rate = partners.exchange_rate(day)
        rows += [f"{day},{row['product__name']},{row['orders']},{row['sold']},{rate}" for row in sales]
        context.progress((day + 1) / EXPORT_DAYS, f"day {day + 1} of {EXPORT_DAYS}")
    content = "\n".join(rows)
    Export.objects.filter(pk=export_id).update(content=content, finished_at=timezone.now())
    return {"rows": len(rows) - 1}


@task(queue_name="reports", timeout=20, api=True)
def count_stock() -> dict[str, int]:
    """What was taken from the shelves so far. On a schedule; repeats harmlessly."""
    taken = StockMovement.objects.aggregate(lines=Count("id"), pieces=Sum("quantity"))
    return {"lines": taken["lines"], "pieces": -(taken["pieces"] or 0)}


@task(queue_name="mail", priority=-30, timeout=20, backoff=quick)
def mail_takings() -> None:
    """Tells the owner what was taken in. On a schedule; a second letter does no harm."""
    cents = Charge.objects.aggregate(all=Sum("amount_cents"))["all"] or 0
    _send("owner@mail.example", "Takings so far", f"{cents / 100:.2f} euro")


def _send(address: str, subject: str, text: str) -> None:
    """Raises PermanentError when the server says that there is no such address."""
    try:
        send_mail(subject, text, SENDER, [address])
    except smtplib.SMTPRecipientsRefused as refused:
        code, reason = refused.recipients[address]
        if code == 550:
            raise PermanentError(f"{address}: {reason.decode(errors='replace')}") from refused
        raise
