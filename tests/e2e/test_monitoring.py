"""The alerts and the dashboard of docs/monitoring, under a real Prometheus that scrapes a real process.

Its configuration is the one that docs/monitoring.md shows, with the addresses and paths of the test.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psycopg
import pytest
from django.test import Client, override_settings
from prometheus_client.parser import text_string_to_metric_families
from verbs.rows import wait_for

from testproject.processes import CHECKOUT, Child

DOCS = CHECKOUT / "docs"
RULES = DOCS / "monitoring" / "prometheus-rules.yml"
DASHBOARD = DOCS / "monitoring" / "grafana-dashboard.json"
PAGE = DOCS / "monitoring.md"
RULES_TEST = Path(__file__).with_name("prometheus_rules_test.yml")

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="prometheus is not installed: apt-get install prometheus",
)

TOKEN = "token-of-the-test"
# A schedule of the demo keeps the counters moving. The other one sends mail, and nobody takes it here: what fails is
# not to be dead before DIE.
PRODUCE = """
import django
django.setup()
from testproject import timetable
from testproject.shop.tasks import book_stock, send_receipt
del timetable.SCHEDULES["demo: takings"]
timetable.open_()
book_stock.enqueue(0)
send_receipt.using(max_attempts=20).enqueue(0)
book_stock.using(queue_name="nobody").enqueue(0)
"""
DIE = """
import django
django.setup()
from testproject.shop.tasks import send_receipt
send_receipt.using(max_attempts=1).enqueue(0)
"""


def promtool(*arguments: str, given: str | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the files -------------------------------------------------------------------------------------------------


@needs_prometheus
def test_the_rules_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@needs_prometheus
def test_each_alert_fires_where_it_must_and_not_where_it_must_not() -> None:
    promtool("test", "rules", str(RULES_TEST))
    told = set(re.findall(r'alertname="(\w+)", alertstate="firing"', RULES_TEST.read_text()))
    assert told == set(alerts()), "an alert that never fires in the tests"


def alerts() -> dict[str, str]:
    """By name, the text of each."""
    blocks = re.split(r"\n      - (?=alert: |record: )", RULES.read_text())
    return {found[1]: block for block in blocks if (found := re.match(r"alert: (\w+)\n", block))}


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    page = PAGE.read_text()
    assert len(alerts()) == 15
    for name, block in alerts().items():
        assert re.search(r"^          severity: (critical|warning)$", block, re.M), name
        for annotation in ("summary", "description"):
            assert re.search(rf"^          {annotation}: \S", block, re.M), name
        assert f"runbook_url: docs/monitoring.md#{name.lower()}\n" in f"{block}\n"
        assert f"\n### {name}\n" in page
    severities = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| .* \| (critical|warning) \|$", page, re.M)
    assert severities == [
        (name, name.lower(), block.partition("severity: ")[2].split()[0]) for name, block in alerts().items()
    ]


@cache
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_every_panel_of_the_dashboard_is_complete() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert ids == list(range(1, len(ids) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["type"] in {"stat", "timeseries", "heatmap", "table"}, "not Grafana's own"
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == source
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert 'job="$job", instance=~"$instance"' in target["expr"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {*variables(), "__rate_interval"}
    assert set(variables()) == {"datasource", "job", "instance", "queue", "task"}


def variables() -> dict[str, Any]:
    return {variable["name"]: variable for variable in dashboard()["templating"]["list"]}


def test_the_dashboard_is_read_by_grafanas_own_types_and_nothing_of_it_is_dropped() -> None:
    """Those of Grafana 10.1; later ones bring it up to date as they load it."""
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    assert list(dropped(dashboard(), json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard()))))) == []


def dropped(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where something of the one is not in the other, which may have more: defaults."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            yield from dropped(value, kept.get(name), f"{path}/{name}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for place, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from dropped(value, other, f"{path}/{place}")
    elif given != kept:
        yield path


# -- the queue and a Prometheus --------------------------------------------------------------------------------


@dataclass
class Monitored:
    """A shop with a worker, and the Prometheus that scrapes it."""

    page: str
    prometheus: str
    token: Path
    environ: dict[str, str]

    def metrics(self) -> str:
        with urlopen(Request(self.page, headers={"Authorization": f"Bearer {TOKEN}"}), timeout=10) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    def names(self) -> set[str]:
        return {sample.name for family in text_string_to_metric_families(self.metrics()) for sample in family.samples}

    def api(self, path: str, **words: str) -> Any:
        """Fails unless the status is success."""
        try:
            with urlopen(f"{self.prometheus}/api/v1/{path}?{urlencode(words)}", timeout=30) as answer:
                told = json.load(answer)
        except HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expression: str) -> list[Any]:
        return self.api("query", query=expression)["result"]  # type: ignore[no-any-return]

    def value(self, expression: str) -> float:
        """NaN where there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else math.nan

    def run(self, script: str) -> None:
        subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, env={**os.environ, **self.environ}, check=True)


