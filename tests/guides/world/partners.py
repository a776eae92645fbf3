"""Those whom the shop of the guides talks to. Each writes down what reached it: the ledger that tests compare.

On a connection of its own, in autocommit: whatever becomes of a task's transaction, a partner has been called.
"""

from __future__ import annotations

import os

import psycopg


class CardDeclined(Exception):
    """The bank says no, and will say so again."""


class BankUnreachable(ConnectionError):
    """The bank says nothing; it may answer the next time."""


def take_payment(reference: str, amount_cents: int) -> None:
    """Once per reference, however often it is asked. The second order's bank does not answer at first."""
    attempt = 1 + _times(reference)
    if reference == "order-2" and attempt == 1:
        _write("unreachable", f"{reference}, attempt {attempt}")
        raise BankUnreachable("the bank does not answer")
    if reference == "order-3":
        _write("declined", f"{reference}, attempt {attempt}")
        raise CardDeclined("insufficient funds")
    _write("paid", f"{reference}, {amount_cents} cents, attempt {attempt}")


def send_mail(to: str, subject: str) -> None:
    _write("mail", f"{to}: {subject}")


def file_report(paid: int) -> None:
    _write("report", f"{paid} orders are paid")


def _write(what: str, about: str) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("INSERT INTO ledger (what, about) VALUES (%s, %s)", [what, about])


def _times(reference: str) -> int:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM ledger WHERE about LIKE %s", [f"{reference},%"]).fetchone()
        return row[0] if row else 0
