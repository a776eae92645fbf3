"""What does it cost to enqueue, beside the cheapest way to get the same row into the same table?

Method: producer processes make jobs with a 2,048-byte order for a few seconds: `enqueue` (a transaction each, and
ten in one), `enqueue_many` with 1,000 a call; beside them the bare ORM (`Job.objects.create()` and `bulk_create` of
the same row), and for bulk a COPY, a multi-row VALUES and unnest (bound by the client as Django does, and by the
server) in plain SQL, all with their JSON encoded inside the measured time. Only `enqueue` and `enqueue_many` check
the call, return ids in order, honour keys and wake workers. Four idle sessions LISTEN, as four workers would.

Then wake-ups: 1, 8 and 32 producers, with wake-ups and without (a no-op put in their place by the benchmark), in
pairs whose order alternates; the figure is the geometric mean of on / off with its 95 % interval, because even one
and the same program varies by a fifth here with 32 clients.

How to read it: jobs/s of all producers together; p50 and p99 are milliseconds of one call. With one producer most
of the time is the commit: a real disk's fsync would hide the differences between the single ways even more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from bench import lab as laboratory
from bench import meter, record
from bench.lab import ROOT

WAYS = [
    *("enqueue", "create", "enqueue, 10 in a transaction", "create, 10 in a transaction"),
    *("enqueue_many", "bulk_create", "COPY", "VALUES", "unnest", "unnest, server-side"),
]
LISTENERS = 4


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producers", type=record.numbers, help="with and without wake-ups (1,8,32; quick 1,8)")
    parser.add_argument("--pairs", type=int, help="of turns with and without (15, quick 3)")
    parser.add_argument("--seconds", type=float, help="of one turn (3, quick 0.7)")
    parser.add_argument("--ways", type=lambda text: text.split("/"), default=WAYS, help="enqueue/create/… ; none: -")
    parser.add_argument(
        "--storage", type=record.names, default=["shipped"], help=f"of the payload: {','.join(laboratory.STORAGE)}"
    )


class Producers:
    """So many processes that stay, so that pairs of turns follow each other at once."""

    def __init__(self, lab: laboratory.Lab, count: int) -> None:
        self._lab = lab
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.producer"],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(count)
        ]
        for process in self._processes:
            self._answer(process)

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a producer ended with {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def turn(self, how: str, *, seconds: float, wakeups: bool = True) -> dict[str, Any]:
        pids = [process.pid for process in self._processes]
        trees = {"producer": pids, "server": [self._lab.postmaster]}
        order = json.dumps({"how": how, "wakeups": wakeups, "at": time.monotonic() + 0.2, "seconds": seconds})
        before = meter.cost(trees, 0)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
        answers = [self._answer(process) for process in self._processes]
        after = meter.cost(trees, 0)
        jobs = sum(answer["jobs"] for answer in answers)
        return {
            "rate": sum(answer["jobs"] / answer["seconds"] for answer in answers),
            "p50_ms": statistics.median(answer["p50_ms"] for answer in answers),
            "p99_ms": max(answer["p99_ms"] for answer in answers),
            "producer_us_per_job": 1e6 * (after.cpu["producer"] - before.cpu["producer"]) / jobs,
            "server_us_per_job": 1e6 * (after.cpu["server"] - before.cpu["server"]) / jobs,
            "jobs": jobs,
        }

    def __enter__(self) -> Producers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def listeners(lab: laboratory.Lab) -> Iterator[None]:
    """Idle sessions that hear every NOTIFY, as workers would."""
    stop = threading.Event()
    ready = threading.Barrier(LISTENERS + 1)

    def listen() -> None:
        with psycopg.connect(lab.url, autocommit=True) as connection:
            connection.execute("LISTEN pgqueue")
            ready.wait()
            while not stop.is_set():
                for _ in connection.notifies(timeout=0.5):
                    pass

    threads = [threading.Thread(target=listen, daemon=True) for _ in range(LISTENERS)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def pairs(bench: record.Bench, lab: laboratory.Lab, count: int, *, number: int, seconds: float) -> None:
    """Turns of ``count`` producers with and without wake-ups, alternating who goes first."""
    with Producers(lab, count) as producers:
        producers.turn("enqueue", seconds=0.3)
        lab.empty()

        def pair(cell: record.Cell) -> dict[str, Any]:
            rates: dict[bool, float] = {}
            for wakeups in (True, False) if cell["pair"] % 2 else (False, True):
                lab.empty()
                lab.run("CHECKPOINT")
                rates[wakeups] = producers.turn("enqueue", seconds=seconds, wakeups=wakeups)["rate"]
            return {"rate": rates[True], "rate_without": rates[False], "ratio": rates[True] / rates[False]}

        for repeat in range(number):
            record_ = bench.one({"producers": count, "pair": repeat}, pair, repeat)
            # One cell, whatever the order inside the pair.
            record_["cell"] = {"producers": count, "wakeups": "on and off"}


def main() -> int:
    bench = record.Bench("enqueue", __doc__ or "", repeats=5, flags=flags)
    args = bench.args
    counts = args.producers or ([1, 8] if bench.quick else [1, 8, 32])
    seconds = args.seconds or (0.7 if bench.quick else 3.0)
    number = args.pairs or (3 if bench.quick else 15)
    ways = [] if args.ways == ["-"] else args.ways
    bench.document["parameters"] = {"seconds": seconds, "pairs": number, "bulk": 1000, "listeners": LISTENERS}

    with laboratory.laboratory() as lab, listeners(lab):
        bench.document["server_settings"] = lab.settings()
        with Producers(lab, 1) as producer:

            def run(cell: record.Cell) -> dict[str, Any]:
                lab.empty()
                lab.store(cell.get("storage", "shipped"))
                lab.run("CHECKPOINT")
                return producer.turn(cell["way"], seconds=seconds)

            cells = record.expand(way=ways)
            if args.storage != ["shipped"]:
                cells = record.expand(way=ways, storage=args.storage)
            bench.measure(cells, run)
            lab.store("shipped")
        for count in counts:
            pairs(bench, lab, count, number=number, seconds=seconds)

    def against(goal: str, ours: str, theirs: str, least: float | None = None) -> None:
        mine, bare = bench.median("rate", way=ours), bench.median("rate", way=theirs)
        if mine and bare:
            why = f"{mine:,.0f} and {bare:,.0f} jobs/s"
            bench.ratio(goal, 100 * mine / bare, unit=" %", least=least, why=why)

    against("one enqueue, of the bare create() of the same row: at least 85 %", "enqueue", "create", 85)
    against("ten in a transaction, of ten create()", "enqueue, 10 in a transaction", "create, 10 in a transaction")
    against("enqueue_many, of bulk_create() of the same rows", "enqueue_many", "bulk_create")
    against("enqueue_many, of COPY into the same table: at least 60 %", "enqueue_many", "COPY", 60)
    for count in counts:
        on = bench.values("rate", producers=count)
        off = bench.values("rate_without", producers=count)
        if on:
            found = record.paired(on, off)
            interval = f"95 % {100 * found['low']:.1f} to {100 * found['high']:.1f}" if "low" in found else ""
            bench.document.setdefault("wakeups", {})[str(count)] = found
            rates = f"{statistics.median(on):,.0f} and {statistics.median(off):,.0f} jobs/s"
            bench.ratio(
                f"{count} producer(s) with wake-ups, of without: at least 95 %"
                if count == 32
                else f"{count} producer(s) with wake-ups, of without",
                100 * found["ratio"],
                unit=" %",
                least=95 if count == 32 else None,
                why=f"{interval}, {found['pairs']} pairs; {rates}",
            )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
