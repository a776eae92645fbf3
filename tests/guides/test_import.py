"""``pgqueue_import``: what waits in another queue's real table becomes our jobs, each row exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from verbs.rows import wait_for

from .conftest import Server, Sides
from .projects import Project, missing


class Source(NamedTuple):
    name: str
    table: str
    arguments: str
    waiting: str  # how many rows wait there
    worker: tuple[str, ...]
    # Python that makes rows there: many of one task; and one with everything that a row can have
    many: str
    full: str
    flags: tuple[str, ...] = ()

    @property
    def sides(self) -> Sides:
        return (self.name, "before"), ("procrastinate", "after")


DJANGO_TASKS_DB = Source(
    name="django-tasks-db",
    table="django_tasks_database_dbtaskresult",
    arguments="args_kwargs",
    waiting="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'READY'",
    worker=("django", "db_worker", "--queue-name", "*", "--no-startup-delay", "--interval", "0.1", "-v", "0"),
    many="""
from shop.tasks import send_newsletter
for number in range({count}): send_newsletter.enqueue(f"reader{{number}}@example.com", subject="Sale")
""",
    full="""
from datetime import datetime, UTC
from shop.tasks import send_newsletter
task = send_newsletter.using(priority=-7, queue_name="billing", run_after=datetime(2099, 5, 4, 3, 2, 1, 123456, UTC))
task.enqueue("ż@example.com", subject="{}")
""",
)
PROCRASTINATE = Source(
    name="procrastinate",
    table="procrastinate_jobs",
    arguments="args",
    waiting="SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'",
    worker=("django", "procrastinate", "worker", "-c", "2"),
    many="""
from shop.tasks import send_newsletter
send_newsletter.batch_defer(*({{"email": f"reader{{n}}@example.com", "subject": "Sale"}} for n in range({count})))
""",
    full="""
from datetime import datetime, UTC
from shop.tasks import send_newsletter
at = datetime(2099, 5, 4, 3, 2, 1, 123456, UTC)
send_newsletter.configure(priority=-7, queue="billing", schedule_at=at).defer(email="ż@example.com", subject="{}")
""",
    flags=("--map", "newsletter=shop.tasks.send_newsletter"),
)

both = pytest.mark.parametrize("source", [DJANGO_TASKS_DB, PROCRASTINATE], ids=lambda source: source.name)


class Move:
    """Two projects on one database: the one with the source's rows, and one with our jobs and the same task paths."""

    def __init__(self, source: Source, projects: Callable[..., list[Project]]) -> None:
        if why := missing(source.name):
            pytest.skip(why)
        self.source = source
        self.theirs, self.ours = projects(*source.sides)
        self.sql = self.ours.sql
        self.words = ("django", "pgqueue_import", source.name, *source.flags)

    def fill(self, count: int) -> None:
        self.theirs.execute(self.source.many.format(count=count))

    def run(self, *options: str, code: int = 0) -> list[str]:
        """The command's lines, each with single spaces."""
        return [" ".join(line.split()) for line in self.ours.python(*self.words, *options, code=code).splitlines()]

    @property
    def waiting(self) -> int:
        return self.sql(self.source.waiting)[0][0]  # type: ignore[no-any-return]

    @property
    def jobs(self) -> int:
        return self.sql("SELECT count(*) FROM pgqueue_job")[0][0]  # type: ignore[no-any-return]


@pytest.fixture
def move(projects: Callable[..., list[Project]]) -> Callable[[Source], Move]:
    return lambda source: Move(source, projects)


@both
def test_a_row_becomes_a_job_that_is_the_same_call(source: Source, move: Callable[[Source], Move]) -> None:
    moving = move(source)
    moving.theirs.execute(source.full)
    moving.fill(12)
    name = "newsletter -> shop.tasks.send_newsletter" if source is PROCRASTINATE else "shop.tasks.send_newsletter"
    assert moving.run("--dry-run") == [f"13 {name}", "13 would be moved"]
    assert (moving.waiting, moving.jobs) == (13, 0)
    assert moving.run("--batch", "5") == [f"13 {name}", "13 moved"]
    assert (moving.waiting, moving.jobs) == (0, 13)
    rows = moving.sql("""
        SELECT task, queue_name, priority, args::text, kwargs::text, state, attempts, max_attempts,
               split_part(label, ' ', 1), (run_after AT TIME ZONE 'UTC')::text, run_after <= now()
        FROM pgqueue_job ORDER BY id
    """)
    call = ('["ż@example.com"]', '{"subject":"{}"}')
    if source is PROCRASTINATE:
        call = ("[]", '{"email":"ż@example.com","subject":"{}"}')
    assert rows[0] == (
        *("shop.tasks.send_newsletter", "billing", -7, *call, "scheduled", 0, 5, source.name),
        *("2099-05-04 03:02:01.123456", False),
    )
    for number, row in enumerate(rows[1:]):
        assert f"reader{number}@" in row[3] + row[4], "first in is first out"
        assert (row[1], row[2], row[5], row[-1]) == ("mail", 0, "queued", True)
    assert moving.run() == ["0 moved"]


