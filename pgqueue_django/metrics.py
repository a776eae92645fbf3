"""A snapshot of the queue in the words of Prometheus.

All values of one page come from one ``Snapshot``. Nothing is registered in prometheus_client's own registry and
nothing is kept between two pages. Labels are queues, tasks, states and outcomes, never a job, a worker, a key
or an error, and at most ``MAX_LABELS`` queues and tasks: what was seen later is ``other``, so that a counter
never changes its name and ``other`` only grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from . import stats
from .snapshot import COUNTED, OTHER, Snapshot

MAX_LABELS = 200
"""Queues, and tasks, that have a label value of their own."""

OUTCOMES = ("succeeded", "retried", "failed", "dead")
DOWN = "# The database does not answer.\npgqueue_up 0\n"

_LES = [*map(str, stats.BOUNDS), "+Inf"]


class SnapshotCollector(Collector):
    """Hands one snapshot to a registry of prometheus_client. Collecting it reads nothing."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        taken = self.snapshot
        queues = _names(
            [tally.queue_name for tally in taken.tallies],
            sorted({depth.queue_name for depth in taken.depths} | set(taken.oldest_due)),
        )
        tasks = _names([tally.task for tally in taken.tallies])
        yield GaugeMetricFamily("pgqueue_up", "1 when the database answered.", 1)
        yield _jobs(taken, queues)
        yield _capped(taken)
        yield _oldest_due(taken, queues)
        yield GaugeMetricFamily("pgqueue_workers", "Workers with a heartbeat within their lease.", taken.workers)
        yield _attempts(taken, queues, tasks)
        yield _histogram(
            "pgqueue_pickup_seconds",
            "From when a job could have run to the start of its handler.",
            "queue",
            ((queues[tally.queue_name], tally.pickup_counts, tally.pickup_seconds) for tally in taken.tallies),
        )
        yield _histogram(
            "pgqueue_run_seconds",
            "From the start of a handler to its end.",
            "task",
            ((tasks[tally.task], tally.run_counts, tally.run_seconds) for tally in taken.tallies),
        )


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the text format that the header ``accept`` asks for."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _names(*seen: Iterable[str]) -> dict[str, str]:
    """The label value of every name: itself for the first ``MAX_LABELS``, ``other`` for the rest."""
    names: dict[str, str] = {}
    for name in (name for names_seen in seen for name in names_seen):
        if name not in names:
            names[name] = name if len(names) < MAX_LABELS else OTHER
    return names


def _jobs(taken: Snapshot, queues: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(
        "pgqueue_jobs", "Jobs by queue and state; at least so many where capped.", labels=["queue", "state"]
    )
    # Zeros too: a series that comes and goes cannot be alerted on.
    counts = {(label, state): 0 for label in queues.values() for state in COUNTED}
    for depth in taken.depths:
        counts[queues[depth.queue_name], depth.state] += depth.jobs
    for (label, state), jobs in counts.items():
        family.add_metric([label, state], jobs)
    return family


def _capped(taken: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "pgqueue_jobs_capped", "1 when there may be more jobs of the state than were counted.", labels=["state"]
    )
    for state in COUNTED:
        family.add_metric([state], state in taken.capped)
    return family


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


def _attempts(taken: Snapshot, queues: dict[str, str], tasks: dict[str, str]) -> Metric:
    family = CounterMetricFamily(
        "pgqueue_attempts", "Attempts by what they ended in.", labels=["queue", "task", "outcome"]
    )
    counts: dict[tuple[str, str, str], int] = {}
    for tally in taken.tallies:
        for outcome in OUTCOMES:
            key = (queues[tally.queue_name], tasks[tally.task], outcome)
            counts[key] = counts.get(key, 0) + getattr(tally, outcome)
    for labels, attempts in counts.items():
        family.add_metric(labels, attempts)
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
