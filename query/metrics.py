"""All metrics of the query service: counters and a histogram of this process, and gauges of the catalogue.

Series with a known label are made at the start, so that an alert sees the first increase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

from shared.catalog import ENCODINGS, SERVER_STATES
from shared.errors import IndexUnavailable

if TYPE_CHECKING:
    from shared.catalog import ServerRecord

REQUESTS = Counter(
    "toolscale_requests_total",
    "Calls of built-in and direct tools, reads of resources, prompts and completions.",
    ["tool", "outcome"],
)
REQUEST_SECONDS = Histogram(
    "toolscale_request_seconds",
    "Duration of these calls, from arguments to response.",
    ["tool"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
CALLS = Counter(
    "toolscale_calls_total",
    "Calls of servers' tools, and requests for their resources, prompts and completions.",
    ["outcome"],
)
TOKENS_SAVED = Counter(
    "toolscale_tokens_saved_total", "Tokens saved by searches, without their further pages.", ["encoding"]
)

for _outcome in ("ok", "tool_error", "refused", "failed", "cancelled"):
    CALLS.labels(_outcome)
for _encoding in ENCODINGS:
    TOKENS_SAVED.labels(_encoding)


def begin_series(tools: Iterable[str]) -> None:
    """Begin the series of requests to these tools at 0."""
    for tool in tools:
        REQUEST_SECONDS.labels(tool)
        for outcome in ("ok", "refused", "error"):
            REQUESTS.labels(tool, outcome)


@dataclass(frozen=True, slots=True)
class CatalogueGauges:
    """A collector that reads the server records at each scrape."""

    records: Callable[[], Iterable[ServerRecord]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; without an answer from the index, only `toolscale_index_up`."""
        name, description = "toolscale_index_up", "1: the index answers; 0: it does not."
        try:
            records = list(self.records())
        except IndexUnavailable:
            yield GaugeMetricFamily(name, description, 0)
            return
        yield GaugeMetricFamily(name, description, 1)
        servers = GaugeMetricFamily("toolscale_servers", "Servers of the catalogue.", labels=["state"])
        for state in SERVER_STATES:
            servers.add_metric([state], sum(record.state == state for record in records))
        yield servers
        running = [record for record in records if record.status == "running" and record.is_listed]
        tools = sum(record.tool_count for record in running)
        yield GaugeMetricFamily("toolscale_tools", "Tools of running servers.", tools)
        tokens = GaugeMetricFamily("toolscale_catalogue_tokens", "Tokens of these tools.", labels=["encoding"])
        for encoding in ENCODINGS:
            tokens.add_metric([encoding], sum(record.tokens.get(encoding, 0) for record in running))
        yield tokens
        changed = sum(record.unaccepted for record in records)
        yield GaugeMetricFamily("toolscale_tools_changed", "Tools with changes that no operator accepted.", changed)
        held = sum(record.held for record in records)
        yield GaugeMetricFamily("toolscale_tools_held", "Changed tools that are not served until accepted.", held)
