"""The words of our commands: what an option may be, from the command line or the environment, and what was meant."""

from __future__ import annotations

import difflib
import os
import re
from argparse import Action, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandParser

from pgqueue_django.options import QUEUE_NAME

DAY = 86_400
"""The longest of each length, in seconds."""

_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off", ""), False)


def did_you_mean(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]}?" if close else ""


class SuggestingCommand(BaseCommand):
    """Names the option that a misspelt one may have been."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.error = partial(_suggest, parser, parser.error)  # type: ignore[method-assign]
        return parser


def _suggest(parser: ArgumentParser, error: Callable[[str], NoReturn], message: str) -> NoReturn:
    if message.startswith("unrecognized arguments"):
        known = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        message += "".join(did_you_mean(word, known) for word in re.findall(r"--[\w-]+", message))
    error(message)


def add_argument(parser: ArgumentParser, prefix: str, flag: str, **how: Any) -> Action:
    """An option whose default comes from the environment, if it is there: ``PREFIX_MAX_JOBS``."""
    action = parser.add_argument(flag, **how)
    variable = prefix + flag.removeprefix("--").replace("-", "_").upper()
    if (text := os.environ.get(variable)) is None:
        return action
    try:
        if how.get("action") == "store_true":
            action.default = _FLAGS[text.strip().lower()]
        else:
            action.default = how["type"](text) if "type" in how else text
            if action.choices is not None and action.default not in action.choices:
                raise ArgumentTypeError(f"{text!r} is none of {', '.join(action.choices)}")
    except KeyError:
        parser.error(f"{variable}={text}: give 1 or 0")
    except ArgumentTypeError as error:
        parser.error(f"{variable}: {error}")
    return action


def names(text: str) -> list[str]:
    """``a,b``: names of queues."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        # An empty one, too: an unset variable must not mean all queues.
        if not QUEUE_NAME.fullmatch(name):
            raise ArgumentTypeError(f"{name!r} is no queue; give names of 1 to 63 characters A-Za-z0-9_.- as in a,b")
        if found.count(name) > 1:
            raise ArgumentTypeError(f"{name} is named twice")
    return found


def queues(text: str | Sequence[str]) -> dict[str, int | None]:
    """``billing:4,default``: the queues in their order, each with its limit. Names alone may be a sequence."""
    parts = [part.strip().partition(":") for part in (text.split(",") if isinstance(text, str) else text)]
    found = names(",".join(name for name, _, _ in parts)) if parts else []
    return {name: whole(1)(most) if colon else None for name, (_, colon, most) in zip(found, parts, strict=True)}


def whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        with suppress(ValueError):
            if (value := int(text)) >= least:
                return value
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")

    return number


def seconds(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := float(text)) <= DAY:
                return value
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {DAY}")

    return number


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}
_MOST_DAYS = 36_500  # more is a moment that Python cannot hold, and would stop every reading of its table


def age(text: str) -> float:
    """``14d``, ``36h``, ``90m``, ``30s``, ``2w``: seconds."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no age: give 30s, 90m, 36h, 14d or 2w")
    if (value := float(int(found[1]) * _UNITS[found[2]])) > _MOST_DAYS * DAY:
        raise ArgumentTypeError(f"{text!r} is too long: give at most {_MOST_DAYS}d")
    return value


def address(text: str) -> tuple[str, int]:
    """``8000`` on all addresses, or ``127.0.0.1:8000``, ``[::1]:8000``."""
    host, _, port = text.rpartition(":")
    with suppress(ValueError):
        if 0 <= (number := int(port)) < 65_536:
            return host.removeprefix("[").removesuffix("]"), number
    raise ArgumentTypeError(f"{text!r} is no port from 0 to 65535, nor an address as in 127.0.0.1:8000")
