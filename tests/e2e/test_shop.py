"""The shop: its pages enqueue in the transaction of the order, its handlers read what the outside world says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import Client, override_settings

from pgqueue_django import PermanentError, Retry, Task
from pgqueue_django.models import Job
from testproject.books import JOBS_PER_ORDER
from testproject.outside import Mood
from testproject.shop import seed, tasks
from testproject.shop.models import Campaign, Charge, Delivery, Invoice, Order, Product, StockMovement

CHECKOUT = Path(__file__).resolve().parents[2]

Outside = Callable[..., None]


@pytest.fixture
def outside() -> Iterator[Outside]:
    """Starts an outside world in which nothing goes wrong but what is asked for; the shop is pointed to it."""
    with ExitStack() as stack:

        def start(**mood: float) -> None:
            rates = {field.name: 0.0 for field in fields(Mood) if field.name != "SEED"} | mood
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "testproject.outside", "--http-port", "0", "--smtp-port", "0"],
                    cwd=CHECKOUT,
                    env={**os.environ, **{f"DEMO_{name}": str(rate) for name, rate in rates.items()}},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            url = f"http://127.0.0.1:{ports['http']}"
            stack.enter_context(
                override_settings(
                    SHOP={"CARDS_URL": url, "WAREHOUSE_URL": url, "RATES_URL": url},
                    EMAIL_BACKEND="django.core.mail.backends.smtp.EmailBackend",
                    EMAIL_PORT=ports["smtp"],
                )
            )

        yield start


@pytest.fixture
def order(db: None) -> Order:
    kettle, lamp = seed.products()[:2]
    order = Order.objects.create(customer="Ada (née Byron)", email="ada@mail.example", total_cents=17480)
    order.lines.create(product=kettle, quantity=2, price_cents=kettle.price_cents)
    order.lines.create(product=lamp, quantity=1, price_cents=lamp.price_cents)
    return order


def basket(**more: object) -> dict[str, object]:
    return {"customer": "Ada", "email": "ada@mail.example", f"quantity_{seed.products()[0].pk}": 2, **more}


# Pages -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_order_is_placed_with_all_of_its_jobs(client: Client) -> None:
    answer = client.post("/", basket())

    order = Order.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == order.get_absolute_url()
    assert order.total_cents == 2 * seed.GOODS[0][2]
    jobs = Job.objects.filter(pk__in=order.jobs.values("job_id"))
    assert {job.task.rpartition(".")[2]: job.state for job in jobs} == {
        "charge_card": "queued",
        "book_stock": "queued",
        "send_receipt": "queued",
        "make_invoice": "queued",
        "tell_warehouse": "scheduled",
        "ask_for_review": "scheduled",
    }
    assert jobs.count() == JOBS_PER_ORDER


@pytest.mark.django_db(transaction=True)
def test_an_order_that_is_not_written_leaves_no_job(client: Client) -> None:
    values = basket()
    with connection.cursor() as cursor:  # the last thing that the view writes fails
        cursor.execute("ALTER TABLE shop_orderjob ADD CONSTRAINT nothing_goes CHECK (id IS NULL) NOT VALID")
    try:
        client.raise_request_exception = False
        assert client.post("/", values).status_code == 500
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE shop_orderjob DROP CONSTRAINT nothing_goes")

    assert not Order.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("mistake", [{"email": "nobody"}, {"customer": ""}, {"quantity": None}])
def test_a_wrong_order_is_refused_and_starts_nothing(client: Client, mistake: dict[str, object]) -> None:
    values = basket() | mistake
    if "quantity" in mistake:
        values = {name: value for name, value in values.items() if not name.startswith("quantity")}

    answer = client.post("/", values)

    assert answer.status_code == 400
    assert "errorlist" in answer.content.decode()
    assert not Order.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_the_page_of_an_order_shows_its_jobs(client: Client) -> None:
    page = client.get(client.post("/", basket())["Location"]).content.decode()

    assert "charge card" in page
    assert page.count('class="state queued"') == 4
    assert page.count('class="state scheduled"') == 2
    assert 'http-equiv="refresh"' in page


@pytest.mark.django_db
def test_pages_send_a_strict_policy_and_keep_to_it(client: Client, admin_client: Client) -> None:
    pages = [
        client.get("/"),
        client.get(client.post("/", basket())["Location"]),
        admin_client.get("/office/"),
    ]
    for page in pages:
        assert "'unsafe" not in page["Content-Security-Policy"]
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style| style=| on\w+=", page.content.decode())


@pytest.mark.django_db
def test_a_newsletter_is_a_job_for_every_reader(admin_client: Client) -> None:
    answer = admin_client.post("/office/campaigns/", {"subject": "Spring", "recipients": 120})

    campaign = Campaign.objects.get()
    assert answer["Location"] == f"/office/?campaign={campaign.pk}"
    assert Delivery.objects.filter(campaign=campaign).count() == 120
    assert Job.objects.filter(pk__in=Delivery.objects.values("job_id")).count() == 120


@pytest.mark.django_db
def test_customers_do_not_get_into_the_office(client: Client) -> None:
    for path in ("/office/", "/office/campaigns/", "/office/exports/", "/office/exports/1.csv"):
        assert client.get(path)["Location"].startswith("/admin/login/")


# Handlers ----------------------------------------------------------------------------------------------------


def handler(task: Task[..., Any]) -> Callable[..., Any]:
    assert task.func is not None
    return task.func


def test_a_card_is_charged_once_however_often_it_is_asked(order: Order, outside: Outside) -> None:
    outside()
    charge = tasks.CardCharge(order.pk, order.total_cents)

    first, second = handler(tasks.charge_card)(charge), handler(tasks.charge_card)(charge)

    assert first == second == {"reference": Charge.objects.get(order=order).reference}


def test_a_busy_processor_says_when_to_come_back(order: Order, outside: Outside) -> None:
    outside(CARD_BUSY=1)
    with pytest.raises(Retry) as retry:
        handler(tasks.charge_card)(tasks.CardCharge(order.pk, 100))
    assert retry.value.delay == 1


def test_a_declined_card_is_not_tried_again(order: Order, outside: Outside) -> None:
    outside(CARD_DECLINED=1)
    with pytest.raises(PermanentError, match="insufficient funds"):
        handler(tasks.charge_card)(tasks.CardCharge(order.pk, 100))
    assert not Charge.objects.exists()


def test_a_broken_processor_is_an_error_like_any_other(order: Order, outside: Outside) -> None:
    outside(CARD_ERROR=1)
    with pytest.raises(OSError, match="500"):
        handler(tasks.charge_card)(tasks.CardCharge(order.pk, 100))


def test_a_receipt_goes_out_by_smtp(order: Order, outside: Outside) -> None:
    outside()
    handler(tasks.send_receipt)(order.pk)
    assert order.receipt


def test_an_address_that_is_gone_is_not_tried_again(db: None, outside: Outside) -> None:
    outside()
    campaign = Campaign.objects.create(subject="Spring", recipients=50)
    with pytest.raises(PermanentError, match=r"reader49@gone\.example: no such address"):
        handler(tasks.send_newsletter)(campaign.pk, 49)


@pytest.mark.parametrize("trouble", ["MAIL_BUSY", "MAIL_CUT"])
def test_a_mail_server_in_trouble_is_an_error_like_any_other(order: Order, outside: Outside, trouble: str) -> None:
    outside(**{trouble: 1})
    with pytest.raises(OSError):
        handler(tasks.send_receipt)(order.pk)


def test_the_warehouse_accepts_an_order(order: Order, outside: Outside) -> None:
    outside()
    async_to_sync(handler(tasks.tell_warehouse))(order.pk)
    order.refresh_from_db()
    assert order.warehouse_notice


def test_a_silent_warehouse_is_left_to_the_timeout_of_the_task(outside: Outside) -> None:
    outside(WAREHOUSE_SILENT=1)

    async def wait() -> None:
        async with asyncio.timeout(0.2):
            await handler(tasks.tell_warehouse)(1)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())


def test_an_invoice_is_a_pdf_that_names_customer_and_total(order: Order, client: Client) -> None:
    handler(tasks.make_invoice)(order.pk)

    answer = client.get(f"{order.get_absolute_url()}invoice.pdf")
    document = bytes(Invoice.objects.get(order=order).pdf)
    assert answer["Content-Type"] == "application/pdf"
    assert answer.content == document
    streams = [zlib.decompress(packed) for packed in re.findall(rb"stream\n(.*?)\nendstream", document, re.DOTALL)]
    assert "Ada \\(née Byron\\)".encode("cp1252") in streams[-1]
    assert "174.80 €".encode("cp1252") in streams[-1]
    # Every offset of the table is where its object begins.
    table = document[int(document.split()[-2]) :]
    offsets = [int(line.split()[0]) for line in table.splitlines()[3:9]]
    assert [document[offset : offset + 7] for offset in offsets] == [b"%d 0 obj" % n for n in range(1, 7)]


def test_goods_are_booked_line_by_line(order: Order) -> None:
    assert handler(tasks.book_stock)(order.pk) == 2
    assert sorted(StockMovement.objects.values_list("quantity", flat=True)) == [-2, -1]


# Seed --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_goods_are_put_on_the_shelves_once() -> None:
    assert seed.products() == seed.products()
    assert Product.objects.count() == len(seed.GOODS)
