"""What the documents call a test is one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py|…)?(?:::(\w+))?`")


def missing(text: str) -> list[str]:
    """Names of tests and of their files, in backticks, that lead nowhere; ``::name`` is in the file named before."""
    found, path = [], ""
    for file, name in _NAMED.findall(text):
        path = file if file.startswith("tests/") else path
        if not (ROOT / path).is_file():
            found.append(path)
        elif name and name not in functions(path):
            found.append(f"{path}::{name}")
    return found


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("document", ["docs/guarantees.md", "tests/chaos/README.md", "tests/contract/README.md"])
def test_every_test_that_a_document_names_is_there(document: str) -> None:
    text = (ROOT / document).read_text()
    assert text.count("::test_") > 20
    assert missing(text) == []


def test_a_name_that_leads_nowhere_is_found() -> None:
    here = "tests/ground/test_guarantees.py"
    good = f"`{here}::test_every_test_that_a_document_names_is_there` and `::test_a_name_that_leads_nowhere_is_found`"
    assert missing(good) == []
    assert missing(f"{good}, `::test_nothing`, `tests/nowhere.py`") == [f"{here}::test_nothing", "tests/nowhere.py"]
