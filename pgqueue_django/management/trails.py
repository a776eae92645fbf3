"""What a command tells the audit log: who has run it and where, on what, and why if it was said."""

from __future__ import annotations

import getpass
import socket
from argparse import ArgumentParser
from typing import Any

from pgqueue_django.audit import MAX_REASON, Action, Trail


def add_reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help=f"why, for the audit log: at most {MAX_REASON} characters")


def trail(using: str, given: dict[str, Any], action: Action, target: str) -> Trail:
    return Trail(using, actor=operator(), action=action, target=target, reason=given["reason"])


def operator() -> str:
    """``cli:USER@HOST``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user has no name
        user = "?"
    return f"cli:{user}@{socket.gethostname()}"
