"""What handlers that do real work read and write."""

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=100)
    email = models.EmailField()
    town = models.CharField(max_length=100)
    discount_percent = models.PositiveSmallIntegerField(default=0)

    class Meta:
        db_table = "bench_customer"

    def __str__(self) -> str:
        return self.name


class Receipt(models.Model):
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE)
    order = models.UUIDField()
    total_cents = models.BigIntegerField()
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "bench_receipt"

    def __str__(self) -> str:
        return f"{self.order}"
