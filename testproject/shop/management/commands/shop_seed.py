"""`manage.py shop_seed`: goods on the shelves and a user for the admin."""

from __future__ import annotations

import secrets
from typing import Any

from django.core.management.base import BaseCommand

from testproject.shop import seed


class Command(BaseCommand):
    help = "Put the goods on the shelves and give the user admin a new password, which is printed."

    def handle(self, *args: Any, **options: Any) -> None:
        password = secrets.token_urlsafe(9)
        seed.admin(password)
        self.stdout.write(f"{len(seed.products())} products; admin login: admin / {password}")
