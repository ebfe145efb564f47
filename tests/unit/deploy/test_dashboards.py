"""Every metric and label in rules and dashboards exists, and every expression is valid PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from shared.observability.metrics import Metric
from tests.support.metrics import DECLARED

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "toolscale.json"
PROMTOOL = shutil.which("promtool")


SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
}
SERIES = {metric.name + suffix: metric for metric in DECLARED for suffix in SUFFIXES[metric.kind]}
# of every series, and of those of histograms
OF_ALL, OF_BUCKETS = {"job", "instance"}, {"le"}
NOTHING: set[str] = set()
VARIABLES = {"job": "$job", "instance": "$instance"}

_SELECTED = re.compile(r"(toolscale_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [target["expr"] for panel in panels() for target in panel["targets"]]


def selected(expression: str) -> Iterator[tuple[Metric, str, dict[str, str]]]:
    """Yield each metric that an expression selects, by which series, and with which values of labels."""
    for name, matchers in _SELECTED.findall(expression):
        assert name in SERIES, f"no metric {name}: {expression}"
        yield SERIES[name], name, dict(_MATCHER.findall(matchers))


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_metrics_labels_and_values_that_exist(expression: str) -> None:
    grouped = {label.strip() for labels in _GROUPED.findall(expression) for label in labels.split(",")}
    known: set[str] = set()

    for metric, name, matched in selected(expression):
        labels = OF_ALL | set(metric.labels) | (OF_BUCKETS if name.endswith("_bucket") else NOTHING)
        assert matched.keys() <= labels, expression
        assert {label: matched.get(label) for label in OF_ALL} in (VARIABLES, dict.fromkeys(OF_ALL)), expression
        of_metric = {label: values for label, values in matched.items() if label not in OF_ALL}
        for value in (value for values in of_metric.values() for value in values.split("|")):
            assert f"`{value}`" in metric.description or value == "find_tool", f"{value}: {expression}"
        known |= labels

    assert grouped <= known


def test_every_metric_is_shown_by_the_dashboard() -> None:
    shown = {metric.name for target in _targets() for metric, _, _ in selected(target["expr"])}

    # the age of the process's last reconciliation adds little to the catalogue's age
    assert {metric.name for metric in DECLARED} - shown == {"toolscale_last_reconcile_seconds", *_COUNTED_ELSEWHERE}


# a sweep's servers are reconciliations, and the servers that are announced are those of the catalogue, a moment earlier
_COUNTED_ELSEWHERE = {"toolscale_swept_servers_total", "toolscale_servers_announced"}


def test_every_panel_follows_the_variables_of_job_and_instance() -> None:
    variables = json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]
    expected = [{"job": "$job", "instance": "$instance"}]

    for target in _targets():
        found = [matched for _, _, matched in selected(target["expr"])]
        assert [{label: matched[label] for label in OF_ALL} for matched in found] == expected * len(found)
        assert found
    assert [variable["name"] for variable in variables] == ["job", "instance"]
    for variable in variables:
        assert variable["query"]["query"].endswith(f", {variable['name']})")
        assert (variable["includeAll"], variable["multi"], variable["allValue"]) == (True, True, ".*")


def _targets() -> list[dict[str, Any]]:
    return [target for panel in panels() for target in panel["targets"]]


def test_a_legend_names_labels_that_its_expression_leaves() -> None:
    for target in _targets():
        left = {label.strip() for labels in _GROUPED.findall(target["expr"]) for label in labels.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, target


def test_the_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    titles = [panel["title"] for panel in panels()]
    cells = [cell for panel in panels() for cell in _cells(panel["gridPos"])]

    assert len(set(titles)) == len(titles)
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def _cells(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    return ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]

    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_can_be_parsed_and_its_functions_get_what_they_take(expression: str) -> None:
    parsed(expression)


@pytest.mark.parametrize("expression", expressions())
def test_what_only_grows_is_shown_by_its_rate_and_nothing_else_is(expression: str) -> None:
    over_ranges, at_moments = series(expression)

    assert {SERIES[name].kind for name in over_ranges} <= {"counter", "histogram"}
    assert {SERIES[name].kind for name in at_moments if name != "up"} <= {"gauge", "gaugehistogram"}


def parsed(expression: str) -> promql_parser.Expr:
    """Return the expression as Prometheus reads it; Grafana fills in its own variable before."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m"))


def series(expression: str) -> tuple[Counter[str], Counter[str]]:
    """Return the names of the series that an expression selects over a range, and of those at a moment."""
    over_ranges, selected = Counter[str](), Counter[str]()

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.MatrixSelector):
            over_ranges[part.vector_selector.name or ""] += 1
        elif isinstance(part, promql_parser.VectorSelector):  # that of a range comes too
            selected[part.name or ""] += 1

    promql_parser.walk(parsed(expression), visit)
    return over_ranges, selected - over_ranges


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_itself_accepts_the_rules() -> None:
    checked = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
