"""The benchmarks that kill, in short: what is in their account, and that they fail if something is wrong with it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import crash, restart
from bench.deliveries import account, is_clean
from chaos.test_ledger import Story, failed_once, killed_while_it_ran, plain
from testproject.localdb import Server
from testproject.processes import CHECKOUT

Runs = dict[str, dict[str, Any]]


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., tuple[int, Runs]]:
    """``bench("crash", "--jobs", "9")``: its exit code, and its runs by the value of their cell."""

    def run(name: str, *arguments: str, **environment: str) -> tuple[int, Runs]:
        out = tmp_path / f"{name}.json"
        words = ["--quick", "--repeats", "1", "--cool-down", "0", "--limit", "60", "--out", str(out), *arguments]
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *words],
            cwd=CHECKOUT,
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(done.stdout)
        runs = json.loads(out.read_text())["runs"] if out.exists() else []
        return done.returncode, {next(iter(one["cell"].values())): one for one in runs}

    return run


@pytest.mark.timeout(400)  # workers are started again and again, on whatever machine this is
def test_killed_workers_lose_nothing_and_the_ledger_explains_every_duplicate(
    bench: Callable[..., tuple[int, Runs]],
) -> None:
    code, runs = bench("crash", "--jobs", "150", "--workers", "3", "--kills", "6")
    assert set(runs) == {"without", "with"}
    for run in runs.values():
        assert (run["succeeded"], run["dead"], run["lost"], run["unexplained"], run["wrong"]) == (150, 0, 0, 0, [])
        assert {figure for _, figure in crash.ROWS} - set(run) <= {"unbegun_p50_s"}, "a row of the table has no figure"
        assert run["kills"] == 6
        assert run["deliveries"] == 150 + run["duplicates"]
        assert run["duplicates"] == run["duplicates_by_kill"] + run["duplicates_by_lease"]
        assert len(run["recoveries_s"]) >= run["kills_busy"] > 0, "no kill hit a busy worker: this run shows nothing"
    assert (runs["with"]["expired"], runs["without"]["disowned"]) == (0, 0)
    assert runs["with"]["disowned"] > 0
    assert runs["without"]["expired"] > 0
    assert runs["with"]["back_p50_s"] < runs["without"]["back_p50_s"]
    assert code == 0


def test_jobs_that_have_not_ended_in_time_fail_the_benchmark(
    bench: Callable[..., tuple[int, Runs]],
) -> None:
    code, runs = bench("crash", "--jobs", "400", "--workers", "1", "--supervisor", "with", "--limit", "0.5")
    assert code == 1
    assert runs["with"]["succeeded"] < 400
    assert (runs["with"]["lost"], runs["with"]["unfinished"]) == (0, 400 - runs["with"]["succeeded"])


def test_a_restarted_server_loses_nothing(bench: Callable[..., tuple[int, Runs]]) -> None:
    code, runs = bench("restart", "--jobs", "150", "--workers", "2")
    assert set(runs) == {"fast", "immediate"}
    for run in runs.values():
        assert_whole(run)
    assert code == 0


def test_a_given_server_is_restarted_by_the_command(bench: Callable[..., tuple[int, Runs]], server: Server) -> None:
    before = databases(server)
    script = "import sys; from pathlib import Path; from testproject.localdb import Server; "
    script += "Server(Path(sys.argv[1])).restart('fast')"
    command = shlex.join([sys.executable, "-c", script, str(server.directory)])
    code, runs = bench(
        "restart", "--jobs", "150", "--workers", "2", "--restart-cmd", command, DATABASE_URL=server.url()
    )
    assert_whole(runs["by the command"])
    assert code == 0
    assert databases(server) == before


def test_a_command_that_restarts_nothing_fails(bench: Callable[..., tuple[int, Runs]], server: Server) -> None:
    arguments = ("--jobs", "60", "--workers", "1", "--restart-cmd", "true", "--limit", "1")
    code, runs = bench("restart", *arguments, DATABASE_URL=server.url())
    assert code == 1
    assert "has not been restarted" in runs["by the command"]["error"]


def assert_whole(run: dict[str, Any]) -> None:
    assert (run["succeeded"], run["deliveries"], run["lost"], run["unexplained"], run["wrong"]) == (150, 150, 0, 0, [])
    assert {figure for _, figure in restart.ROWS} <= set(run), "a row of the table has no figure"
    assert 45 <= run["succeeded_before"] < 150
    assert 0 < run["accepts_s"] <= run["total_s"]
    assert 0 < run["first_s"] <= run["total_s"]


def databases(server: Server) -> set[str]:
    with psycopg.connect(server.url()) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


# -- the account -----------------------------------------------------------------------------------------------


def test_a_duplicate_after_a_kill_is_explained() -> None:
    found = account(killed_while_it_ran().end(), 1)
    assert (found["deliveries"], found["duplicates"], found["duplicates_by_kill"]) == (2, 1, 1)
    assert is_clean(found)


def test_a_duplicate_after_an_expired_lease_is_explained_and_told_apart() -> None:
    story = killed_while_it_ran()
    story.history.kills.clear()
    found = account(story.end(), 1)
    assert (found["duplicates_by_kill"], found["duplicates_by_lease"], found["expired_unkilled"]) == (0, 1, 1)
    assert is_clean(found)


def test_a_duplicate_after_a_mere_failure_is_not_explained() -> None:
    found = account(failed_once().end(), 1)
    assert (found["duplicates"], found["unexplained"]) == (1, 1)
    assert not is_clean(found)


def test_a_process_that_was_lost_and_not_killed_is_not_explained() -> None:
    story = killed_while_it_ran()
    story.history.kills.clear()
    story.history.moves = [
        replace(move, kind="worker_lost" if move.kind == "lease_expired" else move.kind) for move in story.history.moves
    ]
    found = account(story.end(), 1)
    assert (found["unexplained"], found["violations"]) == (1, 1)


def test_a_duplicate_that_began_before_the_lease_had_ended_is_not_explained() -> None:
    story = killed_while_it_ran()
    first, second = story.history.deliveries
    reaped = next(move for move in story.history.moves if move.kind == "lease_expired")
    story.history.deliveries = [first, replace(second, began_at=min(first.began_at, reaped.at))]
    assert account(story.end(), 1)["unexplained"] == 1


def unended(story: Story) -> None:
    story.history.deliveries = [replace(found, ended_at=None) for found in story.history.deliveries]


def undelivered(story: Story) -> None:
    story.history.deliveries.clear()


def queued(story: Story) -> None:
    story.job = replace(story.job, state="queued")


@pytest.mark.parametrize(("wrong", "figure"), [(unended, "lost"), (undelivered, "lost"), (queued, "unfinished")])
def test_a_job_that_was_not_done_is_seen(wrong: Callable[[Story], None], figure: str) -> None:
    story = plain()
    assert is_clean(account(story.end(), 1))
    wrong(story)
    found = account(story.end(), 1)
    assert [found[name] for name in ("lost", "unfinished")] == [figure == name for name in ("lost", "unfinished")]
    assert not is_clean(found)


def test_a_job_without_a_row_is_lost_and_one_never_enqueued_is_unfinished() -> None:
    history = plain().end()
    found = account(history, 2)
    assert (found["lost"], found["unfinished"]) == (0, 1)
    history.jobs.clear()
    found = account(history, 1)
    assert (found["lost"], found["unfinished"]) == (1, 0)


def test_a_broken_promise_of_another_kind_is_not_clean() -> None:
    story = plain()
    story.history.counted = {}
    found = account(story.end(), 1)
    assert (found["lost"], found["violations"]) == (0, 1)
    assert not is_clean(found)
