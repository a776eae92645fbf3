"""The status page, as anybody sees it: it says how the queue is, and nothing that is nobody's business."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from e2e.browser import axe
from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site
from e2e.browser.tabs import WIDTHS, scrolls_sideways

STATUS = "/status/"
# Of the scene: hosts, workers, labels, arguments, messages, paths, who paused a queue and why, tasks' modules.
SECRETS = (
    *(
        "web1",
        "web2",
        "shop.example",
        "anvil",
        "bellows",
        "5f0c2ab1",
        "4121",
        "order 10",
        "sales of week",
        "mail.example",
    ),
    *("/srv/", "tasks.py", "client.py", "ana", "provider is down", "orders.tasks", "Traceback"),
)


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi", "filled")


@pytest.fixture(scope="module")
def empty(open_site: OpenSite) -> Site:
    return open_site("asgi")


@pytest.mark.smoke
def test_it_tells_how_the_queue_is_and_no_secret(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, who=None).goto(STATUS)
    expect(page.get_by_role("rowheader", name="billing")).to_be_visible()
    expect(page.locator("main")).to_contain_text("CardDeclined")
    shown = page.content()
    assert [secret for secret in SECRETS if re.search(rf"\b{re.escape(secret)}|{re.escape(secret)}\b", shown)] == []
    assert not [pk for pk in site.told.values() if re.search(rf"#{pk}\b|/{pk}/", shown)]
    assert page.context.cookies() == []


def test_it_looks_again_by_itself(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, who=None).goto(STATUS)
    page.evaluate("window.marked = true")
    row = page.get_by_role("row", name=re.compile("^letters"))
    expect(row).to_have_count(0)
    site.play("mailed")
    expect(row).to_be_visible()
    assert page.evaluate("window.marked")


def test_somebody_who_wants_it_to_stand_still_can_say_so(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, who=None)
    tab.page.clock.install()
    page = tab.goto(STATUS)
    page.get_by_role("checkbox").uncheck()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(20):
        page.clock.run_for(6_000)
    assert asked == []
    page.get_by_role("checkbox").check()
    with page.expect_response(re.compile(STATUS)):
        page.clock.run_for(6_000)


@pytest.mark.parametrize("is_filled", [True, False], ids=["filled", "empty"])
def test_all_of_it_is_without_a_fault_that_axe_finds(
    site: Site, empty: Site, open_tab: OpenTab, is_filled: bool
) -> None:
    page = open_tab(site if is_filled else empty, who=None).goto(STATUS)
    found = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        found[theme] = axe.faults(page, "html")
    assert found == {"light": [], "dark": []}


@pytest.mark.parametrize("name", WIDTHS)
def test_it_does_not_scroll_sideways(site: Site, open_tab: OpenTab, name: str) -> None:
    page = open_tab(site, who=None, viewport={"width": WIDTHS[name], "height": 844}).goto(STATUS)
    assert scrolls_sideways(page) == []


def test_under_public_there_is_nothing_else(open_site: OpenSite, open_tab: OpenTab) -> None:
    site = open_site("wsgi", "filled", PGQUEUE={"PUBLIC": True})
    tab = open_tab(site, "admin")
    tab.goto("/pgqueue/")
    expect(tab.page.locator("main")).to_contain_text("CardDeclined")
    tab.expects("404")
    for path in ("metrics", "healthz", "api/v1/jobs", "api/v1/openapi.json"):
        tab.goto(f"/pgqueue/{path}", status=404)
