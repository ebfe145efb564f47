"""The toolset of a caller: from its token, or from the path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_REQUEST
from starlette.requests import Request

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from query.caller import Caller
    from shared.index.tools import ToolIndex
    from shared.toolset import Toolset


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


def _tighter(first: int | None, second: int | None) -> int | None:
    return min((limit for limit in (first, second) if limit is not None), default=None)
