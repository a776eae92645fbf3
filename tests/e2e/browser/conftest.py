"""Sites and tabs. The browser's tests are a pytest process of their own: ``make e2e``.

A test that fails leaves a picture of each of its tabs in ``.e2e/failed``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from psycopg.conninfo import conninfo_to_dict

from e2e.browser.axe import HOME
from e2e.browser.sites import Site, new_database
from e2e.browser.tabs import Tab, launch
from testproject.settings import database_url

FAILED = HOME / "failed"

# What is right is so in a few hundred milliseconds; the machine may be busy.
expect.set_options(timeout=20_000)

OpenTab = Callable[..., Tab]
OpenSite = Callable[..., Site]


@pytest.fixture(scope="session", autouse=True)
def _no_pictures_of_the_run_before() -> None:
    shutil.rmtree(FAILED, ignore_errors=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        with launch(playwright) as chromium:
            yield chromium


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A migrated database with people in it, to be copied; nothing runs there."""
    with new_database(database_url()) as database:
        site = Site(tmp_path_factory.mktemp("template"), database, "wsgi")
        site.play("migrated", "people")
        yield site


@pytest.fixture(scope="module")
def open_site(template: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSite]:
    """``open_site("asgi", "filled", PGQUEUE={...})``: a site with that scene, gone with the module."""
    with ExitStack() as stack:

        def make(interface: str, *scenes: str, **settings: Any) -> Site:
            name = str(conninfo_to_dict(template.database)["dbname"])
            database = stack.enter_context(new_database(database_url(), template=name))
            site = stack.enter_context(Site(tmp_path_factory.mktemp("site"), database, interface, **settings))
            site.people = dict(template.people)
            site.told = site.play(*scenes) if scenes else {}
            return site.open()

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    setattr(item, f"report_{report.when}", report)  # type: ignore[attr-defined]
    return report  # type: ignore[return-value]


@pytest.fixture
def open_tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[OpenTab]:
    """``open_tab(site, "viewer", color_scheme="dark")``: a ``Tab``; what went wrong in it fails the test at its end."""
    tabs: list[Tab] = []

    def make(site: Site, who: str | None = "admin", **options: Any) -> Tab:
        tabs.append(Tab(browser, site, who, **options))
        return tabs[-1]

    yield make

    faults = [fault for tab in tabs for fault in tab.faults]
    report = getattr(request.node, "report_call", None)
    if faults or report is None or report.failed:
        FAILED.mkdir(parents=True, exist_ok=True)
        for number, tab in enumerate(tabs):
            name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
            tab.picture(FAILED / f"{name}-{number}.png")
            if os.environ.get("CI"):
                print(tab.site.log("web")[-4000:])
    for tab in tabs:
        tab.context.close()
    assert faults == []
