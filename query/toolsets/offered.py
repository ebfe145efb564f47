"""The tools of a toolset that `tools/list` offers directly, and their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from mcp.types import Tool
from pydantic import ValidationError

from query.savings.savings import Baseline
from query.toolsets.budget import BudgetResult, apply_budget, by_use
from query.usage.recent_calls import NO_CALLS, CallCounts
from shared.text.leaner import leaner_schema

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.policy.rules import CallerRules
    from query.replicas.sets import ReplicaSets
    from shared.catalog import Encoding, IndexedTool

# A larger toolset is searched with find_tool and used with call_tool.
MAX_DIRECT = 256
# The groups, toolset and budgets of callers, which many callers share.
_CACHED = 256

NOTHING = Baseline(0, 0)

OfferedCost = Callable[["Caller", "Encoding"], Baseline]
"""Returns the cost of the tools that a caller has in its `tools/list`."""


def nothing_offered(_caller: Caller, _encoding: Encoding) -> Baseline:
    """Return the cost of no tools."""
    return NOTHING


def offered_tools(caller: Caller, catalogue: Catalogue, calls: CallCounts, rules: CallerRules) -> BudgetResult:
    """Return the tools of the caller's toolset that its `tools/list` shows, within its budget.

    The rules, which are those for the caller, deny none of them. Of replicas, as of the ledger's last baseline, the
    tools of one server are shown. An enforced budget keeps the tools with the most of these calls, then the cheapest.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    sets = catalogue.ledger.replica_sets(caller.scope)
    page = catalogue.pinned().index.tools(sets.without_copies(caller.scope), limit=MAX_DIRECT)
    usable = [tool for tool in page.tools if direct_definition(tool.definition.name, tool)]
    permitted = without_denied(usable, rules, sets)
    names = {tool.qualified_name for tool in permitted}
    ordered = by_use(permitted, _of_sets(calls, sets), catalogue.encoding)
    denied = [tool for tool in usable if tool.qualified_name not in names]
    return replace(apply_budget(ordered, caller, catalogue.encoding), denied=denied)


def without_denied(tools: Iterable[IndexedTool], rules: CallerRules, sets: ReplicaSets) -> list[IndexedTool]:
    """Return the tools that these rules permit, perhaps after a confirmation, on one of their replicas."""
    return [
        tool
        for tool in tools
        if any(rules.action(server_id, tool.definition) != "deny" for server_id in sets.replicas(tool.server_id))
    ]


def _of_sets(calls: CallCounts, sets: ReplicaSets) -> CallCounts:
    """Return the calls with those of replicas added up under the representative."""
    total: Counter[str] = Counter()
    for name, count in calls:
        server_id, _, tool_name = name.partition(":")
        total[f"{sets.representative(server_id)}:{tool_name}"] += count
    return frozenset(total.items())


def recent_calls(caller: Caller, catalogue: Catalogue) -> CallCounts:
    """Return the caller's own recent calls where its budget is enforced, else none.

    Calls of other callers would reveal to this caller which tools they use.
    """
    return NO_CALLS if caller.limit_tokens is None else catalogue.recent_calls(caller.name)


def has_offered_tools(caller: Caller) -> bool:
    """Return whether `tools/list` shows this caller the tools of a toolset."""
    return caller.selection is not None and "tools:call" in caller.permissions


class CachedOfferedCost:
    """The cost of the tools that a caller has in its `tools/list`.

    It is read again when a server of the caller's scope changes, the caller's rules, or the calls that decide.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._read = lru_cache(_CACHED)(self._read_cost)

    def __call__(self, caller: Caller, encoding: Encoding) -> Baseline:
        """Return the cost as of the ledger's last baseline.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if not has_offered_tools(caller):
            return NOTHING
        revisions = self._catalogue.ledger.revisions(caller.scope)
        rules = self._catalogue.read_policy().of(caller)
        return self._read(replace(caller, name=""), encoding, revisions, recent_calls(caller, self._catalogue), rules)

    def _read_cost(
        self, caller: Caller, encoding: Encoding, _revisions: tuple[int, ...], calls: CallCounts, rules: CallerRules
    ) -> Baseline:
        kept = offered_tools(caller, self._catalogue, calls, rules).kept
        sets = self._catalogue.ledger.replica_sets(caller.scope)
        tools = [tool for tool in kept for _ in sets.replicas(tool.server_id)]  # the baseline counts the copies too
        return Baseline(
            tokens=sum(tool.token_counts.get(encoding, 0) for tool in tools),
            tools=len(tools),
            model_tokens=sum(tool.model_counts.get(encoding, 0) for tool in tools),
        )


def direct_definition(name: str, tool: IndexedTool, *, is_leaner: bool = False) -> Tool | None:
    """Return the tool's definition under this name; None where the SDK rejects the definition.

    `is_leaner` shortens its input schema.
    It has no output schema: a page of a long result is a part of its text.
    """
    try:
        fields = tool.definition.as_object()
        declared = Tool.model_validate(leaner_schema(fields) if is_leaner else fields)
    except ValidationError:
        return None
    return declared.model_copy(update={"name": name, "output_schema": None})
