"""The people of the demo: customers who place orders with something like a browser, and a clerk in the office.

What the shop has acknowledged to them, a redirect to a page of its own, goes into a `Ledger`. It is the only
witness of what was ordered that is neither in the queue's tables nor in the shop's.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage
from http.cookiejar import CookieJar
from typing import IO
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener


class NotAcknowledged(Exception):
    """The shop did not answer with the redirect that means yes."""


@dataclass
class Ledger:
    """What the shop has said yes to. Its lists are appended to by several threads."""

    orders: list[str] = field(default_factory=list)
    """Public ids."""
    campaigns: list[int] = field(default_factory=list)
    exports: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What went wrong, when it was not a yes."""


class Browser:
    """Cookies, forms with their CSRF token, and no following of redirects."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()), _StayHere())

    def get(self, path: str) -> str:
        """The page. Raises OSError, of which HTTPError is one."""
        with self._opener.open(self.root + path, timeout=20) as response:
            return str(response.read().decode())

    def submit(self, page: str, action: str, values: Mapping[str, object]) -> str:
        """Fill in the form of `page` that posts to `action`; where the answer redirects to.

        Raises NotAcknowledged for any other answer, and OSError.
        """
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(page))
        if token is None:
            raise NotAcknowledged(f"{page} has no form")
        body = urlencode({**values, "csrfmiddlewaretoken": token[1]}).encode()
        try:
            with self._opener.open(Request(self.root + action, data=body), timeout=20) as response:
                status, location = response.status, None
        except HTTPError as answer:
            status, location = answer.code, answer.headers.get("Location")
            answer.close()
        if status != 302 or location is None:
            raise NotAcknowledged(f"POST {action} answered {status}")
        return str(location)


class _StayHere(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Crowd:
    """Threads that use the shop until `closing` is set, and pause while `open` is not."""

    root: str
    ledger: Ledger
    open: threading.Event
    closing: threading.Event

    def customer(self, *, pause: float, seed: int) -> threading.Thread:
        """Places orders, on average one every `pause` seconds, and looks at each afterwards."""
        dice = random.Random(seed)
        browser = Browser(self.root)

        def buy() -> None:
            fields = re.findall(r'name="(quantity_\d+)"', browser.get("/"))
            basket = dice.sample(fields, min(len(fields), dice.randint(1, 3)))
            number = dice.randrange(10**6)
            location = browser.submit(
                "/",
                "/",
                {
                    "customer": f"Customer {number}",
                    "email": f"customer{number}@mail.example",
                    **{quantity: dice.randint(1, 4) for quantity in basket},
                },
            )
            self.ledger.orders.append(location.strip("/").rpartition("/")[2])
            browser.get(location)

        return self._start(f"customer-{seed}", lambda: dice.expovariate(1 / pause), buy)

    def clerk(self, password: str, *, action: str, every: float, recipients: int = 0) -> threading.Thread:
        """Logs in as admin; every so many seconds sends a newsletter (`campaigns`) or starts an export."""
        browser = Browser(self.root)
        login = "/admin/login/?next=/office/"
        logged_in = False

        def work() -> None:
            nonlocal logged_in
            if not logged_in:
                browser.submit(login, login, {"username": "admin", "password": password})
                logged_in = True
            values = {"subject": "This week", "recipients": recipients} if recipients else {}
            location = browser.submit("/office/", f"/office/{action}/", values)
            ((_, (number,)),) = parse_qs(urlsplit(location).query).items()
            (self.ledger.campaigns if recipients else self.ledger.exports).append(int(number))

        return self._start(f"clerk-{action}", lambda: every, work)

    def _start(self, name: str, pause: Callable[[], float], act: Callable[[], None]) -> threading.Thread:
        def live() -> None:
            while not self.closing.wait(pause()):
                if not self.open.is_set():
                    continue
                try:
                    act()
                except (OSError, NotAcknowledged) as error:
                    self.ledger.refused.append(f"{name}: {error}")

        thread = threading.Thread(target=live, name=name, daemon=True)
        thread.start()
        return thread
