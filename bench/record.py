"""How every benchmark is run and written down.

A benchmark is a list of cells (settings to compare) and a function that measures one. ``Bench.measure`` runs all
cells once, in random order, then all again: what drifts on the machine hits all of them. Between two runs the
machine cools down. The file is written after every run, so that an interrupted benchmark keeps what it has.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import lab as laboratory

RESULTS = Path(__file__).resolve().parent / "results"

Cell = dict[str, Any]


class Bench:
    """One run of one benchmark: its flags, its runs, its ratios, its file."""

    def __init__(
        self,
        name: str,
        doc: str,
        *,
        repeats: int,
        quick_repeats: int = 1,
        flags: Callable[[argparse.ArgumentParser], object] | None = None,
        argv: Sequence[str] | None = None,
    ) -> None:
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.{name}",
            description=inspect.cleandoc(doc),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--quick", action="store_true", help="small numbers, in under two minutes: a look")
        parser.add_argument("--repeats", type=int, help=f"runs of each cell ({repeats}, quick {quick_repeats})")
        parser.add_argument("--seed", type=int, default=20, help="of the order of the runs (20)")
        parser.add_argument("--out", type=Path, help=f"the JSON (bench/results/{name}.json, quick: …/quick/…)")
        parser.add_argument("--cool-down", type=float, help="seconds before each run (3, quick 0.5)")
        if flags is not None:
            flags(parser)
        self.args = parser.parse_args(argv)
        self.name = name
        self.quick: bool = self.args.quick
        self.repeats: int = self.args.repeats or (quick_repeats if self.quick else repeats)
        self.cool_down: float = self.args.cool_down if self.args.cool_down is not None else 0.5 if self.quick else 3.0
        self.out: Path = self.args.out or (RESULTS / "quick" if self.quick else RESULTS) / f"{name}.json"
        self._random = random.Random(self.args.seed)
        self.runs: list[dict[str, Any]] = []
        self.ratios: list[dict[str, Any]] = []
        self._began = time.monotonic()
        # So that the servers and workers of this run end with it.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        self.document: dict[str, Any] = {
            "bench": name,
            "question": inspect.cleandoc(doc).splitlines()[0],
            "method": inspect.cleandoc(doc),
            "quick": self.quick,
            "repeats": self.repeats,
            "seed": self.args.seed,
            "cool_down_seconds": self.cool_down,
            "flags": {
                key: value
                for key, value in vars(self.args).items()
                if key not in {"out", "quick", "repeats", "seed", "cool_down"} and not isinstance(value, Path)
            },
            "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": laboratory.versions(),
            "machine": laboratory.machine(),
            "server_settings": {},
            "notes": [],
        }

    def note(self, text: str) -> None:
        """Something that the reader of the figures has to know."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)
            print(f"note: {text}", flush=True)

    def measure(
        self, cells: Sequence[Cell], run: Callable[[Cell], Mapping[str, Any]], *, repeats: int | None = None
    ) -> None:
        """Run each cell ``repeats`` times, interleaved; a run that fails is recorded as such."""
        for repeat in range(repeats or self.repeats):
            order = list(cells)
            self._random.shuffle(order)
            for cell in order:
                self.one(cell, run, repeat)

    def one(self, cell: Cell, run: Callable[[Cell], Mapping[str, Any]], repeat: int) -> dict[str, Any]:
        time.sleep(self.cool_down)
        record = {"cell": cell, "repeat": repeat, "load_before": [round(value, 2) for value in os.getloadavg()]}
        began = time.monotonic()
        try:
            record |= run(cell)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            record["error"] = scrub(f"{type(error).__name__}: {error}")
        record["took_seconds"] = round(time.monotonic() - began, 2)
        self.runs.append(record)
        print(f"{words(cell):<48} {_brief(record)}", flush=True)
        self.save()
        return record

    # Figures ---------------------------------------------------------------------------------------------------

    def values(self, figure: str, **cell: Any) -> list[float]:
        """This figure of every run of the cells that have these settings."""
        return [
            run[figure]
            for run in self.runs
            if "error" not in run
            and run.get(figure) is not None
            and all(run["cell"].get(key) == value for key, value in cell.items())
        ]

    def median(self, figure: str, **cell: Any) -> float | None:
        found = self.values(figure, **cell)
        return statistics.median(found) if found else None

    def ratio(
        self,
        goal: str,
        figure: float | None,
        *,
        least: float | None = None,
        most: float | None = None,
        unit: str = "",
        why: str = "",
    ) -> None:
        """A line at the end: the goal in words, its figure, met or missed. No bound: a figure to know."""
        met: bool | None = None
        if figure is not None and (least is not None or most is not None):
            met = (least is None or figure >= least) and (most is None or figure <= most)
        self.ratios.append(
            {"goal": goal, "figure": figure, "unit": unit, "least": least, "most": most, "met": met, "why": why}
        )

    def finish(self) -> int:
        """Write the file, print the ratios. 0 whatever they are: a miss is a finding, not a failure."""
        self.save(done=True)
        print()
        for ratio in self.ratios:
            print(ratio_line(ratio))
        errors = sum("error" in run for run in self.runs)
        took = time.monotonic() - self._began
        print(f"\n{len(self.runs)} runs, {errors} failed, {took:.0f} s; written to {_shown(self.out)}", flush=True)
        return 1 if errors == len(self.runs) else 0

    def save(self, *, done: bool = False) -> None:
        self.document |= {
            "took_seconds": round(time.monotonic() - self._began, 1),
            "complete": done,
            "cells": summaries(self.runs),
            "ratios": self.ratios,
            "runs": self.runs,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        draft = self.out.with_suffix(".part")
        draft.write_text(json.dumps(rounded(self.document), indent=1, ensure_ascii=False) + "\n")
        draft.replace(self.out)


def ratio_line(ratio: Mapping[str, Any]) -> str:
    figure = "not measured" if ratio["figure"] is None else f"{short(ratio['figure'])}{ratio['unit']}"
    verdict = {True: "met", False: "MISSED", None: "-" if ratio["figure"] is not None else "NOT MEASURED"}[ratio["met"]]
    why = f"  ({ratio['why']})" if ratio.get("why") else ""
    return f"{ratio['goal']:<72} {figure:>14}  {verdict}{why}"


def columns(
    cells: Sequence[Mapping[str, Any]], key: str, values: Sequence[str], rows: Sequence[tuple[str, str]]
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table with a column for each of the ``values`` of ``key``: from the cells of a document.

    A figure that none of them has (nothing of the kind happened) has no row.
    """
    figures = {entry["cell"][key]: entry["figures"] for entry in cells}
    heads = [key, *(value for value in values if value in figures)]
    return heads, [
        [words, *(spread(figures[head].get(name)) for head in heads[1:])]
        for words, name in rows
        if any(name in found for found in figures.values())
    ]


def summaries(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per cell: of every figure the median, the least and the most; and how many runs failed."""
    cells: dict[str, dict[str, Any]] = {}
    for run in runs:
        key = json.dumps(run["cell"], sort_keys=True)
        cells.setdefault(key, {"cell": run["cell"], "runs": []})["runs"].append(run)
    answer = []
    for entry in cells.values():
        good = [run for run in entry["runs"] if "error" not in run]
        names = [
            name
            for name in dict.fromkeys(name for run in good for name in run)
            if name not in {"cell", "repeat", "load_before"}
        ]
        figures = {}
        for name in names:
            numbers = [run[name] for run in good if _is_number(run.get(name))]
            if numbers:
                figures[name] = {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}
        answer.append(
            {
                "cell": entry["cell"],
                "runs": len(good),
                "errors": sorted({run["error"] for run in entry["runs"] if "error" in run}),
                "figures": figures,
            }
        )
    return answer


def paired(on: Sequence[float], off: Sequence[float]) -> dict[str, float]:
    """The ratio on / off over pairs: geometric mean with its 95 % interval (Student's t on the logarithms)."""
    logs = [math.log(a / b) for a, b in zip(on, off, strict=True)]
    mean = statistics.fmean(logs)
    found = {"pairs": len(logs), "ratio": math.exp(mean), "median": math.exp(statistics.median(logs))}
    if len(logs) > 1:
        half = _T95[min(len(logs) - 1, len(_T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
        found |= {"low": math.exp(mean - half), "high": math.exp(mean + half)}
    return found


# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060),
)


def numbers(text: str) -> list[int]:
    """For argparse: ``1,2,4``."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def words(cell: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in cell.items())


def scrub(text: str) -> str:
    """Without the paths of this machine, and short."""
    for path, name in ((str(laboratory.ROOT), "."), (sys.prefix, "python"), (str(Path.home()), "~")):
        text = text.replace(path, name)
    return " ".join(text.split())[-600:]


def rounded(value: Any) -> Any:
    """Floats with six significant digits: more is noise, and a diff nobody reads."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return value


def short(value: float) -> str:
    """A number for people: 12,345 or 1.23."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(figure: Mapping[str, float] | None) -> str:
    """Median (min-max)."""
    if figure is None:
        return "-"
    if figure["min"] == figure["max"]:
        return short(figure["median"])
    return f"{short(figure['median'])} ({short(figure['min'])}-{short(figure['max'])})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_BRIEF = (
    ("rate", "jobs/s"),
    ("producer_us_per_job", "us producer"),
    ("worker_us_per_job", "us worker"),
    ("server_us_per_job", "us server"),
    ("idle_percent", "% idle"),
    ("p50_ms", "ms p50"),
    ("p99_ms", "ms p99"),
    ("ratio", "on/off"),
    ("rss_mb", "MB"),
    ("connections", "connections"),
    ("kills", "kills"),
    ("deliveries", "deliveries"),
    ("duplicates", "duplicates"),
    ("lost", "lost"),
    ("unexplained", "unexplained"),
    ("total_s", "s"),
)


def _brief(record: Mapping[str, Any]) -> str:
    if "error" in record:
        return f"FAILED {record['error']}"
    parts = [f"{short(record[name])} {unit}" for name, unit in _BRIEF if _is_number(record.get(name))]
    if record.get("finished") is False:
        parts.append(f"UNFINISHED at {record.get('done')}")
    return ", ".join(parts) + f"   [load {record['load_before'][0]}]"


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(laboratory.ROOT))
    except ValueError:
        return path.name


def expand(**lists: Iterable[Any]) -> list[Cell]:
    """Every combination: ``expand(processes=[1, 2], handler=["plain"])``."""
    cells: list[Cell] = [{}]
    for key, values in lists.items():
        cells = [{**cell, key: value} for cell in cells for value in list(values)]
    return cells
