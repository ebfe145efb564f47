"""The use of one tool over some days, for its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from query.history.periods import days_of, today
from query.reports.access import is_unrestricted
from query.reports.savings import UsageRow, usage_row

if TYPE_CHECKING:
    from query.caller import Caller
    from query.history.store import SavingsHistory

COUNTERS = ("answers", "calls", "failed_calls", "ms", "bytes")


class ToolUse(NamedTuple):
    """The use of a tool, and the mean duration of its calls in milliseconds; None without a call."""

    row: UsageRow
    mean_ms: int | None


def tool_use(caller: Caller, tool: str, server_ids: Collection[str], period: str, history: SavingsHistory) -> ToolUse:
    """Return the use of a tool on these servers, which are in the caller's scope: of all callers, or the caller's own.

    Raises:
        ValueError: `days_of` rejects the period.
        HistoryUnavailable: the store did not answer.
    """
    first, last = days_of(period, today())
    sees_all, sums = is_unrestricted(caller), Counter[str]()
    for (name, server, of_tool), counts in history.sums(first, last, COUNTERS).items():
        if of_tool == tool and server in server_ids and (sees_all or name == caller.name):
            sums.update(counts)
    return ToolUse(usage_row(tool, sums), round(sums["ms"] / sums["calls"]) if sums["calls"] else None)
