import logging

from celery import shared_task
from orders.models import Order
from partners import BankUnreachable, file_report, send_mail, take_payment

logger = logging.getLogger(__name__)


@shared_task(bind=True, autoretry_for=(BankUnreachable,), retry_backoff=True, max_retries=4, time_limit=30)
def charge(self, order_id):
    order = Order.objects.get(pk=order_id)
    logger.info("charging order %s, attempt %s", order_id, self.request.retries + 1)
    take_payment(f"order-{order.pk}", order.total_cents)
    Order.objects.filter(pk=order_id).update(is_paid=True)


@shared_task
def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    send_mail(order.email, f"Your order {order.pk}")


@shared_task
def send_newsletter(email, subject):
    send_mail(email, subject)


@shared_task
def file_daily_report():
    file_report(Order.objects.filter(is_paid=True).count())
