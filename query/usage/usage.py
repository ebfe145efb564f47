"""The rows of usage, the contract of their stores, and the periods of days that a report covers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from shared.settings import Settings

FILE = "savings.sqlite3"
MAX_DAYS = 400
# The name of the rest; no server can have it.
OTHERS = "(others)"
TOOLS_LIST = "tools/list"

# Beyond either limit, a row that is new to its day counts as OTHERS. A row has at most six counters.
MAX_COUNTERS_A_DAY = 10_000
MAX_NAMES_BYTES = 200
"""Of caller, server and tool together, as JSON."""


class RowKey(NamedTuple):
    """Key of a row: a caller's use of a server's tool on a day; without a server, of `tools/list` or a tool of ours."""

    day: date
    caller: str
    server: str
    tool: str

    @property
    def names(self) -> str:
        """Return caller, server and tool as JSON, in ASCII."""
        return json.dumps(self[1:], separators=(",", ":"))

    @property
    def overflow(self) -> RowKey:
        """Return the row that counts for this one beyond the limits."""
        return RowKey(self.day, OTHERS, *((OTHERS, OTHERS) if self.server else ("", self.tool)))


Counts = Mapping[str, int]
"""Counters by name; every row has `answers`, which may be 0.

Of `tools/list`: `answers` (first pages), `tokens`, `bytes`, `baseline_tokens`, `baseline_tools`.
Of a tool of ours: `answers`, `tokens`, `bytes`; of `find_tool` also `searches`, `found_nothing`, `tokens_saved`;
of `run_script` also `inner_tokens`, `result_tokens`.
Of a server's tool: `answers` that showed it, `calls`, `failed_calls`, their `ms`, `bytes` of its results.
"""
Row = tuple[RowKey, Counts]
Rows = Mapping[RowKey, Counts]

Use = tuple[str, str, str]
"""Caller, server and tool of rows of several days."""


class CatalogueSize(NamedTuple):
    """The number of servers with tools, and the cost of all their tools to a context."""

    servers: int
    tools: int
    tokens: int


class Usage(Protocol):
    """Counters by day, caller, server and tool, and the catalogue's size by day. Safe to call from several threads.

    A day is kept for TOOLSCALE_SAVINGS_KEEP_DAYS.
    Every method raises HistoryUnavailable when the store does not answer.
    """

    def add(self, rows: Rows) -> None:
        """Add these counters to those of the same keys; see `bounded`."""
        ...

    def raise_to(self, rows: Rows) -> int:
        """Raise the counters of these rows to at least these amounts; return how many rows had less. Safe to repeat.

        For the rows of a backup, which were within the limits: a row that `bounded` adds to OTHERS would be missing
        again in the next restore.
        """
        ...

    def rows(self, first: date, last: date) -> Rows:
        """Return all rows of these days, both included."""
        ...

    def sums(
        self,
        first: date,
        last: date,
        counters: Collection[str],
        servers: Collection[str] | None = None,
        tool: str | None = None,
    ) -> Mapping[Use, Counts]:
        """Return the sums of these counters over these days, both included, without those that are missing.

        Those of some servers, or of a tool of this name, are read without the rows of all others.
        """
        ...

    def put_size(self, day: date, size: CatalogueSize) -> None:
        """Store the day's size, replacing an earlier one."""
        ...

    def sizes(self, first: date, last: date) -> Mapping[date, CatalogueSize]:
        """Return the sizes by day, both days included, without days that have none."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


def open_usage(settings: Settings) -> Usage:
    """Open the usage: in Redis where REDIS_URL is set, else a file in the data directory.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    if settings.redis_url:
        from query.usage.store_redis import TIMEOUT_S, RedisUsage  # noqa: PLC0415
        from shared.service.redis import connect  # noqa: PLC0415

        client = connect(settings.redis_url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S)
        return RedisUsage(client, settings.savings_keep_days)
    from query.usage.store_sqlite import SqliteUsage  # noqa: PLC0415

    return SqliteUsage(settings.data_dir / FILE, settings.savings_keep_days)


def summed(rows: Iterable[Row]) -> dict[RowKey, Counter[str]]:
    """Return the sums by key."""
    sums: dict[RowKey, Counter[str]] = {}
    for key, counts in rows:
        sums.setdefault(key, Counter()).update(counts)
    return sums


def bounded(rows: Rows, known: Collection[RowKey], counters: int) -> dict[RowKey, Counter[str]]:
    """Return the rows of a day as its store keeps them: beyond the limits, those that are not `known` as OTHERS.

    `counters` is how many the day has. Without limits, a day of many callers and tools would fill Redis, which must
    not evict.
    """
    kept: list[Row] = []
    for key, counts in rows.items():
        is_new = key not in known
        if is_new and (counters >= MAX_COUNTERS_A_DAY or len(key.names) > MAX_NAMES_BYTES):
            kept.append((key.overflow, counts))
        else:
            kept.append((key, counts))
            counters += len(counts) if is_new else 0
    return summed(kept)


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def days_between(first: date, last: date) -> list[date]:
    """Return the days from the first to the last, both included."""
    return [first + timedelta(days=count) for count in range((last - first).days + 1)]


def days_of(period: str, now: date) -> tuple[date, date]:
    """Return the first and the last day, both included: of `7d` today and the six days before, of a date that day.

    Raises:
        ValueError: the period is neither `today`, nor a number of days, 1 to MAX_DAYS, nor a date.
    """
    if period == "today":
        return now, now
    if match := re.fullmatch(r"([0-9]{1,3})d", period):
        days = int(match[1])
        if 1 <= days <= MAX_DAYS:
            return now - timedelta(days=days - 1), now
    elif re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", period):
        day = date.fromisoformat(period)
        return day, day
    raise ValueError(f"expected today, 1d to {MAX_DAYS}d or a date such as 2026-11-21, got {period!r}")
