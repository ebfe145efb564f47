"""The bounds of the alerts on shares and percentiles, checked with promtool, and what to do about each alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.monitoring import ROOT, RULES, alerts

pytestmark = pytest.mark.process

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PROMTOOL = shutil.which("promtool")

# Samples every 15 s in Prometheus's notation: `0+3x120` begins at 0 and grows by 3, 120 times, in half an hour.
Series = dict[str, str]
SEARCHES = 'toolscale_request_seconds_bucket{tool="find_tool",le="%s"}'
WELL: Series = {
    'up{job="toolscale-worker"}': "1x120",
    'up{job="toolscale-beat"}': "1x120",
    'up{job="toolscale-query"}': "1x120",
    "toolscale_redis_memory_bytes": "300x120",
    "toolscale_redis_memory_limit_bytes": "400x120",
    "toolscale_dead_letters": "7x120",
    'toolscale_requests_total{tool="find_tool",outcome="ok"}': "0+100x120",
    'toolscale_requests_total{tool="find_tool",outcome="error"}': "0+1x120",
    'toolscale_calls_total{outcome="tool_error"}': "0+100x120",
    'toolscale_calls_total{outcome="failed"}': "0+10x120",
    'toolscale_calls_total{outcome="refused"}': "0+300x120",
    SEARCHES % "0.25": "0+99x120",
    SEARCHES % "0.5": "0+99x120",
    SEARCHES % "1.0": "0+100x120",
    SEARCHES % "+Inf": "0+100x120",
}
TROUBLE: dict[str, Series] = {
    "ToolscaleRedisFull": {"toolscale_redis_memory_bytes": "330x120"},
    "ToolscaleDeadLetters": {"toolscale_dead_letters": "7x100 8x20"},
    "ToolscaleFindSlow": {SEARCHES % "0.25": "0+90x120", SEARCHES % "0.5": "0+90x120"},
    "ToolscaleRequestsFail": {'toolscale_requests_total{tool="find_tool",outcome="error"}': "0+10x120"},
    "ToolscaleCallsFail": {'toolscale_calls_total{outcome="failed"}': "0+40x120"},
}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("alert", [None, *TROUBLE])
def test_an_alert_fires_in_its_situation_and_no_other_does(alert: str | None, tmp_path: Path) -> None:
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "29m", "exp_samples": firing
    }  # fmt: skip
    series = [{"series": name, "values": values} for name, values in (WELL | TROUBLE.get(alert or "", {})).items()]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": [asked]}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))

    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_severity_and_a_row_with_what_to_do() -> None:
    section = OPERATIONS.partition("## When an alert fires\n")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(alerts())
    for rule in alerts().values():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == "docs/operations.md#when-an-alert-fires"
