from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from django_q.models import Schedule
from django_q.tasks import async_iter, async_task, schedule


def place(order):
    with transaction.atomic():
        order.save()
        async_task("shop.tasks.charge", order.pk)
        soon = timezone.now() + timedelta(seconds=2)
        schedule("shop.tasks.send_receipt", order.pk, schedule_type=Schedule.ONCE, next_run=soon)


def announce(subject, emails):
    async_iter("shop.tasks.send_newsletter", [(email, subject) for email in emails])


def report_daily():
    schedule("shop.tasks.file_daily_report", name="daily report", schedule_type=Schedule.CRON, cron="0 3 * * *")
