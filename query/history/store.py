"""The rows of the usage history, and the contract of its stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple, Protocol

# The name of the rest; no server can have it.
OTHERS = "(others)"
# Beyond this limit, callers and tools that are new to the day are summed as OTHERS. A caller has at most six counters
# for each tool of ours, and five for each tool of a server: about 18,000 counters with names of usual lengths.
MAX_BYTES_A_DAY = 5 << 19
COUNTER_OVERHEAD_BYTES = 100
"""Of a counter in Redis, without the bytes of its names."""


@dataclass(frozen=True, slots=True)
class ServerSize:
    """The cost of all tools of a server; 0 if the server has no tools that can be found."""

    tools: int
    tokens: int


Sizes = Mapping[date, Mapping[str, ServerSize]]


class TotalSize(NamedTuple):
    """The sum over several servers: the number of those with tools, and the cost of all tools."""

    servers: int = 0
    tools: int = 0
    tokens: int = 0


TotalSizes = Mapping[date, TotalSize]


class RowKey(NamedTuple):
    """Key of a row: a caller's use of a server's tool on a day; without a server, of `tools/list` or a tool of ours."""

    day: date
    caller: str
    server: str
    tool: str

    @property
    def overflow(self) -> RowKey:
        """Return the row that counts for this one beyond MAX_BYTES_A_DAY."""
        return RowKey(self.day, OTHERS, *((OTHERS, OTHERS) if self.server else ("", self.tool)))


Counts = Mapping[str, int]
"""Counters by name; every row has `answers`, which may be 0.

Of `tools/list`: `answers` (first pages), `tokens`, `bytes`, `baseline_tokens`, `baseline_tools`.
Of a tool of ours: `answers`, `tokens`, `bytes`; of `find_tool` also `searches`, `found_nothing`, `tokens_saved`.
Of a server's tool: `answers` that showed it, `calls`, `failed_calls`, their `ms`, `bytes` of its results.
"""
Row = tuple[RowKey, Counts]
Rows = Mapping[RowKey, Counts]

Sums = Mapping[tuple[str, str, str], Counts]
"""Counters of several days by caller, server and tool."""


def summed(rows: Iterable[Row]) -> Rows:
    """Return the sums by key."""
    sums: dict[RowKey, Counter[str]] = {}
    for key, counts in rows:
        sums.setdefault(key, Counter()).update(counts)
    return sums


class SavingsHistory(Protocol):
    """Counters by day, caller, server and tool, and the servers' sizes by day. Safe to call from several threads.

    A day is kept for `keep_days`. It has counters of MAX_BYTES_A_DAY, those of OTHERS, and a size per server.
    Every method raises HistoryUnavailable when the store does not answer.
    """

    def add(self, rows: Rows) -> None:
        """Add these counters to those of the same keys."""
        ...

    def rows(self, first: date, last: date) -> Rows:
        """Return all rows of these days, both included."""
        ...

    def sums(self, first: date, last: date, counters: Collection[str]) -> Sums:
        """Return the sums of these counters over these days, both included, without those that are missing.

        In SQLite, much faster than a sum over `rows`.
        """
        ...

    def store_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        """Store the day's sizes of these servers, replacing earlier ones."""
        ...

    def sizes(self, first: date, last: date, server: str | None = None) -> Sizes:
        """Return the sizes by day and server, of one server or all, both days included.

        Days without sizes are left out.
        """
        ...

    def total_sizes(self, first: date, last: date, servers: Collection[str] | None = None) -> TotalSizes:
        """Return the sums over these servers, or all, by day, both days included; days without any size are left out.

        Much faster than a sum over `sizes`.
        """
        ...

    def close(self) -> None:
        """Release the store."""
        ...
