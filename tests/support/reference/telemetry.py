"""`docs/telemetry-reference.md`: every log event and every metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from query import metrics as query_metrics
from shared.observability.log_events import FURTHER_FIELDS, LOG_EVENTS
from shared.observability.metrics import Metric
from tests.support.metrics import DECLARED
from tests.support.reference.log_calls import PACKAGES, LogCall, log_calls

HEAD = """\
# Telemetry reference

`make docs` writes this page from the code; [telemetry](telemetry.md) explains it.
"""
TITLES = {
    "workers": "Log events of the write side",
    "query": "Log events of the query service",
    "toolscale": "Log events of the command line and the embedded composition",
    "shared": "Log events of every process",
}


def render(_: str) -> str:
    """Return the page."""
    return "\n".join([HEAD, *_log_events(), *_metrics()]).rstrip() + "\n"


def _log_events() -> Iterator[str]:
    """Yield a table for each package; an event that several packages log is in the first of them."""
    shown: set[tuple[str, str]] = set()
    for package in PACKAGES:
        calls = [call for call in log_calls(package) if (call.event, call.level) not in shown]
        shown |= {(call.event, call.level) for call in calls}
        yield from _section(TITLES[package], ("event", "level", "fields", "meaning"), _event_rows(calls))


def _event_rows(calls: Sequence[LogCall]) -> Iterator[tuple[str, ...]]:
    for event, level in sorted({(call.event, call.level) for call in calls}):
        named = [name for call in calls if (call.event, call.level) == (event, level) for name in call.fields]
        yield f"`{event}`", level, _codes([*named, *FURTHER_FIELDS.get(event, ())]), LOG_EVENTS[event]


def _metrics() -> Iterator[str]:
    of_query = set(query_metrics.METRICS)
    columns = ("metric", "type", "unit", "labels", "meaning")
    yield from _section("Metrics of the write side", columns, _metric_rows(set(DECLARED) - of_query))
    yield from _section("Metrics of the query service", columns, _metric_rows(of_query))


def _metric_rows(metrics: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    for metric in sorted(metrics, key=lambda metric: metric.name):
        yield f"`{metric.name}`", metric.kind, metric.unit, _codes(metric.labels), metric.description


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"## {title}\n\n{_row(columns)}\n{'|---' * len(columns)}|"
    yield from map(_row, rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")
