"""Records what leaves the server: pages of `tools/list` and answers of tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from query.history.events import answer_rows, list_rows
from query.history.periods import today
from query.paging.results import own_texts
from query.replicas.serving import first_server
from query.tools.describe_tool import DESCRIBE_TOOL
from query.tools.find_tool import FIND_TOOL

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ListToolsResult

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.store import Counts
    from query.tools.tool import ToolCallContext


def record_list(
    catalogue: Catalogue | None, caller: Caller, page: ListToolsResult, protocol_version: str, *, is_first: bool
) -> None:
    """Record a page of `tools/list`; a catalogue without a recorder records nothing."""
    if catalogue and catalogue.recorder:
        encoding = catalogue.encoding
        baseline = partial(catalogue.ledger.baseline, caller.scope, encoding) if is_first else None
        catalogue.recorder.record(list_rows(today(), caller.name, page, protocol_version, encoding, baseline))


def record_answer(catalogue: Catalogue | None, tool: str, call: ToolCallContext, result: CallToolResult) -> None:
    """Record an answer of a tool of ours; a catalogue without a recorder records nothing."""
    if catalogue and catalogue.recorder:
        texts, encoding, caller = own_texts(result), catalogue.encoding, call.caller.name
        shown = _shown(call) if tool in (FIND_TOOL.name, DESCRIBE_TOOL.name) else []
        search = _search(call) if tool == FIND_TOOL.name and not result.is_error else None
        catalogue.recorder.record(answer_rows(today(), caller, tool, texts, encoding, shown, search))


def _shown(call: ToolCallContext) -> list[tuple[str, str]]:
    tools = call.response.get("tools", ())
    return [first_server(tool["name"], tool.get("served_by", {}).get("servers", ())) for tool in tools]


def _search(call: ToolCallContext) -> Counts:
    """Return the counters of a search; a further page belongs to the search before, and no tool means no saving."""
    if call.arguments.get("cursor"):
        return {}
    if not call.response["tools"]:
        return {"searches": 1, "found_nothing": 1}
    return {"searches": 1, "tokens_saved": call.response["token_metrics"]["tokens_saved"]}
