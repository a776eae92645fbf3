"""One browser tab, and everything that went wrong in it: any of that fails the test."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request

from e2e.browser.sites import Site

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
MISSING = "there is no Chromium here: apt-get install --no-install-recommends chromium fonts-dejavu-core"

# Before any script of a page. A violation in a report-only policy would not be on the console.
_LISTEN = (
    "addEventListener('securitypolicyviolation', e => console.error(`CSP: ${e.effectiveDirective} ${e.blockedURI}`))"
)

WIDTHS = {"phone": 390, "tablet": 768, "desk": 1280}


def launch(playwright: Playwright) -> Browser:
    """The machine's own Chromium, with a new profile. Without one the test is skipped, in CI it fails."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)
    return playwright.chromium.launch(executable_path=found, args=[*FLAGS])


class Tab:
    """A tab of ``who`` at ``site``; nobody is logged in if that is None."""

    def __init__(self, browser: Browser, site: Site, who: str | None = "admin", **options: Any) -> None:
        options = {"viewport": {"width": WIDTHS["desk"], "height": 900}, "reduced_motion": "reduce", **options}
        self.site = site
        self.faults: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self.context: BrowserContext = browser.new_context(base_url=site.url, **options)
        if who is not None:
            self.context.add_cookies([{"name": "sessionid", "value": site.people[who], "url": site.url}])
        self.context.add_init_script(_LISTEN)
        self.page: Page = self.another()

    def another(self) -> Page:
        """One more tab of the same person and browser."""
        page = self.context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._fault(f"script: {error}"))
        page.on("request", self._asked)
        page.on("dialog", lambda dialog: (self._fault(f"dialog: {dialog.message}"), dialog.dismiss()))
        return page

    def goto(self, path: str, *, status: int = 200) -> Page:
        answer = self.page.goto(path)
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status}"
        return self.page

    def expects(self, *patterns: str) -> None:
        """From here on faults like these are none: for a test that breaks something on purpose."""
        # Not for a block: a word on the console comes when it comes.
        self._expected += map(re.compile, patterns)

    def picture(self, path: Path) -> None:
        for number, page in enumerate(self.context.pages):
            with contextlib.suppress(Exception):  # it may have crashed: that is told already
                page.screenshot(path=path.with_stem(f"{path.stem}-{number}" if number else path.stem), full_page=True)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._fault(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.site.url, "data:")):
            self._fault(f"asked somebody else: {request.url}")

    def _fault(self, text: str) -> None:
        if not any(pattern.search(text) for pattern in self._expected):
            self.faults.append(text)


def scrolls_sideways(page: Page) -> list[str]:
    """What is wider than the window: nothing, or the page and the elements that stand out."""
    return page.evaluate(
        """() => {
            const root = document.documentElement, wide = [];
            if (root.scrollWidth <= root.clientWidth) return wide;
            for (const one of document.body.querySelectorAll("*")) {
                const box = one.getBoundingClientRect();
                if (box.width && (box.right > root.clientWidth + 1 || box.left < -1))
                    wide.push(`${one.tagName.toLowerCase()}#${one.id}.${one.getAttribute("class") || ""}`);
            }
            return ["the page", ...wide.slice(0, 12)];
        }"""
    )
