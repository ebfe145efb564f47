"""Alerts are of one installation each, however many one Prometheus scrapes, and of what an operator has to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from query.metrics import CatalogueGauges
from tests.deploy.test_alerts import TROUBLE, WELL, Series
from tests.support.filled import record_of
from tests.support.monitoring import RULES, alerts

PROMTOOL = shutil.which("promtool")
# Labels of a target within an installation, in Compose and by a PodMonitor.
OF_TARGET = {"instance", "pod", "container", "endpoint", "job"}
_AGGREGATED = re.compile(r"\b(sum|max|min|avg|count|group|quantile|topk|stddev) ?(without|by)? ?(\(([^()]*)\))?")


@pytest.mark.parametrize("name", alerts())
def test_every_aggregation_keeps_the_labels_that_tell_installations_apart(name: str) -> None:
    expression = alerts()[name]["expr"]

    # a group that names labels to keep, or none, would lose a label that an operator's Prometheus adds
    for function, how, _, labels in _AGGREGATED.findall(expression):
        assert how == "without", (function, expression)
        assert {label.strip() for label in labels.split(",")} >= OF_TARGET
    for sign in (" / ", " > max"):
        for side in expression.split(sign) if sign in expression else ():
            assert "without" in side, expression


@pytest.mark.parametrize(("unaccepted", "held"), [(0, 0), (3, 0), (3, 1), (2, 2)])
def test_changed_tools_alert_only_where_they_are_held(unaccepted: int, held: int) -> None:
    records = [record_of("s", unaccepted=unaccepted, held=held), record_of("t")]

    found = {family.name: family.samples[0].value for family in CatalogueGauges(lambda: records).collect()}

    assert found["toolscale_tools_held"] == held
    assert [*re.findall(r"toolscale_\w+", alerts()["ToolscaleToolsChanged"]["expr"])] == ["toolscale_tools_held"]


def in_namespace(series: Series, namespace: str) -> Series:
    """Return these series with a label as the Prometheus Operator adds it."""
    return {
        name[:-1] + f',namespace="{namespace}"}}'
        if name.endswith("}")
        else f'{name}{{namespace="{namespace}"}}': values
        for name, values in series.items()
    }


@pytest.mark.process
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("alert", [None, *TROUBLE])
def test_the_trouble_of_one_installation_is_not_that_of_another(alert: str | None, tmp_path: Path) -> None:
    series = in_namespace(WELL, "one") | in_namespace(WELL | TROUBLE.get(alert or "", {}), "two")
    firing = [{"labels": f'{{alertname="{alert}",namespace="two"}}', "value": 1}] if alert else []
    expression = 'count by (alertname, namespace) (ALERTS{alertstate="firing"})'
    asked = {"expr": expression, "eval_time": "29m", "exp_samples": firing}
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "15s", "input_series": inputs, "promql_expr_test": [asked]}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))

    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
