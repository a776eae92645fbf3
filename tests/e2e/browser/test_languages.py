"""The pages in other languages: what the dashboard's script writes is in the page's own, in either direction."""

# ruff: noqa: RUF001 - the colon of Chinese

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
    "zh-Hans": ("实时：截至 ", "暂停更新", "时间", "已暂停：截至 ", "继续"),
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
        ".pgq-name, .pgq-tables :is(h2, th, button), .pgq-charts :is(figcaption, .pgq-legend)"
    )].map((node) => node.textContent.replace(/[\\d.,\\u00a0\\s]+/g, " ").trim())"""
    still = open_tab(site, locale=language, java_script_enabled=False).goto(DASHBOARD).evaluate(texts)
    page = open_tab(site, locale=language).goto(DASHBOARD)
    expect(page.locator(".pgq-chart [role=slider]").first).to_be_visible()  # the first frame has made it one
    assert len(still) > 30
    assert page.evaluate(texts) == still


# Texts that begin with a number and go on in English, as "36 min ago": where each of its ends stands.
_ENDS = """() => {
    const found = [], content = document.querySelector("main, #content-main");
    const walk = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
    const place = (node, from, to) => {
        const range = new Range();
        range.setStart(node, from);
        range.setEnd(node, to);
        return range.getBoundingClientRect();
    };
    while (walk.nextNode()) {
        const node = walk.currentNode, parts = /^(\\s*)(\\d+)[ \\u00a0][a-z ]+$/.exec(node.data.trimEnd());
        if (!parts) continue;
        const first = place(node, parts[1].length, parts[1].length + parts[2].length);
        const last = place(node, parts[0].length - 1, parts[0].length);
        if (first.width && last.width && first.top === last.top) found.push([node.data.trim(), first.left < last.left]);
    }
    return found;
}"""


@pytest.mark.parametrize("page", ["dashboard/", "", "problems/", "{dead}/change/", "/status/"])
def test_english_reads_from_left_to_right_in_a_page_that_does_not(site: Site, open_tab: OpenTab, page: str) -> None:
    """Django has languages that this package has no catalogue of."""
    path = page if page.startswith("/") else f"/admin/pgqueue_django/job/{page.format(**site.told)}"
    shown = open_tab(site, locale="he").goto(path)
    assert shown.evaluate("document.documentElement.dir") == "rtl"
    found = shown.evaluate(_ENDS)
    assert found
    assert [text for text, is_right in found if not is_right] == []
