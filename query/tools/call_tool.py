"""The MCP tool `call_tool`; `query.calling.call` implements it."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import anyio
from mcp.types import CallToolResult, ResourceLink, Tool, ToolAnnotations
from pydantic import ValidationError

from query.answers.links import Links
from query.calling.call import (
    CALL_TOOL_NAME,
    CallRequest,
    ResolvedTool,
    ToolResult,
    call_tool,
    check_parameters,
)
from query.questions import check_capabilities
from query.tool import ALWAYS_LOADED, CATALOGUE_UNREACHABLE, ToolCallContext, ToolHandler, error_result, input_schema
from query.tools.audit import CallAudit
from query.tools.confirm import CallToConfirm, confirm, give_back
from query.tools.revisions import for_protocol
from query.tools.server_request import ServerRequest, at_servers_of, given_to, questions_of, requester_of
from query.tools.session_tool import resolve_called_tool
from query.tools.sign_in import SignInOfCall
from query.turns import run_in_thread
from shared.errors import (
    ArgumentsInvalid,
    CallsExhausted,
    Delivery,
    IndexUnavailable,
    ServerError,
    SignInRequired,
    ToolNotFound,
)
from shared.quoting import quoted_name
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.calling.sessions import CallResources
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.kept import Kept
    from query.questions import Questions
    from query.sign_in import SignInFlows

CALL_TOOL = Tool(
    name=CALL_TOOL_NAME,
    description="Call a tool that find_tool or describe_tool showed you, and return its result.",
    input_schema=input_schema(CallRequest),
    # the hints describe the tools behind it
    annotations=ToolAnnotations(title="Call a tool", read_only_hint=False, destructive_hint=True, open_world_hint=True),
    _meta=ALWAYS_LOADED,
)


class CallTool(ToolHandler):
    """Calls the tools of a catalogue on their servers."""

    tool = CALL_TOOL
    permission = "tools:call"

    def __init__(self, catalogue: Catalogue, upstreams: Upstreams, flows: SignInFlows | None = None) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._flows = flows

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the called tool's result; log, count and record the call.

        Raises:
            InputRequired: the policy, or the server, asks the caller's client.
            StateInvalid: the request answers no question about this call.
            MCPError: the server requires what the caller's client lacks.
        """
        try:
            request = CallRequest.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_invalid_argument(error))
        return await self.audited(request, context, CallAudit(context.caller.name, request.name))

    async def audited(self, request: CallRequest, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        """Return as `call`; the audit then has the server and the outcome.

        Raises:
            InputRequired, StateInvalid, MCPError: as `call`.
        """
        try:
            with audit:
                return await self._result(request, context, audit)
        except ArgumentsInvalid as error:
            return error_result(f"{quoted_name(audit.tool)}: {error}")
        except (ServerError, ToolNotFound, CallsExhausted, IndexUnavailable) as error:
            check_capabilities(error, context.mcp_context.protocol_version)
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))
        finally:
            self._catalogue.record(audit.rows())
            self._catalogue.last_calls.add(audit.entry())

    async def _result(self, request: CallRequest, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        """Return the result of a call; one that its user confirmed and that was not sent gives its confirmation back.

        Raises:
            InputRequired, ClientNotAsked, CallNotConfirmed: of a question to the caller's client.
            StateInvalid: the request answers no question about this call.
        """
        caller, catalogue, kept = context.caller, self._catalogue, self._catalogue.response_policy.kept
        requester = requester_of(caller, context.mcp_context)
        resolved = await resolve_called_tool(request, caller, requester, catalogue, self._upstreams)
        audit.set_tool(resolved)
        await run_in_thread(caller.name, check_parameters, request, resolved)
        questions = _questions(request, resolved, context, kept)
        servers = [record.server_id for record in resolved.replicas]
        server_request = ServerRequest(context, self._upstreams, questions, audit, servers)
        asked = None if server_request.is_sent else await questions.asked()
        resolved = at_servers_of(asked, resolved)
        to_confirm = _to_confirm(request, resolved, context)
        if resolved.action == "ask" and not server_request.is_sent:
            await confirm(to_confirm, questions, asked, kept)
        sign_in = SignInOfCall(self._flows, catalogue.pinned().index, context, questions)
        await sign_in.finish(asked)
        given, meta = given_to(asked, questions), context.mcp_context.meta

        def send(resources: CallResources) -> Awaitable[tuple[ToolResult, str]]:
            return call_tool(request, resolved, self._upstreams, resources, meta, given)

        try:
            result, server_id = await server_request.result(send)
        except (CallsExhausted, ServerError) as error:
            failure = await sign_in.ask(error) if isinstance(error, SignInRequired) else error
            if resolved.action == "ask" and error.delivery is Delivery.NOT_SENT:
                await anyio.to_thread.run_sync(give_back, to_confirm, kept)
            raise failure from error
        audit.set_result(result, server_id)
        if any(isinstance(block, ResourceLink) for block in result.content):
            # links to the server that returned the result, in place of that server's URIs
            links = Links(caller.name, kept)
            result = await anyio.to_thread.run_sync(links.in_result, result, f"{server_id}:{audit.tool}")
        return for_protocol(result, context.mcp_context.protocol_version, server_id)


def _questions(request: CallRequest, resolved: ResolvedTool, context: ToolCallContext, kept: Kept) -> Questions:
    """Return the questions about this call; a change of its tool or of the policy's action makes it another one."""
    tool = json.dumps([resolved.tool.definition.name, resolved.tool.definition_id, resolved.action])
    return questions_of(context, kept, CALL_TOOL_NAME, tool, json.dumps(request.parameters, sort_keys=True))


def _to_confirm(request: CallRequest, resolved: ResolvedTool, context: ToolCallContext) -> CallToConfirm:
    server_ids = [record.server_id for record in resolved.replicas]
    return CallToConfirm(context.caller.name, resolved.tool, server_ids, request.parameters)
