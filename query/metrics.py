"""The metrics of the query service and of its catalogue."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry

from shared.catalog import ServerState
from shared.errors import IndexUnavailable
from shared.observability.metrics import Metric, counter, gauge, histogram, histogram_of
from shared.observability.unreadable import UNREADABLE

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeHistogramMetricFamily, GaugeMetricFamily

    from query.response.find_response import FindResponse
    from query.response.timings import Timings
    from shared.catalog import ServerRecord

    Family = GaugeMetricFamily | GaugeHistogramMetricFamily

# Of the servers with the oldest lists, or the most changes, so many get a time series each.
NAMED = 10

STATUSES = ("running", "quarantined", "stopped")
STATES = get_args(ServerState)

REQUESTS = Metric(
    "toolscale_requests_total",
    "counter",
    "requests",
    "Calls of built-in tools, or of a toolset's (`direct`), and `resources/read`: `ok`; `refused`: an error result or "
    "an invalid cursor; `error`: another error of the protocol.",
    ("tool", "outcome"),
)
REQUEST_SECONDS = Metric(
    "toolscale_request_seconds",
    "histogram",
    "seconds",
    "Duration of these calls, from arguments to response.",
    ("tool",),
)
FIND_SECONDS = Metric(
    "toolscale_find_seconds",
    "histogram",
    "seconds",
    "Duration of the parts of `find_tool`: `embed` the query, `search`, `sum` the baseline, and `fit` the "
    "response to its budget.",
    ("part",),
)
NO_MATCH = Metric("toolscale_no_match_total", "counter", "requests", "Searches without a matching tool.")
BASELINE = Metric(
    "toolscale_tokens_baseline_total",
    "counter",
    "tokens",
    "Tokens of all tools in the caller's scope, once per search; further pages count nothing.",
    ("encoding",),
)
RETURNED = Metric(
    "toolscale_tokens_returned_total",
    "counter",
    "tokens",
    "Tokens of the tools in responses of searches.",
    ("encoding",),
)
SAVED = Metric(
    "toolscale_tokens_saved_total",
    "counter",
    "tokens",
    "Baseline less returned tokens of searches, without their further pages.",
    ("encoding",),
)
CALLS = Metric(
    "toolscale_calls_total",
    "counter",
    "calls",
    "Calls of servers' tools, and reads of their resources: `ok`, `tool_error` (the tool's error), `cancelled`, or the "
    "class of the error, such as `ArgumentsInvalid` and `ToolNotFound`, which are of the request, and `CallDenied`, "
    "of the policy.",
    ("outcome",),
)
CALL_SECONDS = Metric("toolscale_call_seconds", "histogram", "seconds", "Duration of these calls, connecting included.")
CALLS_FAILED_OVER = Metric(
    "toolscale_calls_failed_over_total",
    "counter",
    "calls",
    "Attempts of calls that another replica replaced, by the class of their error.",
    ("error",),
)
RESPONSES_TRUNCATED = Metric(
    "toolscale_responses_truncated_total",
    "counter",
    "answers",
    "Responses above the token budget, by their form: `summary`, `name`s, or the first `page`.",
    ("tool", "form"),
)
INDEX_UP = Metric("toolscale_index_up", "gauge", "boolean", "1: the index answers; 0: it does not.")
SERVERS = Metric(
    "toolscale_servers",
    "gauge",
    "servers",
    "Servers of the catalogue, each in one state: `running`; `stale`: running, and its last reconciliation failed; "
    "`quarantined`, `stopped`; `awaited`: not listed yet. `toolscale_servers_announced` counts them too, before their "
    "first reconciliation.",
    ("state",),
)
TOOLS = Metric(
    "toolscale_tools", "gauge", "tools", "Tools of servers that are `running`, `quarantined` or `stopped`.", ("status",)
)
TOOLS_REJECTED = Metric(
    "toolscale_tools_rejected", "gauge", "tools", "Tools that servers offer and that cannot be used."
)
TOOLS_CHANGED = Metric(
    "toolscale_tools_changed",
    "gauge",
    "tools",
    f"Tools with changed definitions that no operator has accepted, of the {NAMED} servers with the most.",
    ("server",),
)
CATALOGUE_TOKENS = Metric(
    "toolscale_catalogue_tokens", "gauge", "tokens", "Tokens of all tools of running servers.", ("encoding",)
)
LIST_AGE = Metric(
    "toolscale_list_age_seconds",
    "gaugehistogram",
    "seconds",
    "Age of the last list of each running server, at most a minute too high.",
    buckets=(60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0),
)
STALEST_AGE = Metric(
    "toolscale_stalest_server_seconds",
    "gauge",
    "seconds",
    f"Age of the last list of the {NAMED} running servers with the oldest lists.",
    ("server",),
)

METRICS = (
    *(
        REQUESTS,
        REQUEST_SECONDS,
        FIND_SECONDS,
        NO_MATCH,
        BASELINE,
        RETURNED,
        SAVED,
        CALLS,
        CALL_SECONDS,
        CALLS_FAILED_OVER,
        RESPONSES_TRUNCATED,
    ),
    *(INDEX_UP, SERVERS, TOOLS, TOOLS_REJECTED, TOOLS_CHANGED, CATALOGUE_TOKENS, LIST_AGE, STALEST_AGE),
)


class QueryMetrics:
    """The counters and timers of one query service. Safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Create the metrics at 0 in `registry`, which a worker in this process has, or in a new one."""
        self.registry = CollectorRegistry() if registry is None else registry
        if registry is None:
            self.registry.register(UNREADABLE)
        self._requests = counter(REQUESTS, self.registry)
        self._request_seconds = histogram(REQUEST_SECONDS, self.registry)
        self._find_seconds = histogram(FIND_SECONDS, self.registry)
        self._no_match = counter(NO_MATCH, self.registry)
        self._baseline = counter(BASELINE, self.registry)
        self._returned = counter(RETURNED, self.registry)
        self._saved = counter(SAVED, self.registry)
        self._calls = counter(CALLS, self.registry)
        self._call_seconds = histogram(CALL_SECONDS, self.registry)
        self._calls_failed_over = counter(CALLS_FAILED_OVER, self.registry)
        self._responses_truncated = counter(RESPONSES_TRUNCATED, self.registry)

    def count_request(self, tool: str, outcome: str, seconds: float) -> None:
        """Count and time a call of a built-in tool, or of a toolset's."""
        self._requests.labels(tool, outcome).inc()
        self._request_seconds.labels(tool).observe(seconds)

    def count_search(self, response: FindResponse, timings: Timings, *, is_new: bool) -> None:
        """Count a search and time its parts; a further page of a search is not new."""
        tokens = response.token_metrics
        self._returned.labels(tokens.encoding).inc(tokens.returned_tokens)
        if is_new:
            self._baseline.labels(tokens.encoding).inc(tokens.baseline_tokens)
            self._saved.labels(tokens.encoding).inc(tokens.tokens_saved)
            self._no_match.inc(bool(response.no_match))
        for part in ("embed", "search", "sum", "fit"):
            if part_ms := getattr(timings, f"{part}_ms"):  # a response that is sent again has no parts
                self._find_seconds.labels(part).observe(part_ms / 1e3)

    def count_call(self, outcome: str, seconds: float) -> None:
        """Count and time a call of a server's tool."""
        self._calls.labels(outcome).inc()
        self._call_seconds.observe(seconds)

    def count_failover(self, error: str) -> None:
        """Count an attempt of a call that another replica replaces."""
        self._calls_failed_over.labels(error).inc()

    def count_truncated(self, tool: str, form: str) -> None:
        """Count a response above its budget."""
        self._responses_truncated.labels(tool, form).inc()


