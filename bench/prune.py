"""What does pruning cost those who work?

Method: two databases with 2,000,000 succeeded jobs before the backlog of a run: in `kept` their time is a week away, in
`due` it is over. Two worker processes, which prune by themselves as they always do (a thousand rows, then a pause),
drain a backlog of jobs that do nothing. `pruned` is how many rows went meanwhile. Before each run the rows that were
pruned are filled up again; then VACUUM ANALYZE and CHECKPOINT. The rows that fill the table have a small payload.

How to read it: the rate beside pruning in percent of the rate without, in the same interleaved run. Claims are timed in
the workers, around the whole verb with its transaction.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from bench import drain, growth, record
from bench import lab as laboratory

STATES = {"kept": "finished", "due": "due"}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help="finished jobs (2,000,000; quick 200,000)")
    parser.add_argument("--jobs", type=int, help="backlog of a run (120,000; quick 30,000)")
    parser.add_argument("--processes", type=int, default=2, help="workers (2)")


def main() -> int:
    bench = record.Bench("prune", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    rows = args.rows or (200_000 if bench.quick else 2_000_000)
    jobs = args.jobs or (30_000 if bench.quick else 120_000)
    bench.document["parameters"] = {"rows": rows, "jobs": jobs, "processes": args.processes}

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        for state, filling in STATES.items():
            lab.use(f"prune_{state}")
            growth.fill(lab, filling, rows, small=True)

        def run(cell: record.Cell) -> dict[str, Any]:
            from bench import tasks

            state = cell["state"]
            lab.use(f"prune_{state}")
            lab.run("DELETE FROM pgqueue_job WHERE worker_id IS DISTINCT FROM 'bench'")
            lab.run("TRUNCATE pgqueue_stat, pgqueue_worker, pgqueue_chore")
            missing = rows - int(lab.ask("SELECT count(*) FROM pgqueue_job"))
            growth.insert(lab, STATES[state], missing)
            lab.run("VACUUM pgqueue_job")
            first = int(lab.ask("SELECT max(id) FROM pgqueue_job"))
            lab.preload(tasks.noop, jobs)
            lab.tidy()
            result = drain.claims_of(
                lab,
                lab.server.directory,
                lambda environment: drain.watch(
                    lab, processes=args.processes, jobs=jobs, environment=environment, since=first
                ),
            )
            left = int(lab.ask("SELECT count(*) FROM pgqueue_job WHERE id <= %s", [first]))
            return result | {"pruned": rows - left}

        bench.measure(record.expand(state=list(STATES)), run)

    kept, due = bench.values("rate", state="kept"), bench.values("rate", state="due")
    figure = 100 * statistics.median(due) / statistics.median(kept) if kept and due else None
    pruned = bench.median("pruned", state="due")
    why = f"{pruned:,.0f} rows went meanwhile" if pruned is not None else ""
    bench.ratio(f"drain beside the pruning of {rows:,} jobs, of the rate without: at least 85 %", figure, unit=" %",
                least=85, why=why)  # fmt: skip
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
