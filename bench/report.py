"""The page of the benchmarks, docs/benchmarks.md, and its plots, from the JSON in bench/results: one command.

``python -m bench.report`` writes both. Nothing on the page is typed by hand: a figure that is not in the JSON is not
on the page, and a benchmark that was not run says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import plots, record
from bench.lab import ROOT
from bench.record import RESULTS, spread

PAGE = ROOT / "docs" / "benchmarks.md"

ORDER = [
    *("drain", "limit", "peers", "latency", "enqueue", "growth", "prune", "snapshot", "pages", "dashboard", "modes"),
    *("memory", "crash", "restart"),
]
TITLES = {
    "drain": "Draining a backlog",
    "limit": "What PostgreSQL can do without Python",
    "peers": "Beside other queues",
    "latency": "Picking up a job",
    "enqueue": "Enqueueing",
    "growth": "Full tables and long transactions",
    "prune": "Pruning beside work",
    "snapshot": "Reading the whole queue",
    "pages": "Pages for people",
    "dashboard": "People who look at the dashboard",
    "modes": "Why SKIP LOCKED",
    "memory": "Memory and connections",
    "crash": "Workers that are killed",
    "restart": "A restart of PostgreSQL",
}

Figures = dict[str, dict[str, float]]


class Result:
    """One JSON file."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.name: str = document["bench"]

    def cells(self, **cell: Any) -> list[dict[str, Any]]:
        return [
            entry
            for entry in self.document["cells"]
            if all(entry["cell"].get(key) == value for key, value in cell.items())
        ]

    def figures(self, **cell: Any) -> Figures:
        found = self.cells(**cell)
        figures: Figures = found[0]["figures"] if found else {}
        return figures

    def settings(self, key: str, **cell: Any) -> list[Any]:
        """The different values of one setting, in the order in which they are to be shown."""
        values = list(dict.fromkeys(entry["cell"][key] for entry in self.cells(**cell) if key in entry["cell"]))
        return sorted(values) if all(isinstance(value, int) for value in values) else values

    def point(self, figure: str, **cell: Any) -> plots.Point | None:
        found = self.figures(**cell).get(figure)
        return plots.Point(found["median"], found["min"], found["max"]) if found else None


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown; the first column on the left, figures on the right."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join(":--" if place == 0 else "--:" for place in range(len(heads))) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


class Page:
    def __init__(self, plot_directory: Path, page: Path) -> None:
        self.lines: list[str] = []
        self._plots = plot_directory
        self._page = page

    def say(self, *lines: str) -> None:
        self.lines += lines

    def plot(self, name: str, svg: str, words: str) -> None:
        self._plots.mkdir(parents=True, exist_ok=True)
        file = self._plots / f"{name}.svg"
        file.write_text(svg)
        path = Path(*[".."] * len(self._page.parent.relative_to(ROOT).parts), *file.relative_to(ROOT).parts)
        self.say(f"![{words}]({path.as_posix()})", "")


def figure_row(figures: Figures, *names: str) -> list[str]:
    return [spread(figures.get(name)) for name in names]


# -- one function a benchmark -------------------------------------------------------------------------------------


def drain(result: Result, page: Page) -> None:
    rows = []
    names = ("rate", "rate_by_rows", "worker_us_per_job", "server_us_per_job", "idle_percent")
    handlers = [name for name in ("plain", "async", "orm", "bare") if name in result.settings("handler")]
    processes = result.settings("processes")
    storages: list[Any] = result.settings("storage") or [None]
    for handler in handlers:
        for count in processes:
            for storage in storages:
                cell = {"handler": handler, "processes": count} | ({"storage": storage} if storage else {})
                if figures := result.figures(**cell):
                    words = f"{handler}, {count} process(es)" + (f", {storage}" if storage else "")
                    rows.append([words, *figure_row(figures, *names)])
    heads = ["handlers", "jobs/s", "by the rows", "worker, µs CPU a job", "server, µs CPU a job", "idle %"]
    page.say(*table(heads, rows))
    if len(storages) == 1:
        series = [
            plots.Series(
                f"{n} process(es)", [result.point("rate", handler=handler, processes=n) for handler in handlers]
            )
            for n in processes
        ]
        page.plot(
            "drain", plots.bars("Draining a backlog", "jobs/s", handlers, series), "Drain rate by kind of handler"
        )


