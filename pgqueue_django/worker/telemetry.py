"""What a worker measures of itself, for Prometheus: ``--metrics-port``.

All of it is in prometheus_client's own registry, so what handlers count there is on the same page. Worker processes
that have a supervisor keep their values in files of a directory that it makes for them (prometheus_client's
multiprocess mode), and its page is their sum. Nothing in here ever fails the loop.

Keeps: no counter goes down while the supervisor lives, whoever is killed or replaced; and what all ended processes
leave takes no more room than one of them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from math import isclose
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pgqueue_django import logs, stats
from pgqueue_django.snapshot import OTHER
from pgqueue_django.states import State
from pgqueue_django.transitions import Settlement
from pgqueue_django.worker.memory import resident_bytes
from pgqueue_django.worker.server import Answer, Answering

logger = logging.getLogger("pgqueue_django.worker")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client looks for the directory, as it is imported and again for each new file."""
MAX_LABELS = 200
"""Queues, and tasks, that have a label value of their own."""

_OUTCOMES = {
    State.SUCCEEDED: "succeeded",
    State.RETRYING: "retried",
    State.FAILED: "failed",
    State.DEAD: "dead",
}
_SAMPLE_SECONDS = 1.0
_PREFIX = "pgqueue-worker-"
_FILE_BYTES = 1 << 16  # as prometheus_client makes them


class _Names:
    """The label value of each name: itself for the first ``MAX_LABELS`` that any process of the page has met."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if name not in self._known and len(self._known) < MAX_LABELS:
            self._learn(name)
        return name if name in self._known else OTHER

    def _learn(self, name: str) -> None:
        if self._file is None:
            self._known.add(name)
            return
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            file.seek(0)
            *lines, rest = file.read().split("\n")
            self._known = set()
            for line in lines:
                with suppress(ValueError):  # half of one: the disk was full
                    self._known.add(json.loads(line))
            if name not in self._known and len(self._known) < MAX_LABELS:
                file.write(("\n" if rest else "") + json.dumps(name) + "\n")
                self._known.add(name)


class Meter:
    """Counts and measures in one worker process."""

    def __init__(self, directory: Path | None) -> None:
        """``directory``: of its supervisor."""
        if directory is not None:
            self._hold = _hold(directory)
            _reserve(directory)
        self._queues = _Names(directory and directory / "queues")
        self._tasks = _Names(directory and directory / "tasks")
        self._attempts = Counter(
            "pgqueue_worker_attempts", "Attempts that ended here, by what they ended in.", ["queue", "task", "outcome"]
        )
        self._runs = Histogram(
            "pgqueue_worker_run_seconds",
            "From the start of a handler to its end.",
            ["task"],
            buckets=stats.BOUNDS,
        )
        self._started = Counter("pgqueue_worker_processes_started", "Worker processes that were started.")
        self._processes = _gauge("pgqueue_worker_processes", "Worker processes that run.")
        self._slots = _gauge("pgqueue_worker_slots", "Jobs that could run at the same time.")
        self._busy_slots = _gauge("pgqueue_worker_busy_slots", "Jobs that run.")
        self._memory = _gauge("pgqueue_worker_memory_bytes", "Resident memory of the worker processes.")
        self._cpu = Counter("pgqueue_worker_cpu_seconds", "Processor time of the worker processes.")
        self._cpu_seconds = 0.0  # of it, in the counter
        self._over = threading.Event()
        self._failing = False

    def watch(self, *, slots: int, busy_slots: Callable[[], int]) -> None:
        """Measure each second until ``finish``, from a thread of its own."""
        self._started.inc()
        self._processes.set(1)
        self._slots.set(slots)
        self._measure(busy_slots)
        self._thread = threading.Thread(target=self._watch, args=[busy_slots], name="pgqueue telemetry", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._over.set()
        self._thread.join()
        self._measure(lambda: 0)

    def ended(self, settlement: Settlement) -> None:
        """Its outcome is in the row."""
        try:
            task = self._tasks.label(settlement.job.task)
            outcome = _OUTCOMES[settlement.outcome.state]
            self._attempts.labels(self._queues.label(settlement.job.queue_name), task, outcome).inc()
            if settlement.run_seconds is not None:
                self._runs.labels(task).observe(settlement.run_seconds)
        except Exception as error:  # a disk that is full, files that somebody has removed
            self._complain(error)

    def _watch(self, busy_slots: Callable[[], int]) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self._measure(busy_slots)

    def _measure(self, busy_slots: Callable[[], int]) -> None:
        try:
            self._busy_slots.set(busy_slots())
            self._memory.set(resident_bytes())
            taken = time.process_time()
            self._cpu.inc(taken - self._cpu_seconds)
            self._cpu_seconds = taken
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._failing:
            _complain(error)
        self._failing = True


@cache
def meter(directory: Path | None) -> Meter | None:
    """The one of this process: the registry takes each name once. None: its files cannot be made, as the log says."""
    try:
        return Meter(directory)
    except OSError as error:
        _complain(error)
        return None


def _complain(error: Exception) -> None:
    logger.error("metrics cannot be kept: %s", error, extra=logs.event("worker.trouble"))


def _gauge(name: str, text: str) -> Gauge:
    """Of the processes that live, their sum."""
    return Gauge(name, text, multiprocess_mode="livesum")


class Directory(Collector):
    """Where the processes of one supervisor keep their values; collects the sum of all that there ever were."""

    def __init__(self) -> None:
        """In PROMETHEUS_MULTIPROC_DIR, or else where temporary files are. Raises OSError."""
        parent = Path(os.environ.get(VARIABLE) or tempfile.gettempdir())
        _clear(parent)
        self.path, self._hold = _make(parent)
        self._lock = threading.Lock()
        self._told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}  # on the last page

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._hold)

    def collect(self) -> list[Metric]:
        with self._lock:
            self._fold()
            # One that was made this moment has nothing in it, not even a header.
            files = [str(file) for file in self.path.glob("*.db") if file.stat().st_size]
            metrics = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
            return [self._steady(_whole(metric)) for metric in metrics]

    def fold(self) -> None:
        """A process has ended. prometheus_client would keep its files for ever."""
        with self._lock:
            self._fold()

    def _steady(self, metric: Metric) -> Metric:
        """The same numbers in another order may be the least bit less, which to Prometheus is a start from 0."""
        if metric.type != "gauge":
            for place, sample in enumerate(metric.samples):
                key = sample.name, frozenset(sample.labels.items())
                if isclose(before := self._told.get(key, 0.0), sample.value):
                    metric.samples[place] = sample = sample._replace(value=max(before, sample.value))
                self._told[key] = sample.value
        return metric

    def _fold(self) -> None:
        """Not of our own processes alone: a handler may have forked."""
        left: dict[str, list[Path]] = defaultdict(list)
        for file in self.path.glob("*.db"):
            kind, _, pid = file.stem.rpartition("_")
            if pid.isdecimal() and not _is_alive(int(pid)):
                left[kind].append(file)
        for kind, files in left.items():
            try:
                if not kind.startswith(("gauge_live", "gauge_all")):
                    self._add(kind, files)
                for file in files:
                    file.unlink()
            except Exception as error:  # a full disk, or whatever it is: they count where they are
                logger.error("%s: %s", self.path, error, extra=logs.event("worker.trouble"))

    def _add(self, kind: str, files: Sequence[Path]) -> None:
        """Their values to those of the others that have ended, in one step."""
        total = self.path / f"{kind}_ended.db"
        values: dict[str, tuple[float, float]] = {}
        for file in (total, *files):
            for key, value, moment in _read(file):
                values[key] = _sum(kind, values[key], (value, moment)) if key in values else (value, moment)
        new = total.with_suffix(".new")
        # Written, not only made so long: where the disk is full, a page of memory that has none under it is SIGBUS.
        new.write_bytes(bytes(8 + sum(len(key.encode()) + 32 for key in values)))
        mapped = MmapedDict(str(new))  # type: ignore[no-untyped-call]
        for key, (value, moment) in values.items():
            mapped.write_value(key, value, moment)  # type: ignore[no-untyped-call]
        mapped.close()  # type: ignore[no-untyped-call]
        new.replace(total)


def _read(file: Path) -> list[tuple[str, float, float]]:
    """Each name's value and its moment. Raises OSError."""
    if not file.exists() or not file.stat().st_size:
        return []
    try:
        found = MmapedDict.read_all_values_from_file(file)  # type: ignore[no-untyped-call]
        return [(key, value, moment) for key, value, moment, _ in found]
    except OSError:
        raise
    except Exception as error:  # half of a file: kept, it would be in the way of every page
        text = "%s cannot be read, and what it counted is lost: %s"
        logger.error(text, file, error, extra=logs.event("worker.trouble"))
        return []