@pytest.fixture(scope="module")
def monitored(empty_database: str, free_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    directory = tmp_path_factory.mktemp("monitored")
    token = directory / "token"
    token.write_text(TOKEN)
    environ = {
        "DATABASE_URL": empty_database,
        "DJANGO_SETTINGS_MODULE": "tests.machine.settings",
        "MACHINE_SETTINGS": json.dumps({"PGQUEUE": {"METRICS_TOKEN": TOKEN}}),
        "PYTHONPATH": str(CHECKOUT),
    }
    manage = "testproject.manage"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    shop = f"127.0.0.1:{free_port}"
    one = Monitored(f"http://{shop}/pgqueue/metrics", f"http://{address}", token, environ)
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Child:
            return stack.enter_context(Child(name, *command, log=directory / f"{name}.log", environ=environ))

        migrating = start("migrate", manage, "migrate", "--verbosity=0")
        assert migrating.join(60) == 0, migrating.last_words()
        one.run(PRODUCE)
        with psycopg.connect(empty_database) as connection:
            connection.execute(
                "UPDATE pgqueue_job SET run_after = run_after - interval '1 hour', "
                "enqueued_at = enqueued_at - interval '1 hour' WHERE queue_name = 'nobody'"
            )
        worker = start("worker", manage, "pgqueue_worker", "--queues", "default,mail,reports")
        web = start("web", manage, "runserver", shop, "--noreload", "--skip-checks")

        def finished_some() -> bool:
            assert worker.exit_code is None, worker.last_words()
            assert web.exit_code is None, web.last_words()
            try:
                return 'pgqueue_jobs_completed_total{queue="default"' in one.metrics()
            except URLError:
                return False

        wait_for(finished_some, 30)
        (directory / "prometheus.yml").write_text(configuration(shop, token))
        with (directory / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=log,
                stderr=log,
            )
        stack.callback(process.wait)
        stack.callback(process.kill)

        def ready() -> bool:
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            try:
                with urlopen(f"{one.prometheus}/-/ready", timeout=10):
                    return True
            except URLError:
                return False

        wait_for(ready, 30)
        wait_for(lambda: one.value("sum(rate(pgqueue_jobs_completed_total[1m]))") > 0, 60)
        yield one


def configuration(shop: str, token: Path) -> str:
    """The example of the documentation."""
    (text, *_) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    for theirs, ours in {
        '"shop.example"': f'"{shop}"',
        "scheme: https": "scheme: http",
        "/etc/prometheus/pgqueue-token": str(token),
        "- prometheus-rules.yml": f"- {RULES}",
        "scrape_interval: 15s": "scrape_interval: 2s",
        "scrape_timeout: 5s": "scrape_timeout: 2s",
    }.items():
        assert text.count(theirs) == 1, theirs
        text = text.replace(theirs, ours)
    return "global:\n  evaluation_interval: 1s\n" + text


@needs_prometheus
def test_the_page_has_nothing_that_promtool_objects_to(monitored: Monitored) -> None:
    promtool("check", "metrics", given=monitored.metrics())


@needs_prometheus
def test_prometheus_scrapes_with_the_configuration_of_the_docs(monitored: Monitored) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(monitored.page, timeout=10)
    assert refused.value.code == 401, "the token is not what opened it"
    (target,) = monitored.api("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert monitored.value("pgqueue_up") == 1


@pytest.mark.parametrize(
    ("words", "host", "status"),
    [
        ({}, "localhost", 200),
        ({}, "10.0.0.7", 400),
        ({"SECURE_SSL_REDIRECT": True}, "localhost", 301),
        ({"SECURE_SSL_REDIRECT": True, "SECURE_REDIRECT_EXEMPT": [r"^pgqueue/"]}, "localhost", 200),
    ],
)
def test_what_the_docs_say_of_hosts_and_redirects(words: dict[str, Any], host: str, status: int) -> None:
    with override_settings(**words):
        assert Client(headers={"Host": host}).get("/pgqueue/livez").status_code == status


METRIC = re.compile(r"pgqueue_\w+")


def filled(expression: str) -> str:
    """As Grafana sends it, with the first job and all of the rest chosen."""
    for name, value in {"__rate_interval": "1m", "job": "pgqueue"}.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    return re.sub(r"\$(instance|queue|task)\b", ".*", expression)


DRAWN = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]


@needs_prometheus
@pytest.mark.parametrize("expression", DRAWN)
def test_every_panel_shows_something(expression: str, monitored: Monitored) -> None:
    assert (named := set(METRIC.findall(expression)))
    assert named <= monitored.names()
    values = [float(series["value"][1]) for series in monitored.query(filled(expression))]
    assert any(map(math.isfinite, values)), values


@needs_prometheus
@pytest.mark.parametrize("name", ["job", "instance", "queue", "task"])
def test_every_variable_has_values_to_choose_from(name: str, monitored: Monitored) -> None:
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variables()[name]["query"]["query"])
    assert asked
    assert asked[2] == name
    assert set(METRIC.findall(asked[1])) <= monitored.names()
    values = {series["metric"].get(name) for series in monitored.query(filled(asked[1]))}
    assert values
    assert None not in values