def limit(result: Result, page: Page) -> None:
    clients = result.settings("clients")
    rows = []
    for script in result.settings("script"):
        for protocol in result.settings("protocol"):
            for batch in result.settings("batch"):
                cell = {"driver": "pgbench", "script": script, "protocol": protocol, "batch": batch}
                if not result.cells(**cell):
                    continue
                rows.append(
                    [
                        f"pgbench, {script}, {protocol}, {batch} a batch",
                        *(spread(result.figures(**cell, clients=count).get("rate")) for count in clients),
                    ]
                )
    ours = {"driver": "worker processes"}
    rows.append(["**our worker processes**", *(spread(result.figures(**ours, clients=n).get("rate")) for n in clients)])
    rows.append(
        ["jobs per claim there", *(spread(result.figures(**ours, clients=n).get("jobs_per_claim")) for n in clients)]
    )
    page.say(*table(["jobs/s", *(f"{count} client(s) or process(es)" for count in clients)], rows))


def peers(result: Result, page: Page) -> None:
    systems = list(result.document["systems"])
    drains = result.settings("processes", part="drain")
    waits = result.settings("processes", part="latency")

    def wait(system: str, count: int) -> str:
        figures = result.figures(part="latency", system=system, processes=count)
        if not figures:
            return "-"
        parts = "/".join(record.short(figures[f"{name}_ms"]["median"]) for name in ("p50", "p95", "p99"))
        speed = figures["per_second"]["median"]
        return parts if speed == 100 else f"{parts} (at {speed:g}/s)"

    rows = []
    for system in systems:
        about = result.document["systems"][system]
        single = result.figures(part="enqueue", system=system, how="one").get("rate")
        bulk = result.figures(part="enqueue", system=system, how="many").get("rate")
        rows.append(
            [
                f"**{system}**" if system == "pgqueue" else system,
                about["store"],
                about["slots"],
                *(spread(result.figures(part="drain", system=system, processes=n).get("rate")) for n in drains),
                *(wait(system, count) for count in waits),
                spread(single),
                spread(bulk),
            ]
        )
    heads = ["system", "store", "slots a process", *(f"drain, {count} proc., jobs/s" for count in drains)]
    heads += [f"pickup p50/p95/p99, {count} proc., ms" for count in waits]
    heads += ["enqueue, one, jobs/s", "enqueue, 1,000 a call, jobs/s"]
    page.say(*table(heads, rows))
    if drains:
        first = drains[0]
        speeds = {s: result.point("rate", part="drain", system=s, processes=first) for s in systems}
        shown = sorted(speeds, key=lambda system: -(point.median if (point := speeds[system]) else 0))
        series = [
            plots.Series(f"{n} process(es)", [result.point("rate", part="drain", system=s, processes=n) for s in shown])
            for n in drains
        ]
        svg = plots.bars("Draining a backlog, all on the same cores", "jobs/s", shown, series, ours="pgqueue")
        page.plot("peers-drain", svg, "Drain rate of each system")
    if waits:
        first = waits[0]
        series = [
            plots.Series(name, [result.point(f"{name}_ms", part="latency", system=s, processes=first) for s in systems])
            for name in ("p50", "p99")
        ]
        # A queue that polls once a second would make all the others one pixel long.
        quick = [place for place, point in enumerate(series[0].points) if point is not None and point.median < 100]
        series = [plots.Series(one.name, [one.points[place] for place in quick]) for one in series]
        names = [systems[place] for place in quick]
        svg = plots.bars(
            f"Pickup at a steady load, {first} process(es), p50 below 100 ms", "ms", names, series, ours="pgqueue"
        )
        page.plot("peers-latency", svg, "Pickup time of each system that does not poll slowly")

    rows = []
    for system in systems:
        for count in drains:
            figures = result.figures(part="drain", system=system, processes=count)
            names = ("worker_us_per_job", "server_us_per_job", "idle_percent", "sampler_ms", "jobs")
            rows.append([f"{system}, {count}", *figure_row(figures, *names)])
    page.say("CPU and conditions of the drains, between 10 % and 90 %:", "")
    heads = ["system, processes", "worker, µs a job", "server, µs a job", "idle %", "counting, ms", "backlog"]
    page.say(*table(heads, rows))
    page.say("How each was run:", "")
    for system in systems:
        about = result.document["systems"][system]
        versions = about["versions"]
        named = (system.removesuffix("-durable"), "django", "psycopg", "asyncpg", "redis")
        own = ", ".join(f"{name} {versions[name]}" for name in named if name in versions)
        words = "; ".join([f"`{about['command'][0]}` (Python {versions['python']}, {own})", *about["notes"]])
        page.say(f"* {system}: {words}")
    for system, reason in result.document["not_installed"].items():
        page.say(f"* {system} is missing: {reason}")
    page.say("")


