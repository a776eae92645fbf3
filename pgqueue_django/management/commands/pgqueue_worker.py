"""``manage.py pgqueue_worker``: run one worker in this process, or several in processes of their own."""

from __future__ import annotations

import logging
import os
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, router
from django.utils.module_loading import autodiscover_modules
from prometheus_client import REGISTRY
from prometheus_client.registry import Collector

from pgqueue_django import checks, conf, logs, tracing
from pgqueue_django.management import arguments
from pgqueue_django.management.arguments import did_you_mean, seconds, whole
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.tasks import declared_queues, declared_tasks
from pgqueue_django.worker import probe, reload, supervisor, telemetry
from pgqueue_django.worker.connections import describe
from pgqueue_django.worker.loop import Loop, Options
from pgqueue_django.worker.probe import Health
from pgqueue_django.worker.process import Stopping, end_after, signals
from pgqueue_django.worker.progress import Progress, Terminal
from pgqueue_django.worker.server import Answering, serve

logger = logging.getLogger("pgqueue_django.worker")

_EXIT_SECONDS = 1.0  # for the interpreter to end
# Between two threads that both want to run. The interpreter's own is ten times as long, and beside a handler that
# computes the loop waits so long for each piece of an answer: for 500 jobs of 2 KiB 424 ms instead of 47.
_SWITCH_SECONDS = 0.0005


