"""Run by ``make lint``: each public name is in ``typed_calls.py``, and pyright finds a complete type for all of it.

``pyright --verifytypes`` looks at all modules, and Django's model fields have no types that pyright can read without
mypy's plugin; so what it says is kept for the public names alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pgqueue_django
from pgqueue_django import _HOME


def incomplete(report: dict[str, Any]) -> tuple[int, list[str]]:
    """How many symbols belong to the public names, and what is wrong with which of them."""
    symbols = [s for s in report["typeCompleteness"]["symbols"] if f"{s['name']}.".startswith(_public())]
    wrong = [
        f"{symbol['name']}: " + "; ".join(said["message"] for said in symbol["diagnostics"])
        for symbol in symbols
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
    ]
    return len(symbols), wrong


def _public() -> tuple[str, ...]:
    """How the full names of public symbols begin, here and in the modules where they are at home."""
    package, names = pgqueue_django.__name__, pgqueue_django.__all__
    return tuple(f"{package}.{name}." for public in names for name in (public, f"{_HOME[public]}.{public}"))


def main() -> None:
    calls = Path(__file__).with_name("typed_calls.py").read_text()
    if unread := [name for name in pgqueue_django.__all__ if not re.search(rf"\b{name}\b", calls)]:
        sys.exit(f"typed_calls.py does not read {unread}")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--ignoreexternal", "--outputjson"]
    # It does not find what is installed as editable.
    where = {**os.environ, "PYTHONPATH": str(Path(pgqueue_django.__file__).parents[1])}
    done = subprocess.run(
        [*command, "--verifytypes", pgqueue_django.__name__], capture_output=True, text=True, env=where
    )
    count, wrong = incomplete(json.loads(done.stdout))
    if count < 2 * len(pgqueue_django.__all__):  # the names and their homes at the least
        sys.exit(f"pyright has seen {count} public symbols: {done.stdout[:2000]}{done.stderr[:2000]}")
    print(f"pyright: {count} public symbols, {len(wrong)} without a complete type")
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
