"""The face of the dashboard and of the other pages: what a strict policy, a small budget and the law of states ask."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.utils import translation
from django.utils.translation import override

import pgqueue_django
from pgqueue_django.dashboard import script
from pgqueue_django.dashboard.charts import draw
from pgqueue_django.states import TRANSITIONS, State

ROOT = Path(pgqueue_django.__file__).parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static").rglob("*.js"))
STYLES = sorted((ROOT / "static").rglob("*.css"))
SCRIPT = ROOT / "static/pgqueue_django/dashboard.js"
DASHBOARD = "/admin/pgqueue_django/job/dashboard/"
PARTS = "admin/pgqueue_django/dashboard/"

Browser = Callable[..., Client]


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT)) for path in paths])


def test_there_are_files_to_look_at() -> None:
    assert SCRIPT in SCRIPTS
    assert len(TEMPLATES) > 5
    assert STYLES


# -- nothing that a strict policy refuses ----------------------------------------------------------------------


@named(TEMPLATES)
def test_no_template_needs_more_than_a_strict_policy_allows(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\sstyle\s*=", text), "a style attribute"
    assert not re.search(r"<style", text, re.I), "an inline style"
    assert not re.search(r"<script(?![^>]*\ssrc=)", text, re.I), "an inline script"
    assert not re.search(r"\son[a-z]+\s*=", text, re.I), "an inline handler"
    assert "javascript:" not in text.lower()


@named(TEMPLATES)
def test_no_template_shows_anything_unescaped(path: Path) -> None:
    assert not re.search(r"\|\s*safe\b|autoescape\s+off|\|\s*safeseq", path.read_text())


@named(SCRIPTS)
def test_no_script_makes_markup_or_code_of_texts(path: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment"
    assert not re.search(forbidden, path.read_text())
    assert not re.search(r"\.style\b|cssText|setAttribute\(\s*[\"']style", path.read_text())
    assert not re.search(r"set(Timeout|Interval)\(\s*[\"'`]", path.read_text())


@named(SCRIPTS)
def test_every_script_can_be_read(path: Path) -> None:
    if not (node := shutil.which("node")):
        pytest.skip("needs node")
    subprocess.run([node, "--check", str(path)], check=True, capture_output=True)


@named(STYLES)
def test_the_styles_are_for_both_directions_and_load_nothing(path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
    sides = r"\b(margin|padding|border|inset)-(left|right)\b|[;{]\s*(left|right)\s*:|text-align:\s*(left|right)"
    assert not re.search(sides, text), "a side that is another one where people write from right to left"
    assert not re.search(r"@import|url\(", text)
    assert text.count("{") == text.count("}")


@named(STYLES)
def test_the_colours_of_the_admin_have_something_to_fall_back_on(path: Path) -> None:
    # In a theme that has none of Django's variables. Our own are in the same file, or in admin.css.
    own = set(re.findall(r"(--[\w-]+):", path.read_text() + (path.parent / "admin.css").read_text()))
    used = re.findall(r"var\((--[\w-]+)\s*(,?)", path.read_text())
    assert used
    assert [name for name, comma in used if not comma and name not in own] == []


def test_scripts_and_styles_are_small() -> None:
    def size(paths: list[Path]) -> int:
        return sum(len(gzip.compress(path.read_bytes(), 9)) for path in paths)

    assert size(SCRIPTS) <= 12_000
    # The status page is outside of the admin, and loads nothing but its own.
    assert size([path for path in STYLES if path.stem != "status"]) <= 6_000
    assert size([path for path in STYLES if path.stem == "status"]) <= 1_500


# -- the script and its words ----------------------------------------------------------------------------------


def test_the_script_has_all_its_words_and_no_others() -> None:
    text = SCRIPT.read_text()
    used = set(re.findall(r"\bwords\.(\w+)", text))
    used |= set(re.findall(r'\[\d+, "(\w+)"\]', text))  # the units of lengths
    used |= set(re.findall(r'fail\(.*?"(away)".*?"(silent)"', text)[0])  # what is wrong
    assert used == set(script.words())


def test_the_words_have_the_places_that_the_script_fills() -> None:
    places = [
        ("ms s min h d", {"n"}),
        ("ago ahead live paused clock", {"time"}),
        ("away silent", {"time", "age"}),
        ("problems", {"count"}),
    ]
    filled = {name: fields for names, fields in places for name in names.split()}
    for name, text in script.words().items():
        assert set(re.findall(r"%\((\w+)\)s", text)) == filled.get(name, set()), name
        assert "%" not in re.sub(r"%\(\w+\)s", "", text), name


# -- cells, rows and charts ------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The start tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def cell(**content: Any) -> Tags:
    return Tags(render_to_string(f"{PARTS}cell.html", {"cell": {"text": "it", **content}, "csrf_token": "t0ken"}))


def test_a_cell_is_a_text_or_a_link() -> None:
    assert [name for name, _ in cell().tags] == ["span"]
    [(name, attributes)] = cell(url="/there/", title="more").tags
    assert (name, attributes) == ("a", {"href": "/there/", "title": "more"})


def test_a_cell_says_what_counts_on() -> None:
    assert cell(at="2026-11-30T10:00:00+00:00").of("span") == [{"data-at": "2026-11-30T10:00:00+00:00"}]
    assert cell(until="2026-11-30T10:00:00+00:00").of("span") == [{"data-until": "2026-11-30T10:00:00+00:00"}]


@pytest.mark.parametrize("fraction", [0, 0.4, 1])
def test_a_fraction_is_a_progress_bar_in_every_language(fraction: float) -> None:
    with translation.override("de"):  # where numbers have a comma
        [bar] = cell(fraction=fraction).of("progress")
    assert float(bar["value"] or "") == fraction
    assert bar["aria-label"] == "it"


def test_a_button_is_a_form_with_its_fields(settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    with override("en"):
        made = cell(buttons=[{"text": "Cancel", "url": "/cancel/", "fields": {"job": 12345}}])
    assert made.of("form") == [{"method": "post", "action": "/cancel/"}]
    fields = {field["name"]: field["value"] for field in made.of("input")}
    assert fields == {"csrfmiddlewaretoken": "t0ken", "job": "12345"}
    assert made.of("button")[0]["type"] == "submit"
    assert made.of("details") == []


def test_a_button_that_asks_opens_first() -> None:
    made = cell(buttons=[{"text": "Pause", "url": "/pause/", "fields": {"queue": "mail", "reason": None}}])
    assert [name for name, _ in made.tags][:4] == ["span", "details", "summary", "form"]
    [asked] = [field for field in made.of("input") if field["name"] == "reason"]
    assert asked["type"] == "text"
    assert asked["aria-label"]
    assert "value" not in asked


HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7|add:7 }}</textarea>&lt;"


def test_no_text_of_a_frame_is_markup() -> None:
    columns = [{"key": "a", "label": HOSTILE}]
    button = {"text": HOSTILE, "url": HOSTILE, "fields": {HOSTILE: HOSTILE, f"{HOSTILE}2": None}}
    cells = [
        {"text": HOSTILE, "url": HOSTILE, "title": HOSTILE, "class": HOSTILE, "fraction": 0.5, "buttons": [button]},
        {"text": HOSTILE, "at": HOSTILE, "until": HOSTILE},
    ]
    table = {
        "key": "queues",
        "label": HOSTILE,
        "columns": columns,
        "rows": [{"key": HOSTILE, "class": HOSTILE, "cells": cells}],
        "empty": HOSTILE,
        "note": HOSTILE,
    }
    series = [{"key": HOSTILE, "label": HOSTILE, "points": [1, 2]}]
    chart: Any = {"key": "waiting", "label": HOSTILE, "unit": HOSTILE, "scale": "linear", "seconds_per_point": 1}
    tile = {"key": HOSTILE, "label": HOSTILE, "text": HOSTILE, "note": HOSTILE, "url": HOSTILE}
    for name, value in (("table", table), ("chart", draw({**chart, "ends_at": "", "series": series})), ("tile", tile)):
        page = render_to_string(f"{PARTS}{name}.html", {name: value})
        found = Tags(page)
        assert HOSTILE in found.text, name
        assert {tag for tag, _ in found.tags}.isdisjoint({"script", "img", "textarea"}), name
        assert not any(attribute.startswith("on") for _, attributes in found.tags for attribute in attributes), name
        assert "<script" not in page


def chart_page(**more: Any) -> Tags:
    series = [
        {"key": "done", "label": "done", "points": [1, None, 3]},
        {"key": "failed", "label": "failed", "points": [0, 0, 1]},
    ]
    chart: Any = {
        "key": "throughput",
        "label": "Throughput",
        "unit": "attempts/s",
        "scale": "linear",
        "seconds_per_point": 2,
        "ends_at": "2026-11-30T10:00:00+00:00",
        "series": series,
        **more,
    }
    return Tags(render_to_string(f"{PARTS}chart.html", {"chart": draw(chart)}))


def test_a_chart_is_drawn_by_the_server() -> None:
    page = chart_page()
    paths = {path["data-key"]: path["d"] for path in page.of("path") if path.get("data-key")}
    assert paths == {"done": "M0 150h0M2 50h0", "failed": "M0 200 1 200 2 150"}
    [plot] = [svg for svg in page.of("svg") if "aria-hidden" not in svg]
    ids = {attributes.get("id"): True for _, attributes in page.tags}
    assert plot["role"] == "img"
    assert plot["aria-labelledby"] in ids
    assert plot["aria-describedby"] in ids
    assert "done: 3, least 1, most 3" in page.text


# -- how the queue works ---------------------------------------------------------------------------------------

# Not in the diagram, where they would be lines across it; the text beside it tells of them.
TOLD_BESIDE = {
    ("release", "running", "scheduled"),
    *(("requeue", str(s), "scheduled") for s in TRANSITIONS["requeue"].sources),
}


def law() -> Iterator[tuple[str, str, str]]:
    for verb, arrow in TRANSITIONS.items():
        for source in arrow.sources or ("",):
            for target in arrow.targets or ("",):
                yield verb, str(source), str(target)


def test_the_diagram_shows_the_law_of_states() -> None:
    page = (ROOT / "templates" / PARTS / "how.html").read_text()
    drawn = set()
    for names in re.findall(r'data-arrows="([^"]+)"', page):
        for name in names.split():
            verb, *ends = name.split(":")
            drawn.add((verb, *(ends if len(ends) == 2 else ["", *ends])))
    assert drawn | TOLD_BESIDE == set(law())
    assert not drawn & TOLD_BESIDE
    boxes = re.findall(r'<g class="pgq-(\w+)"><rect[^>]*>', page)
    assert sorted(boxes) == sorted(State)


def test_each_arrow_goes_from_its_state_to_the_next() -> None:
    page = (ROOT / "templates" / PARTS / "how.html").read_text()
    boxes = {
        state: tuple(map(int, box))
        for state, *box in re.findall(
            r'<g class="pgq-(\w+)"><rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', page
        )
    }
    [group] = re.findall(r'class="pgq-ended" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', page)
    ended = tuple(map(int, group))

    def touches(point: tuple[float, float], box: tuple[int, ...]) -> bool:
        x, y, width, height = box
        return x - 4 <= point[0] <= x + width + 4 and y - 4 <= point[1] <= y + height + 4

    for names, path in re.findall(r'data-arrows="([^"]+)"[^>]* d="([^"]+)"', page):
        begin, end = ends_of(path)
        for name in names.split():
            verb, *ends = name.split(":")
            source, target = ends if len(ends) == 2 else ("", *ends)
            if source and verb != "cancel":
                box = ended if verb in ("requeue", "prune", "delete") else boxes[source]
                assert touches(begin, box), f"{name} does not begin at {source}"
            if target:
                assert touches(end, boxes[target]), f"{name} does not end at {target}"


def ends_of(path: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a path of M, L, H, V and C begins and ends."""
    points: list[tuple[float, float]] = []
    for letter, rest in re.findall(r"([MLHVC])([^MLHVC]+)", path):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", rest)]
        x, y = points[-1] if points else (0.0, 0.0)
        points.append((numbers[-1], y) if letter == "H" else (x, numbers[-1]) if letter == "V" else (*numbers[-2:],))
    return points[0], points[-1]


