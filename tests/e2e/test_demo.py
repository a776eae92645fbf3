"""The demo as a person runs it: its own process, its own port, real workers, and books that must add up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


class Run:
    """One demo, short and rough: workers are killed every two seconds, and leases end as quickly."""

    def __init__(self, port: int, database: str, *arguments: str, **limits: object) -> None:
        self.port = port
        rough = {"DEMO_KILL_EVERY": 2, "DEMO_LEASE": 2, "DEMO_BURST_EVERY": 3, "DEMO_GRACE": 60}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testproject.demo", *arguments],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "DATABASE_URL": database,
                "DEMO_PORT": str(port),
                **{name: str(value) for name, value in {**rough, **limits}.items()},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> tuple[int, str]:
        """Its exit code and what it printed."""
        try:
            output, _ = self.process.communicate(timeout=110)
        finally:
            self.process.kill()
        return self.process.returncode, output

    def children_alive(self) -> list[str]:
        """Command lines of processes that only this demo can have started."""
        marks = (f"demo{self.process.pid}-", f"127.0.0.1:{self.port}")
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline"])
            if any(word.startswith(marks) for word in process.info["cmdline"] or ())
        ]


def test_no_order_loses_a_job_while_workers_are_killed(tmp_path: Path, free_port: int, empty_database: str) -> None:
    books_file = tmp_path / "books.json"

    run = Run(free_port, empty_database, "--seconds", "8", "--json", str(books_file))
    code, output = run.finish()

    assert code == 0, output
    books: dict[str, Any] = json.loads(books_file.read_text())
    states = books["states"]
    assert books["problems"] == []
    assert books["orders_acknowledged"] == books["orders"] > 0
    assert sum(states.values()) == books["jobs_found"] == books["jobs_expected"]
    assert states["succeeded"] > 0
    assert books["retries"] > 0
    assert states["scheduled"] == books["orders"], "one review of each order is to be asked for in three days"
    assert not states.keys() & {"queued", "running", "cancelled"}, "all that was due has ended"
    assert books["workers_killed"] > 0
    assert books["ticks"] > 0
    assert 0 < books["leases_expired"] == books["recovered"]
    assert books["pickup_ms_p50"] <= books["pickup_ms_p95"]

    table = dict(re.findall(r"^ *(\w+(?: \w+)*)  +(.+)$", output, re.MULTILINE))
    assert table["orders"] == f"{books['orders']} acknowledged, {books['orders']} committed"
    assert table["succeeded"] == str(states["succeeded"])
    assert run.children_alive() == []


def test_ctrl_c_closes_the_shop_and_checks_the_books(free_port: int, empty_database: str) -> None:
    """In the database and at the port of the test before: only what is new is counted."""
    run = Run(free_port, empty_database, DEMO_KILL_EVERY=0)
    assert run.process.stdout is not None
    for line in run.process.stdout:
        if re.search(r" orders [1-9]", line):
            break
    run.process.send_signal(signal.SIGINT)
    code, output = run.finish()

    assert code == 0, output
    assert "The books are right" in output
    acknowledged, committed = map(int, re.findall(r"^orders +(\d+) acknowledged, (\d+) committed", output, re.M)[0])
    assert committed >= acknowledged > 0
    expected, found = map(int, re.findall(r"^jobs +(\d+) expected, (\d+) found", output, re.M)[0])
    assert expected == found
    assert run.children_alive() == []


def test_a_busy_port_is_named_and_a_way_out_too(free_port: int, empty_database: str) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        code, output = Run(free_port, empty_database).finish()

    assert code == 2
    assert output.startswith(f"Port {free_port} of 127.0.0.1 cannot be used (Address already in use).")
    assert f"make demo DEMO_PORT={free_port + 1}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(("name", "value"), [("DEMO_RATE", "many"), ("DEMO_CARD_BUSY", "-1")])
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str, free_port: int, empty_database: str) -> None:
    code, output = Run(free_port, empty_database, **{name: value}).finish()

    assert code == 2
    assert output.startswith(f"{name}='{value}': give a number")


def test_a_database_that_does_not_answer_is_a_clear_message(free_port: int) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        code, output = Run(free_port, f"postgresql://postgres@127.0.0.1:{port}/shop").finish()

    assert code == 2
    assert output.startswith("The database cannot be used: ")
    assert "Traceback" not in output
