"""Toolsets: the toolset of a caller, its tools that `tools/list` offers directly, their budget and their names."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_REQUEST, Tool
from pydantic import ValidationError
from starlette.requests import Request

from query.kept import Recent
from query.records import Baseline
from query.replicas import split_name
from query.usage.recent_calls import NO_CALLS, CallCounts
from shared.catalog import point_id
from shared.quoting import quoted_name
from shared.text.tokens import estimate_tool

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.records import Ledger
    from query.replicas import ReplicaSets
    from shared.catalog import Encoding, IndexedTool, Scope
    from shared.index.tools import ToolIndex
    from shared.toolset import Toolset

# A larger toolset is searched with find_tool and used with call_tool.
MAX_DIRECT = 256
# Offers of callers and toolsets, each of up to MAX_DIRECT definitions.
_KEPT = 32
# Tools that a warning names.
NAMED = 10

NOTHING = Baseline(0, 0)


def with_path_toolset(caller: Caller, context: ServerRequestContext[Any]) -> Caller:
    """Return the caller with the toolset of its path, which may not differ from a toolset of its token.

    Raises:
        MCPError: the token is for another toolset.
    """
    named = context.request.path_params.get("toolset") if isinstance(context.request, Request) else None
    if named is None or named == caller.toolset:
        return caller
    if caller.toolset:
        raise MCPError(code=INVALID_REQUEST, message=f"this token is for the toolset {caller.toolset} alone")
    return replace(caller, toolset=named)


def with_toolset_scope(caller: Caller, index: ToolIndex) -> Caller:
    """Return the caller with the selection of its toolset and the tighter of both budgets.

    A caller whose toolset does not exist sees nothing.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    toolset = index.toolset(caller.toolset) if caller.toolset else None
    return caller if toolset is None else with_toolset(caller, toolset)


def with_toolset(caller: Caller, toolset: Toolset) -> Caller:
    """Return the caller restricted to this toolset."""
    limit = toolset.budget_tokens if toolset.enforce else None
    return replace(
        caller,
        toolset=toolset.name,
        selection=toolset.selection,
        budget_tokens=_tighter(caller.budget_tokens, toolset.budget_tokens),
        limit_tokens=_tighter(caller.limit_tokens, limit),
    )


def may_know_toolset(caller: Caller, catalogue: Catalogue) -> bool:
    """Return whether a caller within a toolset may know that it exists: it sees a tool of it, or writes toolsets."""
    if caller.groups is None or "toolsets:write" in caller.permissions:
        return True
    return catalogue.ledger.baseline(catalogue.scope(caller), catalogue.encoding).tools > 0


def _tighter(first: int | None, second: int | None) -> int | None:
    return min((limit for limit in (first, second) if limit is not None), default=None)


def has_offered_tools(caller: Caller) -> bool:
    """Return whether `tools/list` shows this caller the tools of a toolset."""
    return caller.selection is not None and "tools:call" in caller.permissions


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The tools of a toolset for one caller: those in its `tools/list`, and why others are not.

    Of replicas, the tools of one server stand for all of `sets`. The budget keeps or excludes tools, the most called
    first. `found` has all tools of the `scope` that were looked at: without `is_cut`, all of the toolset.
    `definitions` are by qualified name, and of all tools that the MCP SDK accepts.
    """

    scope: Scope
    found: Sequence[IndexedTool]
    budget: BudgetResult
    definitions: Mapping[str, Tool]
    sets: ReplicaSets
    is_cut: bool = False

    @property
    def warnings(self) -> list[str]:
        """Return sentences on tools that are left out, or an exceeded budget; none otherwise."""
        cut = f"Only {MAX_DIRECT} tools are offered directly, the most called first; find_tool finds the others."
        return [*([cut] if self.is_cut else []), *self.budget.warnings]

    def cost(self, encoding: Encoding) -> Baseline:
        """Return the part of a baseline that the offered tools are, which counts replicas too."""
        tools = [
            tool
            for tool in self.budget.kept
            for server_id in self.sets.replicas(tool.server_id)
            if self.scope.permits(server_id, tool.definition)
        ]
        return Baseline(
            tokens=sum(tool.token_counts.get(encoding, 0) for tool in tools),
            tools=len(tools),
            model_tokens=sum(tool.model_counts.get(encoding, 0) for tool in tools),
        )


class Offers:
    """The offers of a catalogue. Each is kept until a server of its scope, the caller's rules or its calls change."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._recent: Recent[Offer] = Recent(most=_KEPT)

    def of(self, caller: Caller) -> Offer:
        """Return the offer to a caller with a toolset scope, as of the ledger's last refresh.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        catalogue = self._catalogue.pinned()
        calls, scope = _deciding_calls(caller, catalogue), catalogue.scope(caller)
        # with the model: its change replaces the index, without a change of the records
        revisions, model = catalogue.ledger.revisions(scope), catalogue.embedder.model
        key = (replace(caller, name=""), calls, scope, revisions, model)
        return self._recent.get_or_read(key, None, partial(offer_to, caller, scope, catalogue, calls))

    def cost(self, caller: Caller, encoding: Encoding) -> Baseline:
        """Return the cost of the tools that a caller has in its `tools/list`.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        return self.of(caller).cost(encoding) if has_offered_tools(caller) else NOTHING


