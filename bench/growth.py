"""Does the queue slow down with what is finished, with what is scheduled, or beside a long transaction?

Method: four databases on one server, drained in turn by two worker processes: `empty` has only the backlog of the
run; `finished` has 1,000,000 succeeded jobs before it (10,000,000 with --full); `scheduled` as many that are due in
90 days or later, inserted before the ready ones as real ones would be; `snapshot` is as empty as `empty`, but a
session in REPEATABLE READ that has counted the jobs stays open over the whole drain, as a report or a dump does. The
rows that fill a table have the same 2,048-byte orders (with --full: a small payload, for the disk's sake). Each run
deletes the backlog of the run before; then VACUUM ANALYZE and CHECKPOINT. Claims are timed in the workers, around
the whole verb with its transaction.

How to read it: the rate in percent of the empty table's, in the same interleaved run. A claim takes many jobs here;
`claim_ms` is of one claim, `jobs_per_claim` says how many it took.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import psycopg

from bench import drain, orders, record
from bench import lab as laboratory

STATES = ["empty", "finished", "scheduled", "snapshot"]

_ROWS = """
    INSERT INTO pgqueue_job (task, queue_name, args, max_attempts, backoff, {columns})
    SELECT 'bench.tasks.noop', 'default', variant.args, 5, '{{"base": 2, "factor": 2, "cap": 3600}}', {values}
    FROM generate_series(1, %s) AS number JOIN bench_variant variant ON variant.id = number %% {variants}
"""
_FINISHED = (
    "state, attempts, fencing_token, worker_id, result, enqueued_at, run_after, started_at, finished_at, prune_after",
    "'succeeded', 1, 1, 'bench', 'null', moment, moment, moment, moment, moment + interval '7 days'",
)
_FILLINGS = {
    "finished": _FINISHED,
    "due": (_FINISHED[0], _FINISHED[1].replace("+ interval '7 days'", "- interval '1 day'")),  # to be pruned
    "scheduled": ("state, run_after", "'scheduled', now() + interval '90 days' + number * interval '1 second'"),
}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="10,000,000 rows instead of 1,000,000")
    parser.add_argument("--rows", type=int, help="so many rows (1,000,000; quick 200,000)")
    parser.add_argument("--jobs", type=int, help="backlog of a run (30,000; quick 10,000)")
    parser.add_argument("--processes", type=int, default=2, help="workers (2)")
    parser.add_argument("--states", type=record.names, default=STATES, help=",".join(STATES))


def fill(lab: laboratory.Lab, state: str, rows: int, *, small: bool) -> float:
    """Put the rows in that are to be in the way; how many seconds it took."""
    began = time.monotonic()
    lab.run("CREATE TABLE bench_variant (id int PRIMARY KEY, args json NOT NULL)")
    for number, order in enumerate(orders.variants()):
        args = "[{}]" if small else f"[{orders.text(order)}]"
        lab.run("INSERT INTO bench_variant VALUES (%s, %s::json)", [number, args])
    insert(lab, state, rows)
    lab.tidy()
    return time.monotonic() - began


def insert(lab: laboratory.Lab, state: str, rows: int) -> None:
    if state not in _FILLINGS:
        return
    columns, values = _FILLINGS[state]
    values = values.replace("moment", "(now() - number * interval '1 millisecond')")
    query = _ROWS.format(columns=columns, values=values, variants=orders.VARIANTS)
    for start in range(0, rows, 500_000):
        lab.run(query, [min(500_000, rows - start)])


def main() -> int:
    bench = record.Bench("growth", __doc__ or "", repeats=5, flags=flags)
    args = bench.args
    rows = args.rows or (10_000_000 if args.full else 200_000 if bench.quick else 1_000_000)
    jobs = args.jobs or (10_000 if bench.quick else 30_000)
    small = rows > 2_000_000
    bench.document["parameters"] = {"rows": rows, "jobs": jobs, "processes": args.processes, "small_payload": small}

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        before: dict[str, int] = {}
        filled: dict[str, float] = {}
        for state in args.states:
            lab.use(f"growth_{state}")
            filled[state] = fill(lab, state, rows, small=small)
            before[state] = int(lab.ask("SELECT COALESCE(max(id), 0) FROM pgqueue_job"))
            size = int(lab.ask("SELECT pg_total_relation_size('pgqueue_job')"))
            print(f"{state}: {before[state]:,} rows, {size / 1e6:,.0f} MB, in {filled[state]:.0f} s", flush=True)
        bench.document["fill_seconds"] = filled

        def run(cell: record.Cell) -> dict[str, Any]:
            from bench import tasks

            state = cell["state"]
            lab.use(f"growth_{state}")
            lab.run("DELETE FROM pgqueue_job WHERE id > %s", [before[state]])
            lab.run("TRUNCATE pgqueue_stat, pgqueue_worker")
            lab.run("VACUUM pgqueue_job")
            lab.preload(tasks.noop, jobs)
            first = int(lab.ask("SELECT min(id) FROM pgqueue_job WHERE state = 'queued'")) - 1
            lab.tidy()
            with ExitStack() as stack:
                if state == "snapshot":
                    held = stack.enter_context(psycopg.connect(lab.url, application_name="bench report"))
                    held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    held.execute("SELECT count(*) FROM pgqueue_job")
                return drain.claims_of(
                    lab,
                    lab.server.directory,
                    lambda environment: drain.watch(
                        lab, processes=args.processes, jobs=jobs, environment=environment, since=first
                    ),
                )

        bench.measure(record.expand(state=args.states), run)

    empty = bench.values("rate", state="empty")
    goals = [
        ("finished", f"drain with {rows:,} finished jobs, of the empty table's: at least 90 %", 90),
        ("scheduled", f"drain with {rows:,} scheduled jobs, of the empty table's: at least 90 %", 90),
        ("snapshot", "drain beside a held snapshot, of the empty table's: at least 85 %", 85),
    ]
    for state, goal, least in goals:
        rates = bench.values("rate", state=state)
        if state in args.states and empty:
            figure = 100 * statistics.median(rates) / statistics.median(empty) if rates else None
            p50, p99 = bench.median("claim_ms_p50", state=state), bench.median("claim_ms_p99", state=state)
            why = f"claim p50 {p50:.3g} ms, p99 {p99:.3g} ms" if p50 and p99 else ""
            bench.ratio(goal, figure, unit=" %", least=least, why=why)
    p50, p99 = bench.median("claim_ms_p50", state="empty"), bench.median("claim_ms_p99", state="empty")
    if p50 is not None and p99 is not None:
        bench.ratio("claim p50 on the empty table", p50, unit=" ms", why=f"p99 {p99:.3g} ms")
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
