"""The line breaks at the worst moment: after the server has committed, before anybody was told."""

from __future__ import annotations

import time

import pytest
from verbs.rows import GRACE

from chaos.fleet import Fleet, until
from chaos.proxy import Proxy
from pgqueue_django.states import State
from testproject.ledger import History

# Pieces that only these statements have.
CLAIM = "SET state = 'running'"
SETTLE = "result = CASE WHEN told.state"
HEARTBEAT = "SET lease_expires_at = statement_timestamp()"
ENQUEUE = "INSERT INTO pgqueue_job"
COUNT = "INSERT INTO pgqueue_stat"
EFFECT = "INSERT INTO chaos_effect"

# A peer that says nothing is given up by TCP after two or three seconds, not after half a minute.
IMPATIENT = {"tcp_user_timeout": 2000, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2}


def assert_ran_once(history: History) -> None:
    assert [job for job in history.jobs if job.attempts != 1 or job.failed_attempts] == []
    assert len(history.deliveries) == len(history.jobs)


def test_a_claim_whose_reply_is_lost_is_disowned(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "20", "--concurrency", "4", url=proxy.url(fleet.url))
    cut = proxy.cut(CLAIM)
    fleet.produce(8)
    fleet.wait_until_finished()
    assert cut.hits == 1
    history = fleet.settle_accounts()
    assert_ran_once(history)
    claimed_at = {move.job_id: move.at for move in reversed(history.moves) if move.target == State.RUNNING}
    handed_back = [move for move in history.moves if (move.source, move.target) == (State.RUNNING, State.QUEUED)]
    assert handed_back, "the claim that was cut had taken no job"
    # Of a lease of 20 s.
    assert max((move.at - claimed_at[move.job_id]).total_seconds() for move in handed_back) < 3 + GRACE


def test_a_settle_whose_reply_is_lost_is_not_run_again(fleet: Fleet, proxy: Proxy) -> None:
    worker = fleet.hire("--lease", "20", "--concurrency", "2", url=proxy.url(fleet.url))
    cut = proxy.cut(SETTLE, times=3)
    fleet.produce(6)
    fleet.produce(6, task="work_async")
    fleet.wait_until_finished()
    assert cut.hits == 3
    assert_ran_once(fleet.settle_accounts())
    until("each outcome is logged once", lambda: worker.log.read_text().count(" succeeded, attempt 1/") == 12)


def test_an_atomic_job_whose_reply_is_lost_has_one_effect(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "20", "--concurrency", "2", url=proxy.url(fleet.url))
    cut = proxy.cut(EFFECT, times=3)
    fleet.produce(8, task="leave_effect")
    fleet.wait_until_finished()
    assert cut.hits == 3
    assert_ran_once(fleet.settle_accounts())


def test_the_count_of_an_atomic_job_whose_reply_is_lost_is_not_doubled(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "20", "--concurrency", "2", url=proxy.url(fleet.url))
    cut = proxy.cut(COUNT, times=3)
    fleet.produce(8, task="leave_effect")
    fleet.wait_until_finished()
    until("the counts were cut", lambda: cut.hits == 3)
    assert_ran_once(fleet.settle_accounts())


def test_heartbeats_whose_replies_are_lost_lose_no_lease(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "2", url=proxy.url(fleet.url))
    fleet.hire("--lease", "2")  # would take what is lost
    cut = proxy.cut(HEARTBEAT, times=4)
    fleet.produce(8, milliseconds=(4000, 4000))
    fleet.wait_until_finished()
    assert cut.hits == 4
    assert_ran_once(fleet.settle_accounts())


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_enqueue_with_a_key_that_is_tried_again_makes_one_row(
    fleet: Fleet, proxy: Proxy, in_transaction: bool
) -> None:
    cut = proxy.cut(ENQUEUE, at_commit=in_transaction)
    fleet.produce(2, in_transaction=in_transaction, url=proxy.url(fleet.url))
    first, second = until("both are acknowledged", lambda: len(acks := fleet.acks()) == 2 and acks)
    assert cut.hits == 1
    assert (first.tries, first.created) == (2, False)
    assert (second.tries, second.created) == (1, True)
    assert fleet.query("SELECT count(*) FROM pgqueue_job") == [(2,)]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_wakeup_whose_reply_is_lost_does_not_reach_the_caller(
    fleet: Fleet, proxy: Proxy, in_transaction: bool
) -> None:
    cut = proxy.cut("pg_notify", at_commit=False)
    fleet.produce(1, in_transaction=in_transaction, url=proxy.url(fleet.url))
    (ack,) = until("it is acknowledged", fleet.acks, seconds=10)
    assert cut.hits == 1
    assert (ack.tries, ack.created) == (1, True)


