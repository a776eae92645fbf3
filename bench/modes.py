"""Why SKIP LOCKED? The same claim with it and with a plain FOR UPDATE, from 1 to 32 competing workers.

Method: worker processes with a single slot each drain the same backlog of jobs that do nothing, all let go
together. The two modes differ in two words of the claim statement, taken out on its way to the server by the
benchmark (`bench/apps.py`; the package has no such option). `claims one`: a worker claims one job at a time, as the
first ancestor of this queue did, so that claiming is what is measured. `claims shipped`: as the package works, where
tiny jobs come in batches. Median of 5 runs, the order of the runs drawn anew each time.

How to read it: with a plain FOR UPDATE every claimer wants the row at the head of the queue and waits until the
transaction that holds it has committed; then it finds that the row is running, and goes on to the next, where the
others wait, too. Claims happen one after another, and more workers only wait more. SKIP LOCKED passes over what
somebody holds. With few workers there is hardly anybody to wait for, and the modes are equal within noise. The more
processes share the cores, the more both suffer from that alone: compare the columns, not the rows. And who waits for
a lock takes no CPU from the one that works: where processes outnumber the cores by far, plain FOR UPDATE, one job a
claim, can be the faster of the two for that reason. At 16 on two cores it was: jobs were shared as evenly in both
modes, and the cores as busy, but a job took 4.9 ms of CPU with SKIP LOCKED, where all 16 run in turn and each finds
the caches of the others, and 1.8 where the row lock lets few of them run at a time (8 processes: 3.2 and 2.7).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench import drain, record
from bench import lab as laboratory

LOCKS = {"skip locked": "skip", "for update": "plain"}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=record.numbers, help="single-slot processes (1,2,4,8,16,32; quick 1,4,16)")
    parser.add_argument("--claims", type=record.names, help="one,shipped (quick: one)")
    parser.add_argument("--jobs", type=int, help="backlog of `one` (5,000, quick 1,500); `shipped` has six times that")


def main() -> int:
    bench = record.Bench("modes", __doc__ or "", repeats=5, flags=flags)
    args = bench.args
    counts = args.workers or ([1, 4, 16] if bench.quick else [1, 2, 4, 8, 16, 32])
    claims = args.claims or (["one"] if bench.quick else ["one", "shipped"])
    jobs = args.jobs or (1_500 if bench.quick else 5_000)
    bench.document["parameters"] = {"jobs": {"one": jobs, "shipped": 6 * jobs}, "slots": 1}

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()

        def run(cell: record.Cell) -> dict[str, Any]:
            mode = LOCKS[cell["lock"]]
            environment = {"BENCH_LOCK": mode}
            if cell["claims"] == "one":
                environment["BENCH_PREFETCH"] = "off"
            return drain.drain(
                lab,
                processes=cell["workers"],
                jobs=jobs if cell["claims"] == "one" else 6 * jobs,
                slots=1,
                environment=environment,
                expect=f"bench: claims with {mode}",
            )

        bench.measure(record.expand(claims=claims, workers=counts, lock=list(LOCKS)), run)

    for kind in claims:
        for count in counts:
            skip = bench.median("rate", claims=kind, workers=count, lock="skip locked")
            plain = bench.median("rate", claims=kind, workers=count, lock="for update")
            if skip and plain:
                bench.ratio(
                    f"SKIP LOCKED / FOR UPDATE, claims {kind}, {count} worker(s)",
                    skip / plain,
                    unit=" x",
                    why=f"{skip:,.0f} and {plain:,.0f} jobs/s",
                )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
