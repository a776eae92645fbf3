"""The index on arguments, for those who want one: with it a search for an argument finds jobs whatever their age.

It costs each enqueue, and each step of a job (docs/operating.md has the figures), so no migration makes it, and nobody
pays who has not asked for it. It is an index on ``jsonb`` made of the stored ``json``, which is taken apart anew at
each write. What it answers is wider than what a search asks: rows that it finds are asked the search's own conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import OperationalError, connections, transaction
from psycopg.errors import QueryCanceled

from .search import Condition

NAME = "pgqueue_job_arguments"
MOST = 10_000
"""With more rows than these a search goes along the newest jobs, and comes to some of them soon."""
SECONDS = 2
"""A search that takes longer does so, too."""

_FIND = """
    SELECT indisvalid AND indisready FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = to_regclass('pgqueue_job') AND relname = %s
"""
_CREATE = f"""
    CREATE INDEX CONCURRENTLY {NAME} ON pgqueue_job
    USING gin ((args::jsonb) jsonb_path_ops, (kwargs::jsonb) jsonb_path_ops)
"""
_DROP = f"DROP INDEX CONCURRENTLY IF EXISTS {NAME}"
# Only by bitmaps, which is what such an index gives: along any other index all jobs would be read.
_PLANNING = """
    SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true),
           set_config('enable_indexonlyscan', 'off', true), set_config('jit', 'off', true),
           set_config('statement_timeout', %s, true)
"""


def is_whole(using: str) -> bool | None:
    """Whether it can be used; None: there is none. False is one that is being made, or whose making was ended."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FIND, [NAME])
        found = cursor.fetchone()
    return None if found is None else bool(found[0])


def make(using: str) -> None:
    """Make it, beside all that goes on; outside of a transaction. What is left of an earlier try is thrown away."""
    with connections[using].cursor() as cursor:
        if is_whole(using) is False:
            cursor.execute(_DROP)
        cursor.execute(_CREATE)


def drop(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(_DROP)


def numbers(using: str, wanted: Sequence[Condition]) -> list[int] | None:
    """Of all jobs that meet these conditions. None: it cannot tell, or they are more than ``MOST``."""
    wider = [condition.wider for condition in wanted if condition.wider is not None]
    if not wider or not is_whole(using):
        return None
    asked = [*wider, *wanted]
    where = " AND ".join(condition.sql for condition in asked)
    params = [value for condition in asked for value in condition.params]
    try:
        with transaction.atomic(using=using):
            with connections[using].cursor() as cursor:
                cursor.execute(_PLANNING, [f"{SECONDS}s"])
                cursor.execute(f"SELECT job.id FROM pgqueue_job job WHERE {where} LIMIT {MOST + 1}", params)
                found = [id for (id,) in cursor.fetchall()]
            transaction.set_rollback(True, using=using)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return None
    return found if len(found) <= MOST else None
