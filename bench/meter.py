"""What a run costs and how fast it is, seen from outside: samples of a count, CPU of process trees, idle time.

CPU is user and system time out of ``/proc/<pid>/stat``, of a process, all its descendants and those that it has
reaped already; so the backends of a server and the work-horses that a worker forks are counted.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    at: float  # time.monotonic()
    done: int


@dataclass(frozen=True)
class Cost:
    """CPU seconds so far, by name of the process tree, and the machine's idle and total seconds."""

    at: float
    done: int
    cpu: dict[str, float]
    idle: float
    total: float


class Stuck(Exception):
    """The count stood still, or the time was up."""


def cost(trees: dict[str, Iterable[int]], done: int) -> Cost:
    table = _processes()
    idle, total = _machine()
    return Cost(time.monotonic(), done, {name: _tree(table, roots) for name, roots in trees.items()}, idle, total)


def _processes() -> dict[int, tuple[int, float]]:
    """pid -> (parent, CPU seconds with reaped children)."""
    table = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            fields = stat[stat.rindex(")") + 2 :].split()
            table[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    return table


def _tree(table: dict[int, tuple[int, float]], roots: Iterable[int]) -> float:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    seconds, ahead, seen = 0.0, list(roots), set()
    while ahead:
        pid = ahead.pop()
        if pid in table and pid not in seen:
            seen.add(pid)
            seconds += table[pid][1]
            ahead += children.get(pid, ())
    return seconds


def descendants(roots: Iterable[int]) -> set[int]:
    """These processes and all below them."""
    table = _processes()
    family = {pid for pid in roots if pid in table}
    while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= more
    return family


def _machine() -> tuple[float, float]:
    with open("/proc/stat") as stat:
        fields = [int(field) / _TICKS for field in stat.readline().split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def watch(
    count: Callable[[], int], jobs: int, trees: dict[str, Iterable[int]], *, limit: float, stalled: float = 30.0
) -> dict[str, Any]:
    """Sample ``count`` (jobs done) until ``jobs``: the rate between 10 and 90 %, and what a job cost meanwhile.

    After ``limit`` seconds, or ``stalled`` seconds without a step, the run ends as it is: ``finished`` is False
    and the rate is that of the time it ran. So it is when fewer than five steps were seen between 10 and 90 %.
    """
    began = time.monotonic()
    samples = [Sample(began, 0)]
    asked: list[float] = []
    low: Cost | None = None
    high: Cost | None = None
    moved = began
    while True:
        at = time.monotonic()
        done = count()
        answered = time.monotonic()
        asked.append(answered - at)
        if done > samples[-1].done:
            moved = answered
        samples.append(Sample((at + answered) / 2, done))
        if low is None and done >= 0.1 * jobs:
            low = cost(trees, done)
        elif low is not None and high is None and done >= 0.9 * jobs:
            high = cost(trees, done)
        if done >= jobs or answered - began > limit or answered - moved > stalled:
            break
        time.sleep(max(0.0, INTERVAL - (answered - at)))
    finished = samples[-1].done >= jobs
    overall = samples[-1].done / (samples[-1].at - began)
    # Who writes a thousand ends at once shows a few steps only: between two of them nothing can be interpolated.
    steps = len({sample.done for sample in samples if 0.1 * jobs <= sample.done <= 0.9 * jobs})
    result: dict[str, Any] = {
        "jobs": jobs,
        "finished": finished,
        "rate": _rate(samples, jobs) if finished and steps >= 5 else overall,
        "overall_rate": overall,
        "steps_inside": steps,
        "seconds": samples[-1].at - began,
        "sampler_ms": 1000 * statistics.median(asked),
    }
    if not finished:
        result["done"] = samples[-1].done
    if low is not None and high is not None and high.done > low.done:
        count_inside = high.done - low.done
        for name in trees:
            result[f"{name}_us_per_job"] = 1e6 * (high.cpu[name] - low.cpu[name]) / count_inside
        result["idle_percent"] = 100 * (high.idle - low.idle) / max(1e-9, high.total - low.total)
    return result


def _rate(samples: Sequence[Sample], jobs: int) -> float:
    return 0.8 * jobs / (_moment(samples, 0.9 * jobs) - _moment(samples, 0.1 * jobs))


def _moment(samples: Sequence[Sample], done: float) -> float:
    """When the count passed ``done``, by interpolation."""
    for before, after in itertools.pairwise(samples):
        if after.done >= done:
            part = (done - before.done) / max(1, after.done - before.done)
            return before.at + part * (after.at - before.at)
    raise Stuck(f"never reached {done}")


def resident_mb(roots: Iterable[int]) -> float:
    """Resident memory of these processes and all below them, in MB of 1,000,000 bytes."""
    pages = 0
    for pid in descendants(roots):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p95 and p99, and the largest."""
    ordered = sorted(values)
    if not ordered:
        return {}

    def at(part: float) -> float:
        place = part * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return {"p50": at(0.50), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}
