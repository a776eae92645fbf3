"""The net that all other tests hang in catches what it is there for: a page with each fault is one."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route

from e2e.browser import axe
from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site
from e2e.browser.tabs import Tab, scrolls_sideways
from testproject.middleware import POLICY


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi")


def show(tab: Tab, body: str, policy: str = POLICY) -> None:
    """Let the site answer with this page of ours."""

    def answer(route: Route) -> None:
        head = "<!doctype html><html lang=en><title>A page</title><link rel=icon href='data:,'>"
        route.fulfill(
            body=f"{head}<main id=content-main><h1>A page</h1>{body}</main>",
            content_type="text/html",
            headers={"Content-Security-Policy": policy},
        )

    tab.page.route("**/broken/", answer)
    tab.goto("/broken/")


FAULTS = {
    "an inline script": ("<script>document.title = 'run'</script>", POLICY, "CSP: script-src-elem inline"),
    "an inline style": ("<p style='color: red'>red</p>", POLICY, "CSP: style-src-attr inline"),
    "an image of somebody else": ("<img src='http://127.0.0.2:9/a.png' alt=''>", POLICY, "CSP: img-src"),
    "an error that nobody catches": ("<script>throw new Error('lost')</script>", "", "script: lost"),
    "a word on the console": ("<script>console.warn('careful')</script>", "", "warning: careful"),
    "a file that is not there": ("<img src='/static/nowhere.png' alt=''>", "", "404"),
    "somebody else is asked": ("<img src='http://127.0.0.2:9/a.png' alt=''>", "", "asked somebody else"),
    "a script that was let in": ("<script>alert('in')</script>", "", "dialog: in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_page_is_noticed(site: Site, open_tab: OpenTab, fault: str) -> None:
    body, policy, told = FAULTS[fault]
    tab = open_tab(site, who=None)

    show(tab, body, policy)
    tab.page.wait_for_load_state("networkidle")

    assert any(told in noticed for noticed in tab.faults), tab.faults
    tab.faults.clear()


def test_a_page_without_a_fault_has_none(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, who=None)
    show(tab, "<p>Nothing.</p>")
    assert axe.faults(tab.page) == []
    assert scrolls_sideways(tab.page) == []


def test_axe_runs_under_the_policy_and_finds_what_nobody_can_read(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, who=None)
    show(tab, "<img src='data:,'><p><button></button></p>")
    assert [fault.split()[0] for fault in axe.faults(tab.page)] == ["button-name", "image-alt"]


def test_a_page_that_is_too_wide_is_noticed(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, who=None)
    show(tab, "<pre id=wide>" + "w" * 1000 + "</pre>")
    assert "the page" in scrolls_sideways(tab.page)