@both
def test_what_has_begun_or_ended_is_theirs_and_a_queue_can_be_chosen(
    source: Source, move: Callable[[Source], Move]
) -> None:
    moving = move(source)
    moving.theirs.execute(source.full)
    moving.fill(4)
    if source is PROCRASTINATE:
        moving.sql("UPDATE procrastinate_jobs SET status = 'doing' WHERE id = 2")
        moving.sql("UPDATE procrastinate_jobs SET status = 'succeeded' WHERE id = 3")
        moving.sql("INSERT INTO procrastinate_periodic_defers (task_name, defer_timestamp, job_id) VALUES ('x', 1, 4)")
    else:
        others = "UPDATE django_tasks_database_dbtaskresult SET status = %s WHERE args_kwargs ->> 'args' LIKE %s"
        moving.sql(others, "RUNNING", "%reader0@%")
        moving.sql(others, "FAILED", "%reader1@%")
    assert moving.run("--queue", "mail")[-1] == "2 moved"
    assert moving.waiting == 1
    assert moving.run("--queue", "billing", "--queue", "mail")[-1] == "1 moved"
    assert moving.sql(f"SELECT count(*) FROM {source.table}") == [(2,)]


def test_what_cannot_be_a_job_is_named_and_stays(move: Callable[[Source], Move]) -> None:
    moving = move(PROCRASTINATE)
    moving.theirs.execute("""
from shop.tasks import app, charge, file_daily_report, send_newsletter, send_receipt
def defer(task, **options): return lambda **kwargs: task.configure(**options).defer(**kwargs)
defer(send_receipt)(order_id=1)                                               # 1
app.configure_task("shop.tasks.gone").defer(a=1)                              # 2
app.configure_task("shop.tasks.gone").defer(a=2)                              # 3
defer(send_receipt)(order=1)                                                  # 4
defer(file_daily_report)(timestamp=1)                                         # 5
defer(send_receipt, queue="a b")(order_id=1)                                  # 6
defer(send_newsletter)(email="x" * 300_000, subject="Sale")                   # 7
defer(charge, lock="customer 1")(order_id=1)                                  # 8
defer(send_receipt, queueing_lock="receipt 1", priority=1000)(order_id=1)     # 9
defer(send_receipt)(order_id=1)                                               # 10
""")
    moving.sql("UPDATE procrastinate_jobs SET scheduled_at = 'infinity' WHERE id = 10")
    lines = moving.run(code=1)
    for beginning in (
        "left 4 of shop.tasks.send_receipt: send_receipt(): missing a required argument",
        "left 5 of shop.tasks.file_daily_report: file_daily_report(): got an unexpected keyword argument 'timestamp'",
        "left 6 of shop.tasks.send_receipt: queue_name='a b'",
        "left 7 of newsletter: args and kwargs: 300,",
        "left 10 of shop.tasks.send_receipt: infinity is no moment",
        "2 shop.tasks.send_receipt",
        "2 moved",
        "1 of them had a priority beyond ±100",
        "1 of them had a queueing_lock",
        "1 left of shop.tasks.charge: they have a lock",
        "2 left of shop.tasks.gone: shop.tasks.gone: ImportError",
        "5 left, each named above",
    ):
        assert any(line.startswith(beginning) for line in lines), (beginning, lines)
    assert len(lines) == 12
    left = moving.sql("SELECT id FROM procrastinate_jobs WHERE status = 'todo' ORDER BY id")
    assert [id for (id,) in left] == [2, 3, 4, 5, 6, 7, 8, 10]
    assert moving.sql("SELECT label, priority FROM pgqueue_job ORDER BY id") == [
        ("procrastinate 1", 0),
        ("procrastinate 9", 100),
    ]
    # What is known is checked all the same.
    assert "3 moved" in moving.run("--unknown", "--ignore-locks", "--queue", "default", "--queue", "billing", code=1)
    assert moving.sql("SELECT count(*) FROM pgqueue_job WHERE task = 'shop.tasks.file_daily_report'") == [(0,)]
    assert moving.sql("SELECT count(*) FROM pgqueue_job WHERE task = 'shop.tasks.gone'") == [(2,)]
    answer = moving.ours.django("pgqueue_import", "procrastinate", "--map", "newsletter=shop.tasks.nothing", code=2)
    assert "shop.tasks.nothing" in answer


