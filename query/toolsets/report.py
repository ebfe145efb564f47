"""The report of a toolset for its caller: tools, tokens and budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from query.answers.budget import ToolRequest
from query.response.tool_info import tool_info
from query.savings.context import context_meta
from query.search.request import ToolName
from query.toolsets.active import with_toolset
from query.toolsets.budget import BudgetResult, apply_budget, by_use, cost
from query.toolsets.offered import recent_calls, without_denied
from shared.catalog import Encoding, IndexedTool, Scope
from shared.text.tokens import PROFILE, is_estimate

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.recent_calls import CallCounts
    from query.policy.rules import CallerRules
    from query.recent import Recent
    from shared.index.tools import ToolIndex
    from shared.toolset import Toolset

_PAGE = 250

NONE_ACTIVE = "No toolset is active: you find and call every tool you may see."


class ToolsetRequest(ToolRequest):
    """The toolset to show."""

    name: ToolName | None = None
    """Default: yours."""
    encoding: Encoding | None = None


def toolset_report(
    request: ToolsetRequest, caller: Caller, catalogue: Catalogue, recent: Recent[dict[str, Any]]
) -> dict[str, Any]:
    """Return the toolset as the JSON object to send; a toolset of another token counts as missing.

    Reports of the same toolset are kept in `recent`.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    catalogue = catalogue.pinned()
    encoding, name = request.encoding or catalogue.encoding, request.name or caller.toolset
    if name is None:
        return _nothing(None, NONE_ACTIVE, catalogue.ledger.baseline(caller.scope, encoding).model_tokens)
    # a token for one toolset shows no other
    is_foreign = caller.toolset not in (None, name)
    toolset = None if is_foreign else catalogue.index.toolset(name)
    if toolset is None:
        return _nothing(name, f"There is no toolset {name} for you.", 0)
    state, caller = catalogue.ledger.state(), with_toolset(caller, toolset)
    calls, rules = recent_calls(caller, catalogue), catalogue.read_policy().of(caller)
    # with the model: its change replaces the index, without a change of the records
    key = (toolset, caller, encoding, calls, rules, catalogue.embedder.model)
    report = recent.get_or_read(key, state, partial(_report, toolset, caller, catalogue, encoding, calls, rules))
    return dict(report)


def _report(
    toolset: Toolset,
    caller: Caller,
    catalogue: Catalogue,
    encoding: Encoding,
    calls: CallCounts,
    rules: CallerRules,
) -> dict[str, Any]:
    possible = catalogue.ledger.baseline(replace(caller.scope, within=None), encoding).model_tokens
    tools = sorted(_tools(caller.scope, catalogue.index), key=lambda tool: tool.qualified_name)
    permitted = without_denied(tools, rules, catalogue.ledger.replica_sets(caller.scope))  # as `tools/list` does
    ordered = by_use(permitted, calls, catalogue.encoding)  # as above
    budget = apply_budget(ordered, caller, catalogue.encoding)
    total = sum(tool.model_counts.get(encoding, 0) for tool in tools)
    missing = _missing(toolset, tools)
    named = {"missing": missing} if missing and "toolsets:write" in caller.permissions else {}
    return {
        "toolset": toolset.name,
        **({"description": toolset.description} if toolset.description else {}),
        "tools": [_object(tool_info(tool, encoding, total)) for tool in tools],
        "meta": _object(context_meta(total, possible)),
        "encoding": encoding,
        "profile": PROFILE,
        **({"estimated": True} if is_estimate(encoding) else {}),
        **_budget(caller, tools, budget),
        **named,
        "warnings": [*budget.warnings, *_missing_warnings(missing)],
    }


def _budget(caller: Caller, tools: Sequence[IndexedTool], result: BudgetResult) -> dict[str, Any]:
    """Return the budget and the tools it excludes; nothing without a budget.

    These tokens are in the encoding of the service, since the budget is.
    """
    if caller.budget_tokens is None:
        return {}
    encoding = result.encoding
    return {
        "budget": {
            "tokens": caller.budget_tokens,
            "encoding": encoding,
            "enforcedTokens": caller.limit_tokens,
            "used": result.tokens,
            "exceededBy": max(0, sum(cost(tool, encoding) for tool in tools) - caller.budget_tokens),
        },
        "leftOut": [_costing(tool, encoding) for tool in result.excluded],
    }


def _missing(toolset: Toolset, tools: Sequence[IndexedTool]) -> list[str]:
    """Return the entries without a tool that this caller may see now: gone, not running, or of other groups."""
    visible = {tool.qualified_name for tool in tools} | {tool.server_id for tool in tools}
    return [entry for entry in toolset.tools if entry not in visible]


def _missing_warnings(missing: Sequence[str]) -> list[str]:
    # only the number: this caller may not see the names
    return [f"Entries of the toolset without a tool that you may use now: {len(missing)}."] if missing else []


def _tools(scope: Scope, index: ToolIndex) -> Iterator[IndexedTool]:
    after: str | None = None
    while True:
        page = index.tools(scope, limit=_PAGE, after=after)
        yield from page.tools
        after = page.next_after
        if after is None:
            return


def _costing(tool: IndexedTool, encoding: Encoding) -> dict[str, Any]:
    return {"name": tool.qualified_name, "tokens": cost(tool, encoding)}


def _nothing(name: str | None, reason: str, possible: int) -> dict[str, Any]:
    return {"toolset": name, "tools": [], "meta": _object(context_meta(0, possible)), "warnings": [reason]}


def _object(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)