def _sum(kind: str, one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Of two values of one name, each with its moment."""
    match kind:
        case "gauge_min":
            return min(one, other)
        case "gauge_max":
            return max(one, other)
        case "gauge_mostrecent":
            return max(one, other, key=lambda each: each[1])
        case _:
            return one[0] + other[0], 0.0


def _whole(metric: Metric) -> Metric:
    """Without histograms that a process is just making: they lack buckets, and no parser takes them.

    Nor do they take one whose samples are not together, as those of older versions of prometheus_client are.
    """
    if metric.type == "histogram":
        made = {_without_bound(sample) for sample in metric.samples if sample.labels.get("le") == "+Inf"}
        metric.samples = sorted((one for one in metric.samples if _without_bound(one) in made), key=_without_bound)
    return metric


def _without_bound(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pair for pair in sample.labels.items() if pair[0] != "le"))


def _make(parent: Path) -> tuple[Path, int]:
    """Nobody else may read it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # somebody who cleared up was faster than the lock
            hold = _hold(path)
            if path.exists():
                return path, hold
            os.close(hold)


def _hold(path: Path) -> int:
    """As long as this file descriptor is open nobody clears the directory; systemd-tmpfiles asks for that lock, too."""
    hold = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(hold, fcntl.LOCK_SH)
    return hold


def _reserve(directory: Path) -> None:
    """Room for what this process counts; where there is none, OSError here is better than SIGBUS at the first value."""
    for kind in ("counter", "histogram", "gauge_livesum"):
        with suppress(FileExistsError):
            with (directory / f"{kind}_{os.getpid()}.db").open("xb") as file:
                file.write(bytes(_FILE_BYTES))


def _clear(parent: Path) -> None:
    """What supervisors that were killed have left behind, once none of their processes lives either."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody holds it
            found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(found).st_uid == os.geteuid():
                    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(found)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def page(registry: Collector) -> Answering:
    """``GET /metrics``, in the text format that is asked for."""

    def answer(path: str, accept: str) -> Answer:
        if path != "/metrics":
            return Answer(404)
        encode, content_type = choose_encoder(accept)
        try:
            return Answer(200, encode(registry), content_type)
        except Exception:  # a collector of somebody's
            logger.exception("the metrics cannot be collected", extra=logs.event("worker.trouble"))
            return Answer(500, b"The metrics cannot be collected; the worker's log says why.\n")

    return answer
