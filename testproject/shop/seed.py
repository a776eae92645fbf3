"""The goods of the shop and a person who may look behind the counter."""

from __future__ import annotations

from django.contrib.auth import get_user_model

from .models import Product

GOODS = [
    ("Ferry kettle", "Enamelled steel, sings a minor third at the boil.", 4290),
    ("Harbour lamp", "A brass lantern that never saw a harbour, with a warm bulb.", 8900),
    ("Linen map", "The coast from Cuxhaven to Skagen, printed on cloth.", 3450),
    ("Oak stool", "Three legs, so it never wobbles.", 12900),
    ("Rope doormat", "Knotted by hand from retired mooring lines.", 5600),
    ("Tide clock", "Tells when to go for a walk, not when to go to work.", 7800),
]


def products() -> list[Product]:
    """All goods of the shop, put on the shelf if they are not there."""
    return [
        Product.objects.get_or_create(name=name, defaults={"description": description, "price_cents": price_cents})[0]
        for name, description, price_cents in GOODS
    ]


def admin(password: str) -> None:
    """The superuser `admin`, made if there is none, with this password from now on."""
    user, _ = get_user_model().objects.get_or_create(
        username="admin", defaults={"is_staff": True, "is_superuser": True, "email": "admin@shop.example"}
    )
    user.set_password(password)
    user.save()
