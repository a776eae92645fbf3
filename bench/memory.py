"""How much memory and how many connections does one worker take, and do they grow?

Method: one worker process with 32 slots drains 200,000 jobs that do nothing, and a smaller backlog of jobs that
read and write with the ORM. Every 200 ms: the resident memory of its processes, its sessions on the server, the jobs
done. The slope is the least-squares line through the samples after the first fifth of the jobs.

How to read it: MB of 1,000,000 bytes. Resident memory counts Django, its contrib apps and the shared libraries of a
plain project, too: `rss_start_mb` is what the worker has before its first job. Connections are the worker's own
(loop, heartbeat, chores, listener) and one for each slot whose handler used the database.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from bench import drain, meter, record, workers
from bench import lab as laboratory

SLOTS = 32
WARM_UP = 0.2  # of the jobs


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, help="that do nothing (200,000; quick 20,000)")
    parser.add_argument("--orm-jobs", type=int, help="that read and write (30,000; quick 3,000)")
    parser.add_argument("--handlers", type=record.names, default=["plain", "async", "orm"], help="plain,async,orm")


def watch(lab: laboratory.Lab, jobs: int, *, limit: float) -> dict[str, Any]:
    samples: list[tuple[int, float, int]] = []
    with workers.ours(1, slots=SLOTS, url=lab.url) as crew:
        crew.wait()
        time.sleep(0.3)
        start = meter.resident_mb(crew.pids)
        crew.release()
        began = time.monotonic()
        done = 0
        while done < jobs:
            time.sleep(0.2)
            crew.raise_if_ended()
            done = lab.succeeded()
            samples.append((done, meter.resident_mb(crew.pids), sessions(lab)))
            if time.monotonic() - began > limit:
                raise TimeoutError(f"{done} of {jobs} jobs after {limit:g} s")
        # What an idle worker keeps.
        time.sleep(1.0)
        idle = meter.resident_mb(crew.pids)
        crew.stop()
    warm = [(count, mb) for count, mb, _ in samples if count >= WARM_UP * jobs]
    return {
        "rss_start_mb": start,
        "rss_mb": max(mb for _, mb, _ in samples),
        "rss_idle_mb": idle,
        "mb_per_10000_jobs": 10_000 * slope(warm),
        "connections": max(count for _, _, count in samples),
        "jobs": jobs,
        "rate": jobs / (time.monotonic() - began - 1.0),
        "samples": [[count, round(mb, 2)] for count, mb, _ in samples][:: max(1, len(samples) // 200)],
    }


def sessions(lab: laboratory.Lab) -> int:
    """Of the worker: all of this database but those of the benchmark itself."""
    return int(
        lab.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND application_name NOT LIKE 'bench%'"
        )
    )


def slope(points: list[tuple[int, float]]) -> float:
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def main() -> int:
    bench = record.Bench("memory", __doc__ or "", repeats=1, flags=flags)
    args = bench.args
    jobs = args.jobs or (20_000 if bench.quick else 200_000)
    orm_jobs = args.orm_jobs or (3_000 if bench.quick else 30_000)
    bench.document["parameters"] = {"jobs": jobs, "orm_jobs": orm_jobs, "slots": SLOTS}
    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        drain.fill_customers(lab)

        def run(cell: record.Cell) -> dict[str, Any]:
            from bench import tasks

            amount = orm_jobs if cell["handler"] == "orm" else jobs
            lab.empty()
            lab.preload(getattr(tasks, drain.HANDLERS[cell["handler"]]), amount)
            lab.tidy()
            return watch(lab, amount, limit=600)

        bench.measure(record.expand(handler=args.handlers), run)

    for handler in args.handlers:
        peak = bench.median("rss_mb", handler=handler)
        growth = bench.median("mb_per_10000_jobs", handler=handler)
        connections = bench.median("connections", handler=handler)
        using = SLOTS if handler == "orm" else 0
        bench.ratio(f"resident memory, {handler} handlers: below 90 MB", peak, unit=" MB", most=90)
        bench.ratio(f"its growth per 10,000 jobs, {handler}: below 1 MB", growth, unit=" MB", most=1)
        bench.ratio(
            f"connections, {handler}: at most the {using} slots that use the database + 4", connections, most=using + 4
        )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