# -- the pages -------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_page_is_whole_without_its_script(browser: Browser) -> None:
    page = Tags(browser("view_job", "view_dashboard").get(DASHBOARD).content.decode())
    [root] = [attributes for _, attributes in page.tags if attributes.get("id") == "content-main"]
    assert (root["class"] or "").split() == ["pgq", "pgq-dashboard"]
    assert root["data-frame-url"] == f"{DASHBOARD}frame.json"
    assert "data-stream-url" not in root
    assert json.loads(root["data-words"] or "") == script.words()
    assert {"done", "failed", "pickup", "run", "waiting", "oldest", "slots"} <= {
        str(item.get("data-key")) for item in page.of("li")
    }
    assert {"queues", "running", "retrying", "dead", "failed"} <= {
        str(part.get("data-table")) for part in page.of("div")
    }
    assert any((path.get("d") or "").startswith("M") for path in page.of("path") if path.get("data-key"))
    assert [one["src"] for one in page.of("script") if "pgqueue" in (one.get("src") or "")]
    assert all("defer" in one for one in page.of("script") if "pgqueue" in (one.get("src") or ""))
    assert "JavaScript" in page.text


@pytest.mark.django_db
@pytest.mark.parametrize("window", ["live", "hour", "day", "week"])
def test_a_window_is_chosen_by_a_link(browser: Browser, window: str) -> None:
    page = Tags(browser("view_dashboard").get(DASHBOARD, {"window": window}).content.decode())
    current = [link["href"] for link in page.of("a") if link.get("aria-current") == "true"]
    assert current == [f"?window={window}"]
    [root] = [attributes for _, attributes in page.tags if attributes.get("id") == "content-main"]
    assert root["data-window"] == window
    assert ("window=" in (root["data-frame-url"] or "")) == (window != "live")


