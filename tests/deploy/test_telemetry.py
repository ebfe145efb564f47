"""Every expression of the alerts and of the dashboard has a value on the metrics of real processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from shared.service.redis import connect
from tests.support.builders import up
from tests.support.events_api import Producer
from tests.support.metrics import families, scrape
from tests.support.monitoring import alerts, grouped, selectors, targets
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually
from tests.support.warm import cold_starts

# a fork of the tests would have the metrics of all modules that they loaded
pytestmark = [pytest.mark.process, pytest.mark.redis, pytest.mark.cold]

PROMETHEUS = shutil.which("prometheus")
REFERENCE = Path(__file__).parents[2] / "docs" / "telemetry.md"
TOKEN = "a-token-of-this-test"
# of every series, and of those of histograms
OTHER_LABELS = {"job", "instance", "le"}


@dataclass(frozen=True)
class Installation:
    """The processes of a composition: the port of each by its job, and what each showed before any event."""

    redis_url: str
    ports: dict[str, int]
    fresh: dict[str, str]

    def families(self) -> dict[str, Metric]:
        """Return the families of metrics that any fresh process showed, with the samples of all of them."""
        found: dict[str, Metric] = {}
        for text in self.fresh.values():
            for family in families(text):
                found.setdefault(family.name, family).samples.extend(family.samples)
        return {name: family for name, family in found.items() if not name.endswith("_created")}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Installation]:
    """Start each process of the composition, as on a machine of their own, without any server."""
    directory = tmp_path_factory.mktemp("telemetry")
    (directory / "mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    ports = {f"toolscale-{name}": free_port() for name in ("worker", "beat", "notifications", "events-api", "query")}
    monitored = {job: {"TOOLSCALE_METRICS_PORT": str(port)} for job, port in ports.items()}
    own_index = directory / "query"  # an index on disk belongs to one process
    own_index.mkdir()
    with ExitStack() as opened:
        opened.enter_context(cold_starts())
        redis_url = opened.enter_context(redis_server(directory, maxmemory=64 << 20))
        composition = Composition(
            redis_url,
            directory,
            {
                "QDRANT_URL": "",
                "TOOLSCALE_METRICS_PUBLIC": "true",
                "TOOLSCALE_EVENTS_TOKEN": TOKEN,
                "TOOLSCALE_EVENTS_PORT": str(ports["toolscale-events-api"]),
                "TOOLSCALE_PORT": str(ports["toolscale-query"]),
            },
        )
        mcp_json = {"TOOLSCALE_MCP_CONFIG": str(directory / "mcp.json")}
        for running in (
            composition.celery("worker", "worker", **monitored["toolscale-worker"], **mcp_json),
            composition.beat(**monitored["toolscale-beat"]),
            composition.run("notifications", "-m", "workers.notifications", **monitored["toolscale-notifications"]),
            composition.run("events-api", "-m", "workers.events_api"),
            composition.run("query", "-m", "query", TOOLSCALE_DATA_DIR=str(own_index)),
        ):
            opened.enter_context(running)
        for port in ports.values():
            eventually(partial(answers, f"http://127.0.0.1:{port}/readyz"))
        pages = {job: f"http://127.0.0.1:{port}/metrics" for job, port in ports.items()}
        eventually(lambda: "toolscale_task_wait_seconds_bucket" in scrape(pages["toolscale-worker"]), what="a sweep")
        yield Installation(redis_url, ports, {job: scrape(page) for job, page in pages.items()})


def answers(url: str) -> bool:
    """Return whether this page is there, with status 200."""
    try:
        with urlopen(url, timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def expressions() -> dict[str, str]:
    """Return the expressions of alerts and panels, each with its legend."""
    of_alerts = {rule["expr"]: "" for rule in alerts().values()}
    return of_alerts | {target["expr"]: target["legendFormat"] for target in targets()}


def test_every_series_that_an_expression_selects_is_shown_before_the_first_event(installation: Installation) -> None:
    shown = installation.families().values()
    kinds = {sample.name: family.type for family in shown for sample in family.samples}
    labels: dict[str, list[dict[str, str]]] = {}
    for sample in (sample for family in shown for sample in family.samples):
        labels.setdefault(sample.name, []).append(sample.labels)

    for expression, legend in expressions().items():
        selected = list(selectors(expression))
        assert selected, expression
        known = set(OTHER_LABELS)
        for selector in selected:
            if selector.series == "up":
                assert selector.labels["job"] in installation.ports, expression
                continue
            found = labels.get(selector.series, [])
            assert any(selector.labels.items() <= each.items() for each in found), expression
            assert selector.over_range == (kinds[selector.series] in {"counter", "histogram"}), expression
            known |= found[0].keys()
        assert grouped(expression) <= known, expression
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped(expression), expression


def test_counters_begin_at_zero_so_that_the_first_increase_is_one(installation: Installation) -> None:
    counters = [family for family in installation.families().values() if family.type == "counter"]

    selected = {selector.series for expression in expressions() for selector in selectors(expression)}
    shown = {sample.name for family in counters for sample in family.samples}
    assert {name for name in selected if name.endswith("_total")} == shown
    assert {sample.value for family in counters for sample in family.samples} == {0}


def test_the_reference_has_every_metric_that_a_process_shows_with_its_type_and_labels(
    installation: Installation,
) -> None:
    shown = {
        (sample.name if family.type == "counter" else name, family.type, *sorted(sample.labels.keys() - OTHER_LABELS))
        for name, family in installation.families().items()
        for sample in family.samples
    }
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in REFERENCE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `toolscale_")
    ]

    written = {(name, kind, *sorted(filter(None, labels.split(", ")))) for name, kind, labels, _ in rows}

    assert written == shown


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed: apt-get install prometheus")
def test_prometheus_evaluates_every_expression_and_the_alerts_see_a_first_failure(
    installation: Installation, tmp_path: Path
) -> None:
    events_api = Producer(f"http://127.0.0.1:{installation.ports['toolscale-events-api']}", TOKEN)
    with prometheus(installation, tmp_path) as values:
        for target in targets():
            panel = target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")
            eventually(partial(values, panel), what=panel)
        for rule in alerts().values():
            eventually(partial(values, without_bound(rule["expr"])), what=rule["expr"])
        eventually(lambda: not any(values(rule["expr"]) for rule in alerts().values()), what="no alert")

        with connect(installation.redis_url) as redis:
            redis.shutdown(nosave=True)
        assert events_api.post(up("docs").model_dump(mode="json")).status == 503

        for name in ("ToolscaleIntentsDown", "ToolscaleEventsNotRecorded"):
            eventually(partial(values, alerts()[name]["expr"]), what=name)


def without_bound(expression: str) -> str:
    """Return the part of an alert's expression that has a value also while all is well."""
    return re.sub(r" (>|==) [^()]+$| > max without .*$| unless .*$", "", expression)


@contextmanager
def prometheus(installation: Installation, directory: Path) -> Generator[Callable[[str], list[Any]]]:
    """Run Prometheus on these processes until the block ends; yield the function of the values of an expression."""
    assert PROMETHEUS
    address = f"127.0.0.1:{free_port()}"
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in installation.ports.items()
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    options = (f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}", "--log.level=error")
    process = subprocess.Popen([PROMETHEUS, f"--config.file={directory / 'prometheus.yml'}", *options])

    def values(expression: str) -> list[Any]:
        with urlopen(f"http://{address}/api/v1/query?{urlencode({'query': expression})}", timeout=30) as response:
            found: list[Any] = json.load(response)["data"]["result"]
        return found

    try:
        eventually(partial(answers, f"http://{address}/-/ready"), what="Prometheus")
        yield values
    finally:
        process.terminate()
        process.wait(60)
