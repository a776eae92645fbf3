"""Workers that die or stand still while they work: every delivery is accounted for.

One seed is one choice of victims; ``CHAOS_SEED=n`` makes that choice again.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import pytest

from chaos.fleet import Fleet, until
from testproject import ledger
from testproject.ledger import History, Kill

LEASE = 1.0
RECOVERY = timedelta(seconds=LEASE + 2)  # what is promised: lease + 2 s after the kill


def test_every_delivery_is_accounted_for_when_workers_are_killed(fleet: Fleet) -> None:
    run(fleet, {"work": 180, "work_async": 60, "leave_effect": 60}, workers=3, rate=50, kills=20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_delivery_is_accounted_for_in_10_000_jobs(fleet: Fleet) -> None:
    run(fleet, {"work": 6000, "work_async": 2000, "leave_effect": 2000}, workers=6, rate=100, kills=300)


def test_a_worker_that_stood_still_beyond_its_leases_writes_nothing(fleet: Fleet) -> None:
    """Its late outcomes meet the next attempts of their jobs, which are running by then."""
    options = ("--lease", str(LEASE), "--concurrency", "4")
    late = fleet.hire(*options)
    fleet.produce(4, task="work_deaf", milliseconds=(3000, 3000))
    begun = "SELECT count(*) FROM chaos_delivery WHERE pid = %s"
    until("it runs them", lambda: fleet.query(begun, [late.pid]) == [(4,)])
    fleet.suspend(late)
    other = fleet.hire(*options)
    until("the other runs them", lambda: fleet.query(begun, [other.pid]) == [(4,)])
    fleet.resume(late)
    ended = "SELECT count(*) FROM chaos_delivery WHERE pid = %s AND ended_at IS NOT NULL"
    until("its handlers have returned", lambda: fleet.query(ended, [late.pid]) == [(4,)])
    fleet.wait_until_finished()
    history = fleet.settle_accounts()
    assert [job.failed_attempts for job in history.jobs] == [(1,)] * 4


def run(fleet: Fleet, tasks: dict[str, int], *, workers: int, rate: float, kills: int) -> None:
    """Enqueue at ``rate`` and kill a worker every 0.3 s, ``kills`` times; then all but one at once."""
    began = time.monotonic()
    options = ("--lease", str(LEASE), "--concurrency", "4")
    for _ in range(workers):
        fleet.hire(*options, ready=False)
    fleet.wait_until_ready()
    for task, count in tasks.items():
        # The orders of one producer follow each other.
        fleet.produce(count, task=task, rate=rate)
    first_kill, rounds = time.monotonic(), 0
    while len(fleet.kills) < kills and fleet.unfinished():
        rounds += 1
        until("the next kill is due", lambda moment=first_kill + 0.3 * rounds: time.monotonic() >= moment)
        ready = fleet.ready()
        if candidates := [worker for worker in fleet.workers if worker.name in ready]:
            fleet.kill(fleet.dice.choice(candidates))
            fleet.hire(*options, ready=False)
    last = kill_all_but_one(fleet)
    fleet.wait_until_finished(300)
    history = fleet.settle_accounts()
    report(history, began)
    lost = ledger.lost_holds(history)
    assert lost, "no kill hit a busy worker: this run shows nothing"
    for hold in lost:
        kill = ledger.kill_of(hold, last)
        if kill and hold.end:
            assert hold.end.at - kill.at <= RECOVERY, f"job {hold.job_id} left running {hold.end.at - kill.at} after it"


def kill_all_but_one(fleet: Fleet) -> list[Kill]:
    """The last kills: the one that stays is ready, one of the victims is busy."""
    fleet.wait_until_ready()
    survivor, *victims = list(fleet.workers)
    until("a victim is busy", lambda: fleet.unfinished() == 0 or fleet.running(*(v.name for v in victims)))
    return [fleet.kill(victim) for victim in victims if victim is not survivor]


def report(history: History, began: float) -> None:
    deliveries = Counter(delivery.job_id for delivery in history.deliveries)
    lost = ledger.lost_holds(history)
    print(
        f"{len(history.jobs)} jobs, {len(history.kills)} kills, {len(lost)} leases expired, "
        f"{sum(deliveries.values()) - len(deliveries)} duplicate deliveries, {time.monotonic() - began:.1f} s"
    )
