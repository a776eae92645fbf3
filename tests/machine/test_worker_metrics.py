"""``--metrics-port``: what a worker says of itself, and that several processes behind one port sum up."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import telemetry
from tests.machine import handlers
from tests.machine import metric_handlers as lunch

from .workers import GRACE, REAL_DATABASE, ROOT, Process, notes, wait_for

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Gate = Callable[[], Any]

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"
MODULE = "tests.machine.metric_handlers"
LIVE_SECONDS = telemetry._SAMPLE_SECONDS + GRACE  # until a gauge is as it is

Series = dict[tuple[str, ...], float]


def get(port: int, path: str = "/metrics", accept: str = "") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


class Page:
    """One answer; ``page("name", queue="a")``: the sum of the samples of a name that have these labels."""

    def __init__(self, port: int, accept: str = "") -> None:
        status, self.content_type, text = get(port, accept=accept)
        assert status == 200, text
        families = list((parse_openmetrics if "openmetrics" in self.content_type else parse_text)(text))
        assert not [name for name, times in Counter(one.name for one in families).items() if times > 1], text
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in families:
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"twice: {sample}"
                self.samples[key] = sample.value
        self.counting = {key for key in self.samples if re.search("_(total|bucket|count|sum)$", key[0])}

    def __call__(self, name: str, **labels: str) -> float:
        return sum(
            value
            for (other, theirs), value in self.samples.items()
            if other == name and labels.items() <= dict(theirs).items()
        )

    def values(self, label: str) -> set[str]:
        return {dict(labels)[label] for name, labels in self.samples if name == "pgqueue_worker_attempts_total"}


def port_of(started: Process) -> int:
    found: re.Match[str] = wait_for(lambda: re.search(r"/metrics on port (\d+)", started.log), 20)
    return int(found[1])


def jobs(page: Page) -> Counter[tuple[str, str]]:
    """How many attempts ended in what, by task."""
    found: Counter[tuple[str, str]] = Counter()
    for (name, labels), value in page.samples.items():
        if name == "pgqueue_worker_attempts_total":
            words = dict(labels)
            found[words["task"].removeprefix(f"{MODULE}."), words["outcome"]] += int(value)
    return found


def all_ended() -> bool:
    return not Job.objects.exclude(state__in=[State.SUCCEEDED, State.FAILED, State.DEAD]).exists()


def children(started: Process) -> list[psutil.Process]:
    return [one for one in psutil.Process(started.pid).children() if one.status() != psutil.STATUS_ZOMBIE]


def the_directory(started: Process) -> Path:
    """Of a supervisor."""

    def told() -> Path | None:
        for child in children(started):
            # Python itself may have asked something for a file's kind, and a fork has its parent's for a moment.
            with suppress(psutil.NoSuchProcess):
                if telemetry._PREFIX in (found := child.environ().get(telemetry.VARIABLE, "")):
                    return Path(found)
        return None

    return Path(wait_for(told, 20))


@contextmanager
def scraping(port: int) -> Iterator[list[Page]]:
    """Two clients who ask all the time; afterwards, that each had an answer and that nothing ever went down."""
    over = threading.Event()
    pages: list[list[Page]] = [[], []]
    errors: list[BaseException] = []

    def scrape(mine: list[Page], accept: str) -> None:
        try:
            while not over.is_set():
                mine.append(Page(port, accept))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=scrape, args=pair) for pair in zip(pages, ("", OPENMETRICS), strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield pages[0]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    for mine in pages:
        assert len(mine) > 2
        for before, after in pairwise(mine):
            for key in before.counting:
                assert after.samples.get(key, -1) >= before.samples[key], key


# -- one process -----------------------------------------------------------------------------------------------

DISHES = {"soup": 5, "bones": 3, "poison": 2}


def enqueue_lunch() -> None:
    enqueue_many(lunch.eat.call(dish) for dish, times in DISHES.items() for _ in range(times))
    for _ in range(4):
        lunch.eat_atomic.enqueue("cake")
        lunch.eat_async.enqueue("ice")


def check_lunch(page: Page) -> None:
    """Against what the handlers wrote down, and by hand."""
    assert jobs(page) == {
        ("eat", "succeeded"): 5,
        ("eat", "retried"): 3,
        ("eat", "dead"): 3,
        ("eat", "failed"): 2,
        ("eat_atomic", "succeeded"): 4,
        ("eat_async", "succeeded"): 4,
    }
    ledger = Counter(event.split()[1] for _, event in notes())
    assert ledger == {"soup": 5, "bones": 6, "poison": 2, "cake": 4}
    for dish, times in {**ledger, "ice": 4}.items():
        assert page("machine_lunches_total", dish=dish) == times
    assert page("machine_weights_count") == page("machine_weights_bucket", le="+Inf") == 13
    assert page("machine_weights_sum") == sum(len(dish) * ledger[dish] for dish in DISHES)
    assert page("pgqueue_worker_run_seconds_count", task=f"{MODULE}.eat") == 13
    assert page("pgqueue_worker_run_seconds_count") == page("pgqueue_worker_run_seconds_bucket", le="+Inf") == 21


def counted(port: int, attempts: int) -> Page:
    """The page once so many have been counted: an atomic one is in its row a moment before."""
    wait_for(lambda: sum(jobs(Page(port)).values()) >= attempts, 20)
    return Page(port)


def test_one_process_counts_what_its_handlers_did_and_what_they_count(process: Start) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--concurrency", "3")
    port = port_of(started)
    enqueue_lunch()
    wait_for(all_ended, 20)
    page = counted(port, 21)
    check_lunch(page)
    assert page.content_type.startswith("text/plain; version=0.0.4")
    same = Page(port, OPENMETRICS)
    assert same.content_type.startswith("application/openmetrics-text")
    check_lunch(same)
    assert (page("pgqueue_worker_processes"), page("pgqueue_worker_slots")) == (1, 3)
    assert page("pgqueue_worker_processes_started_total") == 1
    resident = psutil.Process(started.pid).memory_info().rss
    assert resident / 2 < page("pgqueue_worker_memory_bytes") < resident * 2
    # Beside those that prometheus_client has of a process.
    assert 0 < page("pgqueue_worker_cpu_seconds_total") <= page("process_cpu_seconds_total") + 0.1
    assert get(port, "/live")[0] == get(port, "/")[0] == 404
    assert started.stop() == 0


def test_busy_slots_are_those_whose_handlers_run(process: Start, gate: Gate) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--concurrency", "2")
    port = port_of(started)
    door = gate()
    for _ in range(3):
        lunch.eat_at.enqueue(str(door), "stew")
    wait_for(lambda: Page(port)("pgqueue_worker_busy_slots") == 2, 20)
    door.open()
    wait_for(lambda: Page(port)("pgqueue_worker_busy_slots") == 0, LIVE_SECONDS)
    assert started.stop() == 0


def test_without_the_option_nothing_is_registered() -> None:
    """A page of anybody else who imports as much would show families that stay empty."""
    program = (
        "import django, prometheus_client; django.setup();"
        "from pgqueue_django.management.commands import pgqueue_worker;"
        "print(prometheus_client.generate_latest().decode())"
    )
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "python_info" in said
    assert "pgqueue" not in said


# -- several ---------------------------------------------------------------------------------------------------


def test_three_processes_behind_one_port_sum_up_to_the_ledger(process: Start) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "3", "--concurrency", "2")
    port = port_of(started)
    wait_for(lambda: Page(port)("pgqueue_worker_processes") == 3, 30)
    with scraping(port):
        enqueue_lunch()
        wait_for(all_ended, 30)
        check_lunch(counted(port, 21))
        enqueue_many(lunch.eat.call("rice") for _ in range(600))
        wait_for(all_ended, 60)
        page = counted(port, 621)
    ledger = Counter(event.split()[1] for _, event in notes())
    assert jobs(page)["eat", "succeeded"] == ledger["soup"] + ledger["rice"] == 605
    assert page("machine_lunches_total", dish="rice") == ledger["rice"] == 600
    assert len({event.split()[0] for _, event in notes()}) == 3, "all three had some"
    assert page("pgqueue_worker_slots") == 6
    assert page("pgqueue_worker_processes_started_total") == 3
    resident = sum(one.memory_info().rss for one in children(started))
    assert resident / 2 < page("pgqueue_worker_memory_bytes") < resident * 2
    spent = sum(sum(one.cpu_times()[:2]) for one in children(started))
    assert spent / 2 < page("pgqueue_worker_cpu_seconds_total") <= spent + 0.1
    directory = the_directory(started)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert started.stop() == 0
    assert not directory.exists()


def test_what_a_killed_process_has_counted_stays(process: Start, gate: Gate) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "2", "--concurrency", "2")
    port = port_of(started)
    wait_for(lambda: Page(port)("pgqueue_worker_processes") == 2, 30)
    door = gate()
    with scraping(port):
        enqueue_many(lunch.eat.call("rice") for _ in range(100))
        wait_for(all_ended, 30)
        before = counted(port, 100)
        for _ in range(4):
            lunch.eat_at.enqueue(str(door), "stew")
        wait_for(lambda: len(notes("begun")) == 4, 20)
        for child in children(started):
            child.kill()
        wait_for(lambda: Page(port)("pgqueue_worker_processes_started_total") == 4, 20)
        wait_for(lambda: Page(port)("pgqueue_worker_processes") == 2, 20)
        page = Page(port)
        assert jobs(page) == {("eat", "succeeded"): 100}
        assert page("machine_lunches_total", dish="rice") == 100
        # What it has eaten, although that attempt's outcome is the supervisor's.
        assert page("machine_lunches_total", dish="stew") >= 4
        assert page("pgqueue_worker_cpu_seconds_total") > before("pgqueue_worker_cpu_seconds_total")
        assert page("pgqueue_worker_slots") == 4
        door.open()
        wait_for(all_ended, 30)
        assert jobs(counted(port, 104)) == {("eat", "succeeded"): 100, ("eat_at", "succeeded"): 4}
    assert started.stop() == 0


def test_processes_that_are_replaced_and_killed_all_the_time_leave_no_more_than_one(process: Start) -> None:
    """Of a kill may be missing what it had settled and not yet counted: one flush."""
    started = process(
        *("--metrics-port", "127.0.0.1:0", "--processes", "3", "--concurrency", "2", "--max-jobs", "20"),
        settings={"PGQUEUE": {"LEASE": 5}},
    )
    port = port_of(started)
    directory = the_directory(started)
    files: list[int] = []
    kills = 0
    enqueue_many(lunch.eat.call("rice") for _ in range(200))
    with scraping(port) as pages:
        while not all_ended():
            last = len(pages)
            wait_for(lambda last=last: len(pages) > last + 5, 30)
            files.append(len(list(directory.glob("*"))))
            if kills < 3 and (alive := children(started)):
                random.choice(alive).kill()
                kills += 1
        wait_for(lambda: Page(port)("pgqueue_worker_processes") == 3, 30)
        page = Page(port)
    ended = Job.objects.filter(state=State.SUCCEEDED).count()
    assert ended == 200
    print(f"{kills} kills, {page('pgqueue_worker_processes_started_total'):g} processes, most files {max(files)}")
    assert ended - 20 * kills <= jobs(page)["eat", "succeeded"] <= ended
    assert page("machine_lunches_total", dish="rice") == len(notes())
    assert page("pgqueue_worker_processes_started_total") > 9
    kinds = {file.stem.rpartition("_")[0] for file in directory.glob("*.db")}
    assert max(files) <= len(kinds) * (1 + 3 + 3) + 3, "what lives, what is about to, one of the others, and two lists"
    assert started.stop() == 0


def test_of_ended_processes_gauges_keep_what_their_manner_keeps(process: Start) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "1", "--max-jobs", "1")
    port = port_of(started)
    for number, level in enumerate([5, 1, 9, 4], 1):
        lunch.set_levels.enqueue(level)
        wait_for(all_ended, 20)
        wait_for(lambda number=number: Page(port)("pgqueue_worker_processes_started_total") == number + 1, 20)
        wait_for(lambda: Page(port)("pgqueue_worker_processes") == 1, 20)
    page = Page(port)
    # A process that has not been told a level has none: its module is only imported with the first job.
    found = {mode: page(f"machine_level_{mode}") for mode in lunch.LEVELS}
    assert found == {"all": 0, "liveall": 0, "min": 1, "max": 9, "sum": 19, "livesum": 0, "mostrecent": 4}
    assert started.stop() == 0


def test_what_handlers_forked_has_counted_and_leaves_nothing(process: Start) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "1", "--concurrency", "1")
    port = port_of(started)
    for _ in range(20):
        lunch.eat_in_fork.enqueue("fork")
    wait_for(all_ended, 30)
    assert counted(port, 20)("machine_lunches_total", dish="fork") == 20
    (child,) = children(started)
    others = [
        file.name
        for file in the_directory(started).glob("*.db")
        if not re.search(rf"_({child.pid}|ended)\.db$", file.name)
    ]
    assert others == []
    assert started.stop() == 0


def test_beyond_two_hundred_queues_all_processes_say_other(process: Start) -> None:
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "2", "--max-jobs", "100")
    port = port_of(started)
    enqueue_many(lunch.eat.using(queue_name=f"q{number}").call("rice") for number in range(260))
    with scraping(port):
        wait_for(all_ended, 60)
        page = counted(port, 260)
    queues = page.values("queue")
    assert len(queues) == telemetry.MAX_LABELS + 1
    assert page("pgqueue_worker_attempts_total", queue="other") == 60
    assert started.stop() == 0


def test_queries_that_django_prometheus_counts_in_handlers_are_on_the_page(process: Start) -> None:
    pytest.importorskip("django_prometheus")
    started = process(
        *("--metrics-port", "127.0.0.1:0", "--processes", "2", "--concurrency", "1"),
        settings={
            "APPS": ["django_prometheus"],
            "DATABASE": {"ENGINE": "django_prometheus.db.backends.postgresql"},
        },
    )
    port = port_of(started)
    wait_for(lambda: Page(port)("pgqueue_worker_processes") == 2, 30)
    enqueue_many(lunch.eat.call("rice") for _ in range(50))
    wait_for(all_ended, 30)
    page = counted(port, 50)
    assert page("django_db_execute_total", alias="default", vendor="postgresql") >= 50
    assert page("django_db_query_duration_seconds_count", alias="default") >= 50
    assert started.stop() == 0


# -- the directory ---------------------------------------------------------------------------------------------


def test_a_killed_supervisors_directory_goes_with_the_next_one_when_nobody_lives_in_it(
    process: Start, gate: Gate, tmp_path: Path
) -> None:
    parent = tmp_path / "metrics"
    parent.mkdir()
    (parent / "counter_1.db").touch()  # of a web process, that has the same variable
    words = ("--metrics-port", "127.0.0.1:0", "--processes", "1", "--concurrency", "1")
    environment = {telemetry.VARIABLE: str(parent)}
    killed = process(*words, environment=environment)
    directory = the_directory(killed)
    assert directory.parent == parent
    door = gate()
    lunch.eat_at.enqueue(str(door), "stew")
    wait_for(lambda: notes("begun"), 20)
    (child,) = children(killed)
    killed.kill()
    second = process(*words, environment=environment)
    mine = the_directory(second)
    assert directory.exists(), "its process has not finished"
    assert mine != directory
    door.open()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 20)
    assert second.stop() == 0
    assert not mine.exists()
    third = process(*words, environment=environment)
    the_directory(third)
    assert not directory.exists()
    assert third.stop() == 0
    assert [one.name for one in parent.iterdir()] == ["counter_1.db"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    with suppress(OSError):
        (place / "full").write_bytes(bytes(1 << 20))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_where_there_is_no_room_for_metrics_jobs_run(process: Start, full_disk: Path) -> None:
    """A page of memory without room for it in its file is SIGBUS, for each process that follows, too."""
    environment = {telemetry.VARIABLE: str(full_disk)}
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "1", environment=environment)
    handlers.do_nothing.enqueue()
    wait_for(all_ended, 30)
    assert "metrics cannot be kept: [Errno 28] No space left on device" in started.log
    assert Page(port_of(started)).samples == {}
    assert started.stop() == 0


def test_what_a_process_is_just_making_does_not_spoil_the_page(tmp_path: Path, monkeypatch: Any) -> None:
    """Its file has no header yet, or its histogram has only the first of its buckets."""
    monkeypatch.setenv(telemetry.VARIABLE, str(tmp_path))
    with closing(telemetry.Directory()) as directory:
        (directory.path / f"counter_{os.getpid()}.db").touch()
        values = MmapedDict(str(directory.path / f"histogram_{os.getpid()}.db"))
        for name in [*weights("cake", "1.0", "+Inf"), *weights("soup", "1.0")]:
            values.write_value(name, 1.0, 0.0)
        answer = telemetry.page(directory)("/metrics", OPENMETRICS)
        (family,) = parse_openmetrics(answer.body.decode())
        assert {sample.labels["dish"] for sample in family.samples} == {"cake"}
        for name in weights("soup", "+Inf"):
            values.write_value(name, 1.0, 0.0)
        (family,) = parse_openmetrics(telemetry.page(directory)("/metrics", OPENMETRICS).body.decode())
        assert {sample.labels["dish"] for sample in family.samples} == {"cake", "soup"}
        values.close()


def test_no_counter_goes_down_by_the_order_of_its_parts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(telemetry.VARIABLE, str(tmp_path))
    others = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    with closing(telemetry.Directory()) as directory:
        for one in others:
            values = MmapedDict(str(directory.path / f"counter_{one.pid}.db"))
            for number in range(100):
                key = mmap_key("machine_seconds", "machine_seconds_total", ["number"], [str(number)], "help")
                values.write_value(key, random.random(), 0.0)
            values.close()
        told = [sample.value for metric in directory.collect() for sample in metric.samples]
        assert len(told) == 100
        for one in others:
            one.kill()
            one.wait()
            now = [sample.value for metric in directory.collect() for sample in metric.samples]
            assert all(after >= before for before, after in zip(told, now, strict=True))
            assert now == pytest.approx(told)
            told = now
    assert list(tmp_path.iterdir()) == []


def weights(dish: str, *bounds: str) -> list[str]:
    """The keys of a histogram, in the order in which they are made."""
    return [
        mmap_key("machine_weights", "machine_weights_sum", ["dish"], [dish], "help"),
        *(mmap_key("machine_weights", "machine_weights_bucket", ["dish", "le"], [dish, le], "help") for le in bounds),
    ]


def test_two_workers_of_one_machine_have_a_page_each(process: Start) -> None:
    words = ("--processes", "1", "--queues")
    environment = {"PGQUEUE_WORKER_METRICS_PORT": "127.0.0.1:0"}
    first, second = process(*words, "a", environment=environment), process(*words, "b", environment=environment)
    ports = [port_of(first), port_of(second)]
    for queue_name, times in {"a": 3, "b": 5}.items():
        enqueue_many(lunch.eat.using(queue_name=queue_name).call("rice") for _ in range(times))
    wait_for(all_ended, 30)
    assert [jobs(counted(port, times))["eat", "succeeded"] for port, times in zip(ports, (3, 5), strict=True)] == [3, 5]
    assert first.stop() == second.stop() == 0


# -- wrong options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--processes", "1"]])
def test_a_port_that_is_taken_ends_it_with_2_and_leaves_nothing(
    words: list[str], process: Start, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = {"environment": {"TMPDIR": str(tmp_path)}}
        started = process(*words, "--metrics-port", f"127.0.0.1:{port}", **where)
        assert started.wait(30) == 2
    assert re.search(f"--metrics-port 127.0.0.1:{port}: .*in use", started.log)
    assert list(tmp_path.glob(f"{telemetry._PREFIX}*")) == []


def test_a_directory_that_is_not_there_ends_it_with_2(process: Start, tmp_path: Path) -> None:
    where = {"environment": {telemetry.VARIABLE: str(tmp_path / "no" / "where")}}
    started = process("--processes", "1", "--metrics-port", "127.0.0.1:0", **where)
    assert started.wait(30) == 2
    assert "--metrics-port: " in started.log
    assert "No such file" in started.log


def test_half_a_name_that_a_full_disk_has_left_costs_no_other_its_label(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    file.write_text('"mail"\n"repo')
    assert [telemetry._Names(file).label(name) for name in ("reports", "mail", "default")] == [
        "reports",
        "mail",
        "default",
    ]
    assert [telemetry._Names(file).label(name) for name in ("reports", "mail", "new")] == ["reports", "mail", "new"]
    assert file.read_text() == '"mail"\n"repo\n"reports"\n"default"\n"new"\n'


def test_a_file_that_cannot_be_read_ends_no_supervisor(process: Start) -> None:
    """A full disk, or whoever else writes there, may leave half a file."""
    started = process("--metrics-port", "127.0.0.1:0", "--processes", "1")
    port = port_of(started)
    lunch.eat.enqueue("soup")
    wait_for(lambda: sum(jobs(Page(port)).values()) == 1, 30)
    with subprocess.Popen(["true"]) as dead:
        pass
    half = the_directory(started) / f"counter_{dead.pid}.db"
    half.write_bytes(struct.pack("iii", 4096, 0, 2000) + bytes(100))
    (child,) = children(started)
    child.kill()
    wait_for(lambda: [other.pid for other in children(started)] not in ([], [child.pid]), 30)
    wait_for(lambda: Page(port)("pgqueue_worker_processes") == 1, 30)
    assert jobs(Page(port)) == {("eat", "succeeded"): 1}
    assert started.log.count(half.name) == 1
    assert started.stop() == 0
