"""In development: code that changes is loaded, and no job is killed for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgqueue_django import task_by_name
from pgqueue_django.models import Job
from pgqueue_django.states import State

from .workers import REAL_DATABASE, Process, job, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Start = Callable[..., Process]
Gate = Callable[[], Any]

APPS = {"APPS": ["machine_edited"]}
CODE = """
import time
from pathlib import Path
from pgqueue_django import task

@task
def hello(gate):
    while gate and not Path(gate).exists():
        time.sleep(0.01)
    return "{word}"
"""


class Module:
    """The tasks of an app."""

    def __init__(self, directory: Path) -> None:
        app = directory / "machine_edited"
        app.mkdir()
        (app / "__init__.py").touch()
        self.path = app / "tasks.py"
        # The interpreter would know a file of the same second and length from its cache.
        self.environment = {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def module(tmp_path: Path) -> Module:
    directory = tmp_path / "edited"
    directory.mkdir()
    made = Module(directory)
    made.write(CODE.format(word="old"))
    return made


def test_code_that_changes_is_loaded_when_what_runs_has_finished(process: Start, module: Module, gate: Gate) -> None:
    door = gate()
    hello = task_by_name("machine_edited.tasks.hello")
    running = hello.enqueue(str(door))
    started = process("--reload", "--concurrency", "2", environment=module.environment, settings=APPS)
    wait_for_state(running, State.RUNNING)
    module.write(CODE.format(word="new"))
    wait_for(lambda: f"{module.path} has changed: making way" in started.log, 20)
    waiting = hello.enqueue("")
    # The old code takes nothing more, and what it runs is not touched.
    assert (job(running).state, job(waiting).fencing_token) == (State.RUNNING, 0)
    door.open()
    assert wait_for_state(running, State.SUCCEEDED).result == "old"
    assert wait_for_state(waiting, State.SUCCEEDED).result == "new"
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert started.stop() == 0


def test_code_that_is_broken_is_tried_again_until_it_is_mended(process: Start, module: Module) -> None:
    hello = task_by_name("machine_edited.tasks.hello")
    started = process("--reload", environment=module.environment, settings=APPS)
    assert wait_for_state(hello.enqueue(""), State.SUCCEEDED).result == "old"
    module.write("class machine_edited(: this is no Python\n")
    # More often than a supervisor would try that gives up.
    wait_for(lambda: started.log.count("SyntaxError") > 5, 60)
    assert started.exit_code is None
    module.write(CODE.format(word="mended"))
    assert wait_for_state(hello.enqueue(""), State.SUCCEEDED, timeout=30).result == "mended"
    assert started.stop() == 0


@pytest.mark.parametrize("option", ["--drain", "--once"])
def test_a_worker_that_ends_by_itself_has_nothing_to_reload(process: Start, option: str) -> None:
    started = process("--reload", option)
    assert started.wait() == 2
    assert "--reload is for a worker that stays" in started.log


def test_without_a_terminal_or_with_no_reload_nothing_is_watched(process: Start) -> None:
    started = process(settings={"DEBUG": True}).wait_until_ready()
    assert "worker process 1 started" not in started.log
    assert started.stop() == 0