@dataclass(frozen=True, slots=True)
class CatalogueGauges:
    """A collector that reads the server records at each scrape."""

    records: Callable[[], Iterable[ServerRecord]]

    def collect(self) -> Iterator[Family]:
        """Yield the current gauges; without an answer from the index, only `toolscale_index_up`."""
        try:
            records = list(self.records())
        except IndexUnavailable:
            yield gauge(INDEX_UP, 0)
            return
        yield gauge(INDEX_UP, 1)
        yield gauge(SERVERS, dict.fromkeys(STATES, 0.0) | _states(records))
        yield gauge(TOOLS, dict.fromkeys(STATUSES, 0.0) | _tools(records))
        yield gauge(TOOLS_REJECTED, sum(len(record.rejected) for record in records))
        yield gauge(TOOLS_CHANGED, _most({each.server_id: each.unaccepted for each in records if each.unaccepted}))
        running = [record for record in records if record.status == "running" and record.is_listed]
        yield gauge(CATALOGUE_TOKENS, _tokens(running))
        yield from _ages(running)


def _states(records: Sequence[ServerRecord]) -> dict[str, float]:
    return dict(Tally(record.state for record in records))


def _tools(records: Sequence[ServerRecord]) -> dict[str, float]:
    tools: Tally[str] = Tally()
    for record in records:
        tools[record.status] += record.tool_count
    return dict(tools)


def _tokens(records: Sequence[ServerRecord]) -> dict[str, float]:
    tokens: Tally[str] = Tally()
    for record in records:
        tokens.update(record.tokens)
    return dict(tokens)


def _ages(records: Sequence[ServerRecord]) -> Iterator[Family]:
    now = time.time()
    ages = {record.server_id: max(0.0, now - (record.last_listed_at or now)) for record in records}
    yield histogram_of(LIST_AGE, ages.values())
    yield gauge(STALEST_AGE, _most(ages))


def _most(by_server: Mapping[str, float]) -> dict[str, float]:
    """Return the servers with the largest values: each is a value of a label, so they are few."""
    return {server: by_server[server] for server in nlargest(NAMED, by_server, key=by_server.__getitem__)}
