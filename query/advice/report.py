"""What a toolset should hold, which tools cost most in answers, and which do the same: from the last weeks' use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from query.advice.choice import best_within, by_calls, calls_of, needed_tokens, tokens_of
from query.advice.rivals import Rivals, rivals
from query.advice.use import ToolUse, Usage, may_see, usable_tools, usage_of
from query.answers.budget import counting
from query.history.events import TOOLS_LIST
from query.history.periods import today
from query.history.recent_calls import DAYS
from query.toolsets.active import with_toolset, with_toolset_scope
from query.toolsets.offered import direct_definition, has_offered_tools, offered_tools
from shared.catalog import Encoding
from shared.errors import ToolsetUnknown
from shared.quoting import quoted_name
from shared.text.leaner import Kind, leaner, removals_named
from shared.text.tokens import PROFILE, Profile, is_estimate

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.store import SavingsHistory, Sums
    from shared.catalog import IndexedTool

DEFAULT_BUDGET_TOKENS = 4_000
"""Where neither the request nor the toolset has a budget, and no tool is offered."""
COVERED_PART = 0.95
"""Of the calls; a smaller choice names the tokens that it needs."""
SHOWN_MOST = 10
NAMED = 3

Label = Literal["measured", "estimated"]


class Choice(BaseModel):
    """Tools, the most called first, with their tokens in each `tools/list` and their calls in the period."""

    model_config = ConfigDict(frozen=True)

    tools: list[ToolUse]
    tokens: int
    calls: int

    @classmethod
    def of(cls, tools: Sequence[ToolUse]) -> Choice:
        """Return the choice of these tools."""
        return cls(tools=sorted(tools, key=by_calls), tokens=tokens_of(tools), calls=calls_of(tools))


class ShownTool(ToolUse):
    """A tool in answers of `find_tool` and `describe_tool`: `shown` times its tokens, as if shown with its schema."""

    shown_tokens: int


class ToolsetAdvice(BaseModel):
    """The choice within a budget that covers most calls of the period, beside the tools that are offered today."""

    model_config = ConfigDict(frozen=True)

    first_day: date
    last_day: date
    toolset: str | None
    budget_tokens: int
    encoding: Encoding
    profile: Profile
    calls: int
    """Of all tools that may be chosen."""
    advised: Choice
    offered: Choice
    dropped: list[ToolUse]
    """Offered and not advised, the most expensive first."""
    needed_tokens: int
    """A budget that covers COVERED_PART of the calls."""
    leaner_saves: Mapping[Kind, int]
    """Tokens of the advised tools that each change of shorter schemas would save; empty if they are sent already."""
    rivals: list[Rivals]
    labels: Mapping[str, Label]

    @property
    def sentences(self) -> list[str]:
        """Return the advice in short sentences."""
        days = f"{self.first_day} to {self.last_day}"
        if not self.calls:
            return [f"No calls of these tools from {days} (measured), so none is advised against."]
        tokens, count = self.labels["tokens"], len(self.advised.tools)
        chosen = f"{count} {'tool' if count == 1 else 'tools'} of {self.advised.tokens} tokens ({tokens})"
        summary = f"{chosen} had {self.advised.calls} of {self.calls} calls from {days} (measured)."
        return [summary, *self._limits(tokens), *(_without(tool, tokens) for tool in self.dropped[:NAMED])]

    @property
    def sentences_with_rivals(self) -> list[str]:
        """Return the advice in short sentences, the nearest rivals last, for a place without a table of them."""
        return [*self.sentences, *map(_do_the_same, self.rivals[:NAMED])]

    def _limits(self, tokens: Label) -> Iterator[str]:
        if self.advised.calls < COVERED_PART * self.calls:
            yield f"A budget of {self.needed_tokens} tokens ({tokens}) covers {COVERED_PART:.0%} of these calls."
        if self.leaner_saves:
            saved = f"{sum(self.leaner_saves.values())} tokens ({tokens})"
            yield f"TOOLSCALE_LEANER_DEFINITIONS sends {saved} less: {removals_named(self.leaner_saves)}."


class Advice(ToolsetAdvice):
    """The whole advice; `lists` counts the `tools/list` that the viewer may see, of any toolset."""

    lists: int
    shown_most: list[ShownTool]


def advice_for(
    viewer: Caller, catalogue: Catalogue, history: SavingsHistory, toolset: str | None = None, budget: int | None = None
) -> Advice:
    """Return the advice on a toolset, by default the viewer's, or else on all tools that the viewer may see.

    Raises:
        ToolsetUnknown: the viewer has no toolset of this name.
        HistoryUnavailable, IndexUnavailable: the store or the index did not answer.
    """
    catalogue, days = _refreshed(catalogue), _period()
    caller = _of_toolset(viewer, toolset, catalogue)
    sums = history.sums(*days, ("answers", "calls"))
    usage = usage_of(sums, viewer, caller, catalogue)
    used = usable_tools(usage.points, caller, catalogue)
    advice = _toolset_advice(usage, used, days, caller, catalogue, budget)
    shown = [usage.of(tool, catalogue) for tool in used]
    return Advice(**dict(advice), lists=_lists(sums, viewer), shown_most=_shown_most(shown))


def toolset_advice(viewer: Caller, catalogue: Catalogue, history: SavingsHistory, toolset: str | None) -> ToolsetAdvice:
    """Return the advice on a toolset, or on all tools, without answers: the history adds up the calls alone.

    Raises: the errors of `advice_for`.
    """
    catalogue, days = _refreshed(catalogue), _period()
    caller = _of_toolset(viewer, toolset, catalogue)
    usage = usage_of(history.sums(*days, ("calls",)), viewer, caller, catalogue)
    return _toolset_advice(usage, usable_tools(usage.points, caller, catalogue), days, caller, catalogue, None)


def _toolset_advice(
    usage: Usage,
    found: Sequence[IndexedTool],
    days: tuple[date, date],
    caller: Caller,
    catalogue: Catalogue,
    budget: int | None,
) -> ToolsetAdvice:
    encoding = catalogue.encoding
    usable = [tool for tool in found if direct_definition(tool.definition.name, tool)]
    used = [usage.of(tool, catalogue) for tool in usable]
    offered = _offered(usage, caller, catalogue)
    budget_tokens = budget or caller.budget_tokens or tokens_of(offered) or DEFAULT_BUDGET_TOKENS
    advised = best_within(used, budget_tokens)
    names = {tool.name for tool in advised}
    # a period without calls is no reason to drop a tool
    dropped = [tool for tool in offered if tool.name not in names] if advised else []
    # shorter schemas are sent then, and the counts are of the originals
    is_shortened = catalogue.response_policy.has_leaner_definitions
    are_counts = all(encoding in tool.model_counts for tool in usable) and not is_estimate(encoding)
    return ToolsetAdvice(
        first_day=days[0],
        last_day=days[1],
        toolset=caller.toolset,
        budget_tokens=budget_tokens,
        encoding=encoding,
        profile=PROFILE,
        calls=calls_of(used),
        advised=Choice.of(advised),
        offered=Choice.of(offered),
        dropped=sorted(dropped, key=lambda tool: (-tool.tokens, tool.name)),
        needed_tokens=needed_tokens(used, COVERED_PART),
        leaner_saves=_leaner_saves([tool for tool in usable if tool.qualified_name in names], catalogue),
        rivals=rivals(usage, caller, catalogue),
        labels=_labels(is_counted=are_counts and not is_shortened),
    )


def _leaner_saves(tools: Sequence[IndexedTool], catalogue: Catalogue) -> Mapping[Kind, int]:
    if catalogue.response_policy.has_leaner_definitions:
        return {}
    count, saved = counting(catalogue.encoding), Counter[Kind]()
    for tool in tools:
        saved.update(leaner(tool.definition, (), count).removed)
    return dict(saved.most_common())


def _offered(usage: Usage, caller: Caller, catalogue: Catalogue) -> list[ToolUse]:
    """Return the tools that `tools/list` offers the callers of the toolset today, by the calls in this usage."""
    if not has_offered_tools(caller):
        return []
    rules = catalogue.read_policy().of(caller)
    kept = offered_tools(caller, catalogue, usage.call_counts, rules).kept
    return [usage.of(tool, catalogue) for tool in kept]


def _of_toolset(viewer: Caller, name: str | None, catalogue: Catalogue) -> Caller:
    """Return the viewer within the toolset; a token for one toolset shows no other."""
    if name is None:
        return with_toolset_scope(viewer, catalogue.index)
    toolset = catalogue.index.toolset(name) if viewer.toolset in (None, name) else None
    if toolset is None:
        raise ToolsetUnknown(f"There is no toolset {quoted_name(name)} for you.")
    return with_toolset(viewer, toolset)


def _refreshed(catalogue: Catalogue) -> Catalogue:
    pinned = catalogue.pinned()
    pinned.ledger.refresh()
    return pinned


def _period() -> tuple[date, date]:
    last = today()
    return last - timedelta(days=DAYS - 1), last


def _lists(sums: Sums, viewer: Caller) -> int:
    lists = ((key[0], counts) for key, counts in sums.items() if key[1:] == ("", TOOLS_LIST))
    return sum(counts.get("answers", 0) for caller, counts in lists if may_see(viewer, caller))


def _shown_most(used: Sequence[ToolUse]) -> list[ShownTool]:
    shown = [ShownTool(**dict(tool), shown_tokens=tool.shown * tool.tokens) for tool in used if tool.shown]
    return sorted(shown, key=lambda tool: (-tool.shown_tokens, tool.name))[:SHOWN_MOST]


def _labels(*, is_counted: bool) -> dict[str, Label]:
    return {
        "tokens": "measured" if is_counted else "estimated",
        "calls": "measured",
        "callers": "measured",
        "shown": "measured",
        "shown_tokens": "estimated",
        "lists": "measured",
        "similarity": "measured",
    }


def _without(tool: ToolUse, tokens: Label) -> str:
    saved = f"Without {quoted_name(tool.name)} you save {tool.tokens} tokens ({tokens}) in each tools/list"
    return f"{saved}; it had {tool.calls} {'call' if tool.calls == 1 else 'calls'} (measured)."


def _do_the_same(pair: Rivals) -> str:
    first, second = (quoted_name(tool.name) for tool in pair.tools)
    return f"{first} and {second} seem to do the same (cosine {pair.similarity:.2f}, measured)."
