"""The savings report of a period: pure arithmetic over the rows of the history, no I/O.

Without Toolscale, a client would have loaded all tools of its scope instead of a `tools/list` of Toolscale. So the
first page of each list claims that baseline. A caller claims at most as many baselines a day as it received answers:
clients that only list claim nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from heapq import nsmallest
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from query.history.events import TOOLS_LIST
from query.history.store import OTHERS, Counts, RowKey, Rows, TotalSizes
from shared.text.tokens import PROFILE, Profile

SHOWN = 20

K = TypeVar("K")


class Sums(BaseModel):
    """Net savings in the model form, the sums that they follow from, and the gross that answers stated.

    `net_tokens_saved` is `baseline_tokens` minus `listed_tokens` minus `answer_tokens`, and may be negative.
    `tokens_saved` is gross, in the wire form: each search against all tools, without the cost of lists and answers.
    """

    model_config = ConfigDict(frozen=True)

    net_tokens_saved: int
    baseline_tokens: int
    """All tools of the caller's scope, once for each context."""
    listed_tokens: int
    """The tools in all pages of `tools/list`."""
    answer_tokens: int
    """The texts that Toolscale wrote, in all answers."""
    contexts: int
    """Lists that claim their baseline."""
    tokens_saved: int
    searches: int
    found_nothing: int


class _Day(BaseModel):
    day: date


class DaySums(Sums, _Day):
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
    totals: Sums
    break_even_tools: int | None = None
    advice: str
    by_day: list[DaySums]
    own_tools: list[OwnUse]
    by_server: list[UsageRow]
    by_tool: list[UsageRow]
    catalogue: list[CatalogueDay]

    def as_object(self) -> dict[str, object]:
        """Return the report as JSON values, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def report(
    rows: Rows,
    first: date,
    last: date,
    can_see: Callable[[RowKey], bool] = lambda _: True,
    sizes: TotalSizes | None = None,
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
        totals=Sums(**_stated(total)),
        break_even_tools=break_even,
        advice=_advice(break_even),
        by_day=[DaySums(day=day, **_stated(sums)) for day, sums in days.items()],
        own_tools=_own_tools(own),
        by_server=_ranked(servers),
        by_tool=_ranked(tools),
        catalogue=[CatalogueDay(day=day, **total._asdict()) for day, total in sorted((sizes or {}).items())],
    )


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
    )


def _stated(total: Counts) -> dict[str, int]:
    return {name: total[name] for name in Sums.model_fields}


def _break_even(total: Counter[str]) -> int | None:
    """Return the number of tools of mean size that cost a context as much as Toolscale; None without a context."""
    tokens, tools, contexts = total["baseline_tokens"], total["baseline_tools"], total["contexts"]
    if not tokens or not tools:
        return None
    return -(-total["used_tokens"] * tools // (contexts * tokens))


def _advice(break_even: int | None) -> str:
    if break_even is None:
        return "No caller received a list and an answer on one day, so there is nothing to compare with listing all."
    return f"Below {break_even} tools in this catalogue, listing all is cheaper ({PROFILE} profile)."


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
    shown = dict(nsmallest(SHOWN, named, key=_most_frequent_first))
    rest = [counts for name, counts in uses.items() if name not in shown]
    ranked = shown | ({OTHERS: _together(rest)} if rest else {})
    return [usage_row(name, counts) for name, counts in ranked.items()]


def _most_frequent_first(use: tuple[str, Counts]) -> tuple[int, int, str]:
    name, counts = use
    return -counts["answers"], -counts.get("calls", 0), name


def usage_row(name: str, counts: Counts) -> UsageRow:
    """Return the use that these counters of servers' tools state."""
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
