"""A snapshot of the queue in the words of Prometheus.

All values of one page come from one ``Snapshot``. Nothing is registered in prometheus_client's own registry and
nothing is kept between two pages. Labels are queues, tasks, states and outcomes, never a job, a worker, a key
or an error, and at most ``MAX_LABELS`` queues and tasks: what was seen later is ``other``, so that a counter
never changes its name and ``other`` only grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from . import problems, stats
from .problems import Rule
from .snapshot import COUNTED, OTHER, Snapshot

MAX_LABELS = 200
"""Queues, and tasks, that have a label value of their own."""

_FAILURES = ("retried", "failed", "dead")

_LES = [*map(str, stats.BOUNDS), "+Inf"]


class SnapshotCollector(Collector):
    """Hands one snapshot to a registry of prometheus_client. Collecting it reads nothing.

    ``None``: the database did not answer, and nothing is known but that.
    """

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        taken = self.snapshot
        yield GaugeMetricFamily("pgqueue_up", "1 when the database answered.", taken is not None)
        if taken is not None:
            yield from _families(taken)


def render(snapshot: Snapshot | None, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the text format that the header ``accept`` asks for."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _families(taken: Snapshot) -> Iterator[Metric]:
    queues = _names(
        [tally.queue_name for tally in taken.tallies],
        sorted({depth.queue_name for depth in taken.depths} | set(taken.oldest_due)),
    )
    tasks = _names([tally.task for tally in taken.tallies])
    yield _jobs(taken, queues)
    yield from _counted(taken)
    yield _oldest_due(taken, queues)
    yield GaugeMetricFamily("pgqueue_workers", "Workers with a heartbeat within their lease.", taken.workers)
    yield _slots(taken)
    yield from _ended(taken, queues, tasks)
    yield CounterMetricFamily(
        "pgqueue_leases_expired",
        "Failed attempts whose lease had expired.",
        sum(tally.expired for tally in taken.tallies),
    )
    yield _histogram(
        "pgqueue_enqueue_to_start_seconds",
        "Pickup: from when a job could have run to the start of its handler.",
        "queue",
        ((queues[tally.queue_name], tally.pickup_counts, tally.pickup_seconds) for tally in taken.tallies),
    )
    yield _histogram(
        "pgqueue_run_seconds",
        "From the start of a handler to its end.",
        "task",
        ((tasks[tally.task], tally.run_counts, tally.run_seconds) for tally in taken.tallies),
    )
    yield _schedules(taken)
    yield _problems(taken)


def _names(*seen: Iterable[str]) -> dict[str, str]:
    """The label value of every name: itself for the first ``MAX_LABELS``, ``other`` for the rest."""
    names: dict[str, str] = {}
    for name in (name for names_seen in seen for name in names_seen):
        if name not in names:
            names[name] = name if len(names) < MAX_LABELS else OTHER
    return names


def _jobs(taken: Snapshot, queues: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(
        "pgqueue_jobs",
        "Jobs by queue and state, now; where capped, of the last full count.",
        labels=["queue", "state"],
    )
    # Zeros too: a series that comes and goes cannot be alerted on.
    counts = {(label, state): 0 for label in queues.values() for state in COUNTED}
    for depth in taken.depths:
        counts[queues[depth.queue_name], depth.state] += depth.jobs
    for (label, state), jobs in counts.items():
        family.add_metric([label, state], jobs)
    return family


def _counted(taken: Snapshot) -> Iterator[Metric]:
    capped = GaugeMetricFamily(
        "pgqueue_jobs_capped", "1 when there are more jobs of the state than are counted each time.", labels=["state"]
    )
    ages = GaugeMetricFamily(
        "pgqueue_jobs_count_age_seconds",
        "How old the number of jobs of the state is; 0 when it is exact, NaN before the first full count.",
        labels=["state"],
    )
    for state in COUNTED:
        capped.add_metric([state], state in taken.capped)
        ages.add_metric([state], taken.count_ages.get(state, math.nan) if state in taken.capped else 0.0)
    yield from (capped, ages)


def _oldest_due(taken: Snapshot, queues: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(
        "pgqueue_oldest_due_seconds", "How long the job that waits longest could have run.", labels=["queue"]
    )
    oldest = dict.fromkeys(queues.values(), 0.0)
    for queue_name, seconds in taken.oldest_due.items():
        oldest[queues[queue_name]] = max(oldest[queues[queue_name]], seconds)
    for label, seconds in oldest.items():
        family.add_metric([label], seconds)
    return family


def _slots(taken: Snapshot) -> Metric:
    family = GaugeMetricFamily("pgqueue_slots", "Slots of these workers.", labels=["state"])
    family.add_metric(["busy"], taken.busy_slots)
    family.add_metric(["free"], max(0, taken.slots - taken.busy_slots))
    return family


def _ended(taken: Snapshot, queues: dict[str, str], tasks: dict[str, str]) -> Iterator[Metric]:
    completed: dict[tuple[str, ...], int] = {}
    failures: dict[tuple[str, ...], int] = {}
    for tally in taken.tallies:
        labels = (queues[tally.queue_name], tasks[tally.task])
        completed[labels] = completed.get(labels, 0) + tally.succeeded
        for outcome in _FAILURES:
            failures[*labels, outcome] = failures.get((*labels, outcome), 0) + getattr(tally, outcome)
    yield _counter("pgqueue_jobs_completed", "Jobs that succeeded.", ["queue", "task"], completed)
    yield _counter(
        "pgqueue_job_failures",
        "Failed attempts, expired leases included: retried, or the job is failed or dead.",
        ["queue", "task", "outcome"],
        failures,
    )


def _counter(name: str, text: str, labels: list[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _schedules(taken: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "pgqueue_schedule_late_seconds", "How late the next tick of the schedule is.", labels=["schedule"]
    )
    for name, seconds in taken.schedules.items():
        family.add_metric([name], seconds)
    return family


def _problems(taken: Snapshot) -> Metric:
    family = GaugeMetricFamily("pgqueue_problems", "What is wrong, by rule.", labels=["rule", "severity"])
    counts = dict.fromkeys(Rule, 0)
    for problem in problems.find(taken):
        counts[problem.rule] += 1
    for rule, count in counts.items():
        family.add_metric([rule, problems.SEVERITIES[rule]], count)
    return family


def _histogram(name: str, text: str, label: str, parts: Iterable[tuple[str, tuple[int, ...], float]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    counts: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    for value, part, took in parts:
        counts[value] = [a + b for a, b in zip(counts.get(value, [0] * len(part)), part, strict=True)]
        seconds[value] = seconds.get(value, 0.0) + took
    for value, buckets in counts.items():
        family.add_metric([value], list(zip(_LES, accumulate(buckets), strict=True)), seconds[value])
    return family
