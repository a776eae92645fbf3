from datetime import timedelta

from django.tasks import task
from django.utils import timezone
from orders.models import Order
from partners import BankUnreachable, CardDeclined, file_report, send_mail, take_payment


@task(queue_name="billing")
def charge(order_id, attempt=1):
    order = Order.objects.get(pk=order_id)
    try:
        take_payment(f"order-{order.pk}", order.total_cents)
    except BankUnreachable:
        if attempt == 5:
            raise
        again = timezone.now() + timedelta(seconds=2**attempt)
        charge.using(run_after=again).enqueue(order_id, attempt=attempt + 1)
        return
    except CardDeclined:
        return
    Order.objects.filter(pk=order_id).update(is_paid=True)


@task(queue_name="mail")
def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    send_mail(order.email, f"Your order {order.pk}")


@task(queue_name="mail")
def send_newsletter(email, subject):
    send_mail(email, subject)


@task
def file_daily_report():
    file_report(Order.objects.filter(is_paid=True).count())
