"""Texts that would run, or break out of where they stand, are shown as they are: by the server and by the script."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site

ADMIN = "/admin/pgqueue_django"
DASHBOARD = f"{ADMIN}/job/dashboard/"
PAGES = (
    *(f"{ADMIN}/{page}/" for page in ("job", "job/problems", "worker", "queue", "schedule", "auditentry")),
    *(DASHBOARD, "/status/"),
)
SCRIPT = "<script>alert(1)</script>"
# What none of our pages has, and nearly all of the texts would bring.
FOREIGN = (
    "iframe, base, marquee, [onload], [onerror], [onmouseover], [onfocus], [style*=fixed], [src=x], [href^='java' i]"
)


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi", "hostile")


def foreign(page: Page) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll(`{FOREIGN}`)].map(one => one.outerHTML)")  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_them_as_texts(site: Site, open_tab: OpenTab, path: str) -> None:
    page = open_tab(site).goto(path)
    assert foreign(page) == []
    expect(page.locator("main").first).to_be_visible()


@pytest.mark.parametrize("what", ["change", "copy"])
def test_the_page_of_a_job_shows_its_own_as_texts(site: Site, open_tab: OpenTab, what: str) -> None:
    tab = open_tab(site)
    for pk in site.told.values():
        page = tab.goto(f"{ADMIN}/job/{pk}/{what}/")
        assert foreign(page) == []


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_the_dashboards_script_writes_them_as_texts(open_site: OpenSite, open_tab: OpenTab, kind: str) -> None:
    site = open_site(kind, PGQUEUE={"LIVE": "sse"} if kind == "asgi" else {})
    page = open_tab(site).goto(DASHBOARD)
    expect(page.locator('[data-table="running"] tbody tr')).to_have_count(0)

    site.play("hostile")

    for table in ("running", "failed", "workers", "queues", "schedules"):
        expect(page.locator(f'[data-table="{table}"] tbody tr').nth(10)).to_be_visible()
    expect(page.locator('[data-table="failed"]')).to_contain_text("undefined")
    expect(page.locator('[data-table="running"]')).to_contain_text(SCRIPT)
    assert foreign(page) == []
