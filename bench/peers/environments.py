"""A virtualenv for each system, from its pins; what cannot be installed is reported, never guessed.

All with one Python of 3.12 or newer: BENCH_PYTHON, else the first of python3.13, python3.12 and python3.14 on PATH.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from bench.peers.registry import System

HERE = Path(__file__).resolve().parent
HOME = HERE.parent / ".peers"
_TRY = ("python3.13", "python3.12", "python3.14")


class NotInstalled(Exception):
    """Why there is no environment for a system."""


def find_python() -> str:
    given = os.environ.get("BENCH_PYTHON")
    for name in [given] if given else _TRY:
        program = shutil.which(name)
        if program and _runs(program):
            return program
    what = given or ", ".join(_TRY)
    raise NotInstalled(f"no Python of 3.12 or newer found ({what}); name one in BENCH_PYTHON")


def _runs(program: str) -> bool:
    # A version manager's stand-in may be on PATH for a version that is not chosen.
    done = subprocess.run([program, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"], capture_output=True)
    return done.returncode == 0


def environment(system: System) -> Path:
    """The system's virtualenv, made when it is missing or its pins have changed. Raises NotInstalled."""
    directory = HOME / system.pin_file
    pins = HERE / "pins" / f"{system.pin_file}.txt"
    mark = directory / ".installed"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == digest:
        return directory
    python = find_python()
    print(f"installing {system.name} …", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    for command in (
        [python, "-m", "venv", str(directory)],
        [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(pins)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "?")
            raise NotInstalled(f"pip could not install it: {reason[:300]}")
    mark.write_text(digest)
    return directory


def installed(directory: Path) -> dict[str, str]:
    """Python and all packages of an environment, with their versions."""
    program = (
        "import json, platform; from importlib.metadata import distributions; "
        "print(json.dumps({'python': platform.python_version(), "
        "**{d.metadata['Name'].lower(): d.version for d in distributions()}}))"
    )
    done = subprocess.run([directory / "bin" / "python", "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return {name: version for name, version in sorted(found.items()) if name != "pip"}
