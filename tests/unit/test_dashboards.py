"""What Prometheus and Grafana are given: every metric and label they ask for exists, and the rules can be evaluated."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from query import metrics as query_metrics
from shared.metrics import Metric
from workers import metrics as worker_metrics
from workers.monitoring import queue

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "toolscale.json"
PROMTOOL = shutil.which("promtool")

METRICS = (*query_metrics.METRICS, *worker_metrics.METRICS, *queue.METRICS)

SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
}
SERIES = {metric.name + suffix: metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}
# of every series, and of those of histograms
OF_ALL, OF_BUCKETS = {"job", "instance"}, {"le"}
NOTHING: set[str] = set()

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
    return [rule["expr"] for rule in rules()] + [target["expr"] for each in panels() for target in each["targets"]]


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
        for value in (each for values in matched.values() for each in values.split("|")):
            assert f"`{value}`" in metric.description or value == "find_tool", f"{value}: {expression}"
        known |= labels

    assert grouped <= known


def test_every_metric_is_shown_by_the_dashboard() -> None:
    shown = {metric.name for target in _targets() for metric, _, _ in selected(target["expr"])}

    # the age of the process's own last look says little beside that of the catalogue
    assert {metric.name for metric in METRICS} - shown == {"toolscale_last_look_seconds", *_COUNTED_ELSEWHERE}


# a sweep's servers are looks, and the servers that are announced are those of the catalogue, a moment earlier
_COUNTED_ELSEWHERE = {"toolscale_swept_servers_total", "toolscale_servers_announced"}


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
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.parametrize("expression", expressions())
def test_the_brackets_of_an_expression_are_closed(expression: str) -> None:
    closes = {")": "(", "}": "{", "]": "["}
    opened: list[str] = []
    for character in re.sub(r'"[^"]*"', "", expression):
        if character in closes.values():
            opened.append(character)
        elif character in closes:
            assert opened
            assert opened.pop() == closes[character]

    assert opened == []


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_itself_accepts_the_rules() -> None:
    checked = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
