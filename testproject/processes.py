"""The child processes of the demo: started apart from the terminal, so that Ctrl-C reaches the demo alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

CHECKOUT = Path(__file__).resolve().parent.parent


class Child:
    """One `python -m module …` with a log file. As a context manager it is killed at the end, if it still runs."""

    def __init__(self, name: str, *command: str, log: Path, environ: Mapping[str, str]) -> None:
        """Start it. `log` is appended to."""
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=CHECKOUT,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self.process.poll()

    def terminate(self) -> None:
        """SIGTERM, once: a worker takes the second one for an order to leave everything as it is."""
        self.process.terminate()

    def join(self, timeout: float) -> int:
        """Its exit code, or -9 if it had not ended after `timeout` seconds and was killed."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL to it and to everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def last_words(self, count: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.exit_code is None:
            self.kill()
