from celery import shared_task

from shop import jobs


@shared_task(bind=True)
def charge(self, order_id):
    jobs.charge.using(idempotency_key=self.request.id).enqueue(order_id)


@shared_task(bind=True)
def send_receipt(self, order_id):
    jobs.send_receipt.using(idempotency_key=self.request.id).enqueue(order_id)


@shared_task(bind=True)
def send_newsletter(self, email, subject):
    jobs.send_newsletter.using(idempotency_key=self.request.id).enqueue(email, subject)
