"""The MCP method `completion/complete`, for prompts and resource templates of a toolset's servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.types import (
    CallToolResult,
    CompleteRequest,
    CompleteRequestParams,
    CompleteResult,
    PromptReference,
    ResourceTemplateReference,
    Tool,
)

from query.answers.links import Links
from query.calling.call import forwarded
from query.tools.read_resource import resolve_link
from query.tools.server_request import requester_of
from query.toolset_servers import RequestHandler
from query.turns import run_in_thread
from shared.text.invisible import marked

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT

    from query.caller import Caller
    from query.calling.call import ResolvedTool
    from query.prompts import Prompts
    from query.tool import ToolCallContext
    from query.tools.audit import CallAudit
    from query.toolset_servers import ToolsetServers

COMPLETE = "completion/complete"


class Complete(RequestHandler):
    """Completes an argument of a prompt or a variable of a template; the structured content has the values."""

    tool = Tool(name=COMPLETE, input_schema={"type": "object"})
    paging = "own"  # at most 100 values, by MCP

    def __init__(self, servers: ToolsetServers, prompts: Prompts) -> None:
        super().__init__(servers)
        self._prompts = prompts

    async def result(self, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        """Return the server's completion."""
        params: CompleteRequestParams = context.arguments["params"]
        server, ref = await self._referenced(params.ref, context)
        meta = forwarded(context.mcp_context.meta)
        request = CompleteRequest(params=params.model_copy(update={"ref": ref, "meta": meta}))

        async def send(client: Client, on_progress: ProgressFnT) -> CompleteResult:
            return await client.session.send_request(request, CompleteResult, progress_callback=on_progress)

        completed, _ = await self.answered(lambda _: send, server, context, audit)
        return CallToolResult(content=[], structured_content=marked(completed.completion).model_dump())

    async def _referenced(
        self, ref: PromptReference | ResourceTemplateReference, context: ToolCallContext
    ) -> tuple[ResolvedTool, PromptReference | ResourceTemplateReference]:
        """Return the server of a prompt or template, and that server's own reference to it."""
        caller = context.caller
        if isinstance(ref, PromptReference):
            requester = requester_of(caller, context.mcp_context)
            server, name = await self._prompts.named(ref.name, caller, requester)
            return server, ref.model_copy(update={"name": name})
        server, template = await run_in_thread(caller.name, self._opened, ref.uri, caller)
        return server, ref.model_copy(update={"uri": template})

    def _opened(self, uri: str, caller: Caller) -> tuple[ResolvedTool, str]:
        link = Links(caller.name, self._catalogue.response_policy.kept).open(uri)
        return resolve_link(link, caller, self._catalogue), link.uri
