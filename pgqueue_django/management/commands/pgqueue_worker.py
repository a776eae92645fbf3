"""``manage.py pgqueue_worker``: run one worker in this process, or several in processes of their own."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections, router
from django.utils.module_loading import autodiscover_modules

from pgqueue_django import conf
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.tasks import QUEUE_NAME, declared_tasks
from pgqueue_django.worker import supervisor
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
        "back uncharged. Each option can be given as an environment variable: PGQUEUE_WORKER_MAX_JOBS. Exit codes: 0 "
        "clean, 2 bad options, 4 no database, 5 migrations missing, 6 an attempt failed, 7 jobs had to be given back, "
        "8 must be replaced, 9 its processes keep dying, 130/143 second signal."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        settings = conf.current()
        add = partial(_add_argument, parser)
        add(
            "--queues",
            type=_queues,
            default={},
            help="only these, in strict order: a,b; with a limit, a:4,b, no more than so many of that one at a time",
        )
        add("--exclude-queues", type=_names, default=(), help="all but these: a,b")
        add(
            "--concurrency",
            type=_whole(1),
            default=settings.CONCURRENCY,
            help=f"jobs at the same time ({settings.CONCURRENCY})",
        )
        add(
            "--lease",
            type=_seconds(0.5),
            default=settings.LEASE,
            help=f"seconds a job is this worker's without a heartbeat ({settings.LEASE:g})",
        )
        add(
            "--poll-interval",
            type=_seconds(0.01),
            default=settings.POLL_INTERVAL,
            help=f"seconds between looks that no notification asked for ({settings.POLL_INTERVAL:g})",
        )
        add(
            "--shutdown-timeout",
            type=_seconds(0),
            default=settings.SHUTDOWN_TIMEOUT,
            help=f"seconds for handlers to finish ({settings.SHUTDOWN_TIMEOUT:g})",
        )
        add("--no-listen", action="store_true", help="poll only (behind a transaction pooler)")
        add("--drain", action="store_true", help="end when nothing is due")
        add("--once", action="store_true", help="run one job, if one is due, and end")
        add("--fail-on-error", action="store_true", help="with --drain or --once: exit code 6 if an attempt failed")
        add("--max-jobs", type=_whole(1), help="end after so many jobs")
        add("--max-time", type=_seconds(1), help="end after so many seconds, when what runs has finished")
        add("--max-memory", type=_whole(1), metavar="MB", help="end when it takes more, when what runs has finished")
        add("--db-wait", type=_seconds(0), help="exit code 4 if no database is there so many seconds after the start")
        add("--processes", type=_whole(1), help="supervise so many processes of --concurrency slots each")
        add(
            "--stall-timeout",
            type=_seconds(1),
            default=10.0,
            help="with --processes: seconds without a sign of life until one is killed and replaced (10)",
        )
        add("--database", help="alias of the jobs' database (the router's for the Job model)")
        add("--name", default="", help="shown to people (host:pid)")

    def handle(self, **given: Any) -> None:
        using = given["database"] or router.db_for_write(Job)
        if using not in connections:
            raise CommandError(f"--database {using}: not in DATABASES ({', '.join(connections)}).", returncode=2)
        _log_to_stderr()
        inherited = supervisor.inherited()
        if given["processes"] and inherited is None:
            self._supervise(using, given)
            return
        if getattr(self, "_called_from_command_line", False):
            sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
        autodiscover_modules("tasks")
        queues = given["queues"] if isinstance(given["queues"], dict) else _queues(given["queues"])
        options = Options(
            using=using,
            name=f"{given['name']}-{inherited.number}" if given["name"] and inherited else given["name"],
            queues=list(queues),
            caps={name: most for name, most in queues.items() if most is not None},
            excluded=_called_with(given["exclude_queues"]),
            concurrency=given["concurrency"],
            lease=given["lease"],
            poll_interval=given["poll_interval"],
            shutdown_timeout=given["shutdown_timeout"],
            listen=conf.current().LISTEN and not given["no_listen"],
            drain=given["drain"] or given["once"],
            max_jobs=1 if given["once"] else given["max_jobs"],
            max_time=given["max_time"],
            max_memory=given["max_memory"] and given["max_memory"] * 1_000_000,
            db_wait=given["db_wait"],
        )
        loop = Loop(options, inherited.board if inherited else None)
        stopping = _Stopping(loop)
        if inherited:
            inherited.board.keep_pulse(lambda: loop.is_stuck)
            threading.Thread(target=stopping.obey, args=[inherited.orders], name="pgqueue orders", daemon=True).start()
        with _signals(stopping.stop_once if inherited else stopping.stop, quiet=loop.quiet, report=loop.report):
            _announce(loop)
            code = loop.run()
        stopping.over()
        if given["fail_on_error"] and not code and set(loop.counts) - {State.SUCCEEDED}:
            code = supervisor.FAILED
        if loop.has_deaf_handlers and threading.current_thread() is threading.main_thread():
            # Interpreter shutdown would wait for threads that such a handler has started; and a handler that was
            # interrupted in the middle of a log line may have left that locked.
            _end_after(_EXIT_SECONDS, code)
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if getattr(self, "_called_from_command_line", False):
            # It would wait for threads that a handler has left in an executor, too.
            _end_after(_EXIT_SECONDS, code)
        if code:
            sys.exit(code)

    def _supervise(self, using: str, given: dict[str, Any]) -> None:
        if not getattr(self, "_called_from_command_line", False):
            raise CommandError("--processes starts this command line again: it needs one, call_command has none.")
        if given["concurrency"] > supervisor.MOST_SLOTS:
            raise CommandError(f"--concurrency: with --processes at most {supervisor.MOST_SLOTS}.", returncode=2)
        settings = supervisor.Options(
            using=using,
            processes=given["processes"],
            shutdown_timeout=given["shutdown_timeout"],
            stall_timeout=given["stall_timeout"],
            drain=given["drain"] or given["once"],
        )
        parent = supervisor.Supervisor(settings, [sys.executable, *sys.orig_argv[1:]])
        connections.close_all()
        with _signals(parent.stop, quiet=parent.quiet, report=parent.report):
            code = parent.run()
        if code:
            sys.exit(code)


def _add_argument(parser: ArgumentParser, flag: str, **how: Any) -> None:
    """An option whose default comes from the environment, if it is there."""
    action = parser.add_argument(flag, **how)
    variable = "PGQUEUE_WORKER_" + flag.removeprefix("--").replace("-", "_").upper()
    if (text := os.environ.get(variable)) is None:
        return
    try:
        if how.get("action") == "store_true":
            action.default = _FLAGS[text.strip().lower()]
        else:
            action.default = how["type"](text) if "type" in how else text
    except KeyError:
        parser.error(f"{variable}={text}: give 1 or 0")
    except ArgumentTypeError as error:
        parser.error(f"{variable}: {error}")


_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off", ""), False)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        # An empty one, too: an unset variable must not mean all queues.
        if not QUEUE_NAME.fullmatch(name):
            raise ArgumentTypeError(f"{name!r} is no queue; give names of 1 to 63 characters A-Za-z0-9_.- as in a,b")
        if names.count(name) > 1:
            raise ArgumentTypeError(f"{name} is named twice")
    return names


def _queues(text: str | Sequence[str]) -> dict[str, int | None]:
    """``billing:4,default``: the queues in their order, each with its limit. Names alone may be a sequence."""
    parts = [part.strip().partition(":") for part in (text.split(",") if isinstance(text, str) else text)]
    names = _names(",".join(name for name, _, _ in parts)) if parts else []
    return {name: _whole(1)(most) if colon else None for name, (_, colon, most) in zip(names, parts, strict=True)}


def _called_with(names: str | Sequence[str]) -> Sequence[str]:
    """``call_command(exclude_queues="a,b")`` does not go through the parser."""
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
def _signals(stop: Callable[[int], None], *, quiet: Callable[[], None], report: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop, SIGUSR1 makes quiet, SIGUSR2 reports, SIGQUIT prints where every thread is."""
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever runs us in a thread calls loop.stop()
        return
    hear: dict[int, Callable[[int, object], None]] = {
        signal.SIGTERM: lambda number, frame: stop(number),
        signal.SIGINT: lambda number, frame: stop(number),
        signal.SIGUSR1: lambda number, frame: quiet(),
        signal.SIGUSR2: lambda number, frame: report(),
    }
    before = {number: signal.signal(number, handler) for number, handler in hear.items()}
    with suppress(OSError, ValueError, AttributeError):  # a standard error that is no file
        faulthandler.register(signal.SIGQUIT, all_threads=True)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        faulthandler.unregister(signal.SIGQUIT)


