from celery import group
from django.db import transaction

from shop.tasks import charge, send_newsletter, send_receipt


def place(order):
    with transaction.atomic():
        order.save()
        charge.delay_on_commit(order.pk)
        transaction.on_commit(lambda: send_receipt.apply_async([order.pk], countdown=2))


def announce(subject, emails):
    group(send_newsletter.s(email, subject) for email in emails).delay()
