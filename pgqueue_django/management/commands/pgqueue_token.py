"""``manage.py pgqueue_token``: make a bearer token for the JSON API."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from argparse import ArgumentParser, ArgumentTypeError
from datetime import date
from typing import Any

from pgqueue_django import conf
from pgqueue_django.management.arguments import SuggestingCommand


def _name(text: str) -> str:
    if not re.fullmatch(conf.ACTOR_NAME, text):
        raise ArgumentTypeError(f"{text!r} is no name: give 1 to 100 letters, digits, '_', '.', '@' or '-'")
    return text


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no day: give one such as 2027-12-31") from None


class Command(SuggestingCommand):
    help = (
        "Make a bearer token for the JSON API. It is shown this once and stored nowhere; the settings get its SHA-256, "
        "which opens nothing."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", type=_name, metavar="NAME", help="who will use it: it is shown to people")
        parser.add_argument(
            "--right", action="append", required=True, choices=conf.RIGHTS, help="what it may do; give several"
        )
        parser.add_argument("--expires", type=_day, metavar="DAY", help="the first day (UTC) on which it is void")

    def handle(self, **given: Any) -> None:
        token = f"pgq_{secrets.token_urlsafe(32)}"
        entry = {
            "sha256": hashlib.sha256(token.encode()).hexdigest(),
            "rights": list(dict.fromkeys(given["right"])),
            "expires": given["expires"],
        }
        self.stdout.write(f"Give this to {given['name']}; it is not shown again:\n\n    {token}\n")
        self.stdout.write('And put this into settings.PGQUEUE["API_TOKENS"]:\n')
        self.stdout.write(f"    {json.dumps(given['name'])}: {_python(entry)},")


def _python(value: Any) -> str:
    return json.dumps(value).replace('"expires": null', '"expires": None')
