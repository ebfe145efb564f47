"""The MCP tool `get_active_toolset`: the tools of a caller's toolset, their tokens, and its budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations
from pydantic import BaseModel
from pydantic.json_schema import SkipJsonSchema

from query.answers.answer import context_meta, tool_info
from query.answers.budget import ToolRequest
from query.caller import Caller
from query.kept import Recent
from query.records import stated_encoding
from query.search.request import ToolName
from query.tool import CatalogueTool, input_schema
from query.tools.list_available_tools import tools_of
from query.toolsets.advice import advice_for
from query.toolsets.offers import BudgetResult, Offer, Offers, cost, may_know_toolset, with_toolset
from query.usage.recent_calls import REFRESH_S
from shared.catalog import Encoding
from shared.errors import HistoryUnavailable
from shared.text.tokens import PROFILE, json_text

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from shared.toolset import Toolset

NONE_ACTIVE = "No toolset is active: you find and call every tool you may see."

# Callers and states of their toolsets.
_KEPT = 64

_log = structlog.get_logger()


class ToolsetRequest(ToolRequest):
    """The toolset to show."""

    name: ToolName | None = None
    """Default: yours."""
    encoding: SkipJsonSchema[Encoding | None] = None
    """What the tokens are counted in."""


GET_ACTIVE_TOOLSET = Tool(
    name="get_active_toolset",
    description="Show your toolset: its tools, what they cost your context, and your budget.",
    input_schema=input_schema(ToolsetRequest),
    annotations=ToolAnnotations(title="Show toolset", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)


class GetActiveToolset(CatalogueTool[ToolsetRequest]):
    """Shows a caller its toolset. The advice on an unchanged toolset is read again after REFRESH_S seconds."""

    tool = GET_ACTIVE_TOOLSET
    request_model = ToolsetRequest

    def __init__(self, catalogue: Catalogue, offers: Offers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._catalogue, self._offers, self._clock_s = catalogue, offers, clock_s
        self._recent: Recent[dict[str, Any]] = Recent(most=_KEPT)
        self._kept = lru_cache(_KEPT)(self._sentences)

    def respond(self, request: ToolsetRequest, caller: Caller) -> dict[str, Any]:
        """Return the toolset report with the advice on it; log its size."""
        response = toolset_report(request, caller, self._catalogue, self._offers, self._recent)
        is_unknown = "toolset" in response and not response["tools"]
        if not is_unknown and (advice := self._advice(response, caller)):
            response["advice"] = advice
        _log.info("toolset_shown", toolset=response.get("toolset"), tools=len(response["tools"]))
        return response

    def _advice(self, response: dict[str, Any], caller: Caller) -> list[str]:
        try:
            return list(self._kept(response.get("toolset"), caller, json_text(response), self._clock_s() // REFRESH_S))
        except HistoryUnavailable as error:
            _log.warning("savings_read_failed", reason=str(error))
            return ["The calls of the last weeks cannot be read at the moment."]

    def _sentences(self, toolset: str | None, caller: Caller, _response: str, _period: float) -> list[str]:
        if self._catalogue.usage is None:
            return []
        advice = advice_for(caller, self._catalogue, self._catalogue.usage, toolset)
        return advice.sentences if toolset or advice.calls else []


def toolset_report(
    request: ToolsetRequest, caller: Caller, catalogue: Catalogue, offers: Offers, recent: Recent[dict[str, Any]]
) -> dict[str, Any]:
    """Return the toolset as the JSON object to send, with the tools and the warnings of its offer.

    A toolset of another token counts as missing. Reports of the same toolset are kept in `recent`.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    catalogue = catalogue.pinned()
    encoding, name = request.encoding or catalogue.encoding, request.name or caller.toolset
    if name is None:
        return _nothing(None, NONE_ACTIVE, catalogue.ledger.baseline(catalogue.scope(caller), encoding).model_tokens)
    # a token for one toolset shows no other
    is_foreign = caller.toolset not in (None, name)
    toolset = None if is_foreign else catalogue.index.toolset(name)
    if toolset is None:
        return _nothing(name, f"There is no toolset {name} for you.", 0)
    state, caller = catalogue.ledger.state(), with_toolset(caller, toolset)
    if not may_know_toolset(caller, catalogue):
        return _nothing(name, f"There is no toolset {name} for you.", 0)
    offer = offers.of(caller)
    report = partial(_report, toolset, caller, catalogue, encoding, offer)
    return dict(recent.get_or_read((toolset, caller, encoding, offer), state, report))


def _report(toolset: Toolset, caller: Caller, catalogue: Catalogue, encoding: Encoding, offer: Offer) -> dict[str, Any]:
    possible = catalogue.ledger.baseline(replace(offer.scope, within=None), encoding).model_tokens
    # only a toolset above MAX_DIRECT has more tools than those that were looked at
    found = list(tools_of(offer.sets.without_copies(offer.scope), catalogue)) if offer.is_cut else offer.found
    tools = sorted(found, key=lambda tool: tool.qualified_name)
    total = sum(tool.model_counts.get(encoding, 0) for tool in tools)
    # entries without a tool that this caller may see now: gone, not running, or of other groups
    visible = {(server, tool.definition.name) for tool in found for server in offer.sets.replicas(tool.server_id)}
    entries = {f"{server}:{name}" for server, name in visible} | {server for server, _ in visible}
    missing = [entry for entry in toolset.tools if entry not in entries]
    # others get their number alone: they may not see the names
    named = {"missing": missing} if missing and "toolsets:write" in caller.permissions else {}
    warning = f"Entries of the toolset without a tool that you may use now: {len(missing)}."
    warnings = [*offer.warnings, *([warning] if missing else [])]
    return {
        "toolset": toolset.name,
        **({"description": toolset.description} if toolset.description else {}),
        "tools": [_object(tool_info(tool, encoding, total)) for tool in tools],
        "meta": _object(context_meta(total, possible)),
        "profile": PROFILE,
        **stated_encoding(encoding),
        **_budget(caller, offer.budget),
        **named,
        **({"warnings": warnings} if warnings else {}),
    }


def _budget(caller: Caller, result: BudgetResult) -> dict[str, Any]:
    """Return the budget and the tools it excludes; nothing without a budget.

    These tokens are in the encoding of the service, since the budget is.
    """
    if caller.budget_tokens is None:
        return {}
    costs = {tool.qualified_name: cost(tool, result.encoding) for tool in result.excluded}
    return {
        "budget": {
            "tokens": caller.budget_tokens,
            **stated_encoding(result.encoding),
            "enforcedTokens": caller.limit_tokens,
            "used": result.tokens,
            "exceededBy": max(0, result.tokens + sum(costs.values()) - caller.budget_tokens),
        },
        **({"leftOut": [{"name": name, "tokens": tokens} for name, tokens in costs.items()]} if costs else {}),
    }


def _nothing(name: str | None, reason: str, possible: int) -> dict[str, Any]:
    named = {} if name is None else {"toolset": name}
    return {**named, "tools": [], "meta": _object(context_meta(0, possible)), "warnings": [reason]}


def _object(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)
