"""Every page, filled and empty, light and dark: axe finds nothing, and nothing scrolls sideways on any screen."""

from __future__ import annotations

import pytest

from e2e.browser import axe
from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site
from e2e.browser.tabs import WIDTHS, Tab, scrolls_sideways

ADMIN = "/admin/pgqueue_django"
PAGES = {
    "index": f"{ADMIN}/",
    "dashboard": f"{ADMIN}/job/dashboard/",
    "dashboard of a day": f"{ADMIN}/job/dashboard/?window=day",
    "how it works": f"{ADMIN}/job/dashboard/how/",
    "list": f"{ADMIN}/job/",
    "search": f"{ADMIN}/job/?state=dead&q=args.tenant_id:3",
    "problems": f"{ADMIN}/job/problems/",
    "workers": f"{ADMIN}/worker/",
    "queues": f"{ADMIN}/queue/",
    "schedules": f"{ADMIN}/schedule/",
    "audit log": f"{ADMIN}/auditentry/",
}
# Of one job; more than the job itself stands after a slash.
JOBS = (
    "succeeded",
    "dead",
    "failed",
    "retrying",
    "scheduled",
    "queued",
    "running",
    "cancelled",
    "unknown",
    "dead/copy",
)


@pytest.fixture(scope="module")
def filled(open_site: OpenSite) -> Site:
    return open_site("wsgi", "filled", "audited")


@pytest.fixture(scope="module")
def empty(open_site: OpenSite) -> Site:
    return open_site("asgi")


def address(site: Site, page: str) -> str:
    if page in PAGES:
        return PAGES[page]
    job, _, what = page.partition("/")
    return f"{ADMIN}/job/{site.told[job]}/{what or 'change'}/"


# Django's own forms: axe finds faults in them that are not ours.
FORMS = (
    *("schedule/add", "schedule/{schedule}/change", "schedule/{schedule}/delete", "schedule/{schedule}/history"),
    *("queue/add", "queue/mail/change", "queue/mail/history", "worker/{worker}/change", "worker/{worker}/history"),
    *("auditentry/{entry}/change", "auditentry/{entry}/history", "job/{dead}/history"),
)


@pytest.mark.smoke
def test_every_page_keeps_the_policy_and_is_silent(filled: Site, open_tab: OpenTab) -> None:
    tab = open_tab(filled)
    for page in [*PAGES, *JOBS]:
        tab.goto(address(filled, page))
    for form in FORMS:
        tab.goto(f"{ADMIN}/{form.format(**filled.told)}/")


@pytest.mark.parametrize("page", [*PAGES, *JOBS])
def test_a_page_has_no_fault_that_axe_finds(filled: Site, open_tab: OpenTab, page: str) -> None:
    assert faults(open_tab(filled), address(filled, page)) == {"light": [], "dark": []}


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_page_has_no_fault_that_axe_finds(empty: Site, open_tab: OpenTab, page: str) -> None:
    assert faults(open_tab(empty), PAGES[page]) == {"light": [], "dark": []}


def faults(tab: Tab, path: str) -> dict[str, list[str]]:
    shown, found = tab.goto(path), {}
    for theme in ("light", "dark"):
        shown.emulate_media(color_scheme=theme)
        found[theme] = axe.faults(shown)
    return found


@pytest.mark.parametrize("page", [*PAGES, *JOBS])
def test_a_page_does_not_scroll_sideways(filled: Site, open_tab: OpenTab, page: str) -> None:
    tab = open_tab(filled)
    tab.goto(address(filled, page))
    for name, width in WIDTHS.items():
        tab.page.set_viewport_size({"width": width, "height": 844})
        assert scrolls_sideways(tab.page) == [], name


@pytest.mark.parametrize("page", ["dashboard", "how it works", "list", "problems", "dead", "dead/copy"])
def test_a_page_is_right_to_left_where_the_language_is(filled: Site, open_tab: OpenTab, page: str) -> None:
    tab = open_tab(filled, locale="he")
    shown = tab.goto(address(filled, page))
    assert shown.evaluate("getComputedStyle(document.querySelector('#content-main')).direction") == "rtl"
    for name, width in WIDTHS.items():
        shown.set_viewport_size({"width": width, "height": 844})
        assert scrolls_sideways(shown) == [], name
