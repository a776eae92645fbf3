"""What people do with the queue, each way from its first click to what it has changed in the database."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from verbs.rows import wait_for

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import Site

ADMIN = "/admin/pgqueue_django"
DASHBOARD = f"{ADMIN}/job/dashboard/"
INTERFACES = {"asgi": {"LIVE": "sse"}, "wsgi": {}}


@pytest.fixture(scope="module", params=INTERFACES)
def site(open_site: OpenSite, request: pytest.FixtureRequest) -> Site:
    """A site with jobs, and a worker for the queues that the tests fill."""
    site = open_site(request.param, "filled", PGQUEUE=INTERFACES[request.param])
    site.work("--queues", "letters,exports", "--lease", "3", name="hammer")
    return site


def job_page(pk: int) -> str:
    return f"{ADMIN}/job/{pk}/change/"


def newest_entry(site: Site) -> dict[str, Any]:
    (entry,) = site.rows("SELECT * FROM pgqueue_audit ORDER BY id DESC LIMIT 1")
    return entry


def row_of(page: Page, table: str, text: str) -> Locator:
    """Of a table of the dashboard."""
    return page.locator(f'[data-table="{table}"] tbody tr', has_text=text)


# -- to find and to look ----------------------------------------------------------------------------------------


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


def test_library_frames_are_folded_and_open_by_a_click(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site).goto(job_page(site.told["dead"]))
    attempts = page.locator(".pgq-attempts")
    expect(attempts.get_by_text("tasks.py").first).to_be_visible()
    library = attempts.get_by_text("client.py").first
    expect(library).to_be_hidden()
    attempts.get_by_text("library frames").first.click()
    expect(library).to_be_visible()


def test_the_ways_between_the_pages(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, "viewer").goto("/admin/")
    page.get_by_role("link", name="Job queue", exact=True).first.click()
    page.locator("#content").get_by_role("link", name="Queue dashboard").click()
    page.get_by_role("link", name="How it works").click()
    expect(page.locator("#content-main")).to_contain_text("lease")
    page.go_back()
    page.locator('[data-part="tiles"] [data-key="failed"] a').click()
    expect(page.locator("#pgq-groups")).to_be_visible()
    page.locator(".pgq-groups tbody td a").first.click()
    expect(page.locator("#result_list tbody tr").first).to_be_visible()


# -- to act -----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_jobs_found_by_an_argument_are_requeued_with_a_reason_that_is_kept(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, "operator")
    page = tab.goto(f"{ADMIN}/job/?q=args.tenant_id:3&state=dead")
    row = page.locator("#result_list tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("order 1053")
    pk = int(re.findall(r"/job/(\d+)/", row.get_by_role("link").first.get_attribute("href") or "")[0])
    row.locator(".action-select").check()
    page.locator("select[name=action]").first.select_option("requeue_jobs")
    page.get_by_label("Reason").first.fill("the bank is back")
    page.locator(".actions").get_by_role("button", name=re.compile("^(Run|Go)")).first.click()

    expect(page.locator(".messagelist")).to_contain_text("1 requeued.")
    assert site.job(pk)["state"] == "queued"
    page = tab.goto(f"{ADMIN}/auditentry/")
    entry = page.locator("#result_list tbody tr").first
    for text in ("operator", "the bank is back", str(pk)):
        expect(entry).to_contain_text(text)


def test_a_running_job_is_cancelled_and_its_worker_lets_go(site: Site, open_tab: OpenTab, tmp_path: Path) -> None:
    pk = site.play(f"exporting={tmp_path / 'gate'}")["exporting"]
    wait_for(lambda: site.job(pk)["progress"])
    page = open_tab(site, "operator").goto(DASHBOARD)
    row = row_of(page, "running", f"#{pk}")
    expect(row.locator("progress")).to_have_attribute("value", re.compile("^0?.5"))

    row.get_by_role("button", name="Cancel").click()

    expect(page.locator(".messagelist")).to_contain_text("1 cancelled.")
    expect(row_of(page, "running", f"#{pk}")).to_have_count(0)
    assert site.job(pk)["state"] == "cancelled"
    assert newest_entry(site)["actor"] == "operator"
    # Its handler has stopped: the worker has a free slot again, and says so with its next heartbeat.
    wait_for(lambda: site.rows("SELECT 1 FROM pgqueue_worker WHERE name = 'hammer' AND running = 0"))
    expect(row_of(page, "workers", "hammer")).to_contain_text("0/8")


def test_a_copy_with_bad_json_is_told_so_and_mended(site: Site, open_tab: OpenTab) -> None:
    old = site.told["failed"]
    page = open_tab(site).goto(job_page(old))
    page.get_by_role("link", name="Copy with changes").click()
    jobs = len(site.rows("SELECT 1 FROM pgqueue_job"))

    page.get_by_label("Arguments").fill('["hedy@mail.example"')
    page.get_by_role("button", name="Make the copy").click()
    expect(page.locator(".errorlist")).to_contain_text("This is no JSON")
    expect(page.get_by_label("Arguments")).to_have_value('["hedy@mail.example"')
    expect(page.get_by_label("Arguments")).to_have_attribute("aria-invalid", "true")
    assert len(site.rows("SELECT 1 FROM pgqueue_job")) == jobs

    page.get_by_label("Arguments").fill('["hedy@mail.example", "and more"]')
    page.get_by_role("button", name="Make the copy").click()
    expect(page.locator(".errorlist")).to_contain_text("does not take these arguments")

    page.get_by_label("Arguments").fill('["hedy@mail.example"]')
    page.get_by_label("Queue", exact=False).first.fill("letters")
    page.get_by_label("Reason").fill("a wrong address")
    page.get_by_role("button", name="Make the copy").click()
    expect(page.locator(".pgq-facts")).to_contain_text(f"Copy of{old}")
    (copy,) = site.rows("SELECT * FROM pgqueue_job WHERE copy_of = %s", old)
    assert copy["args"] == ["hedy@mail.example"]
    wait_for(lambda: site.job(copy["id"])["state"] == "succeeded")
    assert site.job(old)["state"] == "failed"


def test_a_queue_is_paused_with_a_reason_and_goes_on(site: Site, open_tab: OpenTab) -> None:
    first = site.play("mailed")["mailed"]
    wait_for(lambda: site.job(first)["state"] == "succeeded")
    page = open_tab(site, "operator").goto(DASHBOARD)
    queue = page.locator('[data-table="queues"] [data-key="queue-letters"]')
    queue.locator("summary").click()
    queue.get_by_label("Reason").fill("the printer is on fire")
    queue.get_by_role("button", name="Pause", exact=True).click()

    expect(queue).to_contain_text("paused by operator: the printer is on fire")
    held = site.play("mailed")["mailed"]
    # What is enqueued after it runs before it.
    expect(queue.locator("td").first).to_contain_text("1")
    assert site.job(held)["state"] == "queued"

    queue.get_by_role("button", name="Resume").click()
    expect(queue).to_contain_text("active")
    wait_for(lambda: site.job(held)["state"] == "succeeded")
    assert [row["action"] for row in site.rows("SELECT action FROM pgqueue_audit ORDER BY id DESC LIMIT 2")] == [
        "resume",
        "pause",
    ]


def test_a_schedule_is_run_now(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, "operator").goto(DASHBOARD)
    row_of(page, "schedules", "takings").get_by_role("button", name="Run now").click()

    expect(page.locator(".messagelist")).to_contain_text("Takings: #")
    entry = newest_entry(site)
    assert (entry["actor"], entry["action"]) == ("operator", "run_schedule")
    (job,) = site.rows("SELECT * FROM pgqueue_job WHERE task LIKE '%%mail_takings'")
    assert job["state"] == "queued"


def test_a_group_of_problems_is_requeued(site: Site, open_tab: OpenTab) -> None:
    page = open_tab(site, "operator").goto(f"{ADMIN}/job/problems/")
    dead = [row["id"] for row in site.rows("SELECT id FROM pgqueue_job WHERE state = 'dead'")]
    assert len(dead) > 1
    group = page.locator("tr", has_text="CardDeclined").first
    group.get_by_label("Reason").fill("the bank is back")
    group.get_by_role("button", name="Requeue all").click()

    expect(page.locator(".messagelist")).to_contain_text(f"{len(dead)} requeued.")
    assert {site.job(pk)["state"] for pk in dead} == {"queued"}
    assert (newest_entry(site)["changed"], newest_entry(site)["reason"]) == (len(dead), "the bank is back")


# -- who may not ------------------------------------------------------------------------------------------------

PAGES = (
    *(f"{ADMIN}/{page}/" for page in ("job", "job/dashboard", "job/problems", "queue", "schedule", "worker")),
    f"{ADMIN}/job/{{succeeded}}/change/",
    f"{ADMIN}/job/{{running}}/change/",
)
ACTS = "#content-main form[method=post] :is(button, input[type=submit]):visible, select[name=action]"


def acts(page: Page) -> list[str]:
    """What somebody could press to change something."""
    found = (
        page.locator(ACTS).all()
        + page.locator("main").get_by_role("link", name=re.compile("Copy with changes|^Add")).all()
    )
    return [one.inner_text() for one in found]


def test_a_viewer_sees_no_button_and_no_argument(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, "viewer")
    for path in PAGES:
        page = tab.goto(path.format(**site.told))
        expect(page.locator("#content-main")).to_be_visible()
        assert acts(page) == [], path
        assert "insufficient funds" not in page.content(), path


def test_one_of_the_staff_without_a_right_sees_nothing(site: Site, open_tab: OpenTab) -> None:
    tab = open_tab(site, "clerk")
    tab.expects("403")
    for path in PAGES:
        page = tab.goto(path.format(**site.told), status=403)
        assert "orders.tasks" not in page.content(), path


def test_under_read_only_an_admin_sees_no_button_either(open_site: OpenSite, open_tab: OpenTab) -> None:
    site = open_site("wsgi", "filled", PGQUEUE={"READ_ONLY": True})
    tab = open_tab(site, "admin")
    for path in PAGES:
        page = tab.goto(path.format(**site.told))
        expect(page.locator("#content-main")).to_be_visible()
        assert acts(page) == [], path