@needs_prometheus
def test_every_rule_is_evaluated_and_names_metrics_that_exist(monitored: Monitored) -> None:
    (group,) = monitored.api("rules")["groups"]
    rules = {rule["name"]: rule for rule in group["rules"]}
    recorded = [name for name, rule in rules.items() if rule["type"] == "recording"]
    assert list(rules) == [*recorded, *alerts()]
    for name, rule in rules.items():
        wait_for(lambda: health(name, monitored) != "unknown")  # noqa: B023
        assert health(name, monitored) == "ok"
        named = set(re.findall(r"[\w:]*pgqueue_[\w:]+", rule["query"]))
        assert named
        assert named <= {*monitored.names(), *recorded}, name
        monitored.query(rule["query"])
    for name in recorded:
        # An increase is of two scrapes at least.
        wait_for(lambda: monitored.query(name), 30)  # noqa: B023


def health(name: str, monitored: Monitored) -> str:
    (rule,) = [rule for rule in monitored.api("rules")["groups"][0]["rules"] if rule["name"] == name]
    return str(rule["health"])


@needs_prometheus
def test_a_queue_without_a_worker_and_a_dead_letter_raise_their_alerts(monitored: Monitored) -> None:
    def alert(name: str) -> list[Any]:
        return [one for one in monitored.api("alerts")["alerts"] if one["labels"]["alertname"] == name]

    (unserved,) = wait_for(lambda: alert("PgqueueQueueWithoutWorker"))
    assert unserved["labels"]["severity"] == "critical", "the metric's own label is not the alert's"
    assert unserved["annotations"]["summary"] == "1 queue(s) have due jobs and no worker."
    assert alert("PgqueueDeadLetters") == []
    monitored.run(DIE)
    (dead,) = wait_for(lambda: alert("PgqueueDeadLetters"), 30)
    assert (dead["state"], dead["labels"]["queue"]) == ("firing", "mail")
    assert "pgqueue_requeue --state dead --queue mail" in dead["annotations"]["description"]


@needs_prometheus
def test_a_token_is_read_from_its_file_at_each_scrape(monitored: Monitored) -> None:
    def missing() -> bool:
        return any(
            alert["labels"]["alertname"] == "PgqueueScrapeMissing" for alert in monitored.api("alerts")["alerts"]
        )

    assert not missing()
    monitored.token.write_text(f"{TOKEN}x")
    try:
        wait_for(missing, 20)
        (target,) = monitored.api("targets")["activeTargets"]
        assert "401" in target["lastError"]
    finally:
        monitored.token.write_text(TOKEN)
    wait_for(lambda: monitored.value("pgqueue_up") == 1 and not missing(), 20)
