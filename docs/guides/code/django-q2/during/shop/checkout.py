from datetime import timedelta

from django.db import transaction

from pgqueue_django import enqueue_many
from shop.jobs import charge, send_newsletter, send_receipt


def place(order):
    with transaction.atomic():
        order.save()
        charge.enqueue(order.pk)  # the jobs exist if and only if the order does
        send_receipt.using(run_after=timedelta(seconds=2)).enqueue(order.pk)


def announce(subject, emails):
    enqueue_many([send_newsletter.call(email, subject) for email in emails])
