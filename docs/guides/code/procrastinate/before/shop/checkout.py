from django.db import transaction

from shop.tasks import charge, send_newsletter, send_receipt


def place(order):
    with transaction.atomic():
        order.save()
        charge.defer(order_id=order.pk)
        send_receipt.configure(schedule_in={"seconds": 2}).defer(order_id=order.pk)


def announce(subject, emails):
    send_newsletter.batch_defer(*({"email": email, "subject": subject} for email in emails))