class Command(arguments.SuggestingCommand):
    help = (
        "Run jobs until SIGTERM or SIGINT: then finish what runs, for --shutdown-timeout seconds, and give the rest "
        "back uncharged. Each option can be given as an environment variable: PGQUEUE_WORKER_MAX_JOBS. Exit codes: 0 "
        "clean, 2 bad options, 4 no database, 5 migrations missing, 6 an attempt failed, 7 jobs had to be given back, "
        "8 must be replaced, 9 its processes keep dying, 130/143 second signal."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        settings = conf.before_checks()
        add = partial(arguments.add_argument, parser, "PGQUEUE_WORKER_")
        add(
            "--queues",
            type=arguments.queues,
            default={},
            help="only these, in strict order: a,b; with a limit, a:4,b, no more than so many of that one at a time",
        )
        add("--exclude-queues", type=arguments.names, default=(), help="all but these: a,b")
        add(
            "--concurrency",
            type=whole(1),
            default=settings.CONCURRENCY,
            help=f"jobs at the same time ({settings.CONCURRENCY})",
        )
        add(
            "--lease",
            type=seconds(0.5),
            default=settings.LEASE,
            help=f"seconds a job is this worker's without a heartbeat ({settings.LEASE:g})",
        )
        add(
            "--poll-interval",
            type=seconds(0.01),
            default=settings.POLL_INTERVAL,
            help=f"seconds between looks that no notification asked for ({settings.POLL_INTERVAL:g})",
        )
        add(
            "--shutdown-timeout",
            type=seconds(0),
            default=settings.SHUTDOWN_TIMEOUT,
            help=f"seconds for handlers to finish ({settings.SHUTDOWN_TIMEOUT:g})",
        )
        add("--no-listen", action="store_true", help="poll only")
        add("--drain", action="store_true", help="end when nothing is due")
        add("--once", action="store_true", help="run one job, if one is due, and end")
        add("--fail-on-error", action="store_true", help="with --drain or --once: exit code 6 if an attempt failed")
        add("--max-jobs", type=whole(1), help="end after so many jobs")
        add("--max-time", type=seconds(1), help="end after so many seconds, when what runs has finished")
        add("--max-memory", type=whole(1), metavar="MB", help="end when it takes more, when what runs has finished")
        add("--db-wait", type=seconds(0), help="exit code 4 if no database is there so many seconds after the start")
        add("--processes", type=whole(1), help="supervise so many processes of --concurrency slots each")
        add(
            "--stall-timeout",
            type=seconds(1),
            default=10.0,
            help="with --processes: seconds without a sign of life until one is killed and replaced (10)",
        )
        add(
            "--probe-file",
            type=Path,
            metavar="PATH",
            help="a file that says ready or not ready, touched while it lives",
        )
        add("--probe-port", type=arguments.address, metavar="[HOST:]PORT", help="answer GET /live and GET /ready")
        add("--metrics-port", type=arguments.address, metavar="[HOST:]PORT", help="answer GET /metrics, for Prometheus")
        add("--reload", action="store_true", help="start again when code changes (so by itself: DEBUG, at a terminal)")
        add("--no-reload", action="store_true", help="do not")
        add(
            "--log-format", choices=["text", "json"], default="text", help="of our own lines, if nobody else shows them"
        )
        add("--database", help="alias of the jobs' database (the router's for the Job model)")
        add("--name", default="", help="shown to people (host:pid)")

    def execute(self, *args: Any, **given: Any) -> str | None:
        if supervisor.CHILD in os.environ or not (given["processes"] or self._reloads(given)):
            return super().execute(*args, **given)
        # Its processes check their tasks. A supervisor has none: what an import takes, or hangs at, is not in it.
        with checks.without_tasks():
            return super().execute(*args, **given)

    def handle(self, **given: Any) -> None:
        using = given["database"] or router.db_for_write(Job)
        if using not in connections:
            hint = did_you_mean(using, list(connections))
            raise CommandError(f"--database {using}: not in DATABASES ({', '.join(connections)}).{hint}", returncode=2)
        inherited = supervisor.inherited()
        reloads = self._reloads(given)
        if inherited is None and (given["processes"] or reloads):
            self._supervise(using, given, reloads)
            return
        if self._is_the_process:
            sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
        autodiscover_modules("tasks")
        meter = None
        if given["metrics_port"] is not None:
            meter = telemetry.meter(Path(os.environ[telemetry.VARIABLE]) if inherited else None)
        loop = Loop(
            _options(using, given, inherited.number if inherited else None),
            inherited.board if inherited else None,
            meter.ended if meter else None,
        )
        terminal = Terminal() if loop.options.drain and inherited is None and sys.stderr.isatty() else None
        shown = _show_logs(given["log_format"], terminal, worker=loop.worker_id)
        stopping = Stopping(loop)
        if inherited:
            inherited.board.keep_pulse(loop.health)
            threading.Thread(target=stopping.obey, args=[inherited.orders], name="pgqueue orders", daemon=True).start()
        else:
            _answer_probes(given, loop.health)
            _answer_scrapes(given, REGISTRY)
        if reloads:
            reload.watch(lambda path: stopping.make_way(f"{path} has changed"))
        with signals(stopping.stop_once if inherited else stopping.stop, quiet=loop.quiet, report=loop.report):
            _announce(loop)
            if inherited is None or inherited.number == 1:
                _doubt_queues(loop.options)
            progress = None
            if given["drain"]:
                progress = Progress(
                    using, counts=lambda: loop.counts, left=loop.due, terminal=terminal if terminal is shown else None
                )
                progress.start()
            if meter:
                meter.watch(slots=loop.options.concurrency, busy_slots=lambda: loop.busy_slots)
            code = loop.run()
            if meter:
                meter.finish()
            if progress:
                progress.finish()
        stopping.over()
        if given["fail_on_error"] and not code and set(loop.counts) - {State.SUCCEEDED}:
            code = supervisor.FAILED
        if code < 128:  # after a second signal at once
            tracing.flush()
        if loop.has_deaf_handlers and threading.current_thread() is threading.main_thread():
            # Interpreter shutdown would wait for threads that such a handler has started; and a handler that was
            # interrupted in the middle of a log line may have left that locked.
            end_after(_EXIT_SECONDS, code)
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if self._is_the_process:
            # It would wait for threads that a handler has left in an executor, too.
            end_after(_EXIT_SECONDS, code)
        if code:
            sys.exit(code)

    @property
    def _is_the_process(self) -> bool:
        """Not called by somebody's code, who has a process to go on with."""
        return bool(getattr(self, "_called_from_command_line", False))

    def _reloads(self, given: dict[str, Any]) -> bool:
        ends = given["drain"] or given["once"] or given["max_jobs"]
        if given["reload"] and given["no_reload"]:
            raise CommandError("Give --reload or --no-reload.", returncode=2)
        if given["reload"] and ends:
            raise CommandError(
                "--reload is for a worker that stays: not with --drain, --once, --max-jobs.", returncode=2
            )
        if given["no_reload"] or ends or not self._is_the_process:
            return False
        return given["reload"] or (conf.is_debug() and sys.stderr.isatty())

    def _supervise(self, using: str, given: dict[str, Any], reloads: bool) -> None:
        if not self._is_the_process:
            raise CommandError("--processes starts this command line again: it needs one, call_command has none.")
        if given["concurrency"] > supervisor.MOST_SLOTS:
            raise CommandError(f"--concurrency: with --processes at most {supervisor.MOST_SLOTS}.", returncode=2)
        settings = supervisor.Options(
            using=using,
            processes=given["processes"] or 1,
            shutdown_timeout=given["shutdown_timeout"],
            stall_timeout=given["stall_timeout"],
            drain=given["drain"] or given["once"],
            patient=reloads,
        )
        _show_logs(given["log_format"], None, worker="supervisor")
        connections.close_all()
        with ExitStack() as stack:
            directory = None
            if given["metrics_port"] is not None:
                try:
                    directory = stack.enter_context(closing(telemetry.Directory()))
                except OSError as error:
                    raise CommandError(f"--metrics-port: {error}", returncode=2) from error
                _answer_scrapes(given, directory)
            parent = supervisor.Supervisor(settings, [sys.executable, *sys.orig_argv[1:]], directory)
            _answer_probes(given, parent.health)
            with signals(parent.stop, quiet=parent.quiet, report=parent.report):
                code = parent.run()
        if code:
            sys.exit(code)


def _options(using: str, given: dict[str, Any], number: int | None) -> Options:
    # call_command does not go through the parser.
    queues = given["queues"] if isinstance(given["queues"], dict) else arguments.queues(given["queues"])
    excluded: str | Sequence[str] = given["exclude_queues"]
    return Options(
        using=using,
        name=f"{given['name']}-{number}" if given["name"] and number else given["name"],
        queues=list(queues),
        caps={name: most for name, most in queues.items() if most is not None},
        excluded=arguments.names(excluded) if isinstance(excluded, str) else excluded,
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


def _show_logs(log_format: str, terminal: Terminal | None, *, worker: str) -> logging.Handler | None:
    """Our own handler, where nothing else would print: a worker that logs nothing is a riddle.

    Django's own handler is silent unless DEBUG is on. What the project has set up is left alone.
    """
    package = logging.getLogger("pgqueue_django")
    handler: logging.Handler | None = None
    if not package.hasHandlers():
        handler = terminal or logging.StreamHandler()
        handler.setFormatter(logs.JsonFormatter(worker=worker) if log_format == "json" else logs.TextFormatter())
        handler.addFilter(logs.JobFilter(None))
        package.addHandler(handler)
    if package.level == logging.NOTSET and not package.isEnabledFor(logging.INFO):
        package.setLevel(logging.INFO)
    if log_format != "text" and handler is None:
        logger.warning(
            "--log-format %s is left to settings.LOGGING, which shows these records: pgqueue_django.logs.JsonFormatter",
            log_format,
            extra=logs.event("worker.trouble"),
        )
    return handler


def _answer_probes(given: dict[str, Any], health: Callable[[], Health]) -> None:
    try:
        if given["probe_file"] is not None:
            probe.touch(Path(given["probe_file"]), health)
    except OSError as error:
        raise CommandError(f"--probe-file: {error}", returncode=2) from error
    if (port := _serve(given, "--probe-port", probe.answer(health))) is not None:
        logger.info("probes: /live and /ready on port %d", port, extra=logs.event("worker.probes", port=port))


def _answer_scrapes(given: dict[str, Any], registry: Collector) -> None:
    if (port := _serve(given, "--metrics-port", telemetry.page(registry))) is not None:
        logger.info("metrics: /metrics on port %d", port, extra=logs.event("worker.metrics", port=port))


def _serve(given: dict[str, Any], option: str, answer: Answering) -> int | None:
    """The port; None: none is wanted."""
    where = given[option.removeprefix("--").replace("-", "_")]
    if where is None:
        return None
    host, port = where if isinstance(where, tuple) else arguments.address(str(where))
    try:
        return serve(host, port, answer, name=f"pgqueue {option}")
    except OSError as error:
        raise CommandError(f"{option} {host}:{port}: {error.strerror or error}", returncode=2) from error


def _doubt_queues(options: Options) -> None:
    """A misspelt queue is one that stays empty."""
    known = declared_queues()
    for name in [*options.queues, *options.excluded]:
        if name not in known:
            logger.warning(
                "queue %s: no task here names it.%s",
                *(name, did_you_mean(name, known)),
                extra=logs.event("worker.trouble", queue_name=name),
            )


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
        extra=logs.event(
            "worker.started", worker=loop.worker_id, queues=list(options.queues), slots=options.concurrency
        ),
    )
