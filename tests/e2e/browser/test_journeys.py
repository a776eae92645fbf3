"""What people do with the queue, each way from its first click to what it has changed in the database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from verbs.rows import wait_for

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site

ADMIN = "/admin/pgqueue_django"


@pytest.fixture(scope="module", params=["asgi", "wsgi"])
def site(open_site: OpenSite, request: pytest.FixtureRequest) -> Site:
    return open_site(request.param, "filled")


def message(page: Page) -> str:
    return " ".join(page.locator(".messagelist li").all_inner_texts())


@pytest.mark.smoke
def test_the_way_from_the_login_to_a_job(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, who=None).goto(f"{ADMIN}/job/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("e2e")
    page.get_by_role("button", name="Log in").click()

    page.locator("#searchbar").fill('label:"order 1051"')
    page.locator("#searchbar").press("Enter")
    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    rows.get_by_role("link").first.click()

    expect(page.locator("#content-main")).to_contain_text("orders.tasks.charge")
    expect(page.locator("#content-main")).to_contain_text("order 1051: insufficient funds")


def test_jobs_found_by_an_argument_are_requeued(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(f"{ADMIN}/job/?q=args.tenant_id:3")
    row = page.locator("#result_list tbody tr", has_text="order 1053")
    pk = int(re.findall(r"/job/(\d+)/", row.get_by_role("link").first.get_attribute("href") or "")[0])
    row.locator(".action-select").check()
    page.locator("select[name=action]").select_option("requeue_jobs")
    page.get_by_role("button", name=re.compile("Run|Go")).click()

    expect(page.locator(".messagelist")).to_contain_text("1 requeued.")
    assert site.job(pk)["state"] == "queued"


def test_a_running_job_is_cancelled(site: Site, open_tab: OpenTab, tmp_path: Path) -> None:
    site.work("--queues", "exports", "--lease", "3", name="hammer")
    gate = tmp_path / "gate"
    pk = site.play(f"exporting={gate}")["exporting"]
    wait_for(lambda: site.job(pk)["progress"])

    page = open_tab(site).goto(f"{ADMIN}/job/{pk}/change/")
    expect(page.locator("#content-main")).to_contain_text("50%")
    page.get_by_role("button", name="Cancel").click()

    expect(page.locator(".messagelist")).to_contain_text("1 cancelled.")
    assert site.job(pk)["state"] == "cancelled"


def test_a_group_of_problems_is_requeued(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(f"{ADMIN}/job/problems/")
    group = page.locator("tr", has_text="SMTPRecipientsRefused").first
    group.get_by_role("button", name="Requeue all").click()

    expect(page.locator(".messagelist")).to_contain_text("requeued.")
    assert site.job(site.told["failed"])["state"] == "queued"


def test_a_viewer_sees_no_buttons(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, "viewer")
    for path in (f"{ADMIN}/job/", f"{ADMIN}/job/problems/", f"{ADMIN}/job/{site.told['succeeded']}/change/",
                 f"{ADMIN}/queue/", f"{ADMIN}/schedule/"):  # fmt: skip
        page = tab.goto(path)
        expect(page.locator("#content-main")).to_be_visible()
        assert page.locator("#content-main form[method=post] :is(button, input[type=submit]):visible").count() == 0, (
            path
        )
        assert page.locator("select[name=action]").count() == 0, path
