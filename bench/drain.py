"""How fast does a backlog drain, and what does a job cost?

Method: a backlog of jobs with a 2,048-byte order each is enqueued, VACUUM ANALYZE and CHECKPOINT follow, then 1,
2 or 4 worker processes (`manage.py pgqueue_worker --concurrency 32`) are let go together. A connection of its own
reads every 50 ms how many successes are committed; the rate is that between 10 % and 90 % done, by interpolation.
CPU per job is user and system time of the workers, and of all PostgreSQL processes, over the same stretch; idle is
what the whole machine had left. `plain` and `async` handlers do nothing. `orm` reads one row and writes one; `bare`
calls that same function from as many threads and processes with no queue at all, so the difference is the queue.

How to read it: jobs/s with producer-less workers, database and observer on the same cores. `rate_by_rows` is the
same rate computed afterwards from `finished_at` of the rows: it must agree. The queue's own share with real work is
1 - orm / bare.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import lab as laboratory
from bench import meter, record, workers

SLOTS = 32
HANDLERS = {"plain": "noop", "async": "anoop", "orm": "bill"}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=record.numbers, default=[1, 2, 4], help="worker processes (1,2,4)")
    parser.add_argument(
        "--handlers", type=record.names, default=["plain", "async", "orm", "bare"], help="plain,async,orm,bare"
    )
    parser.add_argument("--jobs", type=int, help="backlog of the handlers that do nothing (60,000, quick 20,000)")
    parser.add_argument("--orm-jobs", type=int, help="backlog of the others (15,000, quick 4,000)")
    parser.add_argument(
        "--storage", type=record.names, default=["shipped"], help=f"of the payload: {','.join(laboratory.STORAGE)}"
    )


def drain(
    lab: laboratory.Lab,
    *,
    processes: int,
    handler: str = "plain",
    jobs: int,
    slots: int = SLOTS,
    environment: Mapping[str, str] | None = None,
    limit: float = 240.0,
    expect: str = "",
) -> dict[str, Any]:
    """Preload, tidy, start, let go, watch."""
    from bench import tasks

    lab.empty()
    lab.preload(getattr(tasks, HANDLERS[handler]), jobs)
    lab.tidy()
    return watch(lab, processes=processes, jobs=jobs, slots=slots, environment=environment, limit=limit, expect=expect)


def watch(
    lab: laboratory.Lab,
    *,
    processes: int,
    jobs: int,
    slots: int = SLOTS,
    environment: Mapping[str, str] | None = None,
    limit: float = 240.0,
    since: int = 0,
    expect: str = "",
) -> dict[str, Any]:
    """Workers onto the backlog that is there.

    ``since``: the ids before it. ``expect``: what each worker's log must say, or the run is void.
    """
    with workers.ours(processes, slots=slots, url=lab.url, environment=environment) as crew:
        crew.wait()
        # What starting them left to do on the machine is not part of the run.
        time.sleep(0.3)
        before = lab.succeeded()
        crew.release()
        trees = {"worker": crew.pids, "server": [lab.postmaster]}
        result = meter.watch(lambda: lab.succeeded() - before, jobs, trees, limit=limit)
        crew.stop()
        if expect and not all(expect in crew.log(number) for number in range(processes)):
            raise RuntimeError(f"not every worker said {expect!r}: {crew.log(0)[-300:]}")
    return result | lab.check(jobs, since=since)


def bare(lab: laboratory.Lab, *, processes: int, jobs: int, slots: int = SLOTS) -> dict[str, Any]:
    """The handler of ``orm`` without a queue: the same threads in the same number of processes."""
    lab.empty()
    lab.tidy()
    share = jobs // processes
    command = [sys.executable, "-m", "bench.bare", "--threads", str(slots), "--jobs", str(share)]
    environment = {"DJANGO_SETTINGS_MODULE": "bench.settings", "DATABASE_URL": lab.url}
    with workers.Workers([command] * processes, environment=environment, gated=processes) as crew:
        crew.wait()
        time.sleep(0.3)
        crew.release()
        count = lambda: int(lab.ask("SELECT count(*) FROM bench_receipt"))  # noqa: E731
        trees = {"worker": crew.pids, "server": [lab.postmaster]}
        return meter.watch(count, share * processes, trees, limit=240)


def claims_of(
    lab: laboratory.Lab, directory: Path, measure: Any, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """``measure`` with the workers' claims timed, and what they noted."""
    file = directory / f"claims.{time.monotonic_ns()}"
    result: dict[str, Any] = measure({**(environment or {}), "BENCH_CLAIMS": str(file)})
    return result | workers.claims(file)


def fill_customers(lab: laboratory.Lab) -> None:
    from bench import orders

    for order in orders.variants():
        lab.run(
            "INSERT INTO bench_customer (id, name, email, town, discount_percent) VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING",
            [order["customer"], "A customer", order["email"], order["ship_to"]["town"], order["customer"] % 7],
        )


def main() -> int:
    bench = record.Bench("drain", __doc__ or "", repeats=5, flags=flags)
    args = bench.args
    jobs = args.jobs or (20_000 if bench.quick else 60_000)
    orm_jobs = args.orm_jobs or (4_000 if bench.quick else 15_000)
    bench.document["parameters"] = {"jobs": jobs, "orm_jobs": orm_jobs, "slots": SLOTS}
    cells = record.expand(processes=args.processes, handler=args.handlers)
    if bench.quick:
        # One look at each kind of handler, and all numbers of processes for the first.
        cells = [cell for cell in cells if cell["handler"] == args.handlers[0] or cell["processes"] == 1]
    if args.storage != ["shipped"]:
        cells = [{**cell, "storage": storage} for cell in cells for storage in args.storage]

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        fill_customers(lab)

        def run(cell: record.Cell) -> dict[str, Any]:
            if "storage" in cell:
                lab.empty()
                lab.store(cell["storage"])
            if cell["handler"] == "bare":
                return bare(lab, processes=cell["processes"], jobs=orm_jobs)
            amount = orm_jobs if cell["handler"] == "orm" else jobs
            return drain(lab, processes=cell["processes"], handler=cell["handler"], jobs=amount)

        bench.measure(cells, run)

    for processes in args.processes:
        for handler in ("plain", "async"):
            rate = bench.median("rate", processes=processes, handler=handler)
            if rate is not None:
                bench.ratio(f"drain, {processes} process(es), {handler} handlers that do nothing", rate, unit="/s")
    for processes in args.processes:
        queue = bench.median("rate", processes=processes, handler="orm")
        alone = bench.median("rate", processes=processes, handler="bare")
        if queue and alone:
            bench.ratio(
                f"the queue's own share of a job with one ORM read and one write, {processes} process(es)",
                100 * (1 - queue / alone),
                unit=" %",
                why=f"{queue:,.0f}/s with the queue, {alone:,.0f}/s without",
            )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
