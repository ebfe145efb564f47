"""The alerts and the dashboard, and the metrics that their expressions select."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "toolscale.json"

_SELECTED = re.compile(r"\b(up|toolscale_\w+)\b(?:\{([^}]*)\})?(\[)?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\bby \(([^)]*)\)")


@dataclass(frozen=True)
class Selector:
    """A selection of series; `labels` are those that it names, without the dashboard's variables."""

    series: str
    labels: dict[str, str]
    over_range: bool


def alerts() -> dict[str, dict[str, Any]]:
    """Return the rules by the names of their alerts."""
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, without the rows between them."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def targets() -> list[dict[str, Any]]:
    """Return all expressions of the dashboard, each with its legend."""
    return [target for panel in panels() for target in panel["targets"]]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield each selection of an expression."""
    for series, matchers, range_ in _SELECTED.findall(expression):
        labels = {label: value for label, _, value in _MATCHER.findall(matchers) if not value.startswith("$")}
        yield Selector(series, labels, bool(range_))


def grouped(expression: str) -> set[str]:
    """Return the labels that an expression groups by."""
    return {label.strip() for labels in _GROUPED.findall(expression) for label in labels.split(",")}
