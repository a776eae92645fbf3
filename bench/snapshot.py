"""What does a reading of the whole queue cost, beside millions of finished jobs?

Method: databases with 0 and 1,000,000 succeeded jobs (10,000,000 with --full), 5,000 ready, 5,000 scheduled and 500
dead ones in 20 queues, and an hour of statistics of 20 tasks by four workers. `snapshot.take()`, which /pgqueue/metrics
and pgqueue_status show, is called 200 times on one connection; VACUUM ANALYZE and CHECKPOINT come before.

How to read it: milliseconds of one reading, as the caller sees them. `buffers` are the pages that one reading looks at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from bench import growth, record
from bench import lab as laboratory

READINGS = 200

_LIVE = """
    INSERT INTO pgqueue_job (task, queue_name, state, run_after, attempts, finished_at)
    SELECT 'bench.tasks.t' || number %% 20, 'q' || number %% 20, state,
           now() + CASE state WHEN 'scheduled' THEN interval '1 day' ELSE interval '-1 minute' END, 0,
           CASE state WHEN 'dead' THEN now() END
    FROM (VALUES ('queued', 5000), ('scheduled', 5000), ('dead', 500)) AS kind (state, many),
         generate_series(1, many) AS number
"""
_STATS = """
    INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, pickup_counts, run_counts)
    SELECT date_trunc('minute', now()) - minute * interval '1 minute', 'w' || worker, 'q' || task,
           'bench.tasks.t' || task, 10, array_fill(1::bigint, ARRAY[16]), array_fill(1::bigint, ARRAY[16])
    FROM generate_series(0, 59) AS minute, generate_series(1, 4) AS worker, generate_series(0, 19) AS task
"""


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="10,000,000 finished jobs, too")


def buffers(lab: laboratory.Lab) -> int:
    from pgqueue_django import snapshot

    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + snapshot._READING
    found = lab.watcher.execute(query, snapshot._bounds()).fetchone()  # type: ignore[call-overload]
    plan = (found[0] if isinstance(found[0], list) else json.loads(found[0]))[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def main() -> int:
    bench = record.Bench("snapshot", __doc__ or "", repeats=3, flags=flags)
    sizes = [0, 100_000] if bench.quick else [0, 1_000_000, *([10_000_000] if bench.args.full else [])]
    bench.document["parameters"] = {"readings": READINGS, "sizes": sizes}

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        for size in sizes:
            lab.use(f"snapshot_{size}")
            growth.fill(lab, "finished", size, small=True)
            lab.run(_LIVE.replace("%%", "%"))
            lab.run(_STATS)
            lab.tidy()

        def run(cell: record.Cell) -> dict[str, Any]:
            from django.db import connections

            from pgqueue_django import snapshot

            lab.use(f"snapshot_{cell['finished']}")
            lab.tidy()
            snapshot.take("default")
            took = []
            for _ in range(READINGS):
                began = time.perf_counter()
                taken = snapshot.take("default")
                took.append(1000 * (time.perf_counter() - began))
            connections["default"].close()
            took.sort()
            return {
                "ms_p50": statistics.median(took),
                "ms_p99": took[int(0.99 * len(took))],
                "buffers": buffers(lab),
                "queues": len({depth.queue_name for depth in taken.depths}),
            }

        bench.measure(record.expand(finished=sizes), run)

    for size in sizes:
        p50, p99 = bench.median("ms_p50", finished=size), bench.median("ms_p99", finished=size)
        why = f"p99 {p99:.3g} ms, {bench.median('buffers', finished=size):,.0f} pages" if p99 else ""
        bench.ratio(f"a reading beside {size:,} finished jobs: at most 25 ms", p50, unit=" ms", most=25, why=why)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
