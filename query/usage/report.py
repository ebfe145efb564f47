"""The savings report of a period, and the use of one tool.

Without Toolscale, a client would have loaded all tools of its scope instead of a `tools/list` of Toolscale. So the
first page of each list claims that baseline. A caller claims at most as many baselines a day as it received answers:
clients that only list claim nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date
from heapq import nsmallest
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict

from query.usage.usage import (
    OTHERS,
    TOOLS_LIST,
    CatalogueSize,
    Counts,
    RowKey,
    Rows,
    Usage,
    days_between,
    days_of,
    today,
)
from shared.catalog import point_id
from shared.text.tokens import PROFILE, Profile

if TYPE_CHECKING:
    from query.caller import Caller
    from shared.catalog import Scope
    from shared.index.tools import ToolIndex

SHOWN = 20

# All that the totals are computed from.
_OWN_COUNTERS = (
    *("answers", "tokens", "bytes", "baseline_tokens", "baseline_tools", "inner_tokens", "result_tokens"),
    *("tokens_saved", "searches", "found_nothing"),
)

_TOOL_COUNTERS = ("answers", "calls", "failed_calls", "bytes")

K = TypeVar("K")


class Totals(BaseModel):
    """Net savings in the model form, the sums that they follow from, and the gross that answers stated.

    `net_tokens_saved` is `baseline_tokens` minus `listed_tokens` minus `answer_tokens`, and may be negative.
    `tokens_saved` is gross, in the wire form: each search against all tools, without the cost of lists and answers.
    """

    model_config = ConfigDict(frozen=True)

    net_tokens_saved: int = 0
    baseline_tokens: int = 0
    """All tools of the caller's scope, once for each context."""
    listed_tokens: int = 0
    """The tools in all pages of `tools/list`."""
    answer_tokens: int = 0
    """The texts that Toolscale wrote, in all answers."""
    contexts: int = 0
    """Lists that claim their baseline."""
    tokens_saved: int = 0
    searches: int = 0
    found_nothing: int = 0
    inner_tokens: int = 0
    """The results of the calls that scripts made."""
    tokens_kept_out: int = 0
    """`inner_tokens` without the tokens of the scripts' own results and logs; apart from all sums above."""


class _Day(BaseModel):
    day: date


class DayTotals(Totals, _Day):
    """The sums of one day, UTC."""


class OwnUse(BaseModel):
    """Cost of `tools/list` or of one tool of ours: its answers, and the tokens and bytes of their texts."""

    model_config = ConfigDict(frozen=True)

    name: str
    answers: int
    tokens: int
    bytes: int


class UsageRow(BaseModel):
    """Use of one tool, or of one server's tools: answers that showed it, calls, and the JSON bytes of the results."""

    model_config = ConfigDict(frozen=True)

    name: str
    shown: int
    calls: int
    failed_calls: int
    result_bytes: int


class CatalogueDay(_Day):
    """The cost of a context with all tools, at the last sample of the day."""

    servers: int
    tools: int
    tokens: int


class SavingsReport(BaseModel):
    """The savings of a period; `break_even_tools` is None without a context."""

    model_config = ConfigDict(frozen=True)

    first_day: date
    last_day: date
    profile: Profile
    """The shape of the model form, in which all but `tokens_saved` is counted."""
    totals: Totals
    break_even_tools: int | None = None
    advice: str
    by_day: list[DayTotals]
    own_tools: list[OwnUse]
    by_server: list[UsageRow]
    by_tool: list[UsageRow]
    catalogue: list[CatalogueDay]

    def as_object(self) -> dict[str, object]:
        """Return the report as JSON values, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    def as_answer(self) -> dict[str, object]:
        """Return the same for a model: rows without zeros, which say nothing, and no empty lists."""
        lists = {name for name, value in self if isinstance(value, list)}
        shown = self.model_dump(mode="json", exclude_none=True)
        rows = {name: [{key: each for key, each in row.items() if each} for row in shown[name]] for name in lists}
        return {name: rows.get(name, value) for name, value in shown.items() if value != []}


def report(
    rows: Rows,
    first: date,
    last: date,
    can_see: Callable[[RowKey], bool] = lambda _: True,
    sizes: Mapping[date, CatalogueSize] | None = None,
) -> SavingsReport:
    """Return the report of these rows; servers' tools that `can_see` rejects are summed as OTHERS."""
    own = {key: counts for key, counts in rows.items() if key.tool and not key.server}
    tools = _by(
        (f"{key.server}:{key.tool}" if key.server != OTHERS and can_see(key) else OTHERS, counts)
        for key, counts in rows.items()
        if key.tool and key.server
    )
    servers = _by((name.partition(":")[0], counts) for name, counts in tools.items())
    days = _days(own)
    total = _together(days.values())
    break_even = _break_even(total)
    return SavingsReport(
        first_day=first,
        last_day=last,
        profile=PROFILE,
        totals=Totals.model_validate(total),
        break_even_tools=break_even,
        advice=(
            "No caller received a list and an answer on one day, so there is nothing to compare with listing all."
            if break_even is None
            else f"Below {break_even} tools in this catalogue, listing all is cheaper ({PROFILE} profile)."
        ),
        by_day=[DayTotals(day=day, **sums) for day, sums in days.items()],
        own_tools=_own_tools(own),
        by_server=_ranked(servers),
        by_tool=_ranked(tools),
        catalogue=[CatalogueDay(day=day, **size._asdict()) for day, size in sorted((sizes or {}).items())],
    )