@both
def test_killed_in_the_middle_and_run_again_each_row_is_moved_once(
    source: Source, move: Callable[[Source], Move]
) -> None:
    moving = move(source)
    moving.fill(100)
    for _ in range(2):
        # A batch that has deleted its rows waits to insert its jobs, and is killed there.
        before = moving.jobs
        with moving.ours.session() as blocker, blocker.transaction():
            blocker.execute("LOCK TABLE pgqueue_job IN SHARE MODE")
            command = moving.ours.start(*moving.words, "--batch", "7")
            wait_for(lambda: moving.sql(BLOCKED) == [(1,)], 30)
            command.kill()
        wait_for(lambda: moving.sql(SESSIONS) == [(1,)])
        assert (moving.jobs, moving.waiting) == (before, 100 - before)
        # And at any moment.
        command = moving.ours.start(*moving.words, "--batch", "1")
        wait_for(lambda before=before: moving.jobs > before, 30)  # type: ignore[misc]
        command.kill()
        wait_for(lambda: moving.sql(SESSIONS) == [(1,)])
        assert moving.jobs + moving.waiting == 100
    rest = moving.waiting
    assert moving.run("--batch", "7")[-1] == f"{rest} moved"
    assert (moving.waiting, moving.jobs) == (0, 100)
    assert moving.sql("SELECT count(DISTINCT args::text || kwargs::text) FROM pgqueue_job") == [(100,)]


BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


@both
def test_beside_their_worker_each_row_has_one_effect(source: Source, move: Callable[[Source], Move]) -> None:
    moving = move(source)
    moving.fill(300)
    worker = moving.theirs.start(*source.worker)
    wait_for(lambda: moving.ours.ledger, 30)
    lines = moving.ours.start(*moving.words, "--batch", "5")
    assert lines.wait() in (0, 1), lines.log  # 1: a row that their worker held at that moment
    wait_for(lambda: moving.waiting == 0, 30)
    assert worker.stop() == 0, worker.log
    effects, jobs = len(moving.ours.ledger), moving.jobs
    assert effects > 0
    assert jobs > 0
    assert effects + jobs == 300
    moving.ours.django("pgqueue_worker", "--drain")
    assert moving.ours.ledger == sorted(f"mail reader{number}@example.com: Sale" for number in range(300))


@both
def test_batches_are_commits_and_a_row_that_somebody_holds_is_passed_over(
    source: Source, move: Callable[[Source], Move]
) -> None:
    moving = move(source)
    moving.fill(10)
    # Places are read four at a time, and rows are moved three at a time: 3 + 1, 3 + 1, 2.
    command = f"""
from django.core.management import call_command
from pgqueue_django.management.commands import pgqueue_import
pgqueue_import._SPAN = 4
call_command({", ".join(map(repr, (*moving.words[1:], "--batch", "3")))})
"""
    with moving.ours.session() as holder, holder.transaction():
        holder.execute(f"SELECT FROM {source.table} WHERE ({source.arguments})::text LIKE '%reader4@%' FOR UPDATE")
        assert moving.run("--dry-run")[-1] == "10 would be moved"
        lines = moving.ours.django("shell", "-v", "0", "-c", command, code=1)
        assert "9  moved\n        1  wait there: somebody held them" in lines
    assert moving.sql("SELECT count(DISTINCT xmin::text) FROM pgqueue_job") == [(5,)]
    assert moving.run()[-1] == "1 moved"
    assert (moving.waiting, moving.jobs) == (0, 10)


def test_the_table_of_another_version_or_none_is_told(move: Callable[[Source], Move], server: Server) -> None:
    moving = move(PROCRASTINATE)
    assert "no table django_tasks_database_dbtaskresult" in moving.ours.django(
        "pgqueue_import", "django-tasks-db", code=2
    )
    moving.fill(1)
    # Deleted rows that stay would be run twice.
    moving.sql("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    moving.sql("CREATE TRIGGER keep BEFORE DELETE ON procrastinate_jobs FOR EACH ROW EXECUTE FUNCTION keep()")
    assert "nothing was moved" in moving.run(code=1)[-1]
    assert (moving.waiting, moving.jobs) == (1, 0)
    moving.sql("ALTER TYPE procrastinate_job_status RENAME VALUE 'todo' TO 'new'")
    assert "rows that are 'new'" in moving.run(code=2)[-1]
    moving.sql("ALTER TABLE procrastinate_jobs RENAME COLUMN lock TO key")
    assert moving.run(code=2)[-1].startswith(
        "CommandError: procrastinate_jobs has no lock: it is another version's. Migrate it to"
    )
    server.drop(PROCRASTINATE.sides)
