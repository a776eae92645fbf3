"""The checker itself: it must see each kind of wrong, and nothing in a history that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from testproject.ledger import ATOMIC, Ack, Delivery, History, Job, Kill, Move, check

START = datetime(2026, 1, 1, tzinfo=UTC)
PIDS = {"w1": 101, "w2": 102}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Story:
    """Writes a history as the ledgers would, one event after another; a second passes before each."""

    def __init__(self, task: str = "chaos.tasks.work") -> None:
        self.history = History()
        self.now = 0.0
        self.job = Job(1, task, "", 0, 20)
        self.token = 0
        self.run_after = at(0)
        self.lease_end: datetime | None = None
        self.history.acks.append(Ack(1, True, "key"))
        self.move("queued")

    def move(self, target: str | None, worker: str | None = None, kind: str | None = None) -> None:
        self.now += 1
        source = self.job.state or None
        self.history.moves.append(
            Move(
                self.job.id, source, target, self.token, self.job.attempts, worker and f"{worker}:abcd", kind,
                self.run_after, self.lease_end, at(self.now),
            )
        )  # fmt: skip
        self.job = replace(self.job, state=target or "gone")

    def claim(self, worker: str = "w1") -> None:
        self.token += 1
        self.job = replace(self.job, attempts=self.job.attempts + 1)
        self.move("running", worker)
        self.lease_end = at(self.now + 2)

    def run(self, worker: str = "w1", *, to_its_end: bool = True) -> None:
        self.now += 0.1
        ended_at = at(self.now + 0.1) if to_its_end else None
        self.history.deliveries.append(Delivery(self.job.id, self.job.attempts, PIDS[worker], at(self.now), ended_at))

    def succeed(self, worker: str = "w1") -> None:
        self.move("succeeded", worker)
        self.lease_end = None
        self.history.counted["succeeded"] = self.history.counted.get("succeeded", 0) + 1
        if self.job.task.endswith(ATOMIC):
            self.history.effects[self.job.id] += 1

    def fail(self, worker: str = "w1", *, kind: str = "error", target: str = "retrying") -> None:
        attempts = (*self.job.failed_attempts, self.job.attempts)
        self.job = replace(self.job, failed_attempts=attempts)
        self.move(target, worker, kind)
        self.lease_end = None
        self.history.counted[target] = self.history.counted.get(target, 0) + 1

    def kill(self, worker: str = "w1") -> None:
        self.now += 0.1
        self.history.kills.append(Kill(worker, PIDS[worker], at(self.now)))

    def reap(self, worker: str = "w1", target: str = "retrying") -> None:
        self.now += 2
        self.fail(worker, kind="lease_expired", target=target)

    def release(self, worker: str = "w1") -> None:
        self.job = replace(self.job, attempts=self.job.attempts - 1)
        self.move("queued", worker)
        self.lease_end = None

    def end(self) -> History:
        self.history.jobs = [self.job]
        return self.history


def plain() -> Story:
    story = Story()
    story.claim()
    story.run()
    story.succeed()
    return story


def killed_while_it_ran() -> Story:
    story = Story()
    story.claim("w1")
    story.run("w1", to_its_end=False)
    story.kill("w1")
    story.reap("w1")
    story.move("queued")
    story.claim("w2")
    story.run("w2")
    story.succeed("w2")
    return story


def killed_before_it_began() -> Story:
    story = Story()
    story.claim("w1")
    story.kill("w1")
    story.reap("w1", target="dead")
    return story


def given_back() -> Story:
    story = Story()
    story.claim("w1")
    story.release("w1")
    story.claim("w2")
    story.run("w2")
    story.succeed("w2")
    return story


def failed_once() -> Story:
    story = Story()
    story.claim()
    story.run()
    story.fail()
    story.move("queued")
    story.claim()
    story.run()
    story.succeed()
    return story


def with_an_effect() -> Story:
    story = Story(f"chaos.tasks{ATOMIC}")
    story.claim()
    story.run()
    story.succeed()
    return story


def with_an_effect_and_killed_before_it_was_counted() -> Story:
    story = with_an_effect()
    story.kill()
    story.history.counted.clear()
    return story


def killed_by_its_id() -> Story:
    story = killed_while_it_ran()
    story.history.kills[:] = [replace(kill, worker="w1:abcd") for kill in story.history.kills]
    return story


GOOD = [
    plain,
    killed_while_it_ran,
    killed_by_its_id,
    killed_before_it_began,
    given_back,
    failed_once,
    with_an_effect,
    with_an_effect_and_killed_before_it_was_counted,
]


@pytest.mark.parametrize("story", GOOD, ids=lambda story: story.__name__)
def test_a_good_history_passes(story: Callable[[], Story]) -> None:
    assert check(story().end()) == []


def lose_the_row(story: Story) -> None:
    story.history.acks.append(Ack(2, True, "other"))


def give_a_key_twice(story: Story) -> None:
    story.history.acks.append(Ack(2, True, "key"))


def stay_queued(story: Story) -> None:
    story.job = replace(story.job, state="queued")


def finish_twice(story: Story) -> None:
    story.job = replace(story.job, state="running")
    story.claim()
    story.run()
    story.succeed()


def revive(story: Story) -> None:
    """succeeded -> retrying is no arrow."""
    story.move("retrying")
    story.move("queued")
    story.claim()
    story.run()
    story.succeed()


def skip_a_move(story: Story) -> None:
    """A write that the trigger did not see as leaving where the last one had arrived."""
    del story.history.moves[1]


def keep_the_token(story: Story) -> None:
    story.history.moves = [replace(move, token=1) for move in story.history.moves]


def use_a_token_again(story: Story) -> None:
    story.history.moves = [replace(move, token=min(move.token, 1)) for move in story.history.moves]


def charge_nothing(story: Story) -> None:
    story.history.moves = [replace(move, attempts=0) for move in story.history.moves]


def charge_twice(story: Story) -> None:
    story.job = replace(story.job, attempts=story.job.attempts + 1)


def exceed_the_attempts(story: Story) -> None:
    story.job = replace(story.job, max_attempts=story.job.attempts - 1)


def forget_the_failure(story: Story) -> None:
    story.job = replace(story.job, failed_attempts=())


def start_early(story: Story) -> None:
    story.history.moves = [replace(move, run_after=at(999)) for move in story.history.moves]


def reap_early(story: Story) -> None:
    story.history.moves = [replace(move, lease_end=at(999)) for move in story.history.moves]


def kill_nobody(story: Story) -> None:
    story.history.kills.clear()


def lose_it_unkilled(story: Story) -> None:
    """Given up by a supervisor whose process had not been killed."""
    kill_nobody(story)
    moves = story.history.moves
    moves[:] = [replace(move, kind="worker_lost" if move.kind == "lease_expired" else move.kind) for move in moves]


def kill_somebody_else(story: Story) -> None:
    story.history.kills[:] = [replace(kill, worker="w2") for kill in story.history.kills]


def kill_its_predecessor(story: Story) -> None:
    """Of the same name, and only just."""
    story.history.kills[:] = [replace(kill, worker="w1:ffff") for kill in story.history.kills]


def kill_too_late(story: Story) -> None:
    story.history.kills[:] = [replace(kill, at=at(900)) for kill in story.history.kills]


def kill_long_before(story: Story) -> None:
    story.history.kills[:] = [replace(kill, at=at(-900)) for kill in story.history.kills]


def deliver_twice(story: Story) -> None:
    story.history.deliveries.append(story.history.deliveries[-1])


def deliver_without_a_claim(story: Story) -> None:
    story.history.deliveries.append(replace(story.history.deliveries[-1], attempt=7))


def deliver_before_the_claim(story: Story) -> None:
    story.history.deliveries[:] = [replace(found, began_at=at(0)) for found in story.history.deliveries]


def succeed_undelivered(story: Story) -> None:
    story.history.deliveries.clear()


def succeed_unended(story: Story) -> None:
    story.history.deliveries[:] = [replace(found, ended_at=None) for found in story.history.deliveries]


def end_after_it_succeeded(story: Story) -> None:
    """Somebody else's outcome was written into this attempt."""
    story.history.deliveries[-1] = replace(story.history.deliveries[-1], ended_at=at(900))


