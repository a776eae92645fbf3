"""How fast are the queues that people would pick instead, on this machine, in the same run?

Method: every system runs with its documented production worker in a virtualenv of its own (pinned in
bench/peers/pins, one Python for all, ours included), against one PostgreSQL with default settings, fsync on, or a
private Redis. The systems are interleaved: each cell of each system once, in random order, then all again.

`drain`: a backlog of jobs with a 2,048-byte order and a handler that does nothing; VACUUM ANALYZE and CHECKPOINT;
then 1, 2 or 4 worker processes. A connection of its own counts every 50 ms what is done (PostgreSQL: committed; Redis:
gone from the queue); the rate is that between 10 % and 90 %. Where the workers import the tasks before they claim,
they wait for each other at a gate. `latency`: 1,000 jobs at 100 a second into idle workers, from just before the call
that enqueues to the first line of the handler, by one clock. `enqueue`: one producer, one job a call, and 1,000 a
call where the system has a bulk call.

How to read it: compare within one run only. Durability differs. On PostgreSQL every enqueue and every end of a job is
committed with an fsync. On Redis without persistence nothing reaches the disk, a restart of Redis loses the queue, and
(Celery with early acks, Huey) a worker that dies loses what it had taken. `celery-durable` fsyncs every write and
acknowledges late: the only Redis row that promises what the PostgreSQL rows do. Backlogs differ in length, so that
each drain lasts long enough and not too long; Chancy's rate falls with the length of its backlog. Ours and the peers
that are Django apps run handlers like requests (connections looked after, fresh context); the asyncio ones do not.

Needs: Python 3.12 or newer beside the one that runs this (python3.13 on PATH, or its path in BENCH_PYTHON), and
redis-server (Debian: apt-get install redis-server) for the systems on Redis. What is missing is reported and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench import lab as laboratory
from bench import meter, record, stamps, workers
from bench.lab import ROOT
from bench.peers import environments
from bench.peers.redis import Redis, RedisMissing
from bench.peers.registry import OURS, PEERS, SYSTEMS, System

PARTS = ["drain", "latency", "enqueue"]


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=record.names, help="these peers, beside ours: pgqueuer,celery")
    parser.add_argument("--parts", type=record.names, default=PARTS, help=",".join(PARTS))
    parser.add_argument("--processes", type=record.numbers, help="of the drain (1,2,4; quick 1)")
    parser.add_argument("--latency-processes", type=record.numbers, help="of the latency (1,2; quick 1)")
    parser.add_argument("--seconds", type=float, help="of one enqueue cell (4; quick 1)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the backlogs and the latency's jobs (1)")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which a drain is cut short (90)")


class Field:
    """The servers, and the environments of the systems that could be installed."""

    def __init__(self, lab: laboratory.Lab, stack: ExitStack) -> None:
        self._lab = lab
        self._stack = stack
        self._redis: dict[bool, Redis] = {}
        self.homes: dict[str, Path] = {}

    def prepare(self, system: System) -> None:
        """Install it and make its tables once, in a template of its database. Raises NotInstalled or what it met."""
        self.homes[system.name] = environments.environment(system)
        try:
            if self.is_redis(system):
                self.redis(system)
            else:
                self._lab.server.create_database(self._template(system))
                self.drive(system, "install", database=self._template(system))
        except BaseException:
            del self.homes[system.name]
            raise

    @staticmethod
    def is_redis(system: System) -> bool:
        return system.store.startswith("redis")

    def redis(self, system: System) -> Redis:
        durable = system.store != "redis"
        if durable not in self._redis:
            self._redis[durable] = self._stack.enter_context(Redis(durable=durable))
        return self._redis[durable]

    @staticmethod
    def _template(system: System) -> str:
        return f"template_{system.name.replace('-', '_')}"

    @staticmethod
    def database(system: System) -> str:
        return f"peer_{system.name.replace('-', '_')}"

    def reset(self, system: System) -> None:
        """As freshly installed: no jobs, no leftovers."""
        if self.is_redis(system):
            self.redis(system).ask("FLUSHALL")
            return
        name = self.database(system)
        self._lab.server.drop_database(name)
        self._lab.run(f'CREATE DATABASE "{name}" TEMPLATE "{self._template(system)}"')

    def environment(self, system: System, *, processes: int = 1, database: str = "") -> dict[str, str]:
        words = {"processes": str(processes), "database_url": "", "redis_url": ""}
        if self.is_redis(system):
            words["redis_url"] = self.redis(system).url
        else:
            words["database_url"] = self._lab.server.url(database or self.database(system))
        environment = {"PYTHONPATH": str(ROOT), "REDIS_URL": words["redis_url"], "DATABASE_URL": words["database_url"]}
        return environment | {key: value.format(**words) for key, value in system.environment.items()}

    def drive(self, system: System, *arguments: str, database: str = "", more: Mapping[str, str] | None = None) -> Any:
        """Run the producer of a system to its end; what it answered."""
        done = subprocess.run(
            [self.homes[system.name] / "bin" / "python", "-m", "bench.peers.driver", system.module, *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment(system, database=database), **(more or {})},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise RuntimeError(f"its producer failed: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def preload(self, system: System, jobs: int) -> None:
        if not self.is_redis(system):
            self.drive(system, "preload", str(jobs))
            with psycopg.connect(self._lab.server.url(self.database(system)), autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")
            return
        redis = self.redis(system)
        if redis.durable:
            redis.ask("CONFIG", "SET", "appendfsync", "no")
        self.drive(system, "preload", str(jobs))
        if redis.durable:
            redis.ask("CONFIG", "SET", "appendfsync", "always")

    def crew(self, system: System, processes: int, more: Mapping[str, str] | None = None) -> workers.Workers:
        programs = self.homes[system.name] / "bin"
        environment = self.environment(system, processes=processes)
        commands = [
            [str(programs / words[0]), *(word.replace("{redis_url}", environment["REDIS_URL"]) for word in words[1:])]
            for words in system.workers(processes)
        ]
        return workers.Workers(commands, environment={**environment, **(more or {})}, gated=system.gated(processes))

    @contextmanager
    def counter(self, system: System, jobs: int) -> Iterator[Any]:
        """A function that says how many jobs are done."""
        if self.is_redis(system):
            redis = self.redis(system)
            yield lambda: jobs - sum(int(redis.ask(command, key) or 0) for command, key in system.keys)
            return
        url = self._lab.server.url(self.database(system))
        with psycopg.connect(url, autocommit=True) as connection:

            def ask(query: str) -> int:
                row = connection.execute(query).fetchone()  # type: ignore[call-overload]
                return int(row[0]) if row else 0

            yield (lambda: ask(system.done)) if system.done else (lambda: jobs - ask(system.remaining))

    def server_pid(self, system: System) -> int:
        return self.redis(system).pid if self.is_redis(system) else self._lab.postmaster


def drain(field: Field, system: System, *, processes: int, jobs: int, limit: float) -> dict[str, Any]:
    field.reset(system)
    field.preload(system, jobs)
    with field.crew(system, processes) as crew:
        if system.gated(processes):
            crew.wait()
            time.sleep(0.3)
            crew.release()
        with field.counter(system, jobs) as count:
            trees = {"worker": crew.pids, "server": [field.server_pid(system)]}
            result = meter.watch(count, jobs, trees, limit=limit)
        crew.raise_if_ended()
    return result


def latency(field: Field, system: System, *, processes: int, jobs: int, per_second: float) -> dict[str, Any]:
    field.reset(system)
    with tempfile.TemporaryDirectory(prefix="pgqueue-stamps-") as directory:
        file = Path(directory) / "stamps"
        more = {"BENCH_STAMPS": str(file)}
        with field.crew(system, processes, more) as crew:
            if system.gated(processes):
                crew.wait()
                crew.release()
            # Until it has connected, registered and found nothing to do.
            time.sleep(4.0)
            crew.raise_if_ended()
            trees = {"worker": crew.pids, "server": [field.server_pid(system)]}
            before = meter.cost(trees, 0)
            answer = field.drive(system, "latency", str(jobs), str(per_second))
            total = len(answer["sent"])
            end = time.monotonic() + 30
            while len(moments := stamps.read(file)) < total and time.monotonic() < end:
                time.sleep(0.2)
            after = meter.cost(trees, 0)
            crew.raise_if_ended()
    waits = [
        1000 * (moments[number] - answer["sent"][number])
        for number in range(answer["warm_up"], total)
        if number in moments
    ]
    if len(waits) < jobs:
        raise RuntimeError(f"{jobs - len(waits)} of {jobs} jobs did not start within 30 s")
    found = meter.percentiles(waits)
    return {
        **{f"{name}_ms": value for name, value in found.items()},
        "worker_us_per_job": 1e6 * (after.cpu["worker"] - before.cpu["worker"]) / total,
        "jobs": jobs,
        "per_second": per_second,
    }


def enqueue(field: Field, system: System, *, how: str, seconds: float) -> dict[str, Any]:
    field.reset(system)
    found: dict[str, Any] = field.drive(system, "enqueue", how, str(seconds))
    return found


def has_bulk(system: System) -> bool:
    source = (Path(__file__).parent / "systems" / f"{system.module}.py").read_text()
    # One file serves three Django peers; django-tasks-db has no bulk call of its own.
    return "def many(" in source and system.name != "django-tasks-db"


def main() -> int:
    bench = record.Bench("peers", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    unknown = sorted(set(args.only or []) - set(SYSTEMS))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}", file=sys.stderr)
        return 2
    wanted = [OURS, *(system for system in PEERS if args.only is None or system.name in args.only)]
    drains = args.processes or ([1] if bench.quick else [1, 2, 4])
    latencies = args.latency_processes or ([1] if bench.quick else [1, 2])
    seconds = args.seconds or (1.0 if bench.quick else 4.0)
    bench.document["parameters"] = {"slots": 32, "seconds": seconds, "drain_limit_seconds": args.limit}
    bench.document["not_installed"] = {}
    bench.document["systems"] = {}

    with laboratory.laboratory() as lab, ExitStack() as stack:
        bench.document["server_settings"] = lab.settings()
        field = Field(lab, stack)
        present: list[System] = []
        for system in wanted:
            try:
                field.prepare(system)
            except (environments.NotInstalled, RedisMissing, RuntimeError) as error:
                bench.document["not_installed"][system.name] = record.scrub(str(error))
                print(f"{system.name} is left out: {record.scrub(str(error))}", flush=True)
                continue
            present.append(system)
            bench.document["systems"][system.name] = {
                "store": system.store,
                "slots": system.slots,
                "command": [" ".join(words) for words in system.workers(1)],
                "notes": list(system.notes),
                "versions": environments.installed(field.homes[system.name]),
                "gated": bool(system.gated(1)),
            }
        for redis in field._redis.values():
            bench.document["versions"]["redis"] = redis.version()

        cells: list[record.Cell] = []
        for system in present:
            if "drain" in args.parts:
                cells += record.expand(part=["drain"], system=[system.name], processes=drains)
            if "latency" in args.parts:
                cells += record.expand(part=["latency"], system=[system.name], processes=latencies)
            if "enqueue" in args.parts:
                hows = ["one", "many"] if has_bulk(system) else ["one"]
                cells += record.expand(part=["enqueue"], system=[system.name], how=hows)

        def run(cell: record.Cell) -> dict[str, Any]:
            system = SYSTEMS[cell["system"]]
            if cell["part"] == "drain":
                jobs = int(args.scale * (system.quick_jobs if bench.quick else system.jobs))
                return drain(field, system, processes=cell["processes"], jobs=jobs, limit=args.limit)
            if cell["part"] == "latency":
                jobs = int(args.scale * (min(300, system.latency_jobs // 2) if bench.quick else system.latency_jobs))
                return latency(field, system, processes=cell["processes"], jobs=jobs, per_second=system.per_second)
            return enqueue(field, system, how=cell["how"], seconds=seconds)

        bench.measure(cells, run)

    compare(bench, [system.name for system in present if system is not OURS], drains, latencies, args.parts)
    return bench.finish()


def compare(
    bench: record.Bench, peers: Sequence[str], drains: Sequence[int], latencies: Sequence[int], parts: Sequence[str]
) -> None:
    def best(figure: str, **cell: Any) -> tuple[str, float] | None:
        found = [(name, value) for name in peers if (value := bench.median(figure, system=name, **cell)) is not None]
        return max(found, key=lambda pair: pair[1]) if found else None

    def rates(goal: str, least: float, **cell: Any) -> None:
        ours, rival = bench.median("rate", system=OURS.name, **cell), best("rate", **cell)
        if ours is None or rival is None:
            bench.ratio(goal, None, least=least, unit=" x")
        else:
            why = f"{ours:,.0f}/s; {rival[0]} {rival[1]:,.0f}/s"
            bench.ratio(goal, ours / rival[1], least=least, unit=" x", why=why)

    if not peers:
        return
    if "drain" in parts:
        for processes in drains:
            goal = f"drain, {processes} process(es): at least 2 x the fastest peer here"
            rates(goal, 2, part="drain", processes=processes)
    if "latency" in parts and "celery" in peers:
        for processes in latencies:
            for name in ("p50", "p99"):
                cell = {"part": "latency", "processes": processes}
                ours = bench.median(f"{name}_ms", system=OURS.name, **cell)
                theirs = bench.median(f"{name}_ms", system="celery", **cell)
                bench.ratio(
                    f"pickup {name}, {processes} process(es), of Celery's on Redis: at most 100 %",
                    100 * ours / theirs if ours and theirs else None,
                    most=100,
                    unit=" %",
                    why=f"{ours:.3g} and {theirs:.3g} ms" if ours and theirs else "",
                )
    if "enqueue" in parts:
        rates("enqueue_many: at least 2 x the fastest bulk call of a peer", 2, part="enqueue", how="many")
        durable = [name for name in peers if SYSTEMS[name].store != "redis"]
        ours = bench.median("rate", system=OURS.name, part="enqueue", how="one")
        found = [
            (name, value)
            for name in durable
            if (value := bench.median("rate", system=name, part="enqueue", how="one")) is not None
        ]
        if ours and found:
            name, value = max(found, key=lambda pair: pair[1])
            bench.ratio(
                "one enqueue, of the fastest peer that commits it to disk", ours / value, unit=" x",
                why=f"{ours:,.0f}/s; {name} {value:,.0f}/s",
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
