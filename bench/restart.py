"""What does a restart of PostgreSQL in the middle of the work cost?

Method: 500 jobs of 10 to 50 ms, 4 worker processes of one slot each, lease 5 s. When 30 % have succeeded, the server
is restarted, `pg_ctl restart -m fast` (sessions are disconnected, transactions rolled back) or `-m immediate` (as
after a crash: with recovery), and the workers are left to themselves. A probe connects every 10 ms. `--restart-cmd`
runs that command instead, for the server in DATABASE_URL, in a database of its own there, which is dropped at the
end. Handlers write down each delivery as in bench.crash, over a connection of their own; when that breaks they try
again, so that an attempt fails only for what the queue does.

How to read it: seconds from the moment the restart was ordered, by the server's clock for what jobs did: until the
server accepts connections again (a worker that tries at the right moment can be sooner than the probe), until the
first job has ended on it, until all have. `lost` and duplicates as in bench.crash; nobody is killed here, so the only
thing that explains a duplicate is a lease that has expired. The workers must all still be there at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
import threading
import time
from datetime import datetime
from typing import Any

import psycopg

from bench import deliveries, record, workers
from bench import lab as laboratory
from pgqueue_django.states import FINISHED, State
from testproject import ledger

ROWS = (
    ("jobs", "jobs"),
    ("succeeded", "succeeded"),
    ("… when the restart was ordered", "succeeded_before"),
    ("held by the workers at that moment", "held_before"),
    ("dead", "dead"),
    ("**lost**", "lost"),
    ("**not ended in time**", "unfinished"),
    ("deliveries", "deliveries"),
    ("duplicate deliveries", "duplicates"),
    ("… after a lease that expired", "duplicates_by_lease"),
    ("**… that nothing explains**", "unexplained"),
    ("**other broken promises**", "violations"),
    ("failed attempts recorded", "failed_attempts"),
    ("the database accepts connections again, s", "accepts_s"),
    ("the first job has ended after it, s", "first_s"),
    ("all jobs have ended, s", "total_s"),
)
MODES = ("fast", "immediate")
COMMAND = "by the command"
SHARE = 0.3  # of the jobs, before the restart


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, help="of one run (500, quick 300)")
    parser.add_argument("--workers", type=int, default=4, help="processes (4)")
    parser.add_argument("--slots", type=int, default=1, help="of each process (1)")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds (5)")
    parser.add_argument("--modes", type=record.names, default=list(MODES), help="of pg_ctl restart: fast,immediate")
    parser.add_argument("--restart-cmd", help="restarts the server in DATABASE_URL; instead of --modes")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds until what has not ended is given up (120)")


class Probe(threading.Thread):
    """Connects until somebody answers who started later than ``before``; ``at`` is time.monotonic()."""

    def __init__(self, url: str, before: datetime, limit: float) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._before = before
        self._until = time.monotonic() + limit
        self.at: float | None = None
        self.started_at: datetime | None = None

    def run(self) -> None:
        while time.monotonic() < self._until:
            try:
                with psycopg.connect(self._url, connect_timeout=2, application_name="bench probe") as connection:
                    row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
                if row and row[0] != self._before:
                    self.at, self.started_at = time.monotonic(), row[0]
                    return
            except psycopg.Error:
                pass
            time.sleep(0.01)


def restart(
    lab: laboratory.Lab, cell: record.Cell, args: argparse.Namespace, *, jobs: int, dice: random.Random
) -> dict[str, Any]:
    stream = deliveries.Stream(lab, jobs, dice)
    stream.enqueue(jobs)
    stream.close()
    url = lab.url  # asked for later, it would start the server
    command = deliveries.command(lease=args.lease, slots=args.slots)
    with workers.Workers([command] * args.workers, environment=deliveries.environment(lab), gated=args.workers) as crew:
        crew.wait()
        crew.release()
        there = lambda: deliveries.in_state(lab, State.SUCCEEDED) >= SHARE * jobs  # noqa: E731
        laboratory.wait_for(there, args.limit, "too few jobs succeeded")
        before = {
            "succeeded_before": deliveries.in_state(lab, State.SUCCEEDED),
            "held_before": deliveries.in_state(lab, State.RUNNING),
        }
        ordered_at = lab.ask("SELECT clock_timestamp()")
        ordered = time.monotonic()
        probe = Probe(url, lab.ask("SELECT pg_postmaster_start_time()"), args.limit)
        probe.start()
        if isinstance(lab.server, laboratory.Given):
            lab.server.restart()
        else:
            lab.server.restart(cell["restart"])
        probe.join()
        if probe.at is None or probe.started_at is None:
            raise RuntimeError("the server has not been restarted")
        lab.look_again()
        end = ordered + args.limit
        while stream.unfinished() and time.monotonic() < end:
            time.sleep(0.01)
        crew.raise_if_ended()
        crew.stop()
    history = ledger.read(url, stream.acks)
    ended = [move.at for move in history.moves if move.target in FINISHED]
    after = [at for at in ended if at >= probe.started_at]
    if not after:
        raise RuntimeError("all jobs had ended before the server went away: this run shows nothing")
    return {
        **before,
        "accepts_s": probe.at - ordered,
        "first_s": (min(after) - ordered_at).total_seconds(),
        "total_s": (max(ended) - ordered_at).total_seconds(),
        **deliveries.account(history, jobs),
    }


def main() -> int:
    bench = record.Bench("restart", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    jobs = args.jobs or (300 if bench.quick else 500)
    bench.document["parameters"] = {"jobs": jobs}
    given = None
    modes = args.modes
    if args.restart_cmd:
        if not os.environ.get("DATABASE_URL"):
            sys.exit("--restart-cmd restarts the server in DATABASE_URL: set that, too")
        given = laboratory.Given(os.environ["DATABASE_URL"], args.restart_cmd)
        modes = [COMMAND]
    dice = random.Random(args.seed)
    database = f"bench_{secrets.token_hex(4)}" if given else laboratory.DATABASE
    with laboratory.laboratory(server=given, database=database) as lab:
        bench.document["server_settings"] = lab.settings()
        deliveries.prepare(lab)
        bench.measure(record.expand(restart=modes), lambda cell: restart(lab, cell, args, jobs=jobs, dice=dice))
    return deliveries.finish(bench, "server restarted", "restart", [*MODES, COMMAND], ROWS)


if __name__ == "__main__":
    sys.exit(main())
