"""``manage.py pgqueue_worker``: run one worker in this process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections, router
from django.utils.module_loading import autodiscover_modules

from pgqueue_django import conf
from pgqueue_django.models import Job
from pgqueue_django.tasks import QUEUE_NAME, declared_tasks
from pgqueue_django.worker.connections import describe
from pgqueue_django.worker.loop import RELEASED, Loop, Options

logger = logging.getLogger("pgqueue_django.worker")

_DAY = 86_400  # the longest of each length
_STOP_SECONDS = 2.0  # beyond its time to stop, the process ends whatever it is in the middle of
_EXIT_SECONDS = 1.0  # for the interpreter to end
# Between two threads that both want to run. The interpreter's own is ten times as long, and beside a handler that
# computes the loop waits so long for each piece of an answer: for 500 jobs of 2 KiB 424 ms instead of 47.
_SWITCH_SECONDS = 0.0005


class Command(BaseCommand):
    help = (
        "Run jobs until SIGTERM or SIGINT: then finish what runs, for --shutdown-timeout seconds, and give the rest "
        "back uncharged. Exit codes: 0 clean, 2 bad options, 7 jobs had to be given back, 130/143 second signal."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        settings = conf.current()
        parser.add_argument("--queues", type=_names, default=(), help="only these, in strict order: a,b")
        parser.add_argument("--exclude-queues", type=_names, default=(), help="all but these: a,b")
        parser.add_argument(
            "--concurrency",
            type=_whole(1),
            default=settings.CONCURRENCY,
            help=f"jobs at the same time ({settings.CONCURRENCY})",
        )
        parser.add_argument(
            "--lease",
            type=_seconds(0.5),
            default=settings.LEASE,
            help=f"seconds a job is this worker's without a heartbeat ({settings.LEASE:g})",
        )
        parser.add_argument(
            "--poll-interval",
            type=_seconds(0.01),
            default=settings.POLL_INTERVAL,
            help=f"seconds between looks that no notification asked for ({settings.POLL_INTERVAL:g})",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=_seconds(0),
            default=settings.SHUTDOWN_TIMEOUT,
            help=f"seconds for handlers to finish ({settings.SHUTDOWN_TIMEOUT:g})",
        )
        parser.add_argument("--no-listen", action="store_true", help="poll only (behind a transaction pooler)")
        parser.add_argument("--drain", action="store_true", help="end when nothing is due")
        parser.add_argument("--once", action="store_true", help="run one job, if one is due, and end")
        parser.add_argument("--max-jobs", type=_whole(1), help="end after so many jobs")
        parser.add_argument("--database", help="alias of the jobs' database (the router's for the Job model)")
        parser.add_argument("--name", default="", help="shown to people (host:pid)")

    def handle(self, **given: Any) -> None:
        using = given["database"] or router.db_for_write(Job)
        if using not in connections:
            raise CommandError(f"--database {using}: not in DATABASES ({', '.join(connections)}).", returncode=2)
        _log_to_stderr()
        if getattr(self, "_called_from_command_line", False):
            sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
        autodiscover_modules("tasks")
        options = Options(
            using=using,
            name=given["name"],
            queues=_called_with(given["queues"]),
            excluded=_called_with(given["exclude_queues"]),
            concurrency=given["concurrency"],
            lease=given["lease"],
            poll_interval=given["poll_interval"],
            shutdown_timeout=given["shutdown_timeout"],
            listen=conf.current().LISTEN and not given["no_listen"],
            drain=given["drain"] or given["once"],
            max_jobs=1 if given["once"] else given["max_jobs"],
        )
        loop = Loop(options)
        with _signals_stop(loop):
            _announce(loop)
            code = loop.run()
        if loop.has_deaf_handlers and threading.current_thread() is threading.main_thread():
            # Interpreter shutdown would wait for threads that such a handler has started.
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if getattr(self, "_called_from_command_line", False):
            # It would wait for threads that a handler has left in an executor, too.
            _end_after(_EXIT_SECONDS, code)
        if code:
            sys.exit(code)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        # An empty one, too: an unset variable must not mean all queues.
        if not QUEUE_NAME.fullmatch(name):
            raise ArgumentTypeError(f"{name!r} is no queue; give names of 1 to 63 characters A-Za-z0-9_.- as in a,b")
    return names


def _called_with(names: str | Sequence[str]) -> Sequence[str]:
    """``call_command(queues="a,b")`` does not go through the parser."""
    return _names(names) if isinstance(names, str) else names


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        with suppress(ValueError):
            if (value := int(text)) >= least:
                return value
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")

    return number


def _seconds(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := float(text)) <= _DAY:
                return value
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {_DAY}")

    return number


def _log_to_stderr() -> None:
    """A worker that logs nothing is a riddle: Django's own handler is silent unless DEBUG is on."""
    package = logging.getLogger("pgqueue_django")
    if not package.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        package.addHandler(handler)
    if package.level == logging.NOTSET and not package.isEnabledFor(logging.INFO):
        package.setLevel(logging.INFO)


@contextmanager
def _signals_stop(loop: Loop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever runs us in a thread calls loop.stop()
        return
    watchdogs: list[threading.Timer] = []

    def hear(number: int, frame: object) -> None:
        loop.stop(number)
        # Even if the loop hangs in a database that does not answer, the process ends.
        if not watchdogs:
            watchdogs.append(_end_after(loop.options.shutdown_timeout + _STOP_SECONDS, RELEASED))
        elif len(watchdogs) == 1:
            watchdogs.append(_end_after(_STOP_SECONDS, 128 + number))
        else:
            os._exit(128 + number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for watchdog in watchdogs:
            watchdog.cancel()


def _end_after(seconds: float, code: int) -> threading.Timer:
    watchdog = threading.Timer(seconds, os._exit, [code])
    watchdog.daemon = True
    watchdog.start()
    return watchdog


def _announce(loop: Loop) -> None:
    options = loop.options
    logger.info(
        "worker %s: database %s (%s), queues %s%s, %d slots, lease %g s, heartbeat %g s, %s, tasks: %s",
        loop.worker_id,
        options.using,
        describe(connections[options.using]),
        ", ".join(options.queues) or "all",
        f" but {', '.join(options.excluded)}" if options.excluded else "",
        options.concurrency,
        options.lease,
        options.heartbeat,
        f"listening and polling each {options.poll_interval:g} s" if options.listen else "polling only",
        ", ".join(declared_tasks()) or "none found yet",
    )
