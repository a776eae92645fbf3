"""The pictures in ``docs/_static``: ``make screenshots``. Pages of one scene, in both themes and on a phone."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image
from playwright.sync_api import Page

from e2e.browser.conftest import OpenSite, OpenTab
from e2e.browser.sites import ROOT, Site
from e2e.browser.tabs import WIDTHS, scrolls_sideways

STATIC = ROOT / "docs" / "_static"
MAX_BYTES = 150_000
ADMIN = "/admin/pgqueue_django/job"
PAGES = {
    "dashboard": f"{ADMIN}/dashboard/?window=hour",
    "list": f"{ADMIN}/",
    "job": f"{ADMIN}/{{dead}}/change/",
    "problems": f"{ADMIN}/problems/",
}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1440, "height": 1000}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 1000}},
    "mobile": {"color_scheme": "light", "viewport": {"width": WIDTHS["phone"], "height": 844}, "is_mobile": True},
}


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> Site:
    return open_site("wsgi", "filled", "pictured")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_picture_is_taken(site: Site, open_tab: OpenTab, name: str, look: str) -> None:
    tab = open_tab(site, "admin", **LOOKS[look])
    page = tab.goto(PAGES[name].format(**site.told))
    assert scrolls_sideways(page) == []
    STATIC.mkdir(exist_ok=True)
    path = STATIC / f"{name}-{look}.png"
    path.write_bytes(small(page))
    assert path.stat().st_size <= MAX_BYTES


def small(page: Page) -> bytes:
    """With 256 colours of its own, which are enough for such a page."""
    taken = Image.open(BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    file = BytesIO()
    # By coverage: by frequency the few green and red marks would become grey.
    taken.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()
