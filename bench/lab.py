"""A private PostgreSQL for one benchmark, and the queue's tables in it.

Default settings (fsync on) but for ``max_connections = 300``; a port and a directory of its own, removed at the
end. Before each run: a fresh backlog, VACUUM ANALYZE, CHECKPOINT. Django is set up here, in the process of the
benchmark, with the settings that the workers have (``bench.settings``).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import conninfo, sql

from bench import orders
from testproject import localdb

ROOT = Path(__file__).resolve().parent.parent
DATABASE = "bench"

# How the payload may be stored: ALTERs on the empty table. lz4 needs a server that was built with it; the embedded
# one of today is not, and its cells then fail and say so.
STORAGE = {
    "shipped": "",
    "toast_8160": "ALTER TABLE pgqueue_job SET (toast_tuple_target = 8160)",
    "lz4": "ALTER TABLE pgqueue_job ALTER args SET COMPRESSION lz4",
    "lz4_8160": "ALTER TABLE pgqueue_job ALTER args SET COMPRESSION lz4; "
    "ALTER TABLE pgqueue_job SET (toast_tuple_target = 8160)",
    "main": "ALTER TABLE pgqueue_job ALTER args SET STORAGE MAIN",
    "external": "ALTER TABLE pgqueue_job ALTER args SET STORAGE EXTERNAL",
}

_SETTINGS = (  # noqa: SIM905
    "server_version fsync synchronous_commit full_page_writes wal_sync_method shared_buffers max_wal_size "
    "checkpoint_timeout max_connections jit autovacuum default_toast_compression"
).split()


class Lab:
    """The server, its databases and one autocommit connection to look on from outside."""

    def __init__(self, *, version: int = 18, server: Given | None = None, database: str = DATABASE) -> None:
        self.server: localdb.Server | Given = server or localdb.fresh(version=version)  # type: ignore[arg-type]
        self._watchers: dict[str, psycopg.Connection[Any]] = {}
        self._migrated: set[str] = set()
        self.database = ""
        self._shipped: str | None = None
        try:
            self.use(database)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        from django.conf import settings
        from django.db import connections

        if settings.configured:
            connections.close_all()
        for watcher in self._watchers.values():
            watcher.close()
        self.server.__exit__()

    # Databases -------------------------------------------------------------------------------------------------

    def use(self, name: str) -> None:
        """Work on this database from now on: made and migrated when it is new."""
        url = self.server.create_database(name)
        os.environ["DATABASE_URL"] = url
        self._django(name)
        self.database = name
        if name not in self._migrated:
            from django.core.management import call_command

            call_command("migrate", run_syncdb=True, verbosity=0)
            self._migrated.add(name)
        if name not in self._watchers:
            self._watchers[name] = psycopg.connect(url, autocommit=True, application_name="bench watcher")

    def look_again(self) -> None:
        """After the server was away: a new session for the watcher."""
        self._watchers.pop(self.database).close()
        self.use(self.database)

    def _django(self, name: str) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "bench.settings"
        import django
        from django.apps import apps
        from django.db import connections

        if not apps.ready:
            django.setup()
        connections["default"].close()
        connections["default"].settings_dict["NAME"] = name

    @property
    def url(self) -> str:
        return self.server.url(self.database)

    @property
    def watcher(self) -> psycopg.Connection[Any]:
        return self._watchers[self.database]

    def ask(self, query: str, parameters: Sequence[Any] = ()) -> Any:
        """The first column of the first row."""
        row = self.watcher.execute(query, parameters or None).fetchone()  # type: ignore[call-overload]
        return row[0] if row else None

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self.watcher.execute(statement, parameters or None)  # type: ignore[call-overload]

    @property
    def postmaster(self) -> int:
        assert isinstance(self.server, localdb.Server), "it may be on another machine"
        pid = self.server.pid
        assert pid is not None, "the server is down"
        return pid

    # Backlogs --------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """No jobs, no statistics, no leftovers of the run before."""
        tables = ["pgqueue_job", "pgqueue_stat", "pgqueue_worker", "bench_receipt"]
        self.watcher.execute(
            sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(map(sql.Identifier, tables)))
        )

    def preload(self, task: Any, jobs: int, *, arguments: Sequence[Any] | None = None) -> None:
        """Enqueue a backlog of ``jobs`` orders with ``enqueue_many``, 1,000 a call, in this process."""
        from django.db import connections

        from pgqueue_django import enqueue_many

        given = arguments if arguments is not None else orders.variants()
        for start in range(0, jobs, 1000):
            stop = min(start + 1000, jobs)
            enqueue_many([task.call(given[number % len(given)]) for number in range(start, stop)])
        connections["default"].close()

    def tidy(self) -> None:
        """VACUUM ANALYZE and CHECKPOINT: the state from which each run starts."""
        self.run("VACUUM ANALYZE")
        self.run("CHECKPOINT")

    def store(self, storage: str) -> None:
        """Set how the payload is stored, from what the migrations made of it; on the empty table."""
        if self._shipped is None:
            self._shipped = self._storage()
        self.run(self._shipped)
        if STORAGE[storage]:
            self.run(STORAGE[storage])

    def _storage(self) -> str:
        """The ALTERs that make the table's storage what it is now."""
        words = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}
        compressions = {"": "default", "p": "pglz", "l": "lz4"}
        row = self.watcher.execute(
            "SELECT attstorage::text, attcompression::text, (SELECT option_value FROM pg_options_to_table(reloptions) "
            "WHERE option_name = 'toast_tuple_target') FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
            "WHERE relname = 'pgqueue_job' AND attname = 'args'"
        ).fetchone()
        assert row is not None
        table = "ALTER TABLE pgqueue_job"
        target = f"SET (toast_tuple_target = {row[2]})" if row[2] else "RESET (toast_tuple_target)"
        compression = compressions[str(row[1]).strip("\x00 ")]
        return (
            f"{table} {target}; {table} ALTER args SET STORAGE {words[row[0]]}; "
            f"{table} ALTER args SET COMPRESSION {compression}"
        )

    def succeeded(self) -> int:
        """Jobs whose success is committed, by the queue's own counters: a tiny table, so asking costs nothing.

        ``check`` compares them with the rows afterwards.
        """
        return int(self.ask("SELECT COALESCE(sum(succeeded), 0)::bigint FROM pgqueue_stat"))

    def check(self, jobs: int, *, since: int = 0) -> dict[str, Any]:
        """What the rows say after a drain: how many succeeded, and the rate by their own ``finished_at``."""
        count, low, high = self.watcher.execute(
            """
            SELECT count(*), extract(epoch FROM percentile_disc(0.1) WITHIN GROUP (ORDER BY finished_at)),
                   extract(epoch FROM percentile_disc(0.9) WITHIN GROUP (ORDER BY finished_at))
            FROM pgqueue_job WHERE state = 'succeeded' AND id > %s
            """,
            [since],
        ).fetchone() or (0, None, None)
        found: dict[str, Any] = {"rows_succeeded": count}
        if count == jobs and high > low:
            found["rate_by_rows"] = 0.8 * jobs / float(high - low)
        return found

    # What the machine is ---------------------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        return {name: str(self.ask(f"SHOW {name}")) for name in _SETTINGS}


