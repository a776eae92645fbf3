"""docs/benchmarks.md is what ``python -m bench.report`` makes of the kept results: nothing on it is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as all_benchmarks
from bench import report
from bench.record import RESULTS


def test_the_page_and_the_plots_are_what_the_results_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where plots stand, beside the page, is written into it: the copy has the tree's shape.
    monkeypatch.setattr(report, "ROOT", tmp_path)
    page, plots = tmp_path / "docs" / "benchmarks.md", tmp_path / "bench" / "results" / "plots"
    report.write(RESULTS, page, plots)
    assert page.read_text() == report.PAGE.read_text(), "run python -m bench.report"
    assert {file.name: file.read_text() for file in plots.iterdir()} == {
        file.name: file.read_text() for file in (RESULTS / "plots").iterdir()
    }


def test_every_benchmark_is_run_by_all_and_has_a_section() -> None:
    assert sorted(all_benchmarks.ALL) == sorted(report.ORDER) == sorted(report.SECTIONS) == sorted(report.TITLES)
    assert {file.stem for file in RESULTS.glob("*.json")} <= set(report.ORDER)


def test_no_quick_look_is_kept_as_a_measurement() -> None:
    assert [file.stem for file in RESULTS.glob("*.json") if json.loads(file.read_text())["quick"]] == []
