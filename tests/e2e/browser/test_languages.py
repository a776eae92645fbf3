"""The dashboard in other languages: what its script writes is in the page's language, and so are its numbers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site

DASHBOARD = "/admin/pgqueue_django/job/dashboard/"


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi", "filled")


# What the script says: that the page is live, the button, the first column of a chart's table, that it is paused.
SAID = {
    "de": ("Live: Stand ", "Aktualisierung anhalten", "Zeit", "Angehalten: Stand ", "Fortsetzen"),
    "pl": ("Na żywo: stan na ", "Wstrzymaj aktualizacje", "Czas", "Wstrzymano: stan na ", "Wznów"),
    "zh-Hans": ("实时：截至 ", "暂停更新", "时间", "已暂停：截至 ", "继续"),  # noqa: RUF001
    "he": ("Live: as of ", "Pause updates", "Time", "Paused: as of ", "Go on"),  # it has no words of ours
}


@pytest.mark.parametrize("language", SAID)
def test_the_script_writes_in_the_language_of_the_page(site: Site, open_tab: OpenTab, language: str) -> None:
    live, pause, moment, paused, resume = SAID[language]
    page = open_tab(site, locale=language).goto(DASHBOARD)
    status, button = page.locator("[data-part=status]"), page.locator("[data-part=pause]")
    expect(status).to_have_text(re.compile(rf"^{live}\d\d:\d\d:\d\d$"))
    expect(button).to_have_text(pause)
    chart = page.locator(".pgq-chart[data-key=run]")
    chart.locator("summary").click()
    expect(chart.locator("thead th").first).to_have_text(moment)
    button.click()
    expect(status).to_have_text(re.compile(rf"^{paused}\d\d:\d\d:\d\d$"))
    expect(button).to_have_text(resume)
    direction = page.evaluate("document.documentElement.dir")
    assert direction == ("rtl" if language == "he" else "ltr")


@pytest.mark.parametrize("language", SAID)
def test_a_frame_says_what_the_page_has_said(site: Site, open_tab: OpenTab, language: str) -> None:
    """Words for words: of what counts on the numbers may be others."""
    texts = """() => [...document.querySelectorAll(
        ".pgq-tiles .pgq-name, .pgq-tables :is(h2, th, button), .pgq-charts :is(figcaption, .pgq-legend)"
    )].map((node) => node.textContent.replace(/[\\d.,\\u00a0\\s]+/g, " ").trim())"""
    still = open_tab(site, locale=language, java_script_enabled=False).goto(DASHBOARD).evaluate(texts)
    page = open_tab(site, locale=language).goto(DASHBOARD)
    expect(page.locator(".pgq-chart [role=slider]").first).to_be_visible()  # the first frame has made it one
    assert len(still) > 30
    assert page.evaluate(texts) == still
