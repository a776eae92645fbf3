"""The dashboard keeps itself up to date, by asking and by a stream, and says so when it cannot."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, Route, expect

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site
from testproject import localdb

DASHBOARD = "/admin/pgqueue_django/job/dashboard/"
LIST = "/admin/pgqueue_django/job/"
FRAME, STREAM = re.compile(r"/frame\.json"), re.compile(r"/stream/")
KINDS = {"asked": ("wsgi", {}), "streamed": ("asgi", {"LIVE": "sse"})}

# The tests' words for what the page calls so.
BANNER, PAUSE, STATUS = ('[data-part="banner"]', '[data-part="pause"]', '[data-part="status"]')


def tile(page: Page, key: str) -> str:
    return page.locator(f'[data-part="tiles"] [data-key="{key}"] strong').inner_text()


def mark(page: Page) -> None:
    """A page that is loaded anew has lost it."""
    page.evaluate("window.marked = true")


def is_marked(page: Page) -> bool:
    return bool(page.evaluate("window.marked"))


class Asked:
    """How often a page has asked for what has such an address."""

    def __init__(self, page: Page, address: re.Pattern[str]) -> None:
        self.count = 0
        self._address = address
        page.on("request", self._hear)

    def _hear(self, request: Request) -> None:
        self.count += bool(self._address.search(request.url))


@pytest.fixture(scope="module", params=KINDS)
def live(open_site: OpenSite, request: pytest.FixtureRequest) -> Site:
    """A site with jobs, for both kinds of the page."""
    interface, changes = KINDS[request.param]
    return open_site(interface, "filled", PGQUEUE=changes)


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi", "filled")


# -- up to date -------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_steps_are_ticked_off_and_the_first_job_is_seen(
    open_site: OpenSite, open_tab: OpenTab, kind: str
) -> None:
    interface, changes = KINDS[kind]
    site = open_site(interface, PGQUEUE=changes)
    page = open_tab(site).goto(DASHBOARD)
    steps = page.locator('[data-part="checklist"] li')
    expect(steps.filter(has_text="pgqueue_worker")).not_to_have_class(re.compile("pgq-done"))
    mark(page)

    site.work()
    expect(steps.filter(has_text="pgqueue_worker")).to_have_class(re.compile("pgq-done"))
    expect(page.locator('[data-table="workers"] tbody tr')).to_contain_text("anvil")

    # The tile falls back to nothing when the jobs are done: what it has shown is written down.
    page.locator('[data-part="tiles"] [data-key="done"] strong').evaluate(
        """tile => {
            window.shown = [];
            new MutationObserver(() => shown.push(tile.textContent)).observe(
                tile, {characterData: true, childList: true, subtree: true});
        }"""
    )
    site.play("busy")
    expect(page.locator('[data-part="checklist"]')).to_be_hidden()
    expect(page.locator('[data-table="queues"] [data-key="queue-billing"]')).to_be_visible()
    expect(page.locator('[data-part="feed"]')).to_contain_text("succeeded")
    assert set(page.evaluate("shown")) - {"0.0"}
    assert is_marked(page), "the page was loaded again"


def test_what_changes_is_shown_without_loading_the_page_again(live: Site, open_tab: OpenTab) -> None:
    page = open_tab(live).goto(DASHBOARD)
    mark(page)
    waiting = page.locator('[data-part="tiles"] [data-key="waiting"] strong')
    before = int(waiting.inner_text())

    live.play("one")

    expect(waiting).to_have_text(str(before + 1))
    assert is_marked(page)


def test_a_stream_is_there_only_where_it_was_asked_for(live: Site, open_tab: OpenTab) -> None:
    tab = open_tab(live)
    streams = Asked(tab.page, STREAM)
    frames = Asked(tab.page, FRAME)
    tab.goto(DASHBOARD)
    before = int(tile(tab.page, "waiting"))
    live.play("one")
    expect(tab.page.locator('[data-part="tiles"] [data-key="waiting"] strong')).to_have_text(str(before + 1))

    is_streamed = live.interface == "asgi"
    assert streams.count == is_streamed
    assert frames.count >= (1 if is_streamed else 2)


def test_an_update_leaves_the_focus_and_what_was_typed(live: Site, open_tab: OpenTab) -> None:
    page = open_tab(live).goto(DASHBOARD)
    page.locator('[data-table="queues"] [data-key="queue-billing"] summary').click()
    reason = page.locator('[data-table="queues"] [data-key="queue-billing"] input[name="reason"]')
    reason.fill("the provider")
    before = int(tile(page, "waiting"))

    live.play("one")

    expect(page.locator('[data-part="tiles"] [data-key="waiting"] strong')).to_have_text(str(before + 1))
    expect(reason).to_be_focused()
    expect(reason).to_have_value("the provider")


def test_what_somebody_has_opened_stays_open_when_other_buttons_come(live: Site, open_tab: OpenTab) -> None:
    page = open_tab(live).goto(DASHBOARD)
    queue = page.locator('[data-table="queues"] [data-key="queue-partners"]')
    queue.locator("summary").click()
    queue.locator('input[name="reason"]').fill("the provider")
    page.locator("h1").click()  # away with the focus
    live.rows(
        "INSERT INTO pgqueue_job (task, queue_name, state, finished_at) "
        "VALUES ('orders.tasks.gone', 'partners', 'dead', statement_timestamp())"
    )
    expect(queue.locator("td").nth(5)).to_contain_text("1")
    expect(queue.locator('input[name="reason"]')).to_have_value("the provider")
    expect(queue.locator('input[name="reason"]')).to_be_visible()


def test_the_page_is_whole_without_javascript(live: Site, open_tab: OpenTab) -> None:
    page = open_tab(live, java_script_enabled=False).goto(DASHBOARD)
    expect(page.locator('[data-part="tiles"] li')).to_have_count(7)
    expect(page.locator('[data-table="running"] tbody tr')).to_have_count(3)
    assert page.locator('.pgq-chart[data-key="throughput"] g path').count() == 2


# -- stopped ----------------------------------------------------------------------------------------------------


def test_a_page_that_is_paused_asks_for_nothing_and_stays_so(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site)
    tab.page.clock.install()
    frames = Asked(tab.page, FRAME)
    page = tab.goto(DASHBOARD)
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)

    page.locator(PAUSE).click()
    asked = frames.count
    page.clock.run_for(120_000)
    assert frames.count == asked
    expect(page.locator(STATUS)).to_have_attribute("data-state", "paused")

    page.reload()
    expect(page.locator(STATUS)).to_have_attribute("data-state", "paused")
    page.locator(PAUSE).click()
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)
    expect(page.locator(STATUS)).to_have_attribute("data-state", "live")


def test_a_tab_that_is_hidden_asks_for_nothing(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site)
    tab.page.clock.install()
    frames = Asked(tab.page, FRAME)
    page = tab.goto(DASHBOARD)
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)

    # Playwright's tabs all count as seen.
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})")
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    asked = frames.count
    page.clock.run_for(120_000)
    assert frames.count == asked

    with page.expect_response(FRAME):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        page.clock.run_for(3_000)


def test_seven_tabs_share_a_stream_and_the_site_still_answers(open_site: OpenSite, open_tab: OpenTab) -> None:
    site = open_site("asgi", "filled", PGQUEUE={"LIVE": "sse"})
    tab = open_tab(site)
    pages = [tab.page, *(tab.another() for _ in range(6))]
    streams = [Asked(page, STREAM) for page in pages]
    for page in pages:
        page.goto(DASHBOARD)

    eighth = tab.another()
    eighth.goto(LIST)
    expect(eighth.locator("#result_list")).to_be_visible()

    before = int(tile(pages[0], "waiting"))
    site.play("one")
    for page in pages:
        expect(page.locator('[data-part="tiles"] [data-key="waiting"] strong')).to_have_text(str(before + 1))
    assert sum(stream.count for stream in streams) == 1


def test_no_tab_hears_what_somebody_else_may_see(open_site: OpenSite, open_tab: OpenTab) -> None:
    """Somebody logs in where another's dashboard is still open, and streams."""
    site = open_site("asgi", "filled", PGQUEUE={"LIVE": "sse"})
    tab = open_tab(site)
    error = '[data-table="dead"] tbody tr:first-child td:nth-of-type(5)'
    with tab.page.expect_request(STREAM):
        tab.goto(DASHBOARD)
    expect(tab.page.locator(error)).to_contain_text(": ")
    tab.context.add_cookies([{"name": "sessionid", "value": site.people["viewer"], "url": site.url}])
    other = tab.another()
    with other.expect_request(STREAM):
        other.goto(DASHBOARD)
    before = int(tile(other, "waiting"))
    site.play("one")
    for page in (tab.page, other):
        expect(page.locator('[data-part="tiles"] [data-key="waiting"] strong')).to_have_text(str(before + 1))
    expect(tab.page.locator(error)).to_contain_text(": ")
    expect(other.locator(error)).not_to_contain_text(": ")


