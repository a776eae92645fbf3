"""The examples of docs/curl.md, run as they stand there: by bash and curl, against a real server with a worker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from machine.workers import ROOT, database_url

from .websites import TOKEN, website, worker

# The one who logs in is in a table of another app.
pytestmark = pytest.mark.django_db(transaction=True)

PAGE = ROOT / "docs" / "curl.md"
MARK = "--- end of an answer"


class Example(NamedTuple):
    command: str
    answer: str


def examples() -> list[Example]:
    """``$ command``; the lines below are what it answers."""
    found: list[Example] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Example(line[2:], ""))
            else:
                found[-1] = Example(found[-1].command, f"{found[-1].answer}{line}\n")
    return found


# What differs from run to run, as re.escape writes it, and what it may be; all the rest is as it stands there.
DIFFERS = {
    r"\d{4}\\-\d\d\\-\d\dT[\d:]{8}\\\.\d{6}Z": r"\\d{4}-\\d\\d-\\d\\dT[\\d:]{8}\\.\\d{6}Z",
    r'("id":\\ |jobs/|Job\\ )\d+': r"\1\\d+",
    r"(\\\s)+": r"\\s+",
    "…": ".*",
}


def as_expected(answer: str) -> re.Pattern[str]:
    pattern = re.escape(answer.strip())
    for one, becomes in DIFFERS.items():
        pattern = re.sub(one, becomes, pattern)
    return re.compile(pattern, re.S)


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="there is no bash, or no curl")
def test_each_example_answers_what_stands_below_it(tmp_path: Path) -> None:
    User.objects.create_superuser("admin", password="tester")
    wanted = examples()
    with website(tmp_path, "asgi", METRICS_PUBLIC=True) as site, worker(tmp_path, "--queues", "reports,documents"):
        script = "".join(f"{one.command}\necho '{MARK}'\n" for one in wanted)
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script.replace("http://127.0.0.1:8000", site.url)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT}",
                "DATABASE_URL": database_url(),
                "SHOP_API_TOKEN": TOKEN,
                "ADMIN_PASSWORD": "tester",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
    answers = done.stdout.split(f"{MARK}\n")
    assert answers.pop() == "", done.stdout + done.stderr
    assert done.stderr == ""
    assert len(answers) == len(wanted) > 25
    for one, answer in zip(wanted, answers, strict=True):
        assert as_expected(one.answer).fullmatch(answer.strip().replace("\r", "")), f"$ {one.command}\n{answer}"
