from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from shop.tasks import charge, send_newsletter, send_receipt


def place(order):
    with transaction.atomic():
        order.save()
        charge.enqueue(order.pk)
        send_receipt.using(run_after=timezone.now() + timedelta(seconds=2)).enqueue(order.pk)


def announce(subject, emails):
    for email in emails:
        send_newsletter.enqueue(email, subject)
