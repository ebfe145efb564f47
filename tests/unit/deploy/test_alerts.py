"""Each alert fires in its situation only, checked with promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PROMTOOL = shutil.which("promtool")

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}

# Samples every 15 s in Prometheus's notation: `0+3x120` begins at 0 and grows by 3, 120 times, in half an hour.
Series = dict[str, str]
WORKER, QUERY, EVENTS_API = 'instance="worker:9464"', 'instance="query:8765"', 'instance="events-api:8766"'
BEAT, WATCHER = 'instance="beat:9464"', 'instance="watch-docker:9464",source="docker"'
SEARCHES = f'toolscale_request_seconds_bucket{{{QUERY},tool="find_tool",le="%s"}}'
WELL: Series = {
    f'up{{job="toolscale-worker",{WORKER}}}': "1x120",
    f'up{{job="toolscale-query",{QUERY}}}': "1x120",
    f"toolscale_sweeps_total{{{WORKER}}}": "1+3x120",
    f"toolscale_beat_last_tick_seconds{{{BEAT}}}": "3x120",
    f"toolscale_source_reconciled_seconds{{{WATCHER}}}": "20x120",
    f"toolscale_queue_oldest_seconds{{{WORKER}}}": "2x120",
    f"toolscale_reconcile_overdue_seconds{{{WORKER}}}": "0x120",
    f"toolscale_intents_up{{{WORKER}}}": "1x120",
    f"toolscale_redis_memory_bytes{{{WORKER}}}": "100x120",
    f"toolscale_redis_memory_limit_bytes{{{WORKER}}}": "400x120",
    f"toolscale_index_up{{{QUERY}}}": "1x120",
    f'toolscale_events_total{{{EVENTS_API},type="up",outcome="recorded"}}': "0+1x120",
    f'toolscale_events_total{{{EVENTS_API},type="up",outcome="not_recorded"}}': "3x120",
    f'toolscale_reconciles_total{{{WORKER},result="changed"}}': "0+1x120",
    f'toolscale_reconciles_total{{{WORKER},result="listing_failed"}}': "0+1x120",
    f'toolscale_reconciles_total{{{WORKER},result="failed"}}': "5x120",
    f'toolscale_servers{{{QUERY},state="quarantined"}}': "0x120",
    f'toolscale_stalest_server_seconds{{{QUERY},server="docs"}}': "400x120",
    f'toolscale_tools_changed{{{QUERY},server="docs"}}': "0x120",
    f'toolscale_audits_total{{{WORKER},result="equal"}}': "0+15x120",
    f'toolscale_audits_total{{{WORKER},result="differs"}}': "2x120",
    f"toolscale_dead_letters{{{WORKER}}}": "7x120",
    f'toolscale_requests_total{{{QUERY},tool="find_tool",outcome="ok"}}': "0+100x120",
    f'toolscale_requests_total{{{QUERY},tool="find_tool",outcome="error"}}': "0+1x120",
    f'toolscale_calls_total{{{QUERY},outcome="tool_error"}}': "0+100x120",
    f'toolscale_calls_total{{{QUERY},outcome="ServerTimeout"}}': "0+10x120",
    f'toolscale_calls_total{{{QUERY},outcome="ArgumentsInvalid"}}': "0+300x120",
    SEARCHES % "0.05": "0+99x120",
    SEARCHES % "0.5": "0+99x120",
    SEARCHES % "1.0": "0+100x120",
    SEARCHES % "+Inf": "0+100x120",
}

# The differing series of each situation, from the tenth minute if the series was normal before.
TROUBLE: dict[str, Series] = {
    "ToolscaleNoWorker": {f'up{{job="toolscale-worker",{WORKER}}}': "1x40 0x80"},
    "ToolscaleNoQueryService": {f'up{{job="toolscale-query",{QUERY}}}': "1x40 _x80"},
    "ToolscaleNothingSwept": {f"toolscale_sweeps_total{{{WORKER}}}": "1+3x40 121x80"},
    "ToolscaleBeatSilent": {f"toolscale_beat_last_tick_seconds{{{BEAT}}}": "3x40 3+15x80"},
    "ToolscaleQueueOld": {f"toolscale_queue_oldest_seconds{{{WORKER}}}": "2x40 2+15x80"},
    "ToolscaleReconcilesOverdue": {f"toolscale_reconcile_overdue_seconds{{{WORKER}}}": "0x40 0+15x80"},
    "ToolscaleIntentsDown": {f"toolscale_intents_up{{{WORKER}}}": "1x40 0x80"},
    "ToolscaleSourceNotFollowed": {f"toolscale_source_reconciled_seconds{{{WATCHER}}}": "20x40 20+15x80"},
    "ToolscaleEventsNotRecorded": {
        f'toolscale_events_total{{{EVENTS_API},type="up",outcome="not_recorded"}}': "3x40 3+1x80"
    },
    "ToolscaleRedisFull": {f"toolscale_redis_memory_bytes{{{WORKER}}}": "100x40 330x80"},
    "ToolscaleIndexDown": {f"toolscale_index_up{{{QUERY}}}": "1x40 0x80"},
    "ToolscaleReconcilesFail": {f'toolscale_reconciles_total{{{WORKER},result="failed"}}': "5x40 5+1x80"},
    "ToolscaleServersQuarantined": {f'toolscale_servers{{{QUERY},state="quarantined"}}': "0x40 1x80"},
    "ToolscaleServerStale": {f'toolscale_stalest_server_seconds{{{QUERY},server="docs"}}': "3500x40 5500+15x80"},
    "ToolscaleToolsChanged": {f'toolscale_tools_changed{{{QUERY},server="docs"}}': "0x40 2x80"},
    "ToolscaleCountsDiffer": {f'toolscale_audits_total{{{WORKER},result="differs"}}': "2x100 3x20"},
    "ToolscaleDeadLetters": {f"toolscale_dead_letters{{{WORKER}}}": "7x100 8x20"},
    "ToolscaleFindSlow": {SEARCHES % "0.05": "0+90x120", SEARCHES % "0.5": "0+90x120"},
    "ToolscaleRequestsFail": {f'toolscale_requests_total{{{QUERY},tool="find_tool",outcome="error"}}': "0+10x120"},
    "ToolscaleCallsFail": {f'toolscale_calls_total{{{QUERY},outcome="ServerTimeout"}}': "0+40x120"},
}


def test_every_alert_has_a_situation_here() -> None:
    assert TROUBLE.keys() == ALERTS.keys()
    assert all(series.keys() <= WELL.keys() for series in TROUBLE.values())


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("alert", TROUBLE)
def test_an_alert_fires_in_its_situation_and_no_other_does(alert: str, tmp_path: Path) -> None:
    assert fires(tmp_path, WELL | TROUBLE[alert], [alert]) == ""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    assert fires(tmp_path, WELL, []) == ""


def fires(directory: Path, series: Series, alerts: list[str]) -> str:
    """Return what Prometheus has to object if after 29 minutes exactly these alerts should fire."""
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "29m", "exp_samples": expected
    }  # fmt: skip
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [asked],
    }
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_says_where_it_is_told_what_to_do_and_is_told_of_there() -> None:
    section = OPERATIONS.partition("## When an alert fires\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    assert told == list(ALERTS)
    for rule in ALERTS.values():
        assert rule["annotations"]["runbook"] == "docs/operations.md#when-an-alert-fires"