def latency(result: Result, page: Page) -> None:
    rows = []
    wakes, counts = result.settings("wake"), result.settings("workers")
    for wake in wakes:
        for count in counts:
            figures = result.figures(wake=wake, workers=count)
            names = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "enqueue_ms", "worker_us_per_job", "idle_percent")
            rows.append([f"{wake}, {count}", *figure_row(figures, *names)])
    heads = ["wake-up, processes", "p50 ms", "p95 ms", "p99 ms", "worst ms", "enqueue() ms"]
    heads += ["worker, µs a job", "idle %"]
    page.say(*table(heads, rows))
    series = [
        plots.Series(f"{wake} {name}", [result.point(f"{name}_ms", wake=wake, workers=n) for n in counts])
        for wake in wakes
        for name in ("p50", "p99")
    ]
    svg = plots.lines("Enqueue to handler start", "ms", [str(n) for n in counts], series, axis="idle worker processes")
    page.plot("latency", svg, "Pickup time by number of worker processes")


def enqueue(result: Result, page: Page) -> None:
    rows = []
    storages: list[Any] = result.settings("storage") or [None]
    ways = [entry["cell"]["way"] for entry in result.document["cells"] if "way" in entry["cell"]]
    from bench.enqueue import WAYS

    for way in [name for name in WAYS if name in ways]:
        for storage in storages:
            figures = result.figures(**({"way": way} | ({"storage": storage} if storage else {})))
            names = ("rate", "p50_ms", "p99_ms", "producer_us_per_job", "server_us_per_job")
            rows.append([way + (f", {storage}" if storage else ""), *figure_row(figures, *names)])
    heads = ["one producer", "jobs/s", "p50 of a call, ms", "p99, ms", "producer, µs a job", "server, µs a job"]
    page.say(*table(heads, rows))
    found = result.document.get("wakeups", {})
    if found:
        rows = []
        for count, pair in found.items():
            figures = result.figures(producers=int(count))
            interval = f"{100 * pair['low']:.1f} to {100 * pair['high']:.1f}" if "low" in pair else "-"
            rows.append(
                [
                    str(count),
                    *figure_row(figures, "rate", "rate_without"),
                    f"{100 * pair['ratio']:.1f}",
                    interval,
                    str(pair["pairs"]),
                ]
            )
        heads = ["producers", "with wake-ups, jobs/s", "without, jobs/s", "% of without", "95 % interval", "pairs"]
        page.say(*table(heads, rows))


def growth(result: Result, page: Page) -> None:
    empty = result.figures(state="empty").get("rate")
    rows = []
    states = result.settings("state")
    from bench.growth import STATES

    for state in [name for name in STATES if name in states]:
        figures = result.figures(state=state)
        rate = figures.get("rate")
        share = f"{100 * rate['median'] / empty['median']:.0f}" if rate and empty else "-"
        names = ("claim_ms_p50", "claim_ms_p99", "jobs_per_claim", "server_us_per_job")
        rows.append([state, spread(rate), share, *figure_row(figures, *names)])
    heads = ["table", "jobs/s", "% of empty", "claim p50, ms", "claim p99, ms", "jobs a claim", "server, µs a job"]
    page.say(f"{result.document['parameters']['rows']:,} rows in the way.", "", *table(heads, rows))


def prune(result: Result, page: Page) -> None:
    rows = []
    for state in result.settings("state"):
        figures = result.figures(state=state)
        names = ("claim_ms_p50", "claim_ms_p99", "pruned")
        rows.append([state, spread(figures.get("rate")), *figure_row(figures, *names)])
    heads = ["finished jobs", "jobs/s", "claim p50, ms", "claim p99, ms", "rows pruned"]
    page.say(f"{result.document['parameters']['rows']:,} finished jobs.", "", *table(heads, rows))


def snapshot(result: Result, page: Page) -> None:
    rows = []
    for size in result.settings("finished"):
        figures = result.figures(finished=size)
        rows.append([f"{size:,}", *figure_row(figures, "ms_p50", "ms_p99", "buffers")])
    page.say(*table(["finished jobs", "p50, ms", "p99, ms", "pages looked at"], rows))