@pytest.mark.django_db
@pytest.mark.parametrize("language", ["en", "de", "he"])
def test_the_page_speaks_the_language_of_who_looks(browser: Browser, language: str) -> None:
    client = browser("view_dashboard")
    page = Tags(client.get(DASHBOARD, headers={"accept-language": language}).content.decode())
    [root] = page.of("html")
    assert (root["lang"], root["dir"]) == (language, "rtl" if language == "he" else "ltr")


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["/admin/pgqueue_django/", "/admin/pgqueue_django/job/"])
def test_the_way_to_the_dashboard_is_for_who_may_see_it(browser: Browser, page: str) -> None:
    link = f'href="{DASHBOARD}"'
    assert link in browser("view_job", "view_dashboard").get(page).content.decode()
    assert link not in browser("view_job").get(page).content.decode()


@pytest.mark.django_db
def test_the_dashboard_leads_to_how_the_queue_works_and_back(browser: Browser) -> None:
    client = browser("view_dashboard")
    assert f'href="{DASHBOARD}how/"' in client.get(DASHBOARD).content.decode()
    how = html.unescape(client.get(f"{DASHBOARD}how/").content.decode())
    assert f'href="{DASHBOARD}"' in how
    for verb in ("enqueue", "claim", "heartbeat", "settle", "reap", "release", "requeue", "prune"):
        assert verb in how


def test_the_page_for_a_lost_database_needs_none_and_comes_back() -> None:
    # Without the fixture db: a query would fail.
    page = Tags(render_to_string(f"{PARTS}away.html", {"seconds": 5, "is_unmigrated": False}))
    assert {"http-equiv": "refresh", "content": "5"} in page.of("meta")
    assert "cannot be reached" in page.text
    assert "migrate" in Tags(render_to_string(f"{PARTS}away.html", {"seconds": 5, "is_unmigrated": True})).text
