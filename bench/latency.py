"""How soon does an idle worker start a job that has just been enqueued?

Method: 1,000 jobs with a 2,048-byte order, one `enqueue()` in autocommit each, at a steady 100 a second, from one
producer process into worker processes of 32 slots that have nothing else to do. A latency is the time from just
before the call of `enqueue` to the first line of the handler: both are `time.time()` of one machine, so encoding the
arguments, the committed INSERT, the wake-up, the claim and the hand-over to a thread are all in it. `listen` is how
the package ships; `poll` is `--no-listen`, where a worker looks again 5, 10, 20, 40 … ms after it ran dry, up to its
poll interval of 1 s. Another 100 jobs go before, uncounted.

How to read it: milliseconds at p50, p95 and p99 (of all jobs of a run; the cell is the median of its runs). With
many idle worker processes every notification wakes them all, and they compete for two cores and for the one job.
`enqueue` is the part of the producer's own call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from bench import lab as laboratory
from bench import meter, orders, record, stamps, workers

WARM_UP = 100


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=record.numbers, help="processes (1,2,4,8,16,32; quick 1,2)")
    parser.add_argument("--wake", type=record.names, default=["listen", "poll"], help="listen,poll")
    parser.add_argument("--jobs", type=int, help="of one run (1,000, quick 300)")
    parser.add_argument("--per-second", type=float, default=100.0, help="100")
    parser.add_argument("--slots", type=int, default=32, help="of each process (32)")


def measure(lab: laboratory.Lab, cell: record.Cell, *, jobs: int, per_second: float, slots: int) -> dict[str, Any]:
    from django.db import connections

    from bench import tasks

    lab.empty()
    lab.tidy()
    file = lab.server.directory / f"stamps.{time.monotonic_ns()}"
    variants = orders.variants()
    with workers.ours(
        cell["workers"],
        slots=slots,
        listen=cell["wake"] == "listen",
        url=lab.url,
        environment={"BENCH_STAMPS": str(file)},
    ) as crew:
        crew.wait()
        crew.release()
        there = lambda: lab.ask("SELECT count(*) FROM pgqueue_worker") >= cell["workers"]  # noqa: E731
        laboratory.wait_for(there, 60, "the workers did not register")
        time.sleep(1.0)
        sent: list[float] = []
        calls: list[float] = []
        trees = {"worker": crew.pids, "server": [lab.postmaster]}
        before = None
        began = time.monotonic()
        for number in range(WARM_UP + jobs):
            if number == WARM_UP:
                before = meter.cost(trees, 0)
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            sent.append(time.time())
            tasks.started.enqueue(variants[number % len(variants)], number)
            calls.append(time.time() - sent[-1])
        after = meter.cost(trees, jobs)
        assert before is not None
        laboratory.wait_for(lambda: lab.succeeded() >= len(sent), 60, "not all jobs were run")
        crew.stop()
    connections["default"].close()
    moments = stamps.read(file)
    file.unlink(missing_ok=True)
    waits = [1000 * (moments[number] - sent[number]) for number in range(WARM_UP, len(sent)) if number in moments]
    if len(waits) < jobs:
        raise RuntimeError(f"{jobs - len(waits)} of {jobs} jobs left no stamp")
    found = {f"{name}_ms": value for name, value in meter.percentiles(waits).items()}
    return {
        **found,
        "enqueue_ms": 1000 * statistics.median(calls[WARM_UP:]),
        "worker_us_per_job": 1e6 * (after.cpu["worker"] - before.cpu["worker"]) / jobs,
        "server_us_per_job": 1e6 * (after.cpu["server"] - before.cpu["server"]) / jobs,
        "idle_percent": 100 * (after.idle - before.idle) / (after.total - before.total),
        "jobs": jobs,
    }


def main() -> int:
    bench = record.Bench("latency", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    counts = args.workers or ([1, 2] if bench.quick else [1, 2, 4, 8, 16, 32])
    jobs = args.jobs or (300 if bench.quick else 1000)
    bench.document["parameters"] = {"jobs": jobs, "per_second": args.per_second, "slots": args.slots}
    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        bench.measure(
            record.expand(wake=args.wake, workers=counts),
            lambda cell: measure(lab, cell, jobs=jobs, per_second=args.per_second, slots=args.slots),
        )
    for wake in args.wake:
        for count in counts:
            p50 = bench.median("p50_ms", wake=wake, workers=count)
            p99 = bench.median("p99_ms", wake=wake, workers=count)
            if p50 is not None and p99 is not None:
                bench.ratio(f"pickup p50, {wake}, {count} worker process(es)", p50, unit=" ms", why=f"p99 {p99:.3g} ms")
    bench.note("The goal (at or below Celery on Redis) is judged by bench.peers, where both run side by side.")
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