# -- trouble ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def private(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[localdb.Server, Site]]:
    """A site on a server of its own, that may be stopped."""
    interface, changes = KINDS[request.param]
    with localdb.fresh() as server:
        database = server.create_database("shop")
        with Site(tmp_path, database, interface, PGQUEUE=changes) as site:
            site.told = site.play("migrated", "people", "filled")
            yield server, site.open()


def test_a_lost_database_is_said_and_the_page_comes_back_by_itself(
    private: tuple[localdb.Server, Site], open_tab: OpenTab
) -> None:
    server, site = private
    tab = open_tab(site)
    page = tab.goto(DASHBOARD)
    mark(page)
    expect(page.locator(BANNER)).to_be_hidden()

    tab.expects("503")
    server.stop()
    expect(page.locator(BANNER)).to_contain_text("Database unreachable since")
    expect(page.locator(".pgq-stale")).to_have_count(1)
    server.start()
    expect(page.locator(BANNER)).to_be_hidden(timeout=45_000)
    expect(page.locator(".pgq-stale")).to_have_count(0)
    assert is_marked(page), "the page was loaded again"


def test_a_page_that_is_opened_without_a_database_loads_itself_when_it_is_back(
    private: tuple[localdb.Server, Site], open_tab: OpenTab
) -> None:
    server, site = private
    tab = open_tab(site)
    tab.expects("503")
    server.stop()
    page = tab.goto(DASHBOARD, status=503)
    expect(page.locator(".pgq-banner")).to_contain_text("cannot be reached")
    server.start()
    expect(page.locator('[data-part="tiles"]')).to_be_visible(timeout=45_000)


