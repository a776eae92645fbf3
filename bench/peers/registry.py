"""The systems that are compared: how each is started in production, what is counted, what to know of it.

The settings are those of the systems' own documentation for a worker that is to be fast, with 32 jobs at a time
where it can do that; what was changed from a default, and why, stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SLOTS = 32


@dataclass(frozen=True)
class System:
    name: str
    module: str  # in bench.peers.systems
    store: str  # postgresql, redis, or redis that syncs every write
    slots: str
    workers: Callable[[int], Sequence[Sequence[str]]]  # so many processes -> their commands
    remaining: str = ""  # PostgreSQL: how many jobs are not done
    done: str = ""  # or: how many are
    keys: Sequence[tuple[str, str]] = ()  # Redis: (command, key) whose sum are the jobs not done
    jobs: int = 10_000  # backlog of a drain
    quick_jobs: int = 4_000
    gated: Callable[[int], int] = lambda processes: processes  # processes that wait at the gate
    environment: dict[str, str] = field(default_factory=dict)
    pins: str = ""  # file in pins/, when it is not the name
    per_second: float = 100.0  # of the latency's load
    latency_jobs: int = 1000
    python: str = ">=3.12"
    notes: Sequence[str] = ()

    @property
    def pin_file(self) -> str:
        return self.pins or self.name


def _each(*command: str) -> Callable[[int], Sequence[Sequence[str]]]:
    """The same command so many times; ``{number}`` is its place."""
    return lambda processes: [
        [part.replace("{number}", str(number)) for part in command] for number in range(processes)
    ]


def _django(module: str) -> dict[str, str]:
    return {"DJANGO_SETTINGS_MODULE": "bench.peers.systems.django_settings", "BENCH_SYSTEM": module}


_HERE = "bench.peers.systems"

OURS = System(
    name="pgqueue",
    module="pgqueue_",
    store="postgresql",
    slots="32 threads",
    workers=_each("python", "-m", "testproject.manage", "pgqueue_worker", "--concurrency", str(SLOTS)),
    done="SELECT COALESCE(sum(succeeded), 0)::bigint FROM pgqueue_stat",
    jobs=60_000,
    quick_jobs=20_000,
    environment={"DJANGO_SETTINGS_MODULE": "bench.settings"},
)

PEERS = [
    System(
        name="procrastinate",
        module="procrastinate_",
        store="postgresql",
        slots="32 asyncio",
        workers=_each(
            "procrastinate", f"--app={_HERE}.procrastinate_.app", "--log-level=warning", "worker", "-c", str(SLOTS)
        ),
        remaining="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        quick_jobs=2_000,
    ),
    System(
        name="pgqueuer",
        module="pgqueuer_",
        store="postgresql",
        slots="32 asyncio",
        workers=_each(
            *("pgq", "run", f"{_HERE}.pgqueuer_:main", "--max-concurrent-tasks", str(SLOTS)),
            *("--batch-size", "16", "--log-level", "WARNING"),
        ),
        remaining="SELECT count(*) FROM pgqueuer",
        jobs=40_000,
        quick_jobs=15_000,
        notes=["batch size 16: the largest that its command line allows with 32 at a time (default 10)"],
    ),
    System(
        name="chancy",
        module="chancy_",
        store="postgresql",
        slots="32 asyncio",
        workers=_each("chancy", "--app", f"{_HERE}.chancy_.chancy", "worker", "start"),
        remaining="SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')",
        notes=[
            "eager_polling on: without it a full worker fetches 32 jobs each 5 s",
            "its claim sorts the ready jobs, so a longer backlog drains more slowly (30,000 at about two thirds)",
        ],
    ),
    System(
        name="oban",
        module="oban_",
        store="postgresql",
        slots="32 asyncio",
        workers=_each(
            *("oban", "start", "--queues", f"default:{SLOTS}", "--log-level", "warning", "--node", "node{number}"),
            *("--cron-modules", f"{_HERE}.oban_"),
        ),
        remaining="SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing', 'retryable')",
        jobs=30_000,
        quick_jobs=10_000,
        environment={"OBAN_DSN": "{database_url}"},
    ),
    System(
        name="django-tasks-db",
        module="django_tasks",
        store="postgresql",
        slots="1",
        workers=_each("django-admin", "db_worker", "-v", "0"),
        remaining="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
        jobs=3_000,
        quick_jobs=1_000,
        environment=_django("django-tasks-db"),
        gated=lambda processes: 0,
        notes=["one job at a time, by its design; polls each second"],
    ),
    System(
        name="django-ox",
        module="django_tasks",
        store="postgresql",
        slots="32 threads",
        workers=_each("django-admin", "ox_worker", "--concurrency", str(SLOTS), "-v", "0"),
        remaining="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')",
        jobs=6_000,
        quick_jobs=2_000,
        environment=_django("django-ox"),
        gated=lambda processes: 0,
        notes=["polls each second"],
    ),
    System(
        name="dj-queue",
        module="django_tasks",
        store="postgresql",
        slots="32 threads",
        workers=lambda processes: [["django-admin", "dj_queue"]],
        remaining="SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NULL",
        jobs=8_000,
        quick_jobs=3_000,
        environment={**_django("dj-queue"), "BENCH_PROCESSES": "{processes}"},
        gated=lambda processes: 0,
        notes=["one command forks the worker processes, a dispatcher and a scheduler; all count as worker CPU"],
    ),
    System(
        name="celery",
        module="celery_",
        store="redis",
        slots="32 threads",
        workers=_each(
            *("celery", "-A", f"{_HERE}.celery_", "worker", "-P", "threads", "-c", str(SLOTS), "-l", "WARNING"),
            *("-n", "worker{number}@bench"),
        ),
        keys=[("LLEN", "celery"), ("HLEN", "unacked")],
        quick_jobs=5_000,
        notes=["early acks, no persistence: a crash loses what was taken, a restart of Redis loses everything"],
    ),
    System(
        name="celery-durable",
        module="celery_",
        store="redis, appendfsync always",
        slots="32 threads",
        workers=_each(
            *("celery", "-A", f"{_HERE}.celery_", "worker", "-P", "threads", "-c", str(SLOTS), "-l", "WARNING"),
            *("-n", "worker{number}@bench"),
        ),
        keys=[("LLEN", "celery"), ("HLEN", "unacked")],
        jobs=5_000,
        quick_jobs=2_000,
        pins="celery",
        environment={"BENCH_DURABLE": "1"},
        notes=["task_acks_late, appendonly and appendfsync always: the only Redis row with a durable enqueue"],
    ),
    System(
        name="dramatiq",
        module="dramatiq_",
        store="redis",
        slots="32 threads",
        workers=lambda processes: [
            ["dramatiq", f"{_HERE}.dramatiq_", "-p", str(processes), "-t", str(SLOTS), "--skip-logging"]
        ],
        keys=[("HLEN", "dramatiq:default.msgs")],
        jobs=30_000,
        quick_jobs=10_000,
        gated=lambda processes: 0,
        notes=["no persistence"],
    ),
    System(
        name="huey",
        module="huey_",
        store="redis",
        slots="32 threads",
        workers=_each("huey_consumer", f"{_HERE}.huey_.huey", "-w", str(SLOTS), "-k", "thread", "-q"),
        keys=[("LLEN", "huey.redis.bench")],
        jobs=20_000,
        quick_jobs=8_000,
        notes=["no persistence, no acknowledgement: what a worker has taken is gone when it dies"],
    ),
    System(
        name="rq",
        module="rq_",
        store="redis",
        slots="1 (a fork per job)",
        workers=_each("rq", "worker", "--quiet", "default", "--url", "{redis_url}", "--name", "worker{number}"),
        keys=[("LLEN", "rq:queue:default")],
        jobs=300,
        quick_jobs=100,
        gated=lambda processes: 0,
        per_second=10.0,
        latency_jobs=100,
        notes=["no persistence; one worker starts about 35 jobs/s, so its latency is taken at 10 a second, 100 jobs"],
    ),
]

SYSTEMS = {system.name: system for system in [OURS, *PEERS]}