class Given:
    """A server that somebody else runs: databases of ours on it, dropped at the end, and a command that restarts it."""

    def __init__(self, url: str, command: str) -> None:
        self._url = url
        self._command = command
        self._made: set[str] = set()

    def url(self, database: str) -> str:
        return conninfo.make_conninfo(self._url, dbname=database)

    def create_database(self, name: str) -> str:
        if name not in self._made:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            self._made.add(name)
        return self.url(name)

    def restart(self) -> None:
        subprocess.run(self._command, shell=True, check=True, stdin=subprocess.DEVNULL)

    def __exit__(self, *exc_info: object) -> None:
        for name in self._made:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def laboratory(*, version: int = 18, server: Given | None = None, database: str = DATABASE) -> Iterator[Lab]:
    lab = Lab(version=version, server=server, database=database)
    try:
        yield lab
    finally:
        lab.close()


def versions() -> dict[str, str]:
    """Of what is measured; the commit, with a mark when the tree differs from it."""
    from importlib import metadata

    import pgqueue_django

    found = {"python": platform.python_version(), "pgqueue_django": pgqueue_django.__version__}
    for name in ("django", "psycopg"):
        found[name] = metadata.version(name)
    try:
        found["psycopg implementation"] = psycopg.pq.__impl__
        commit = _git("rev-parse", "--short", "HEAD")
        found["commit"] = commit + (" and changes" if _git("status", "--porcelain", "pgqueue_django") else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, Any]:
    processor = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30),
        "kernel": platform.release(),
        "system": sys.platform,
    }


def wait_for(condition: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)