def report_for(caller: Caller, scope: Scope, period: str, usage: Usage, index: ToolIndex) -> SavingsReport:
    """Return the savings of a period within the caller's scope, which may be without the tools that a policy denies.

    A caller with all groups and no toolset sees the savings of all callers, and without denied tools the catalogue's
    size. Any other sees its own lists and answers. Names are of tools within the scope.

    Raises:
        ValueError: `days_of` rejects the period.
        HistoryUnavailable, IndexUnavailable: the store or the index did not answer.
    """
    first, last = days_of(period, today())
    rows = _rows(usage, first, last)
    if is_unrestricted(caller) and not scope.policy:
        return report(rows, first, last, sizes=usage.sizes(first, last))
    own = {key: counts for key, counts in rows.items() if is_unrestricted(caller) or key.caller == caller.name}
    ids = {point_id(key.server, key.tool): (key.server, key.tool) for key in own if key.server}
    visible = {
        ids[point]
        for point, tool in index.get(sorted(ids)).items()
        # running or not
        if (scope.groups is None or not scope.groups.isdisjoint(tool.groups))
        and (scope.within is None or scope.within.admits(tool.server_id, tool.definition.name))
        and scope.permits(tool.server_id, tool.definition)
    }
    return report(own, first, last, lambda key: (key.server, key.tool) in visible)


def totals_for(caller: Caller, days: int, usage: Usage) -> tuple[Totals, int]:
    """Return the totals of the last days within the caller's scope, and the number of days since the first known one.

    They are those of `report_for`, without a read of the rows of servers' tools, of which there are many more.

    Raises:
        HistoryUnavailable: the store did not answer.
    """
    first, last = days_of(f"{days}d", today())
    sees_all = is_unrestricted(caller)
    own = {key: counts for key, counts in _own_rows(usage, first, last) if sees_all or key.caller == caller.name}
    by_day = _days(own)
    known = [*by_day, *(usage.sizes(first, last) if sees_all else ())]
    total = Totals.model_validate(_together(by_day.values()))
    return total, (last - min(known)).days + 1 if known else 0


def _rows(usage: Usage, first: date, last: date) -> dict[RowKey, Counts]:
    """Return what a report is made of: our own tools by day, and servers' tools as one sum, under the first day.

    The rows of servers' tools of each day are many more, and a report shows no tool by day.
    """
    sums = usage.sums(first, last, _TOOL_COUNTERS).items()
    of_servers = {RowKey(first, *use): {"answers": 0, **counts} for use, counts in sums if use[1]}
    return of_servers | dict(_own_rows(usage, first, last))


def _own_rows(usage: Usage, first: date, last: date) -> Iterator[tuple[RowKey, Counts]]:
    for day in days_between(first, last):
        for use, counts in usage.sums(day, day, _OWN_COUNTERS, [""]).items():
            if use[2]:
                yield RowKey(day, *use), {"answers": 0, **counts}


def use_of_tool(
    caller: Caller, tool: str, servers: Collection[str], period: str, usage: Usage
) -> tuple[UsageRow, int | None]:
    """Return the use of a tool on these servers, and the mean duration of its calls in ms; None without a call.

    The servers are in the caller's scope. The use is that of all callers, or the caller's own.

    Raises:
        ValueError: `days_of` rejects the period.
        HistoryUnavailable: the store did not answer.
    """
    counters = ("answers", "calls", "failed_calls", "ms", "bytes")
    sums = usage.sums(*days_of(period, today()), counters, servers, tool)
    seen = (counts for (name, _, _), counts in sums.items() if is_unrestricted(caller) or name == caller.name)
    total = _together(seen)
    return _usage_row(tool, total), round(total["ms"] / total["calls"]) if total["calls"] else None


