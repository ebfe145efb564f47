"""`find_tool`, as MCP clients see it; what it does is in `query.find`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.find import find_tool
from query.history.recorder import given_by_search
from query.response.find_response import FindAnswer
from query.search.request import FindRequest
from query.tools.schema import input_schema, output_schema
from query.tools.tool import Offer, answering

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.tools.tool import OwnDefinitions

FIND_TOOL = Tool(
    name="find_tool",
    description=(
        "Search the tools of all connected MCP servers by what they do. "
        "For a task of several steps, give one description a step. "
        "Returns the best matches, with definitions or summaries, and the tokens this saved."
    ),
    input_schema=input_schema(FindRequest),
    output_schema=output_schema(FindAnswer),
    annotations=ToolAnnotations(title="Find tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    # clients that defer tools until they are searched for must not defer the search
    _meta={"anthropic/alwaysLoad": True},
)

_log = structlog.get_logger()


def find_tool_offer(catalogue: Catalogue, own: OwnDefinitions) -> Offer:
    """Return the tool that finds tools in this catalogue, listed beside these definitions of ours."""

    def respond(request: FindRequest, caller: Caller) -> dict[str, Any]:
        answer = find_tool(request, caller.scope, catalogue, caller)
        _log_found(answer)
        catalogue.metrics.found(answer, is_new=request.cursor is None)
        if catalogue.savings:
            own_tokens = own.tokens(caller.permissions)
            catalogue.savings.note(given_by_search(answer, caller, own_tokens, is_new=request.cursor is None))
        return answer.as_object()

    return Offer(FIND_TOOL, "catalog:read", answering(FindRequest, respond), pages="own")


def _log_found(answer: FindAnswer) -> None:
    metrics, timings = answer.token_metrics, answer.timings
    _log.info(
        "tools_found",
        hits=len(answer.tools),
        no_match=bool(answer.no_match),
        baseline_tokens=metrics.baseline_tokens,
        returned_tokens=metrics.returned_tokens,
        tokens_saved=metrics.tokens_saved,
        uncounted=metrics.uncounted_total,
        embed_ms=round(timings.embed_ms, 2),
        search_ms=round(timings.search_ms, 2),
        sum_ms=round(timings.sum_ms, 2),
        fit_ms=round(timings.fit_ms, 2),
        total_ms=round(timings.total_ms, 2),
    )
