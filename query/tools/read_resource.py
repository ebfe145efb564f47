"""The MCP method `resources/read`, for the links in results of called tools and in lists, and for `ui://` of tools."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    TextResourceContents,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from query.answers.links import UNKNOWN, Link, Links
from query.calling.call import (
    RESOURCE_NOT_FOUND,
    CallRequest,
    ReadResult,
    ResolvedTool,
    read_resource,
    resolve_tool,
)
from query.questions import check_capabilities
from query.tool import CATALOGUE_UNREACHABLE, ToolCallContext, ToolHandler, error_result
from query.tools.audit import CallAudit
from query.tools.revisions import for_protocol
from query.tools.server_request import ServerRequest, given_to, questions_of
from query.turns import run_in_thread
from query.usage.record import read_rows
from query.usage.usage import today
from shared.errors import CallDenied, CallsExhausted, IndexUnavailable, ResourceNotFound, ServerError, ToolNotFound

if TYPE_CHECKING:
    from mcp.types import ReadResourceResult

    from query.caller import Caller
    from query.calling.sessions import CallResources
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.tools.toolset_tools import Toolsets

READ_RESOURCE = "resources/read"


class ReadResource(ToolHandler):
    """Reads the resource of a link; a tool in form, whose result holds the contents as embedded resources.

    A caller may read as long as it may call the tool of the link: that which returned it, or one of the server that
    listed it.
    """

    tool = Tool(name=READ_RESOURCE, input_schema={"type": "object"})
    permission = "tools:call"
    paging = "foreign"

    def __init__(self, catalogue: Catalogue, upstreams: Upstreams, toolsets: Toolsets) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._toolsets = toolsets

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the contents of the resource; log, count and record the read.

        Raises:
            MCPError: the caller has no such link, or the server no such resource.
            InputRequired: the server asks the caller's client.
            StateInvalid: the request answers no question about this read.
        """
        uri: str = context.arguments["uri"]
        try:
            with CallAudit(context.caller.name, READ_RESOURCE) as audit:
                return await self._result(uri, context, audit)
        except (ResourceNotFound, CallDenied) as error:
            is_older = context.mcp_context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
            code = RESOURCE_NOT_FOUND if is_older else INVALID_PARAMS
            reason = UNKNOWN if isinstance(error, CallDenied) else str(error)
            raise MCPError(code, reason, {"uri": uri}) from error
        except (ServerError, CallsExhausted, IndexUnavailable) as error:
            check_capabilities(error, context.mcp_context.protocol_version)
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))

    async def _result(self, uri: str, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        caller, mcp_context = context.caller, context.mcp_context
        links = Links(caller.name, self._catalogue.response_policy.kept)
        link, resolved = await run_in_thread(caller.name, self._resolve, uri, links, caller)
        audit.server, audit.policy = resolved.tool.server_id, resolved.action
        questions = questions_of(context, self._catalogue.response_policy.kept, READ_RESOURCE, link.tool, link.uri)
        server_request = ServerRequest(context, self._upstreams, questions, audit, [resolved.tool.server_id])
        asked = None if server_request.is_sent else await questions.asked()
        given = given_to(asked, questions)

        def send(resources: CallResources) -> Awaitable[tuple[ReadResult, str]]:
            return read_resource(link.uri, resolved, self._upstreams, resources, mcp_context.meta, given)

        read, _ = await server_request.result(send)
        audit.set_result(read, resolved.tool.server_id)
        tool = resolved.tool
        rows = read_rows(today(), caller.name, tool.server_id, tool.definition.name, audit.result_bytes)
        self._catalogue.record(rows)
        result = await anyio.to_thread.run_sync(_as_result, read, link, uri, links)
        return for_protocol(result, mcp_context.protocol_version, resolved.tool.server_id)

    def _resolve(self, uri: str, links: Links, caller: Caller) -> tuple[Link, ResolvedTool]:
        """Return the link of a URI, and the tool that returned or declares it, if the caller may call it now.

        A tool that needs a confirmation needs none for its links: they are part of a result.

        Raises:
            ResourceNotFound: this caller has no such link, or its scope no such tool any more.
            CallDenied: the policy denies calls of the tool.
            CursorsUnavailable: the store of links does not answer.
            ServerNotRunning: the tool's server is stopped or quarantined.
            IndexUnavailable: the index did not answer.
        """
        link = self._toolsets.direct(caller).ui.get(uri) or links.open(uri)
        return link, resolve_link(link, caller, self._catalogue)


def resolve_link(link: Link, caller: Caller, catalogue: Catalogue) -> ResolvedTool:
    """Return the tool of a link and its server; raises as `ReadResource._resolve`."""
    # without validation: a qualified name may be longer than those that callers write
    request = CallRequest.model_construct(tool_name=link.tool, server_name=link.tool.partition(":")[0])
    try:
        return resolve_tool(request, caller, catalogue)
    except CallDenied:
        raise
    except ToolNotFound as error:
        raise ResourceNotFound(UNKNOWN) from error


def _as_result(read: ReadResourceResult, link: Link, uri: str, links: Links) -> CallToolResult:
    """Return the contents as embedded resources: those of the link at its `uri`, all others at links of their own."""
    others = links.to([contents.uri for contents in read.contents if contents.uri != link.uri], link.tool)

    def block(contents: TextResourceContents | BlobResourceContents) -> EmbeddedResource:
        shown = uri if contents.uri == link.uri else others[contents.uri]
        return EmbeddedResource(resource=contents.model_copy(update={"uri": shown}))

    return CallToolResult(content=[block(contents) for contents in read.contents], _meta=read.meta)