TROUBLES = {
    "refused": lambda route: route.fulfill(status=503, body=""),
    "cut": lambda route: route.abort("connectionreset"),
    "garbage": lambda route: route.fulfill(status=200, body="<!doctype html>", content_type="text/html"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_site_in_trouble_is_asked_less_and_less_often(site: Site, open_tab: OpenTab, trouble: str) -> None:
    tab = open_tab(site)
    tab.page.clock.install()
    page = tab.goto(DASHBOARD)
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)
    frames = Asked(page, FRAME)
    tab.expects("503", "net::ERR_")
    page.route(FRAME, TROUBLES[trouble])
    for _ in range(240):
        page.clock.run_for(500)
    expect(page.locator(BANNER)).to_be_visible()
    # 2, 4, 8, 16, then 30 seconds, or three quarters of these: in two minutes, of sixty at most.
    assert 4 <= frames.count <= 9
    page.unroute(FRAME)
    asked = frames.count
    while frames.count == asked:
        page.clock.run_for(500)
    expect(page.locator(BANNER)).to_be_hidden()


def test_who_is_logged_out_is_told_and_asks_no_more(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site)
    tab.page.clock.install()
    page = tab.goto(DASHBOARD)
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)
    tab.context.clear_cookies()
    tab.expects("401")
    with page.expect_response(FRAME):
        page.clock.run_for(3_000)
    expect(page.locator(BANNER).get_by_role("link")).to_be_visible()
    frames = Asked(page, FRAME)
    page.clock.run_for(120_000)
    assert frames.count == 0


# -- what counts by itself --------------------------------------------------------------------------------------


def test_a_lease_counts_down_and_never_below_nothing(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site)
    tab.page.clock.install()
    tab.page.route(FRAME, lambda route: route.fulfill(status=304))
    page = tab.goto(DASHBOARD)
    lease = page.locator('[data-table="running"] [data-until]').first
    before = lease.inner_text()

    page.clock.fast_forward(10 * 60_000)
    expect(lease).not_to_have_text(before)
    after = lease.inner_text()
    assert int(re.findall(r"\d+", after)[0]) < int(re.findall(r"\d+", before)[0])

    page.clock.fast_forward(30 * 60_000)
    expect(lease).to_contain_text("expired")
    page.clock.fast_forward(60_000)
    expect(lease).to_contain_text("expired")
    assert "-" not in lease.inner_text()


# -- frames of the tests' own -----------------------------------------------------------------------------------

Frame = dict[str, Any]


