"""PostgreSQL goes away under load and comes back: workers stay, nothing acknowledged is lost, LISTEN heals."""

from __future__ import annotations

import time

import pytest

from chaos.fleet import Fleet, Worker, until
from testproject.localdb import Server

# Longer than the server is away, so that no attempt may be spent; the poll is no help to a lost notification.
OPTIONS = ("--lease", "20", "--poll-interval", "10", "--concurrency", "4")
PICKUP_SECONDS = 1.0


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_restart_under_load_loses_nothing(fleet: Fleet, server: Server, how: str) -> None:
    """And afterwards notifications arrive again: in bensheldon/good_job #296 nobody listened after a restart."""
    workers = [fleet.hire(*OPTIONS, ready=False) for _ in range(2)]
    fleet.wait_until_ready()
    fleet.produce(140, rate=60)
    fleet.produce(40, task="work_async", rate=60)
    fleet.produce(40, task="work", rate=60, in_transaction=True)
    until("jobs are being done", lambda: fleet.finished() > 40)

    restart(server, how)

    back_at = time.monotonic()
    done_before = until("the first answer", fleet.finished)
    until("jobs are being done again", lambda: fleet.finished() > done_before, seconds=10)
    print(f"{how}: jobs done again {time.monotonic() - back_at:.2f} s after the server was back")
    fleet.wait_until_finished(60)
    assert all(worker.exit_code is None for worker in workers), fleet.logs()
    assert_listening(fleet, workers)

    history = fleet.settle_accounts()
    assert len(history.jobs) == len({ack.key for ack in history.acks})
    # No lease has ended, so nothing may have failed, and nothing may have run twice.
    assert [job for job in history.jobs if job.failed_attempts] == []
    assert len(history.deliveries) == len(history.jobs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_of_the_server(fleet: Fleet, server: Server) -> None:
    workers = [fleet.hire(*OPTIONS, ready=False) for _ in range(2)]
    fleet.wait_until_ready()
    fleet.produce(2000, rate=50)
    for _ in range(20):
        done = until("the first answer", fleet.finished)
        until("jobs are being done", lambda done=done: fleet.finished() > done + 20 or not fleet.unfinished())
        server.kill()
        server.start()
    fleet.wait_until_finished(120)
    assert all(worker.exit_code is None for worker in workers), fleet.logs()
    history = fleet.settle_accounts()
    assert len(history.deliveries) == len(history.jobs)


def restart(server: Server, how: str) -> None:
    if how == "kill":
        server.kill()
        server.start()
    else:
        server.restart(how)  # type: ignore[arg-type]


def assert_listening(fleet: Fleet, workers: list[Worker]) -> None:
    """An idle fleet hears of one job at once: no poll can be what found it."""
    until("all listen again", lambda: len(fleet.sessions("listener")) == len(workers), seconds=10)
    until("no poll is near", lambda: all(next_poll(seconds) > PICKUP_SECONDS for seconds in quiet_for(fleet)))
    fleet.produce(1)
    fleet.wait_until_finished(15)
    ((pickup,),) = fleet.query(
        "SELECT extract(epoch FROM began_at - enqueued_at)::float8 FROM chaos_delivery "
        "JOIN pgqueue_job job ON job.id = job_id ORDER BY job.id DESC LIMIT 1"
    )
    print(f"pickup after the restart: {pickup * 1000:.1f} ms")
    assert pickup < PICKUP_SECONDS, fleet.logs()


def next_poll(quiet_seconds: float) -> float:
    """Seconds to it, at least: a worker that ran dry polls after 5, 10, 20, ... ms, up to its poll interval."""
    pause = 0.005
    while pause <= quiet_seconds:
        pause *= 2
    return min(pause, 10) - quiet_seconds


def quiet_for(fleet: Fleet) -> list[float]:
    """Seconds since the last statement of each worker's loop."""
    rows = fleet.query(
        "SELECT extract(epoch FROM clock_timestamp() - state_change)::float8 FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'pgqueue loop'"
    )
    return [seconds for (seconds,) in rows]
