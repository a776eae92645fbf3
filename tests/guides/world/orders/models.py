"""What the shop of the guides sells is no matter; that it was paid for, is."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    email = models.EmailField()
    total_cents = models.PositiveIntegerField()
    is_paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"