class _Stopping:
    """Tells the loop to stop, and ends the process even if the loop hangs in a database that does not answer."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._watchdogs: list[threading.Timer] = []
        self._once = threading.Lock()

    def stop(self, number: int) -> None:
        self._loop.stop(number)
        if not self._watchdogs:
            self._watchdogs.append(_end_after(self._loop.options.shutdown_timeout + _STOP_SECONDS, RELEASED))
        elif len(self._watchdogs) == 1:
            self._watchdogs.append(_end_after(_STOP_SECONDS, 128 + number))
        else:
            os._exit(128 + number)

    def stop_once(self, number: int) -> None:
        """A signal to the whole group reaches a worker process twice, and must not count as two."""
        # Also when both come at the same moment, and a signal in the middle of the other.
        if self._once.acquire(blocking=False):
            self.stop(number)

    def obey(self, orders: int) -> None:
        """The supervisor's orders, until it is gone."""
        while order := os.read(orders, 1):
            if order == supervisor.QUIET:
                self._loop.quiet()
            elif order == supervisor.REPORT:
                self._loop.report()
            else:
                self.stop_once(signal.SIGTERM)
            if order == supervisor.STOP_NOW:
                self.stop(signal.SIGTERM)
        logger.warning("the supervisor is gone: stopping")
        self.stop_once(signal.SIGTERM)

    def over(self) -> None:
        for watchdog in self._watchdogs:
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
        ", ".join(f"{name} (at most {options.caps[name]})" if name in options.caps else name for name in options.queues)
        or "all",
        f" but {', '.join(options.excluded)}" if options.excluded else "",
        options.concurrency,
        options.lease,
        options.heartbeat,
        f"listening and polling each {options.poll_interval:g} s" if options.listen else "polling only",
        ", ".join(declared_tasks()) or "none found yet",
    )