def begin_after_the_end(story: Story) -> None:
    story.history.deliveries[:] = [replace(found, began_at=at(900)) for found in story.history.deliveries]


def refund_what_had_begun(story: Story) -> None:
    first = next(move for move in story.history.moves if move.target == "running")
    story.history.deliveries.append(Delivery(1, 1, 101, first.at, None))


def count_twice(story: Story) -> None:
    story.history.counted = {state: 2 * number for state, number in story.history.counted.items()}


def count_nothing(story: Story) -> None:
    story.history.counted = {}


def do_nothing(story: Story) -> None:
    story.history.effects = Counter()


def do_it_twice(story: Story) -> None:
    story.history.effects[1] += 1


def do_it_and_fail(story: Story) -> None:
    story.job = replace(story.job, state="dead")


BAD = [
    (plain, lose_the_row, "lost"),
    (plain, give_a_key_twice, "key"),
    (plain, stay_queued, "not final"),
    (plain, finish_twice, "finished twice"),
    (plain, revive, "arrow"),
    (plain, skip_a_move, "arrow"),
    (plain, keep_the_token, "token"),
    (killed_while_it_ran, use_a_token_again, "token"),
    (plain, charge_nothing, "charge"),
    (plain, charge_twice, "attempts"),
    (killed_while_it_ran, exceed_the_attempts, "attempts"),
    (failed_once, forget_the_failure, "history"),
    (plain, start_early, "early"),
    (killed_while_it_ran, reap_early, "reaped early"),
    (killed_while_it_ran, kill_nobody, "lease"),
    (killed_while_it_ran, kill_somebody_else, "lease"),
    (killed_while_it_ran, kill_its_predecessor, "lease"),
    (killed_while_it_ran, lose_it_unkilled, "worker lost"),
    (killed_while_it_ran, kill_too_late, "lease"),
    (killed_while_it_ran, kill_long_before, "lease"),
    (killed_before_it_began, kill_nobody, "lease"),
    (plain, deliver_twice, "delivery"),
    (plain, deliver_without_a_claim, "delivery"),
    (plain, deliver_before_the_claim, "delivery"),
    (plain, succeed_undelivered, "delivery"),
    (failed_once, succeed_undelivered, "delivery"),
    (plain, succeed_unended, "delivery"),
    (killed_while_it_ran, end_after_it_succeeded, "delivery"),
    (plain, begin_after_the_end, "delivery"),
    (given_back, refund_what_had_begun, "delivery"),
    (plain, count_twice, "counters"),
    (plain, count_nothing, "counters"),
    (killed_while_it_ran, count_nothing, "counters"),
    (with_an_effect, do_nothing, "effect"),
    (with_an_effect, do_it_twice, "effect"),
    (with_an_effect, do_it_and_fail, "effect"),
]


@pytest.mark.parametrize(
    ("story", "wrong", "rule"), BAD, ids=[f"{wrong.__name__}-{story.__name__}" for story, wrong, _ in BAD]
)
def test_a_bad_history_is_flagged(story: Callable[[], Story], wrong: Callable[[Story], None], rule: str) -> None:
    told = story()
    wrong(told)
    assert rule in {violation.rule for violation in check(told.end())}
