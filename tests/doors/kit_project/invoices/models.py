from django.db import models


class Invoice(models.Model):
    number = models.IntegerField(unique=True)
    is_paid = models.BooleanField(default=False)
    reminders = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"invoice {self.number}"