def change_frames(page: Page, change: Callable[[Frame, int], None]) -> None:
    """What the page hears goes through ``change`` first, with how many it has heard before."""
    heard = itertools.count()

    def pass_on(route: Route) -> None:
        headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
        answer = route.fetch(headers=headers)
        content = answer.json()
        change(content, next(heard))
        route.fulfill(response=answer, json=content)

    page.route(FRAME, pass_on)


def set_tile(content: Frame, key: str, **values: str) -> None:
    (tile,) = [tile for tile in content["tiles"] if tile["key"] == key]
    tile.update(values)


def test_a_pointer_that_stays_over_a_table_does_not_fill_it_without_end(site: Site, open_tab: OpenTab) -> None:
    def others(content: Frame, number: int) -> None:
        (running,) = [table for table in content["tables"] if table["key"] == "running"]
        row = running["rows"][0]
        running["rows"] = [{**row, "key": f"other-{number}-{place}"} for place in range(40)]
        set_tile(content, "waiting", text=f"frame {number}")

    tab = open_tab(site)
    change_frames(tab.page, others)
    page = tab.goto(DASHBOARD)
    lines = page.locator('[data-table="running"] tbody tr')
    lines.first.hover()
    waiting = page.locator('[data-part="tiles"] [data-key="waiting"] strong')
    expect(waiting).to_have_text(re.compile("frame [4-9]"), timeout=30_000)
    assert 40 < lines.count() <= 100
    page.mouse.move(0, 0)
    expect(lines).to_have_count(40)


def test_a_tile_is_a_link_while_there_is_somewhere_to_go(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site)
    change_frames(tab.page, lambda content, number: set_tile(content, "oldest", url="/there/" if number % 2 else ""))
    page = tab.goto(DASHBOARD)
    oldest = page.locator('[data-part="tiles"] [data-key="oldest"] > *')
    for _ in range(2):
        expect(oldest).to_have_js_property("tagName", "SPAN")
        expect(oldest).to_have_js_property("tagName", "A")
    expect(oldest.locator("strong")).not_to_be_empty()
    assert oldest.get_attribute("class") == "pgq-tile"


def test_the_last_point_of_a_window_is_not_ahead_of_its_frame(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(f"{DASHBOARD}?window=week")
    slider = page.locator('.pgq-chart[data-key="throughput"]').get_by_role("slider")
    slider.focus()
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("done"))
    said, status = page.evaluate(
        "at => [at.getAttribute('aria-valuetext'), document.querySelector('[data-part=status]').textContent]",
        slider.element_handle(),
    )
    (minute,) = re.findall(r"\d\d:\d\d(?=:\d\d)", status)
    assert minute in said.partition("·")[0]


# -- by keyboard ------------------------------------------------------------------------------------------------


def test_a_chart_is_read_by_the_arrow_keys_and_as_a_table(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(DASHBOARD)
    chart = page.locator('.pgq-chart[data-key="throughput"]')
    slider = chart.get_by_role("slider")
    slider.focus()
    last = int(slider.get_attribute("aria-valuenow") or 0)
    assert last > 10
    for key, place in (("ArrowLeft", last - 1), ("ArrowLeft", last - 2), ("Home", 0), ("ArrowRight", 1), ("End", last)):
        page.keyboard.press(key)
        expect(slider).to_have_attribute("aria-valuenow", str(place))
        expect(chart.locator("output")).to_have_text(re.compile("done .* failed"))
    page.keyboard.press("Escape")
    expect(chart.locator("output")).to_have_text("")

    chart.get_by_text("Show as table").focus()
    page.keyboard.press("Enter")
    expect(chart.get_by_role("row").nth(10)).to_be_visible()


def test_the_way_through_the_dashboard_by_tab(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(DASHBOARD)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to main content"
    page.keyboard.press("Enter")

    passed = []
    for _ in range(12):
        page.keyboard.press("Tab")
        passed.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert page.evaluate("document.activeElement.closest('#content') !== null"), passed
        box = page.evaluate("(({width, height}) => [width, height])(document.activeElement.getBoundingClientRect())")
        assert min(box) > 0, f"{passed[-1]} has the focus and cannot be seen"
    bar = [text for text in passed if text in ("Pause updates", "2 min", "1 h", "24 h", "7 d", "How it works")]
    assert bar == ["Pause updates", "2 min", "1 h", "24 h", "7 d", "How it works"]