def pages(result: Result, page: Page) -> None:
    sizes = result.settings("jobs")
    rows = []
    for name in sorted(map(str, result.settings("page"))):
        row = [name]
        for size in sizes:
            row += figure_row(result.figures(jobs=size, page=name), "cpu_ms", "ms_p50")
        rows.append(row)
    page.say(*table(["page", *(f"{size:,} jobs, ms {what}" for size in sizes for what in ("CPU", "p50"))], rows))
    names = ("enqueue_us", "enqueue_many_us", "claim_and_settle_us", "index_mb")
    rows = [[which, *figure_row(result.figures(index=which), *names)] for which in result.settings("index")]
    heads = ["index on arguments", "enqueue, µs of the server a job", "in bulk", "claim and settle", "its size, MB"]
    page.say(*table(heads, rows))


def dashboard(result: Result, page: Page) -> None:
    from bench.dashboard import ROWS

    rows = [
        [how, viewers, *figure_row(result.figures(how=how, viewers=viewers), *ROWS)]
        for how in result.settings("how")
        for viewers in result.settings("viewers", how=how)
        if how != "-"
    ]
    heads = ["server", "viewers", "CPU, %", "before, MB", "peak, MB", "frames/s", "p50, ms", "p99, ms", "statements/s"]
    page.say(*table([*heads, "walks/s", "sessions", "503s"], rows))
    figures = result.figures(viewers="reading")
    names = ("snapshot_ms_p50", "reading_ms_p50", "reading_ms_max", "frame_ms_p50", "frame_bytes")
    heads = ["", "the snapshot alone, ms", "p50, ms", "longest, ms", "a frame of it, ms", "bytes"]
    page.say(*table(heads, [["a reading", *figure_row(figures, *names)]]))


def modes(result: Result, page: Page) -> None:
    counts = result.settings("workers")
    for claims in result.settings("claims"):
        rows = []
        for count in counts:
            skip = result.figures(claims=claims, workers=count, lock="skip locked").get("rate")
            plain = result.figures(claims=claims, workers=count, lock="for update").get("rate")
            ratio = f"{skip['median'] / plain['median']:.2f}" if skip and plain else "-"
            rows.append([str(count), spread(skip), spread(plain), ratio])
        page.say("One job a claim:" if claims == "one" else "As shipped (tiny jobs come in batches):", "")
        heads = ["worker processes", "SKIP LOCKED, jobs/s", "plain FOR UPDATE, jobs/s", "ratio"]
        page.say(*table(heads, rows))
        series = [
            plots.Series(name, [result.point("rate", claims=claims, workers=n, lock=lock) for n in counts])
            for name, lock in (("SKIP LOCKED", "skip locked"), ("plain FOR UPDATE", "for update"))
        ]
        title = "Competing workers, one job a claim" if claims == "one" else "Competing workers, as shipped"
        svg = plots.lines(title, "jobs/s", [str(n) for n in counts], series, axis="single-slot worker processes")
        page.plot(f"modes-{claims}", svg, title)


def memory(result: Result, page: Page) -> None:
    rows = []
    for handler in result.settings("handler"):
        figures = result.figures(handler=handler)
        names = ("rss_start_mb", "rss_mb", "rss_idle_mb", "mb_per_10000_jobs", "connections", "jobs")
        rows.append([handler, *figure_row(figures, *names)])
    heads = ["handlers", "before, MB", "peak, MB", "idle after, MB", "MB per 10,000 jobs", "connections", "jobs"]
    page.say(*table(heads, rows))


def crash(result: Result, page: Page) -> None:
    from bench.crash import ROWS, SUPERVISORS

    page.say(*table(*record.columns(result.document["cells"], "supervisor", SUPERVISORS, ROWS)))


def restart(result: Result, page: Page) -> None:
    from bench.restart import COMMAND, MODES, ROWS

    page.say(*table(*record.columns(result.document["cells"], "restart", [*MODES, COMMAND], ROWS)))


SECTIONS: dict[str, Callable[[Result, Page], None]] = {
    "drain": drain,
    "limit": limit,
    "peers": peers,
    "latency": latency,
    "enqueue": enqueue,
    "growth": growth,
    "prune": prune,
    "snapshot": snapshot,
    "pages": pages,
    "dashboard": dashboard,
    "modes": modes,
    "memory": memory,
    "crash": crash,
    "restart": restart,
}


# -- the page -------------------------------------------------------------------------------------------------------


