"""`docs/telemetry-reference.md`: every metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from query import metrics as query_metrics
from shared.observability.metrics import Metric
from tests.support.metrics import DECLARED

HEAD = """\
# Telemetry reference

`make docs` writes this page from the code; [telemetry](telemetry.md) explains it.
"""


def render(_: str) -> str:
    """Return the page."""
    return "\n".join([HEAD, *_metrics()]).rstrip() + "\n"


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
