"""Advice on a toolset from past calls: the tools that cover them within a budget, and the offered tools to drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from query.toolsets.offers import (
    cost,
    direct_definition,
    has_offered_tools,
    may_know_toolset,
    offer_to,
    with_toolset,
    with_toolset_scope,
)
from query.usage.recent_calls import DAYS
from query.usage.report import is_unrestricted
from query.usage.usage import OTHERS, today
from shared.catalog import Encoding, point_id
from shared.errors import ToolsetUnknown
from shared.quoting import quoted_name
from shared.text.tokens import PROFILE, Profile, is_estimate
from shared.toolset import ToolsetName

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.usage.usage import Counts, Usage, Use
    from shared.catalog import IndexedTool, Scope

DEFAULT_BUDGET_TOKENS = 4_000
"""Where neither the request nor the toolset has a budget, and no tool is offered."""
MOST_CALLED = 1_000
"""Tools with fewer calls than so many others are left out."""
NAMED = 3


class AdviceRequest(BaseModel):
    """The toolset, by default the caller's, and the limit of tokens in place of the toolset's."""

    toolset: ToolsetName | None = None
    budget: int | None = Field(default=None, ge=1, le=10**9)


class AdvisedTool(BaseModel):
    """A tool, its tokens in each `tools/list`, its calls in the period, and whether to offer it from now on."""

    model_config = ConfigDict(frozen=True)

    name: str
    tokens: int
    calls: int = 0
    verdict: Literal["add", "keep", "drop"] = "add"
    """add: it is not offered today; keep and drop: it is."""


class Advice(BaseModel):
    """The tools that cover most calls of the period within a budget, and then the other offered tools."""

    model_config = ConfigDict(frozen=True)

    first_day: date
    last_day: date
    toolset: str | None
    budget_tokens: int
    encoding: Encoding
    profile: Profile = PROFILE
    estimated: bool
    """True: some of the tokens are estimates."""
    calls: int
    """Of all tools that may be chosen."""
    tools: list[AdvisedTool]
    """To add or to keep, the most called first; then to drop, the most expensive first."""

    @property
    def chosen(self) -> list[AdvisedTool]:
        """Return the tools to offer."""
        return [tool for tool in self.tools if tool.verdict != "drop"]

    @property
    def dropped(self) -> list[AdvisedTool]:
        """Return the offered tools to drop."""
        return [tool for tool in self.tools if tool.verdict == "drop"]

    @property
    def sentences(self) -> list[str]:
        """Return the advice in one or two sentences."""
        days = f"from {self.first_day} to {self.last_day}"
        if not self.calls:
            return [f"No calls of these tools {days}, so none is advised against."]
        tokens = "estimated tokens" if self.estimated else "tokens"
        chosen = f"{_number(len(self.chosen), 'tool')} of {tokens_of(self.chosen)} {tokens}"
        covers = f"{chosen} had {calls_of(self.chosen)} of {_number(self.calls, 'call')} {days}."
        if not self.dropped:
            return [covers]
        named = [f"{quoted_name(tool.name)} ({_number(tool.calls, 'call')})" for tool in self.dropped[:NAMED]]
        if len(self.dropped) > NAMED:
            named.append(f"{len(self.dropped) - NAMED} more")
        saves = f"each tools/list has {tokens_of(self.dropped)} {tokens} less."
        return [covers, f"Without {', '.join(named)}, {saves}"]


def advice_for(
    viewer: Caller, catalogue: Catalogue, usage: Usage, toolset: str | None = None, budget: int | None = None
) -> Advice:
    """Return the advice on a toolset, by default the viewer's, or else on all tools that the viewer may see.

    An unrestricted viewer gets it from the calls of all callers, any other from its own. Replicas count as one.
    A tool without calls is not chosen; a period without calls is no reason to drop any.

    Raises:
        ToolsetUnknown: the viewer has no toolset of this name.
        HistoryUnavailable, IndexUnavailable: the store or the index did not answer.
    """
    catalogue, last = catalogue.pinned(), today()
    catalogue.ledger.refresh()
    first = last - timedelta(days=DAYS - 1)
    caller = _of_toolset(viewer, toolset, catalogue)
    scope = catalogue.scope(caller)
    calls = _calls(usage.sums(first, last, ("calls",)), viewer, scope, catalogue)

    points = [point_id(*tool) for tool, _ in calls.most_common(MOST_CALLED)]
    called = [tool for tool in catalogue.index.get(points).values() if scope.contains(tool)]
    usable = [tool for tool in called if direct_definition(tool)]
    counts = frozenset((f"{server}:{tool}", count) for (server, tool), count in calls.items())
    kept: Sequence[IndexedTool] = ()
    if has_offered_tools(caller):
        kept = offer_to(caller, scope, catalogue, counts).budget.kept
    offered = {tool.qualified_name: _advised(tool, calls, catalogue, "drop") for tool in kept}
    candidates = [
        _advised(tool, calls, catalogue, "keep" if tool.qualified_name in offered else "add") for tool in usable
    ]

    budget_tokens = budget or caller.budget_tokens or tokens_of(offered.values()) or DEFAULT_BUDGET_TOKENS
    chosen = best_within(candidates, budget_tokens)
    names = {tool.name for tool in chosen}
    dropped = [tool for tool in offered.values() if chosen and tool.name not in names]
    encoding = catalogue.encoding
    return Advice(
        first_day=first,
        last_day=last,
        toolset=caller.toolset,
        budget_tokens=budget_tokens,
        encoding=encoding,
        estimated=is_estimate(encoding) or any(encoding not in tool.model_counts for tool in (*usable, *kept)),
        calls=calls_of(candidates),
        tools=[*chosen, *sorted(dropped, key=lambda tool: (-tool.tokens, tool.name))],
    )


def best_within(tools: Sequence[AdvisedTool], budget_tokens: int) -> list[AdvisedTool]:
    """Return called tools that together cost at most `budget_tokens`, the most called first.

    A knapsack: two orders fill the budget, by calls per token and by calls, each with every tool that still fits, and
    the one with more calls wins. It has no fewer calls than an enforced budget's order, and at least half of the calls
    of any choice. For let b be the first tool without room in the order by calls per token. The tools before it and b
    together cover more than any choice (Dantzig, 1957). So either these tools cover half, or b alone does, and the
    order by calls begins with a tool that has at least b's calls.
    """

    def filled(key: Callable[[AdvisedTool], tuple[float, int, str]]) -> list[AdvisedTool]:
        kept: list[AdvisedTool] = []
        room = budget_tokens
        for tool in sorted((tool for tool in tools if tool.calls), key=key):
            if tool.tokens <= room:
                kept.append(tool)
                room -= tool.tokens
        return kept

    per_token = filled(lambda tool: (-tool.calls / max(tool.tokens, 1), tool.tokens, tool.name))
    return sorted(max(per_token, filled(by_calls), key=calls_of), key=by_calls)


def by_calls(tool: AdvisedTool) -> tuple[float, int, str]:
    """Return a key that sorts the most called tool first, then the cheapest, as an enforced budget does."""
    return -tool.calls, tool.tokens, tool.name


def calls_of(tools: Iterable[AdvisedTool]) -> int:
    """Return the calls of these tools."""
    return sum(tool.calls for tool in tools)


def tokens_of(tools: Iterable[AdvisedTool]) -> int:
    """Return the tokens of these tools."""
    return sum(tool.tokens for tool in tools)


def _of_toolset(viewer: Caller, name: str | None, catalogue: Catalogue) -> Caller:
    """Return the viewer within the toolset; a token for one toolset shows no other."""
    if name is None:
        return with_toolset_scope(viewer, catalogue.index)
    toolset = catalogue.index.toolset(name) if viewer.toolset in (None, name) else None
    caller = with_toolset(viewer, toolset) if toolset else None
    if caller is None or not may_know_toolset(caller, catalogue):
        raise ToolsetUnknown(f"There is no toolset {quoted_name(name)} for you.")
    return caller


def _calls(sums: Mapping[Use, Counts], viewer: Caller, scope: Scope, catalogue: Catalogue) -> Counter[tuple[str, str]]:
    """Return the calls of the toolset's tools that the viewer may see, by representative and tool."""
    sets, within = catalogue.ledger.replica_sets(scope), scope.within
    calls: Counter[tuple[str, str]] = Counter()
    for (name, server, tool), counts in sums.items():
        is_inside = server not in ("", OTHERS) and (within is None or within.admits(server, tool))
        if is_inside and counts.get("calls") and (is_unrestricted(viewer) or name == viewer.name):
            calls[sets.representative(server), tool] += counts["calls"]
    return calls


def _advised(
    tool: IndexedTool, calls: Counter[tuple[str, str]], catalogue: Catalogue, verdict: Literal["add", "keep", "drop"]
) -> AdvisedTool:
    # tokens are in the encoding of the service, since budgets are
    return AdvisedTool(
        name=tool.qualified_name,
        tokens=cost(tool, catalogue.encoding),
        calls=calls[tool.server_id, tool.definition.name],
        verdict=verdict,
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