def conditions(result: Result) -> str:
    document = result.document
    machine, versions, server = document["machine"], document["versions"], document["server_settings"]
    loads = [run["load_before"][0] for run in document["runs"]]
    errors = sum("error" in run for run in document["runs"])
    parts = [
        f"{document['began_at'][:10]}",
        f"{machine['processor'] or 'processor unknown'}, {machine['cores']} cores, {machine['memory_gb']} GB",
        f"PostgreSQL {server.get('server_version', '?')}, fsync {server.get('fsync', '?')}",
        f"Python {versions['python']}, Django {versions['django']}, psycopg {versions['psycopg']}",
        f"pgqueue_django {versions['pgqueue_django']}" + (f" at {versions['commit']}" if "commit" in versions else ""),
        f"{document['repeats']} run(s) of each cell, seed {document['seed']}",
        # What was asked for, where the method names what is usual.
        ", ".join(f"{name} {_flag(value)}" for name, value in document["flags"].items() if value is not None),
        f"load average before a run {min(loads):g} to {max(loads):g}" if loads else "no runs",
    ]
    if errors:
        parts.append(f"{errors} of {len(document['runs'])} runs failed")
    if document["quick"]:
        parts.append("**a quick look, not a measurement**")
    return "; ".join(filter(None, parts)) + "."


def _flag(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value}"


def ratios(results: Sequence[Result]) -> list[str]:
    rows = []
    for result in results:
        for ratio in result.document["ratios"]:
            if ratio["least"] is None and ratio["most"] is None:
                continue
            figure = "not measured" if ratio["figure"] is None else f"{record.short(ratio['figure'])}{ratio['unit']}"
            verdict = {True: "met", False: "**missed**", None: "-"}[ratio["met"]]
            rows.append([ratio["goal"], figure, verdict, ratio["why"], f"`bench.{result.name}`"])
    return table(["goal", "figure", "", "of", "by"], rows)


def write(results_directory: Path, page_file: Path, plot_directory: Path) -> int:
    page = Page(plot_directory, page_file)
    results = []
    for name in ORDER:
        file = results_directory / f"{name}.json"
        if file.exists():
            results.append(Result(json.loads(file.read_text())))
    page.say(
        "# Benchmarks",
        "",
        "<!-- Written by python -m bench.report from bench/results/*.json: change those, not this page. -->",
        "",
        "Everything runs on one machine: producers, workers, database and the observer share its cores, so the figures",
        "are for comparing with each other, never a promise for another machine. A cell is the median with the least",
        "and the most of its runs in brackets; every run is in the JSON beside this page's plots. `python -m",
        "bench.drain --help` and so on tell the method; `python -m bench` runs them all and writes this page.",
        "",
    )
    if results:
        page.say("## Goals", "", *ratios(results))
    known = {result.name: result for result in results}
    for name in ORDER:
        page.say(f"## {TITLES[name]}", "")
        if name not in known:
            page.say(f"Not run yet: `python -m bench.{name}`.", "")
            continue
        result = known[name]
        page.say(result.document["method"], "", conditions(result), "")
        SECTIONS[name](result, page)
        others = [ratio for ratio in result.document["ratios"] if ratio["least"] is None and ratio["most"] is None]
        if others:
            rows = [
                [
                    ratio["goal"],
                    "-" if ratio["figure"] is None else f"{record.short(ratio['figure'])}{ratio['unit']}",
                    ratio["why"],
                ]
                for ratio in others
            ]
            page.say(*table(["to know", "figure", "of"], rows))
        for note in result.document["notes"]:
            page.say(f"* {note}")
        if result.document["notes"]:
            page.say("")
        broken = [run for run in result.document["runs"] if "error" in run]
        failed = sorted({f"{record.words(run['cell'])}: {run['error']}" for run in broken})
        if failed:
            page.say("Runs that failed:", "", *(f"* {line}" for line in failed), "")
    page_file.parent.mkdir(parents=True, exist_ok=True)
    page_file.write_text("\n".join(page.lines).rstrip() + "\n")
    drawn = len(list(plot_directory.glob("*.svg")))
    print(f"{len(results)} of {len(ORDER)} benchmarks: {page_file.name} and {drawn} plots")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON is (bench/results)")
    parser.add_argument("--page", type=Path, default=PAGE, help="what to write (docs/benchmarks.md)")
    args = parser.parse_args()
    return write(args.results.resolve(), args.page.resolve(), args.results.resolve() / "plots")


if __name__ == "__main__":
    sys.exit(main())
