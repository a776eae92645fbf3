"""The laws of the house that the source itself can break: who imports whom, and who writes what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgqueue_django

ROOT = Path(pgqueue_django.__file__).parent

# A module imports only what stands before it.
ORDER = (  # as lines of words: a list of strings reads worse
    """
    exceptions logs states backoff cron payload context outcomes compat conf options tracing
    models search argument_index
    audit wakeups queues stats transitions tasks results schedules snapshot counts problems failures walks redaction
    worker worker.memory worker.server worker.probe worker.telemetry worker.board worker.connections worker.guard
    worker.executor worker.slots worker.announcer worker.heartbeat worker.chores worker.listener worker.supply
    worker.loop worker.supervisor worker.process worker.progress worker.reload
    metrics backend answers deadline access views prometheus
    api.errors api.reading api.cursors api.limits api.shapes api.waiting api.endpoint api.enqueueing
    api.views api.urls api
    dashboard.wording dashboard.charts dashboard.script dashboard.live dashboard.frames dashboard.stream
    dashboard.excerpts dashboard.tracebacks dashboard.timeline dashboard.related dashboard.public dashboard
    public_urls urls
    admin.rights admin.choices admin.listing admin.trails admin.actions admin.problems admin.calls admin.copies
    admin.detail admin.dashboard admin.jobs admin.workers admin.queues admin.schedules admin.audit_log admin
    testing.backends testing.kit testing pytest_plugin checks
    management management.arguments management.trails management.selection management.commands management.commands.*
    apps __init__
    """.strip()
).split()


def _name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


MODULES = {_name(path): path for path in sorted(ROOT.rglob("*.py")) if "migrations" not in path.parts}


def _place(module: str) -> int:
    for name in (module, f"{module.rpartition('.')[0]}.*", module.partition(".")[0]):
        if name in ORDER:
            return ORDER.index(name)
    raise AssertionError(f"{module} has no place in the order: give it one in this file and in the design")


def _imported(module: str, tree: ast.AST) -> Iterator[str]:
    """The modules of the package that are named in any import, wherever it stands."""
    path = MODULES[module]
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name.partition(".")[2] or "__init__" for name in names if name.split(".")[0] == ROOT.name)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            elif (node.module or "").split(".")[0] == ROOT.name:
                base = (node.module or "").split(".")[1:]
            else:
                continue
            base = [part for part in base if part]
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                yield inner if inner in MODULES else ".".join(base) or "__init__"


def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    place = _place(module)
    late = sorted({other for other in _imported(module, _tree(module)) if _place(other) >= place})
    assert not late, f"{module} imports {late}, which stand after it"


def test_the_order_names_no_module_twice() -> None:
    assert len(ORDER) == len(set(ORDER))


# -- one writer ------------------------------------------------------------------------------------------------

WRITING_SQL = re.compile(
    r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE(\s+TABLE)?|COPY)\s+(ONLY\s+)?\"?pgqueue_job\b", re.I
)
WRITING_CALLS = {"save", "delete", "create", "update", "get_or_create", "update_or_create"}
COMPANIONS = re.compile(r"\b(Worker|Queue|Schedule|Stat|Chore|Group|AuditEntry|_entries)\b")


def _orm_writes(tree: ast.AST) -> Iterator[str]:
    """Calls that look like the ORM writing something that is not one of the job table's companions."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        verb = node.func.attr.removeprefix("a")
        if verb not in WRITING_CALLS and not verb.startswith("bulk_"):
            continue
        if verb == "update" and (node.args or not node.keywords):
            continue  # a dict's or a set's: a queryset's takes keywords only
        if not COMPANIONS.search(ast.unparse(node.func.value)):
            yield ast.unparse(node)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"transitions"}))
def test_only_transitions_writes_jobs(module: str) -> None:
    assert not WRITING_SQL.search(MODULES[module].read_text())
    assert list(_orm_writes(_tree(module))) == []


def test_transitions_writes_jobs() -> None:
    assert WRITING_SQL.search(MODULES["transitions"].read_text()), "or the test above looks for the wrong thing"


@pytest.mark.parametrize(
    ("source", "writes"),
    [
        ("job.save()", True),
        ("queryset.update(state='queued')", True),
        ("Job.objects.filter(pk=1).delete()", True),
        ("Job.objects.bulk_create([])", True),
        ("Worker.objects.filter(pk=1).delete()", False),
        ("names.update(others)", False),
    ],
)
def test_the_search_for_writers_knows_one_when_it_sees_it(source: str, writes: bool) -> None:
    assert bool(list(_orm_writes(ast.parse(source)))) == writes


AUDIT_SQL = re.compile(WRITING_SQL.pattern.replace("pgqueue_job", "pgqueue_audit"), re.I)


def _audit_writes(module: str) -> list[str]:
    """SQL that writes the audit log, and calls on its model that do."""
    calls = [ast.unparse(node) for node in ast.walk(_tree(module)) if isinstance(node, ast.Call)]
    by_orm = rf"\b(AuditEntry|_entries)\b.*\.a?({'|'.join(sorted(WRITING_CALLS))}|bulk_\w+)\("
    return [*AUDIT_SQL.findall(MODULES[module].read_text()), *(call for call in calls if re.search(by_orm, call, re.S))]


def test_only_audit_writes_the_audit_log() -> None:
    assert {module for module in MODULES if _audit_writes(module)} == {"audit"}
    assert len(_audit_writes("audit")) >= 3, "INSERT, UPDATE and DELETE, or this looks for the wrong thing"


# -- one reader ------------------------------------------------------------------------------------------------


def _importers(wanted: re.Pattern[str]) -> set[str]:
    found = set()
    for module in MODULES:
        for node in ast.walk(_tree(module)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names if not node.level]
            if any(wanted.match(name) for name in names):
                found.add(module)
    return found


def test_only_conf_reads_the_settings() -> None:
    assert _importers(re.compile(r"django\.conf\.settings\b|django\.conf$")) == {"conf"}


def test_only_compat_knows_djangos_tasks() -> None:
    assert _importers(re.compile(r"django\.tasks\b|django_tasks\b")) <= {"compat"}


def test_only_tracing_knows_opentelemetry_and_not_as_it_is_imported() -> None:
    assert _importers(re.compile(r"opentelemetry\b")) == {"tracing"}
    at_once = [ast.unparse(node) for node in _tree("tracing").body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [line for line in at_once if "opentelemetry" in line]


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "helpers", "common", "base", "core", "manager", "service"}
    assert not [module for module in MODULES if empty & set(module.split("."))]


def test_every_module_begins_with_its_contract() -> None:
    bare = {"apps", "management", "management.commands", "worker"}
    assert [module for module in MODULES if module not in bare and not ast.get_docstring(_tree(module))] == []
