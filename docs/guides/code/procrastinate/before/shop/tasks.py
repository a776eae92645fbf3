import logging

from orders.models import Order
from partners import BankUnreachable, file_report, send_mail, take_payment
from procrastinate import RetryStrategy
from procrastinate.contrib.django import app

logger = logging.getLogger(__name__)


@app.task(
    queue="billing",
    retry=RetryStrategy(max_attempts=4, exponential_wait=2, retry_exceptions=[BankUnreachable]),
    pass_context=True,
)
def charge(context, *, order_id):
    order = Order.objects.get(pk=order_id)
    logger.info("charging order %s, attempt %s", order_id, context.job.attempts + 1)
    take_payment(f"order-{order.pk}", order.total_cents)
    Order.objects.filter(pk=order_id).update(is_paid=True)


@app.task(queue="mail")
def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    send_mail(order.email, f"Your order {order.pk}")


@app.task(queue="mail", name="newsletter")
def send_newsletter(email, subject):
    send_mail(email, subject)


@app.periodic(cron="0 3 * * *")  # UTC
@app.task
def file_daily_report(timestamp):
    file_report(Order.objects.filter(is_paid=True).count())
