"""The books of the demo: what its customers were told, held against what the database holds.

Only reads. Counts nothing that was there before the `Mark` of this run, so that one database serves many runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db import InterfaceError, OperationalError, connection

from testproject import timetable
from testproject.customers import Ledger

JOBS_PER_ORDER = 6

SLACK_SECONDS = 5
"""How late a chore may be before it is a problem: a poll, a chore, and a machine under load."""


@dataclass(frozen=True)
class Mark:
    """The newest row of each table when this run began."""

    order: int
    campaign: int
    export: int
    job: int

    @classmethod
    def now(cls) -> Mark:
        tables = ("shop_order", "shop_campaign", "shop_export", "pgqueue_job")
        return cls(*(_rows(f"SELECT coalesce(max(id), 0) FROM {table}")[0][0] for table in tables))


@dataclass(frozen=True)
class Account:
    """A run in numbers."""

    orders: int
    """In the database, acknowledged or not."""
    jobs_expected: int
    """By what the shop's own tables say was enqueued, and the ticks of the schedules."""
    ticks: int
    jobs_found: int
    states: dict[str, int]
    retries: int
    """Failed attempts that another one followed or will follow."""
    leases_expired: int
    """Jobs that lost an attempt to a killed worker."""
    recovered: int
    """Those of them that have ended, or wait for their next attempt."""
    pickup_ms_p50: float | None
    """From being due to the claim, of first attempts."""
    pickup_ms_p95: float | None


def states(mark: Mark) -> Counter[str]:
    """How many jobs of this run are in each state."""
    rows = _rows("SELECT state, count(*) FROM pgqueue_job WHERE id > %s GROUP BY state", [mark.job])
    return Counter({str(state): int(count) for state, count in rows})


def moving(mark: Mark, horizon: float) -> int:
    """Jobs of this run that are on their way, or will be within `horizon` seconds."""
    rows = _rows(
        "SELECT count(*) FROM pgqueue_job WHERE id > %s AND (state IN ('queued', 'running')"
        " OR state IN ('scheduled', 'retrying') AND run_after < now() + make_interval(secs => %s))",
        [mark.job, horizon],
    )
    return int(rows[0][0])


def running_on(worker: str) -> int:
    """How many jobs the worker of that name holds now. Its id in the rows is the name, a colon and more."""
    sql = "SELECT count(*) FROM pgqueue_job WHERE state = 'running' AND starts_with(worker_id, %s)"
    return int(_rows(sql, [f"{worker}:"])[0][0])


def registered(workers: Sequence[str]) -> int:
    """How many of the workers of these names are at work."""
    return int(_rows("SELECT count(*) FROM pgqueue_worker WHERE name = ANY(%s)", [list(workers)])[0][0])


def balance(mark: Mark) -> Account:
    """Count what this run has left."""
    ((orders,),) = _rows("SELECT count(*) FROM shop_order WHERE id > %s", [mark.order])
    ((readers,),) = _rows("SELECT coalesce(sum(recipients), 0) FROM shop_campaign WHERE id > %s", [mark.campaign])
    ((exports,),) = _rows("SELECT count(*) FROM shop_export WHERE id > %s", [mark.export])
    found = states(mark)
    ((failed_attempts, expired, caught),) = _rows(
        """
        SELECT coalesce(sum(jsonb_array_length(history)), 0),
               count(*) FILTER (WHERE history @> '[{"kind": "lease_expired"}]'),
               count(*) FILTER (WHERE history @> '[{"kind": "lease_expired"}]' AND state IN ('queued', 'running'))
          FROM pgqueue_job WHERE id > %s
        """,
        [mark.job],
    )
    ((pickup,),) = _rows(
        """
        SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (
                   ORDER BY 1000 * extract(epoch FROM started_at - greatest(run_after, enqueued_at)))
          FROM pgqueue_job
         WHERE id > %s AND attempts = 1 AND history = '[]' AND state IN ('running', 'succeeded')
        """,
        [mark.job],
    )
    return Account(
        orders=orders,
        jobs_expected=JOBS_PER_ORDER * orders + readers + exports + (ticks := timetable.ticks(mark.job)),
        ticks=ticks,
        jobs_found=found.total(),
        states=dict(found),
        retries=int(failed_attempts) - found["failed"] - found["dead"],
        leases_expired=expired,
        recovered=expired - caught,
        pickup_ms_p50=round(pickup[0], 1) if pickup else None,
        pickup_ms_p95=round(pickup[1], 1) if pickup else None,
    )


