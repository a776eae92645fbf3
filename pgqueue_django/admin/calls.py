"""Calls of tasks that a person has written into a form: checked as the code's own are, and said in the form."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

from pgqueue_django import options
from pgqueue_django.exceptions import InvalidPayload, TaskNotFound
from pgqueue_django.tasks import Task, resolve


def task_at(path: str) -> Task[Any, Any]:
    """The task at this path. Raises ValidationError where this process does not know it, or may not import it."""
    module = path.rpartition(".")[0]
    if module not in sys.modules and apps.get_containing_app_config(module) is None:
        # What is imported runs, and this is a web process: not whatever somebody has written into a form.
        raise ValidationError(gettext("%(path)s is in no installed app.") % {"path": path})
    try:
        return resolve(path)
    except TaskNotFound as error:
        raise ValidationError(gettext("There is no such task here: %(why)s") % {"why": error}) from error


def check(path: str, args: Any, kwargs: Any) -> None:
    """Raises ValidationError, with the field that is wrong."""
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValidationError(gettext("Arguments are a JSON array, keywords a JSON object."))
    try:
        task = task_at(path)
    except ValidationError as error:
        raise ValidationError({"task": error}) from error
    encoded(lambda: task.call(*args, **kwargs))


def encoded(make: Callable[[], Any]) -> Any:
    """What ``make`` returns. Raises ValidationError, with the field, for arguments that the task does not take."""
    try:
        return make()
    except TaskNotFound as error:
        raise ValidationError(gettext("There is no such task here: %(why)s") % {"why": error}) from error
    except Exception as error:  # dataclasses and models of the project check themselves, and may raise anything
        named = (
            error.path[:1] == ("kwargs",) if isinstance(error, InvalidPayload) else "unexpected keyword" in str(error)
        )
        field = "kwargs" if named else "args"
        why = error if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {error}"
        text = gettext("The task does not take these arguments: %(why)s")
        raise ValidationError({field: text % {"why": why}}) from error


def signature_of(path: str) -> str:
    """As it stands in the code, where that is imported already; nothing is imported to show it."""
    if path not in options.declared or path.rpartition(".")[0] not in sys.modules:
        return ""
    try:
        return str(resolve(path).signature or "")
    except TaskNotFound:
        return ""