def test_no_session_of_ours_is_needed_twice(fleet: Fleet, url: str) -> None:
    """pg_terminate_backend of whichever, over and over: no healthy worker loses a lease for it."""
    for _ in range(2):
        fleet.hire("--lease", "4", "--concurrency", "6", ready=False)
    fleet.wait_until_ready()
    fleet.produce(8, milliseconds=(3000, 6000))
    fleet.produce(160, rate=40)
    fleet.produce(40, task="leave_effect", rate=40)
    terminated = 0
    began = time.monotonic()
    while time.monotonic() - began < 6:
        until("the next one is due", lambda moment=began + 0.15 * terminated: time.monotonic() >= moment)
        if pids := fleet.sessions():
            fleet.query("SELECT pg_terminate_backend(%s)", [fleet.dice.choice(pids)])
            terminated += 1
    print(f"{terminated} sessions terminated")
    fleet.wait_until_finished()
    assert all(worker.exit_code is None for worker in fleet.workers)
    assert_ran_once(fleet.settle_accounts())


def test_connections_that_are_reset_are_opened_again(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "4", "--concurrency", "6", url=proxy.url(fleet.url))
    fleet.produce(150, rate=50)
    for round in range(1, 5):
        until("jobs are being done", lambda least=round * 20: fleet.finished() >= least)
        assert proxy.reset()
    fleet.wait_until_finished()
    assert_ran_once(fleet.settle_accounts())


def test_a_slow_line_costs_no_lease(fleet: Fleet, proxy: Proxy) -> None:
    """100 ms before each statement; the leases always have a third of their time left."""
    lease = 3.0
    fleet.hire("--lease", str(lease), "--concurrency", "20", url=proxy.url(fleet.url))
    proxy.latency = 0.1
    fleet.produce(20, milliseconds=(4000, 4000))
    left = [lease]

    def watch() -> bool:
        ((least,),) = fleet.query(
            "SELECT extract(epoch FROM min(lease_expires_at) - clock_timestamp())::float8 FROM pgqueue_job"
        )
        left.append(lease if least is None else least)
        return fleet.unfinished() == 0

    until("every job has ended", watch)
    print(f"least time left of a lease of {lease:g} s: {min(left):.2f} s")
    assert min(left) > lease / 3
    assert_ran_once(fleet.settle_accounts())


def test_a_black_hole_is_noticed(fleet: Fleet, proxy: Proxy) -> None:
    fleet.hire("--lease", "20", url=proxy.url(fleet.url, **IMPATIENT))
    roles = ["loop", "heartbeat", "chores", "listener"]
    before = until("there is a session of each", lambda: all(map(fleet.sessions, roles)) and set(fleet.sessions()))
    assert proxy.black_hole("pgqueue") == len(roles)
    fleet.produce(4)
    for role in roles:
        until(f"there is another {role}", lambda role=role: set(fleet.sessions(role)) - before, seconds=15)
    fleet.wait_until_finished()
    assert_ran_once(fleet.settle_accounts())


def test_a_black_hole_under_the_heartbeat_loses_no_lease(fleet: Fleet, proxy: Proxy) -> None:
    """Without a word about TCP in the project's settings."""
    fleet.hire("--lease", "3", url=proxy.url(fleet.url))
    fleet.hire("--lease", "3")  # would take what is lost
    fleet.produce(4, milliseconds=(6000, 6000))
    until("they run", lambda: fleet.running() == 4)
    proxy.black_hole("pgqueue heartbeat")
    fleet.wait_until_finished()
    assert_ran_once(fleet.settle_accounts())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_black_hole_is_noticed_within_half_a_minute(fleet: Fleet, proxy: Proxy) -> None:
    """Without a word about TCP in the project's settings; every session at the same time."""
    fleet.hire("--lease", "60", url=proxy.url(fleet.url))
    assert proxy.black_hole("pgqueue") == 4
    fleet.produce(4)
    began = time.monotonic()
    fleet.wait_until_finished(60)
    print(f"noticed after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 40
    assert_ran_once(fleet.settle_accounts())
