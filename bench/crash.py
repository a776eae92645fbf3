"""What do worker processes that are killed in the middle of their jobs cost?

Method: 1,000 jobs of 10 to 50 ms, 6 worker processes of one slot each, lease 1 s. Every 0.3 s a random one of those
that have begun to work gets SIGKILL, 30 times. `without` a supervisor they are single `pgqueue_worker` processes, and
the benchmark starts the next one at once, as an init system would; `with` it they are the children of one
`pgqueue_worker --processes 6`, which notices and starts the next one itself. All of them are in one session, so that
Linux gives both columns the same share of the cores. The benchmark enqueues as it goes, so that 12 jobs wait: behind
the whole backlog a job that is given back would wait for its turn, not for its recovery. Handlers write down each
delivery, begin and end, in a table of their own over an autocommit connection of their own, the begin before they do
their work; a trigger writes down each change of a job's row. From these two, the kills and what `enqueue_many`
returned the account is made afterwards: who held what when it was killed, and what made each delivery beyond a job's
first.

How to read it: `lost` is a job that was enqueued and has no row, or has succeeded without a delivery that came to its
end. A duplicate is explained if the delivery before it belongs to a claim that was given up after
its own process had been killed, or whose lease had expired. What a killed process held is *given back* when its row
leaves `running`: without a supervisor at the end of the lease, by the next round of the chores (1 s) of a worker that
lives; with one at once, and what was claimed but had not begun goes back uncharged. *Recovery* is from the kill until
the handler of the killed job begins again (all of a run: p50, p95 and the worst). In it are a backoff of 0.05 to 0.1 s,
the chore that ends it (1 s), and the wait for a slot: to start 3.3 interpreters a second takes most of two cores, and
for seconds hardly any of the six is there. So the worst of these figures and the total time say more of that than of
the queue.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench import deliveries, meter, record, workers
from bench import lab as laboratory
from pgqueue_django.states import State
from testproject import ledger
from testproject.ledger import History, Kill

# What is printed and what is on the page: the words, the figure.
ROWS = (
    ("jobs", "jobs"),
    ("succeeded", "succeeded"),
    ("dead", "dead"),
    ("**lost**", "lost"),
    ("**not ended in time**", "unfinished"),
    ("worker processes killed", "kills"),
    ("… of which had begun a job", "kills_busy"),
    ("deliveries", "deliveries"),
    ("duplicate deliveries", "duplicates"),
    ("… % of the jobs", "duplicates_percent"),
    ("… after a kill", "duplicates_by_kill"),
    ("… after a lease that expired with no kill", "duplicates_by_lease"),
    ("**… that nothing explains**", "unexplained"),
    ("**other broken promises**", "violations"),
    ("most deliveries of one job", "most_deliveries"),
    ("failed attempts recorded", "failed_attempts"),
    ("attempts given up at the end of their lease", "expired"),
    ("attempts given up by the supervisor", "disowned"),
    ("kill until what it held is given back: p50, s", "back_p50_s"),
    ("… p95, s", "back_p95_s"),
    ("… worst, s", "back_max_s"),
    ("recovery (kill until the killed job begins again): p50, s", "recovery_p50_s"),
    ("… p95, s", "recovery_p95_s"),
    ("… worst, s", "recovery_max_s"),
    ("claimed, not begun: kill until it begins, p50, s", "unbegun_p50_s"),
    ("total time, s", "total_s"),
)
SUPERVISORS = ("without", "with")


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, help="of one run (1,000, quick 250)")
    parser.add_argument("--workers", type=int, default=6, help="processes (6)")
    parser.add_argument("--slots", type=int, default=1, help="of each process (1)")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds (1)")
    parser.add_argument("--kills", type=int, help="of one run (30, quick 10)")
    parser.add_argument("--every", type=float, default=0.3, help="seconds from kill to kill (0.3)")
    parser.add_argument("--supervisor", type=record.names, default=list(SUPERVISORS), help="without,with")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds until what has not ended is given up (120)")


def crash(
    lab: laboratory.Lab, cell: record.Cell, args: argparse.Namespace, *, jobs: int, most: int, dice: random.Random
) -> dict[str, Any]:
    stream = deliveries.Stream(lab, jobs, dice)
    one = deliveries.command(lease=args.lease, slots=args.slots)
    many = deliveries.command("--processes", str(args.workers), lease=args.lease, slots=args.slots)
    commands = [many] if cell["supervisor"] == "with" else [one] * args.workers
    ahead = 2 * args.workers * args.slots
    kills: list[Kill] = []
    environment = deliveries.environment(lab)
    with workers.Workers(commands, environment=environment, gated=args.workers, sessions=False) as crew:
        crew.wait()
        stream.enqueue(ahead)
        began_at, began = datetime.now(UTC), time.monotonic()
        crew.release()
        due = began + args.every
        while stream.unfinished() and time.monotonic() < began + args.limit:
            stream.enqueue(ahead - deliveries.in_state(lab, State.QUEUED))
            if time.monotonic() >= due and len(kills) < most:
                due += args.every
                if victim := choose(lab, crew, kills, dice):
                    kills.append(victim)
                    if crew.kill(victim.pid):
                        crew.start(one)
            time.sleep(0.01)
        crew.stop()
    stream.close()
    history = ledger.read(lab.url, stream.acks, kills)
    return {
        "kills": len(kills),
        **recovery(history),
        "total_s": (max(move.at for move in history.moves) - began_at).total_seconds(),
        **deliveries.account(history, jobs),
        "killed_at_s": [(kill.at - began_at).total_seconds() for kill in kills],
    }


def choose(lab: laboratory.Lab, crew: workers.Workers, kills: list[Kill], dice: random.Random) -> Kill | None:
    """One of those that live and have claimed. One that dies before has lost nothing, and its supervisor takes that for
    a process that cannot start: it would pause."""
    alive = meter.descendants(crew.pids)
    dead = {kill.worker for kill in kills}
    rows = lab.watcher.execute(
        "SELECT id, pid FROM pgqueue_worker AS known "
        "WHERE EXISTS (SELECT FROM chaos_move WHERE chaos_move.worker = known.id) ORDER BY id"
    ).fetchall()
    there = [(id, pid) for id, pid in rows if pid in alive and id not in dead]
    if not there:
        return None
    id, pid = dice.choice(there)
    return Kill(id, pid, datetime.now(UTC))


def recovery(history: History) -> dict[str, Any]:
    """Seconds from each kill until what it had held was given back, and until that began: again, or at last."""
    back: list[float] = []
    again: list[float] = []
    first: list[float] = []
    busy = set()
    for holds in ledger.holds_of(history).values():
        for place, hold in enumerate(holds):
            kill = ledger.kill_of(hold, history.kills)
            if kill is None or hold.end is None or not (hold.was_lost or hold.was_released):
                continue
            back.append((hold.end.at - kill.at).total_seconds())
            if hold.deliveries:
                busy.add(kill)
            begun = [found.began_at for later in holds[place + 1 :] for found in later.deliveries]
            if begun:
                (again if hold.deliveries else first).append((min(begun) - kill.at).total_seconds())
    return {
        "kills_busy": len(busy),
        **deliveries.seconds("back", back),
        **deliveries.seconds("recovery", again),
        **deliveries.seconds("unbegun", first),
        "recoveries_s": sorted(again),
        "unbegun_s": sorted(first),
    }


def main() -> int:
    bench = record.Bench("crash", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    jobs = args.jobs or (250 if bench.quick else 1000)
    kills = args.kills or (10 if bench.quick else 30)
    bench.document["parameters"] = {"jobs": jobs, "kills": kills}
    dice = random.Random(args.seed)
    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        deliveries.prepare(lab)
        cells = record.expand(supervisor=args.supervisor)
        bench.measure(cells, lambda cell: crash(lab, cell, args, jobs=jobs, most=kills, dice=dice))
    if not sum(bench.values("kills_busy")):
        bench.note("No kill hit a busy worker: these runs show nothing.")
    return deliveries.finish(bench, "workers killed", "supervisor", SUPERVISORS, ROWS)


if __name__ == "__main__":
    sys.exit(main())
