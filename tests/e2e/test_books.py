"""The demo's verdict: right books have no problems, and each way in which a queue could break its word is one."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client

from testproject import books
from testproject.customers import Ledger
from testproject.shop import seed
from testproject.shop.models import Order

pytestmark = pytest.mark.django_db


@pytest.fixture
def mark() -> books.Mark:
    return books.Mark.now()


@pytest.fixture
def ledger(mark: books.Mark, client: Client, admin_client: Client) -> Ledger:
    """One order, one newsletter and one export, all acknowledged."""
    client.post("/", {"customer": "Ada", "email": "ada@mail.example", f"quantity_{seed.products()[0].pk}": 2})
    campaign = admin_client.post("/office/campaigns/", {"subject": "Spring", "recipients": 3})["Location"]
    export = admin_client.post("/office/exports/")["Location"]
    return Ledger(
        orders=[str(Order.objects.get().public_id)],
        campaigns=[int(campaign.rpartition("=")[2])],
        exports=[int(export.rpartition("=")[2])],
    )


def test_right_books_have_no_problems(mark: books.Mark, ledger: Ledger) -> None:
    account = books.balance(mark)

    assert books.problems(mark, ledger) == []
    assert account.jobs_expected == account.jobs_found == books.JOBS_PER_ORDER + 3 + 1
    assert account.states == {"queued": 8, "scheduled": 2}


def test_what_was_there_before_is_not_counted(ledger: Ledger) -> None:
    later = books.Mark.now()

    assert books.balance(later).jobs_expected == books.balance(later).jobs_found == 0
    assert books.problems(later, Ledger()) == []


@pytest.mark.parametrize(
    ("sabotage", "problem"),
    [
        (
            "DELETE FROM pgqueue_job WHERE task LIKE '%book_stock'",
            "1 orders have not all of their jobs",
        ),
        (
            "DELETE FROM pgqueue_job WHERE id = (SELECT max(job_id) FROM shop_delivery)",
            "1 newsletters have not all of their jobs",
        ),
        (
            "DELETE FROM pgqueue_job WHERE task LIKE '%export_sales'",
            "1 exports have no job",
        ),
        (
            "UPDATE shop_order SET public_id = gen_random_uuid()",
            "1 acknowledged orders are not in the database",
        ),
        (
            "UPDATE pgqueue_job SET run_after = now() - interval '1 minute' WHERE state = 'scheduled'",
            "2 jobs wait although their time has come",
        ),
        (
            "UPDATE pgqueue_job SET state = 'running', lease_expires_at = now() - interval '1 minute'"
            " WHERE task LIKE '%send_receipt'",
            "1 jobs run on a lease that has expired",
        ),
        (
            "INSERT INTO shop_stockmovement (line_id, quantity, moved_at)"
            " SELECT id, -2, now() FROM shop_orderline, generate_series(1, 2)",
            "1 orders had their goods booked twice",
        ),
        (
            "UPDATE pgqueue_job SET state = 'succeeded', finished_at = now()",
            "6 jobs succeeded and their work is not there",
        ),
    ],
)
def test_a_broken_promise_is_a_problem(mark: books.Mark, ledger: Ledger, sabotage: str, problem: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sabotage)

    assert books.problems(mark, ledger) == [problem]
