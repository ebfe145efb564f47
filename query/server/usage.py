"""Records what leaves the server: pages of `tools/list` and answers of tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from query.answers.pages import own_texts
from query.history.events import answer_rows, list_rows
from query.history.periods import today
from query.replicas.serving import first_server
from query.tools.describe_tool import DESCRIBE_TOOL
from query.tools.find_tool import FIND_TOOL

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.types import CallToolResult, ListToolsResult

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.store import Counts
    from query.tools.tool import ToolCallContext
    from shared.catalog import Encoding

    Context = ServerRequestContext[Any]


COMMAND_LINE = "toolscale-cli"
"""The name in the client info of commands: their lists and answers reach no agent, and are not recorded.

A client that takes this name hides no call of a server's tool: `call_tool` records these itself.
"""


def record_list(
    catalogue: Catalogue | None,
    caller: Caller,
    page: ListToolsResult,
    context: Context,
    *,
    is_first: bool,
) -> None:
    """Record a page of `tools/list`; a catalogue without a recorder records nothing."""
    if catalogue and catalogue.recorder and not _is_command(context):
        encoding = catalogue.encoding
        baseline = partial(catalogue.ledger.baseline, caller.scope, encoding) if is_first else None
        catalogue.recorder.record(list_rows(today(), caller.name, page, context.protocol_version, encoding, baseline))


def record_answer(catalogue: Catalogue | None, tool: str, call: ToolCallContext, result: CallToolResult) -> None:
    """Record an answer of a tool of ours; a catalogue without a recorder records nothing."""
    if catalogue and catalogue.recorder and not _is_command(call.mcp_context):
        texts, encoding, caller = own_texts(result), catalogue.encoding, call.caller.name
        shown = _shown(call) if tool in (FIND_TOOL.name, DESCRIBE_TOOL.name) else []
        is_search = tool == FIND_TOOL.name and not result.is_error
        search, tokens = (_search(call), _tokens(call, encoding)) if is_search else (None, None)
        catalogue.recorder.record(answer_rows(today(), caller, tool, texts, encoding, shown, search, tokens))


def _is_command(context: Context) -> bool:
    client = context.session.client_params
    return client is not None and client.client_info.name == COMMAND_LINE


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


def _tokens(call: ToolCallContext, encoding: Encoding) -> int | None:
    """Return the tokens that a search stated for its answer; None if it counted in another encoding."""
    metrics = call.response["token_metrics"]
    return metrics["answer_tokens"] if metrics["encoding"] == encoding else None