def problems(mark: Mark, ledger: Ledger) -> list[str]:
    """What is wrong with this run; to be asked while its workers are up, or waiting jobs become late."""
    values = {**asdict(mark), "per_order": JOBS_PER_ORDER, "slack": SLACK_SECONDS}
    counts = {what: int(_rows(sql, values)[0][0]) for what, sql in _WRONG.items()}
    for kind, acknowledged, sql, newest in (
        ("orders", ledger.orders, "SELECT public_id::text FROM shop_order WHERE id > %s", mark.order),
        ("newsletters", ledger.campaigns, "SELECT id FROM shop_campaign WHERE id > %s", mark.campaign),
        ("exports", ledger.exports, "SELECT id FROM shop_export WHERE id > %s", mark.export),
    ):
        committed = {row[0] for row in _rows(sql, [newest])}
        counts[f"acknowledged {kind} are not in the database"] = len(set(acknowledged) - committed)
    counts["answers of the shop were errors"] = len(ledger.refused)
    return [f"{count} {what}" for what, count in counts.items() if count] + ledger.refused[:3]


_WRONG = {
    "orders have not all of their jobs": """
        SELECT count(*) FROM shop_order o
         WHERE o.id > %(order)s AND %(per_order)s <> (
               SELECT count(*) FROM shop_orderjob l JOIN pgqueue_job j ON j.id = l.job_id WHERE l.order_id = o.id)
        """,
    "newsletters have not all of their jobs": """
        SELECT count(*) FROM shop_campaign c
         WHERE c.id > %(campaign)s AND c.recipients <> (
               SELECT count(*) FROM shop_delivery d JOIN pgqueue_job j ON j.id = d.job_id WHERE d.campaign_id = c.id)
        """,
    "exports have no job": """
        SELECT count(*) FROM shop_export e
         WHERE e.id > %(export)s AND NOT EXISTS (SELECT FROM pgqueue_job j WHERE j.id = e.job_id)
        """,
    "jobs wait although their time has come": """
        SELECT count(*) FROM pgqueue_job
         WHERE id > %(job)s AND state IN ('scheduled', 'retrying')
           AND run_after < now() - make_interval(secs => %(slack)s)
        """,
    "jobs run on a lease that has expired": """
        SELECT count(*) FROM pgqueue_job
         WHERE id > %(job)s AND state = 'running' AND lease_expires_at < now() - make_interval(secs => %(slack)s)
        """,
    "orders had their goods booked twice": """
        SELECT count(DISTINCT l.order_id) FROM shop_orderline l
         WHERE l.order_id > %(order)s AND 1 < (SELECT count(*) FROM shop_stockmovement m WHERE m.line_id = l.id)
        """,
    "jobs succeeded and their work is not there": """
        SELECT count(*) FROM shop_order o
          JOIN shop_orderjob l ON l.order_id = o.id
          JOIN pgqueue_job j ON j.id = l.job_id AND j.state = 'succeeded'
         WHERE o.id > %(order)s AND NOT
          CASE substring(j.task FROM '[^.]+$')
          WHEN 'charge_card' THEN EXISTS (SELECT FROM shop_charge c WHERE c.order_id = o.id)
          WHEN 'send_receipt' THEN EXISTS (SELECT FROM shop_receipt r WHERE r.order_id = o.id)
          WHEN 'make_invoice' THEN EXISTS (SELECT FROM shop_invoice i WHERE i.order_id = o.id)
          WHEN 'tell_warehouse' THEN EXISTS (SELECT FROM shop_warehousenotice w WHERE w.order_id = o.id)
          WHEN 'ask_for_review' THEN EXISTS (SELECT FROM shop_reviewrequest q WHERE q.order_id = o.id)
          WHEN 'book_stock' THEN NOT EXISTS (
               SELECT FROM shop_orderline g
                WHERE g.order_id = o.id
                  AND NOT EXISTS (SELECT FROM shop_stockmovement m WHERE m.line_id = g.id))
          END
        """,
}


def _rows(sql: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Outlives a restart of the database of up to half a minute: whoever watches the demo may well try one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, values)
                return list(cursor.fetchall())
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            connection.close()
            time.sleep(0.2)