def offer_to(caller: Caller, allowed: Scope, catalogue: Catalogue, calls: CallCounts) -> Offer:
    """Return the offer to a caller with a toolset scope by these calls, within its budget.

    Of more than MAX_DIRECT tools, the most called are offered, and then the first in the order of the index, in which
    a tool that comes moves no other.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    sets = catalogue.ledger.replica_sets(allowed)
    scope, called = sets.without_copies(allowed), _of_sets(calls, sets)
    page = catalogue.index.tools(scope, limit=MAX_DIRECT)
    found = {tool.qualified_name: tool for tool in page.tools}
    is_cut = page.next_after is not None
    if is_cut:
        most = sorted(called.keys() - found.keys(), key=lambda name: (-called[name], name))[:MAX_DIRECT]
        others = catalogue.index.get([point_id(*split_name(name)) for name in most])
        found |= {tool.qualified_name: tool for tool in others.values() if scope.contains(tool)}
    if allowed.policy:
        found = _once(found, catalogue.ledger)
    definitions = {name: each for name, tool in found.items() if (each := direct_definition(tool))}
    usable = [found[name] for name in definitions]
    offered = by_use(usable, called.items(), catalogue.encoding)[:MAX_DIRECT]
    budget = apply_budget(offered, caller, catalogue.encoding)
    return Offer(allowed, list(found.values()), budget, definitions, sets, is_cut=is_cut)


def _once(found: Mapping[str, IndexedTool], ledger: Ledger) -> dict[str, IndexedTool]:
    """Return the tools by qualified name, without those that a server with the same tools has too.

    Such servers are in two replica sets where the policy denies some tools of one and others of the other.
    """
    first: dict[tuple[str, str], IndexedTool] = {}
    for tool in found.values():
        record = ledger.record(tool.server_id)
        same_tools = (record and record.catalogue_id) or tool.server_id
        first.setdefault((same_tools, tool.definition.name), tool)
    return {tool.qualified_name: tool for tool in first.values()}


def direct_definition(tool: IndexedTool) -> Tool | None:
    """Return the tool's definition for `tools/list`; None where the SDK rejects the definition.

    It has no output schema: a page of a long result is a part of its text.
    """
    try:
        return Tool.model_validate(tool.definition.as_object()).model_copy(update={"output_schema": None})
    except ValidationError:
        return None


def _deciding_calls(caller: Caller, catalogue: Catalogue) -> CallCounts:
    """Return the caller's own recent calls if its budget, or the size of its toolset, may leave tools out; else none.

    Calls of other callers would reveal to this caller which tools they use.
    """
    is_enforced = caller.limit_tokens is not None
    if not (is_enforced or _may_be_cut(caller, catalogue)):
        return NO_CALLS
    return catalogue.recent_calls(caller.name)


def _may_be_cut(caller: Caller, catalogue: Catalogue) -> bool:
    if caller.selection is None:
        return True
    records = filter(None, map(catalogue.ledger.record, caller.selection.servers))
    return len(caller.selection.tools) + sum(record.tool_count for record in records) > MAX_DIRECT


def _of_sets(calls: CallCounts, sets: ReplicaSets) -> Counter[str]:
    """Return the calls with those of replicas added up under the representative."""
    total: Counter[str] = Counter()
    for name, count in calls:
        total[sets.represented(name)] += count
    return total


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """The tools that the budget admits, in their order, and the excluded ones."""

    kept: Sequence[IndexedTool]
    excluded: Sequence[IndexedTool]
    encoding: Encoding
    budget_tokens: int | None

    @property
    def tokens(self) -> int:
        """Return the tokens of the kept definitions together."""
        return sum(cost(tool, self.encoding) for tool in self.kept)

    @property
    def warnings(self) -> list[str]:
        """Return sentences on excluded tools or an exceeded budget; none otherwise."""
        if self.excluded:
            named = [f"{quoted_name(tool.qualified_name)} ({cost(tool, self.encoding)})" for tool in self.excluded]
            shown = [*named[:NAMED], *([f"and {len(named) - NAMED} more"] if len(named) > NAMED else [])]
            tokens = sum(cost(tool, self.encoding) for tool in self.excluded)
            left_out = f"Left out for the budget of {self.budget_tokens} tokens: {', '.join(shown)}"
            return [f"{left_out}; together {tokens} tokens."]
        if self.budget_tokens is not None and self.tokens > self.budget_tokens:
            return [f"The definitions cost {self.tokens} tokens, more than the budget of {self.budget_tokens}."]
        return []


def apply_budget(tools: Sequence[IndexedTool], caller: Caller, encoding: Encoding) -> BudgetResult:
    """Return the tools that the caller's budget admits: in order, each that still fits.

    Only an enforced budget excludes tools.
    """
    kept: list[IndexedTool] = []
    excluded: list[IndexedTool] = []
    room = caller.limit_tokens
    for tool in tools:
        tokens = cost(tool, encoding)
        if room is None or tokens <= room:
            kept.append(tool)
            room = None if room is None else room - tokens
        else:
            excluded.append(tool)
    budget = caller.limit_tokens if excluded else caller.budget_tokens
    return BudgetResult(kept, excluded, encoding, budget)


def by_use(tools: Sequence[IndexedTool], calls: Iterable[tuple[str, int]], encoding: Encoding) -> list[IndexedTool]:
    """Return the tools with the most calls first; after equal calls the cheaper, then by qualified name."""
    counts = dict(calls)
    return sorted(
        tools,
        key=lambda tool: (-counts.get(tool.qualified_name, 0), cost(tool, encoding), tool.qualified_name),
    )


def cost(tool: IndexedTool, encoding: Encoding) -> int:
    """Return the tokens of a tool's model form, or an estimate if they could not be counted."""
    counted = tool.model_counts.get(encoding)
    return estimate_tool(tool.server_id, tool.definition) if counted is None else counted


# The longest function name that every client's model interface accepts.
MAX_NAME_CHARACTERS = 64
SEPARATOR = "__"
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]+")
_REFUSED = re.compile(r"[^A-Za-z0-9-]+")
# 64 bits, so that a server cannot search for a name with the hash of another tool's.
_HASH = 16


def direct_name(server_id: str, tool_name: str) -> str:
    """Return `server__tool`, or `server_tool_hash` where this is too long, ambiguous or has other characters.

    The name has at most 64 letters, digits, `_` and `-`. It depends on this tool alone, and no other tool has it.
    """
    joined = f"{server_id}{SEPARATOR}{tool_name}"
    # the first separator ends the server, so a server with a separator of its own has the other form
    is_unambiguous = joined.index(SEPARATOR) == len(server_id)
    if is_unambiguous and len(joined) <= MAX_NAME_CHARACTERS and _ACCEPTED.fullmatch(joined):
        return joined
    digest = hashlib.sha256(f"{server_id}:{tool_name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    readable = _REFUSED.sub("_", f"{server_id}_{tool_name}")  # without a separator
    return f"{readable[: MAX_NAME_CHARACTERS - _HASH - 1].strip('_')}_{digest}"
