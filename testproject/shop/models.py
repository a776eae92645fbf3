"""What the shop sells, what was ordered, and what its jobs have done: each handler leaves a row here."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from django.db import models
from django.urls import reverse

if TYPE_CHECKING:
    from pgqueue_django import Enqueued


def money(cents: int) -> str:
    return f"{cents / 100:,.2f} €"


class Product(models.Model):
    name = models.CharField(max_length=80, unique=True)
    description = models.CharField(max_length=200)
    price_cents = models.PositiveIntegerField()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def price(self) -> str:
        return money(self.price_cents)


class Order(models.Model):
    # In the address of the order's page: a number that can be guessed would show the orders of others.
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    customer = models.CharField(max_length=80)
    email = models.EmailField()
    total_cents = models.PositiveIntegerField()
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"Order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=[self.public_id])

    @property
    def total(self) -> str:
        return money(self.total_cents)

    def remember(self, *jobs: Enqueued) -> None:
        """Note the jobs of this order, so that its page can show them and the demo can miss none."""
        OrderJob.objects.bulk_create(OrderJob(order=self, job_id=job.id) for job in jobs)


class OrderLine(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveSmallIntegerField()
    price_cents = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product_id}"

    @property
    def amount(self) -> str:
        return money(self.quantity * self.price_cents)


class OrderJob(models.Model):
    """One job of one order. Not a foreign key: the queue prunes its rows, the shop keeps its own."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="jobs")
    job_id = models.BigIntegerField(unique=True)

    def __str__(self) -> str:
        return f"job {self.job_id} of order {self.order_id}"


class Charge(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="charge")
    reference = models.CharField(max_length=40)
    amount_cents = models.PositiveIntegerField()
    charged_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.reference


class Receipt(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="receipt")
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt of order {self.order_id}"


class Invoice(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="invoice")
    pdf = models.BinaryField()
    made_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"invoice of order {self.order_id}"


class StockMovement(models.Model):
    """Goods leaving the stock. Without a unique constraint on purpose: the atomic task must write it once."""

    line = models.ForeignKey(OrderLine, on_delete=models.CASCADE, related_name="movements")
    quantity = models.IntegerField()
    moved_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.quantity} for line {self.line_id}"


class WarehouseNotice(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="warehouse_notice")
    accepted_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"warehouse notice of order {self.order_id}"


class ReviewRequest(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="review_request")
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"review request of order {self.order_id}"


class Campaign(models.Model):
    """A newsletter to many recipients: one job each."""

    subject = models.CharField(max_length=80)
    recipients = models.PositiveIntegerField()
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.subject

    @property
    def delivered(self) -> int:
        return self.deliveries.filter(delivered_at__isnull=False).count()


class Delivery(models.Model):
    """One copy of a newsletter, delivered when the mail server has taken it."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="deliveries")
    recipient = models.PositiveIntegerField()
    job_id = models.BigIntegerField()
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=["campaign", "recipient"], name="shop_delivery_once")]

    def __str__(self) -> str:
        return f"{self.campaign_id} to {self.recipient}"


class Export(models.Model):
    """A sheet of the sales, made by a slow job."""

    job_id = models.BigIntegerField(null=True)
    requested_at = models.DateTimeField(auto_now_add=True)
    content = models.TextField(blank=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"Export {self.pk}"
