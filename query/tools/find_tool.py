"""The MCP tool `find_tool`; `query.find` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.answers.answer import FindResponse
from query.caller import Caller
from query.find import FURTHER_LOST, Timings, find_tool
from query.kept import Recent
from query.metrics import TOKENS_SAVED
from query.search.request import FindRequest
from query.tools.schema import input_schema, output_schema
from query.tools.tool import ALWAYS_LOADED, CatalogueTool
from query.toolsets.offers import NOTHING

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.toolsets.offers import Offers

FIND_TOOL = Tool(
    name="find_tool",
    description=(
        "Search the tools of all connected MCP servers by what they do. "
        "For a task of several steps, give one description a step. "
        "Returns the best matches and the tokens this saved."
    ),
    input_schema=input_schema(FindRequest),
    output_schema=output_schema(FindResponse),
    annotations=ToolAnnotations(title="Find tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    _meta=ALWAYS_LOADED,
)

# A usual answer has less. This bounds the memory of all answers that are kept to be sent again.
MAX_KEPT_TOKENS = 8_000

_log = structlog.get_logger()


class FindTool(CatalogueTool[FindRequest]):
    """Finds tools in a catalogue; `offers` has those that `tools/list` shows, None: it shows no tools of servers."""

    tool = FIND_TOOL
    paging = "own"
    request_model = FindRequest

    def __init__(self, catalogue: Catalogue, offers: Offers | None = None) -> None:
        self._catalogue = catalogue
        self._offers = offers
        self._recent: Recent[FindResponse] = Recent()

    def respond(self, request: FindRequest, caller: Caller) -> dict[str, Any]:
        """Return the search response; log and count the search."""
        response, timings = self._found(request, caller)
        _log_found(response, timings)
        if request.cursor is None:
            tokens = response.token_metrics
            TOKENS_SAVED.labels(tokens.encoding).inc(tokens.tokens_saved)
        return response.as_object()

    def _found(self, request: FindRequest, caller: Caller) -> tuple[FindResponse, Timings]:
        """Return the response to this request, or the same one again if no server has changed since."""
        catalogue = self._catalogue.pinned()
        state = catalogue.ledger.state()
        encoding = request.encoding or catalogue.encoding
        offered = self._offers.cost(caller, encoding) if self._offers else NOTHING
        # with the model: its change replaces the index, without a change of the records
        key = (request.model_dump_json(), caller, offered, catalogue.embedder.model)
        if (recent := self._recent.get(key, state)) is not None:
            return recent, Timings()
        response, timings = find_tool(request, caller.scope, catalogue, caller, offered)
        if may_repeat(response):
            self._recent.keep(key, state, response)
        return response, timings


def may_repeat(response: FindResponse) -> bool:
    """Return whether an answer names tools, is not very long, and has the cursor to all others."""
    names_tools, is_short = response.tools or response.nearest, response.token_metrics.answer_tokens <= MAX_KEPT_TOKENS
    return bool(names_tools) and is_short and FURTHER_LOST not in response.warnings


def _log_found(response: FindResponse, timings: Timings) -> None:
    metrics = response.token_metrics
    _log.info(
        "tools_found",
        hits=len(response.tools),
        no_match=bool(response.no_match),
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
