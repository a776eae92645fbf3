"""The companies that the shop talks to: real network calls, and what their answers mean."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from django.conf import settings

TIMEOUT = 5.0


class Busy(Exception):
    """The partner asks to be called again after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"busy, try again in {retry_after:g} s")
        self.retry_after = retry_after


class Declined(Exception):
    """The bank says no, and will say so again."""


def charge_card(key: str, amount_cents: int) -> str:
    """Charge a card; the processor's reference. Calls with the same key charge once.

    Raises Busy (429), Declined (402), and OSError for everything that may go better the next time.
    """
    request = Request(
        f"{settings.SHOP['CARDS_URL']}/charges",
        data=json.dumps({"amount_cents": amount_cents}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )
    try:
        with urlopen(request, timeout=TIMEOUT) as response:
            return str(json.load(response)["reference"])
    except HTTPError as error:
        if error.code == 429:
            raise Busy(float(error.headers.get("Retry-After", 1))) from error
        if error.code == 402:
            raise Declined(json.load(error)["reason"]) from error
        raise


def exchange_rate(day: int) -> float:
    """Dollars per euro, so many days ago. Slow. Raises OSError."""
    with urlopen(f"{settings.SHOP['RATES_URL']}/rates/{day}", timeout=TIMEOUT) as response:
        return float(json.load(response)["rate"])


async def tell_warehouse(order_id: int) -> None:
    """Post one order to the warehouse. Has no timeout of its own: the caller brings one.

    Raises OSError or HTTPException when the warehouse did not accept it.
    """
    url = urlsplit(f"{settings.SHOP['WAREHOUSE_URL']}/shipments")
    body = json.dumps({"order": order_id}).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(
            f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        status_line = (await reader.readline()).decode().split(maxsplit=2)
    finally:
        writer.close()
    if len(status_line) < 2 or not status_line[1].startswith("2"):
        raise HTTPException(f"the warehouse answered {' '.join(status_line) or 'nothing'}")
