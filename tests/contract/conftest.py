"""Finds Django's own tests, and lets the backport stand for ``django.tasks`` where Django has none."""

from __future__ import annotations

import logging
import sys

import django
import pytest

from .fetch import HOME

collect_ignore = [] if (HOME / "tasks" / "test_tasks.py").exists() else ["test_contract.py"]

_MODULES = [
    "backends",
    "backends.base",
    "backends.dummy",
    "backends.immediate",
    "base",
    "checks",
    "exceptions",
    "signals",
]


def _let_the_backport_stand_for_it() -> None:
    from importlib import import_module

    sys.modules["django.tasks"] = package = import_module("django_tasks")
    for name in _MODULES:
        sys.modules[f"django.tasks.{name}"] = import_module(f"django_tasks.{name}")
    exceptions = sys.modules["django.tasks.exceptions"]
    for name in ("InvalidTask", "InvalidTaskBackend"):
        if not hasattr(exceptions, name):  # their names until 0.12
            setattr(exceptions, name, getattr(exceptions, f"{name}Error"))
    package.Task = sys.modules["django.tasks.base"].Task
    logging.getLogger("django_tasks").parent = logging.getLogger("django.tasks")


if not collect_ignore:
    sys.path.insert(0, str(HOME))
    if django.VERSION < (6, 0):
        _let_the_backport_stand_for_it()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if collect_ignore and any("contract" in str(argument) for argument in session.config.args):
        raise pytest.UsageError("Django's own tests are not here: python -m tests.contract.fetch")
