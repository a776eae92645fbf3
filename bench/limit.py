"""What could PostgreSQL do without Python? The queue's own SQL, driven by pgbench.

Method: the claim and the settle of the package are captured as it sends them (so they never drift from what is
shipped) and put into pgbench scripts that claim a batch and settle it as succeeded, until the time is up. `two
commits`: the claim statement and the settle statement, each a transaction of its own, and nothing else. `as sent`:
all that the package sends for it, with BEGIN, the counters and COMMIT. Batches of 1, 10, 100 and 200; 1, 2 and 4
clients. `two commits` uses prepared statements, `as sent` the simple protocol, as Django's client-side binding does
(--all: both with both). The claim is wrapped
so that one row comes back: ids and tokens for the settle, and the payloads in one text, so that they are read and
sent as in a real claim. Jobs are counted in the table afterwards; the backlog must not run dry. Our own drain with
1, 2 and 4 worker processes runs in between, with its claims counted.

How to read it: jobs/s of the database with nearly all of the two cores to itself. Our drain is held against
`prepared, two commits`, the highest of them, at the largest batch that is not above the jobs that our claims really
took: the goal is half of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import drain, orders, record
from bench import lab as laboratory
from bench.apps import is_claim

# Above what was ever seen, so that the backlog of a cell suffices: jobs/s of one cell, by batch.
_FASTEST = {1: 9_000, 10: 40_000, 100: 90_000}


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=record.numbers, help="1,10,100,200 (quick 1,100)")
    parser.add_argument("--clients", type=record.numbers, help="1,2,4 (quick 1,2)")
    parser.add_argument("--all", action="store_true", help="both scripts with both protocols")
    parser.add_argument("--seconds", type=float, help="of one cell (3; quick 1)")
    parser.add_argument("--jobs", type=int, help="of our own drain (60,000; quick 15,000)")


class Captured:
    """What the package sends to claim ``batch`` jobs and to settle them, as (sql, parameters)."""

    def __init__(self, lab: laboratory.Lab, batch: int) -> None:
        from django.db import connection

        from bench import tasks
        from pgqueue_django import transitions
        from pgqueue_django.outcomes import Succeeded
        from pgqueue_django.transitions import Settlement

        lab.empty()
        # So that ids and tokens cannot be taken for each other: both would be [1] for one job.
        lab.run("SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), 1000000)")
        lab.preload(tasks.noop, batch)
        seen: list[tuple[str, list[Any]]] = []

        def execute(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            seen.append((sql, list(params or ())))
            return run(sql, params, many, context)

        with connection.execute_wrapper(execute):
            claimed = transitions.claim(
                "default", queue_name="default", slots=batch, prefetch=0, worker_id="bench", lease_seconds=3600.0
            )
            self.claim = next(statement for statement in seen if is_claim(statement[0]))
            seen.clear()
            settlements = [Settlement(job, Succeeded("null"), 0.01, 0.0001) for job in claimed]
            transitions.settle("default", settlements, worker_id="bench")
            self.settle = list(seen)
        connection.close()
        if len(claimed) != batch:
            raise RuntimeError(f"claimed {len(claimed)} of {batch}")
        self.ids = sorted(job.id for job in claimed)
        tokens = {job.id: job.fencing_token for job in claimed}
        self.tokens = [tokens[id] for id in self.ids]


class Script:
    """A pgbench script. ``prepared``: pgbench binds its variables; else it writes them into the text."""

    def __init__(self, captured: Captured, *, prepared: bool, as_sent: bool, watcher: Any) -> None:
        self._captured = captured
        self._prepared = prepared
        self._watcher = watcher
        lines = []
        if as_sent:
            lines.append("BEGIN;")
        claim = _flat(self._literals(*captured.claim))
        quote = "" if prepared else "quote_literal"
        # What RETURNING calls its columns is the package's business; these three names are columns of the table.
        lines.append(
            f"WITH claimed AS ({claim}) SELECT {quote}(array_agg(id ORDER BY id)::text) AS ids, "
            f"{quote}(array_agg(fencing_token ORDER BY id)::text) AS tokens, string_agg(args::text, '') AS payloads "
            "FROM claimed \\gset"
        )
        if as_sent:
            lines += ["COMMIT;", "BEGIN;"]
        settle = captured.settle if as_sent else captured.settle[:1]
        lines += [_flat(self._literals(*statement)) + ";" for statement in settle]
        if as_sent:
            lines.append("COMMIT;")
        self.text = "\n".join(lines) + "\n"
        if ":ids" not in self.text or ":tokens" not in self.text:
            raise RuntimeError("the settle's ids and tokens were not found among its parameters")

    def _literals(self, sql: str, params: list[Any]) -> str:
        """The statement with its parameters written into it, save for the ids and tokens of the claim."""

        from pgqueue_django import transitions

        def literal(value: Any) -> str:
            if value == transitions._array(map(str, self._captured.ids)):
                return ":ids"
            if value == transitions._array(map(str, self._captured.tokens)):
                return ":tokens"
            return psycopg.sql.Literal(value).as_string(self._watcher)

        parts = sql.replace("%%", "%").split("%s")
        if len(parts) != len(params) + 1:
            raise RuntimeError("placeholders and parameters do not match")
        return "".join(part + literal(value) for part, value in zip(parts, params, strict=False)) + parts[-1]


def _flat(sql: str) -> str:
    # pgbench takes a \gset command only at the end of a statement on its line; a colon would be a variable of its own.
    return re.sub(r"\s+", " ", sql).strip().rstrip(";")


def pgbench(lab: laboratory.Lab, script: str, *, clients: int, seconds: float, prepared: bool) -> dict[str, Any]:
    file = lab.server.directory / "script.sql"
    file.write_text(script)
    address = conninfo_to_dict(lab.url)
    before = lab.ask("SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'")
    command = [
        *(str(lab.server.bin_dir / "pgbench"), "-n", "-f", str(file), "-c", str(clients), "-j", str(min(clients, 2))),
        *("-T", str(max(1, round(seconds))), "-M", "prepared" if prepared else "simple"),
        *("-h", str(address["host"]), "-p", str(address["port"]), "-U", str(address["user"]), str(address["dbname"])),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PGPASSWORD": str(address["password"])}, capture_output=True, text=True
    )
    transactions = re.search(r"transactions actually processed: (\d+)", done.stdout)
    tps = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or not transactions or not tps or not int(transactions[1]):
        raise RuntimeError(f"pgbench: {done.stderr.strip() or done.stdout.strip()}")
    elapsed = int(transactions[1]) / float(tps[1])
    jobs = int(lab.ask("SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'")) - int(before)
    left = int(lab.ask("SELECT count(*) FROM pgqueue_job WHERE state = 'queued'"))
    if not left:
        raise RuntimeError("the backlog ran dry")
    return {"rate": jobs / elapsed, "jobs": jobs, "seconds": elapsed, "left": left}


def backlog(lab: laboratory.Lab, jobs: int) -> None:
    """Ready jobs in plain SQL: pgbench needs more of them than enqueue_many makes in a reasonable time."""
    lab.empty()
    lab.run("CREATE TABLE IF NOT EXISTS bench_variant (id int PRIMARY KEY, args json NOT NULL)")
    for number, order in enumerate(orders.variants()):
        lab.run(
            "INSERT INTO bench_variant VALUES (%s, %s::json) ON CONFLICT DO NOTHING",
            [number, f"[{orders.text(order)}]"],
        )
    lab.run(
        f"""
        INSERT INTO pgqueue_job (task, args, max_attempts, backoff)
        SELECT 'bench.tasks.noop', variant.args, 5, '{{"base": 2, "factor": 2, "cap": 3600}}'
        FROM generate_series(1, {jobs}) AS number JOIN bench_variant variant ON variant.id = number % {orders.VARIANTS}
        """
    )
    lab.tidy()


def main() -> int:
    bench = record.Bench("limit", __doc__ or "", repeats=3, flags=flags)
    args = bench.args
    batches = args.batches or ([1, 100] if bench.quick else [1, 10, 100, 200])
    clients = args.clients or ([1, 2] if bench.quick else [1, 2, 4])
    # The most that the database could do, and the very bytes that Django sends; --all for what lies between.
    kinds = [("two commits", "prepared"), ("as sent", "simple")]
    if args.all:
        kinds += [("two commits", "simple"), ("as sent", "prepared")]
    elif bench.quick:
        kinds = kinds[:1]
    seconds = args.seconds or (1 if bench.quick else 3)
    jobs = args.jobs or (15_000 if bench.quick else 60_000)
    bench.document["parameters"] = {"seconds": seconds, "jobs": jobs, "slots": drain.SLOTS}

    with laboratory.laboratory() as lab:
        bench.document["server_settings"] = lab.settings()
        captured = {batch: Captured(lab, batch) for batch in batches}

        def run(cell: record.Cell) -> dict[str, Any]:
            if cell["driver"] == "worker processes":
                return drain.claims_of(
                    lab,
                    lab.server.directory,
                    lambda environment: drain.drain(lab, processes=cell["clients"], jobs=jobs, environment=environment),
                )
            prepared = cell["protocol"] == "prepared"
            fastest = _FASTEST[max(batch for batch in _FASTEST if batch <= cell["batch"])]
            backlog(lab, int(fastest * max(1, round(seconds))) + 10 * cell["batch"] * cell["clients"])
            script = Script(
                captured[cell["batch"]], prepared=prepared, as_sent=cell["script"] == "as sent", watcher=lab.watcher
            )
            return pgbench(lab, script.text, clients=cell["clients"], seconds=seconds, prepared=prepared)

        cells = [
            cell
            for script, protocol in kinds
            for cell in record.expand(
                driver=["pgbench"], script=[script], protocol=[protocol], batch=batches, clients=clients
            )
        ]
        cells += record.expand(driver=["worker processes"], clients=clients)
        bench.measure(cells, run)

    for count in clients:
        ours = bench.median("rate", driver="worker processes", clients=count)
        size = bench.median("jobs_per_claim", driver="worker processes", clients=count)
        goal = f"drain with {count} process(es), of pgbench with {count} client(s) at the same batch: at least 50 %"
        if ours is None or size is None:
            bench.ratio(goal, None, least=50, unit=" %")
            continue
        batch = max((value for value in batches if value <= size), default=min(batches))
        bound = bench.median(
            "rate", driver="pgbench", script="two commits", protocol="prepared", batch=batch, clients=count
        )
        why = f"{ours:,.0f} and {bound:,.0f} jobs/s at {batch}; our claims took {size:.0f}" if bound else ""
        bench.ratio(goal, 100 * ours / bound if bound else None, least=50, unit=" %", why=why)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