def is_unrestricted(caller: Caller) -> bool:
    """Return whether the caller may see every server, including those without groups."""
    return caller.groups is None and caller.toolset is None


def _days(own: Rows) -> dict[date, Counts]:
    """Return the sums of all callers by day."""
    callers: dict[tuple[date, str], dict[str, Counts]] = {}
    for key, counts in own.items():
        callers.setdefault((key.day, key.caller), {})[key.tool] = counts
    return _by((day, _of_caller(tools)) for (day, _), tools in sorted(callers.items()))


def _of_caller(tools: Mapping[str, Counts]) -> Counter[str]:
    """Return the sums of a caller's day, from the counters of `tools/list` and of each tool of ours."""
    listed = Counter(tools.get(TOOLS_LIST, {}))
    answers = _together(counts for tool, counts in tools.items() if tool != TOOLS_LIST)
    lists, contexts = listed["answers"], min(listed["answers"], answers["answers"])
    baseline, baseline_tools, used = (
        listed[name] * contexts // lists if lists else 0 for name in ("baseline_tokens", "baseline_tools", "tokens")
    )
    return Counter(
        net_tokens_saved=baseline - listed["tokens"] - answers["tokens"],
        baseline_tokens=baseline,
        baseline_tools=baseline_tools,
        listed_tokens=listed["tokens"],
        answer_tokens=answers["tokens"],
        used_tokens=used + answers["tokens"] if contexts else 0,
        contexts=contexts,
        tokens_saved=answers["tokens_saved"],
        searches=answers["searches"],
        found_nothing=answers["found_nothing"],
        inner_tokens=answers["inner_tokens"],
        tokens_kept_out=answers["inner_tokens"] - answers["result_tokens"],
    )


def _break_even(total: Counter[str]) -> int | None:
    """Return the number of tools of mean size that cost a context as much as Toolscale; None without a context."""
    tokens, tools, contexts = total["baseline_tokens"], total["baseline_tools"], total["contexts"]
    if not tokens or not tools:
        return None
    return -(-total["used_tokens"] * tools // (contexts * tokens))


def _own_tools(own: Rows) -> list[OwnUse]:
    """Return the use of `tools/list` and of each tool of ours, the most expensive first."""
    uses = _by((key.tool, counts) for key, counts in own.items())
    rows = [
        OwnUse(name=name, answers=sums["answers"], tokens=sums.get("tokens", 0), bytes=sums.get("bytes", 0))
        for name, sums in uses.items()
    ]
    return sorted(rows, key=lambda row: (-row.tokens, row.name))


def _ranked(uses: Mapping[str, Counts]) -> list[UsageRow]:
    """Return the SHOWN most frequent names, the most frequent first, and the sum of the rest."""
    named = (use for use in uses.items() if use[0] != OTHERS)
    # by answers, then by calls, then by name
    shown = dict(nsmallest(SHOWN, named, key=lambda use: (-use[1]["answers"], -use[1].get("calls", 0), use[0])))
    rest = [counts for name, counts in uses.items() if name not in shown]
    ranked = shown | ({OTHERS: _together(rest)} if rest else {})
    return [_usage_row(name, counts) for name, counts in ranked.items()]


def _usage_row(name: str, counts: Counts) -> UsageRow:
    return UsageRow(
        name=name,
        shown=counts.get("answers", 0),
        calls=counts.get("calls", 0),
        failed_calls=counts.get("failed_calls", 0),
        result_bytes=counts.get("bytes", 0),
    )


def _by(parts: Iterable[tuple[K, Counts]]) -> dict[K, Counts]:
    """Return the sums by key; most keys have one part, which needs no sum."""
    by_key: dict[K, list[Counts]] = {}
    for key, counts in parts:
        by_key.setdefault(key, []).append(counts)
    return {key: counts[0] if len(counts) == 1 else _together(counts) for key, counts in by_key.items()}


def _together(parts: Iterable[Counts]) -> Counter[str]:
    # several times as fast as sums in a Counter
    total: defaultdict[str, int] = defaultdict(int)
    for counts in parts:
        for name, amount in counts.items():
            total[name] += amount
    return Counter(total)
