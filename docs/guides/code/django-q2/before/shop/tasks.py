from orders.models import Order
from partners import CardDeclined, file_report, send_mail, take_payment


def charge(order_id):
    order = Order.objects.get(pk=order_id)
    try:
        take_payment(f"order-{order.pk}", order.total_cents)
    except CardDeclined as declined:
        return f"card declined: {declined}"  # raised, it would be tried four times more
    Order.objects.filter(pk=order_id).update(is_paid=True)
    return "paid"


def send_receipt(order_id):
    order = Order.objects.get(pk=order_id)
    send_mail(order.email, f"Your order {order.pk}")


def send_newsletter(email, subject):
    send_mail(email, subject)


def file_daily_report():
    file_report(Order.objects.filter(is_paid=True).count())
