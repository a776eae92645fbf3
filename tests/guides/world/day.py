"""``python -m day``: a day in the shop, whatever runs its tasks."""

import django

django.setup()

from orders.models import Order  # noqa: E402
from shop import checkout  # noqa: E402

for number in (1, 2, 3):
    checkout.place(Order(id=number, email=f"customer{number}@example.com", total_cents=1000 * number))
checkout.announce("Winter sale", ["ada@example.com", "bob@example.com", "cyd@example.com"])
