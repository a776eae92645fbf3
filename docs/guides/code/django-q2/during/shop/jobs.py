from orders.models import Order
from partners import CardDeclined, file_report, send_mail, take_payment

from pgqueue_django import Backoff, PermanentError, periodic, task


@task(
    queue_name="billing",
    max_attempts=5,
    backoff=Backoff(base=1, factor=2, cap=600),
    timeout=30,
)
def charge(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    try:
        take_payment(f"order-{order.pk}", order.total_cents)
    except CardDeclined as declined:
        raise PermanentError(f"card declined: {declined}") from declined
    Order.objects.filter(pk=order_id).update(is_paid=True)


@task(queue_name="mail")
def send_receipt(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    send_mail(order.email, f"Your order {order.pk}")


@task(queue_name="mail")
def send_newsletter(email: str, subject: str) -> None:
    send_mail(email, subject)


@periodic("0 3 * * *", tz="Europe/Warsaw")
@task
def file_daily_report() -> None:
    file_report(Order.objects.filter(is_paid=True).count())
