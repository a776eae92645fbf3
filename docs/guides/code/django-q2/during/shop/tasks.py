from shop import jobs


def charge(order_id):
    jobs.charge.enqueue(order_id)


def send_receipt(order_id):
    jobs.send_receipt.enqueue(order_id)


def send_newsletter(email, subject):
    jobs.send_newsletter.enqueue(email, subject)
