"""The MCP tool `call_tool`; `query.calling.call` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from mcp.types import CallToolResult, ResourceLink, Tool, ToolAnnotations
from pydantic import ValidationError
from starlette.requests import HTTPConnection, Request

from query.answers.links import Links
from query.calling.call import CALL_TOOL_NAME, CallRequest, ResolvedTool, call_tool, check_parameters, resolve_tool
from query.calling.sessions import CallResources, Progress
from query.tool import ALWAYS_LOADED, CATALOGUE_UNREACHABLE, ToolCallContext, ToolHandler, error_result, input_schema
from query.tools.audit import CallAudit
from query.tools.confirm import CallToConfirm, confirm, give_back
from query.tools.revisions import for_protocol
from query.turns import run_in_thread
from shared.errors import (
    ArgumentsInvalid,
    CallNotConfirmed,
    CallsExhausted,
    Delivery,
    IndexUnavailable,
    ServerError,
    SignInRequired,
    ToolNotFound,
    ToolscaleError,
)
from shared.quoting import quoted_name
from shared.upstream.auth import Challenge, Requester
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.sign_in import SignInFlows

CALL_TOOL = Tool(
    name=CALL_TOOL_NAME,
    description="Call a tool that find_tool or describe_tool showed you, and return its result.",
    input_schema=input_schema(CallRequest),
    # the hints describe the tools behind it
    annotations=ToolAnnotations(title="Call a tool", read_only_hint=False, destructive_hint=True, open_world_hint=True),
    _meta=ALWAYS_LOADED,
)

SIGN_IN = (
    "The server {server} needs a sign-in, so the call was not sent. Ask the user to open this link within five "
    "minutes, and call the tool again afterwards: {link}"
)
CHANGED = "the tool or its servers changed while the user was asked, so the call was not sent; call it again"


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
            ConfirmationRequired: the policy requires that the client asks its user first.
        """
        try:
            request = CallRequest.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_invalid_argument(error))
        audit = CallAudit(context.caller.name, request.name)
        try:
            with audit:
                return await self._result(request, context, audit)
        except ArgumentsInvalid as error:
            return error_result(f"{quoted_name(audit.tool)}: {error}")
        except SignInRequired as error:
            return await self._sign_in(error, context)
        except (ServerError, ToolNotFound, CallsExhausted, IndexUnavailable) as error:
            return error_result(CATALOGUE_UNREACHABLE if isinstance(error, IndexUnavailable) else str(error))
        finally:
            self._catalogue.record(audit.rows())

    async def _result(self, request: CallRequest, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        caller = context.caller
        resolved = await run_in_thread(caller.name, resolve_tool, request, caller, self._catalogue)
        audit.set_tool(resolved)
        await run_in_thread(caller.name, check_parameters, request, resolved)
        if resolved.action == "ask":
            return await self._after_confirmation(request, resolved, context, audit)
        return await self._call(request, resolved, context, audit)

    async def _call(
        self, request: CallRequest, resolved: ResolvedTool, context: ToolCallContext, audit: CallAudit
    ) -> CallToolResult:
        caller, mcp_context = context.caller, context.mcp_context
        resources = call_resources(context, self._upstreams, audit)
        result, server_id = await call_tool(request, resolved, self._upstreams, resources, mcp_context.meta)
        audit.set_result(result, server_id)
        if any(isinstance(block, ResourceLink) for block in result.content):
            # links to the server that returned the result, in place of that server's URIs
            links = Links(caller.name, self._catalogue.response_policy.kept)
            result = await anyio.to_thread.run_sync(links.in_result, result, f"{server_id}:{audit.tool}")
        return for_protocol(result, mcp_context.protocol_version, server_id)

    async def _sign_in(self, needed: SignInRequired, context: ToolCallContext) -> CallToolResult:
        """Return an error result with a link by which the caller's user signs in, or why there is none."""
        request: object = context.mcp_context.request
        caller, index = context.caller, self._catalogue.pinned().index
        server = await run_in_thread(caller.name, index.server, needed.server_id)
        if self._flows is None or server is None or not isinstance(request, Request):
            return error_result(str(needed))
        try:
            owner = self._flows.permitted_owner(server, request, caller)
            address = self._flows.address(request)
            challenge = needed.challenge if isinstance(needed.challenge, Challenge) else None
            ticket = await self._flows.begin(server, owner, caller, address, challenge)
        except ToolscaleError as error:
            return error_result(str(error))
        return error_result(SIGN_IN.format(server=quoted_name(needed.server_id), link=ticket.link))

    async def _after_confirmation(
        self, request: CallRequest, asked: ResolvedTool, context: ToolCallContext, audit: CallAudit
    ) -> CallToolResult:
        """Return the result of a call that the user confirmed; a call that was not sent gives its confirmation back.

        Raises:
            ConfirmationRequired, CallNotConfirmed: from `confirm`.
            CallDenied: the policy denies the call by now.
        """
        call = _to_confirm(request, asked, context)
        kept = self._catalogue.response_policy.kept
        await confirm(call, context, kept)
        try:
            return await self._call(request, await self._unchanged(request, call, context), context, audit)
        except (CallsExhausted, ServerError) as error:
            if error.delivery is Delivery.NOT_SENT:
                await anyio.to_thread.run_sync(give_back, call, kept)
            raise

    async def _unchanged(self, request: CallRequest, call: CallToConfirm, context: ToolCallContext) -> ResolvedTool:
        """Return the tool as it is now: the user may take minutes, in which the tool or the policy changes."""
        caller = context.caller
        resolved = await run_in_thread(caller.name, resolve_tool, request, caller, self._catalogue)
        is_changed = resolved.tool.definition_id != call.tool.definition_id
        if is_changed or (resolved.action == "ask" and _to_confirm(request, resolved, context).binding != call.binding):
            raise CallNotConfirmed(call.server_ids[0], CHANGED)
        return resolved


def _to_confirm(request: CallRequest, resolved: ResolvedTool, context: ToolCallContext) -> CallToConfirm:
    server_ids = [record.server_id for record in resolved.replicas]
    return CallToConfirm(context.caller.name, resolved.tool, server_ids, request.parameters)


def call_resources(context: ToolCallContext, upstreams: Upstreams, audit: CallAudit) -> CallResources:
    """Return the caller's side of a request to a server, until the context's exit stack closes.

    Raises:
        CallsExhausted: the caller has as many calls in flight as the limit allows.
    """
    # the session drops reports to a caller that did not ask for progress
    progress = Progress(context.mcp_context.session.report_progress)
    slot = context.exit_stack.enter_context(upstreams.admission.admitted(context.caller.name))
    return CallResources(progress, slot, requester_of(context), audit.on_failover)


def requester_of(context: ToolCallContext) -> Requester:
    """Return for whom a server is called: the caller, with the headers of his request."""
    request: object = context.mcp_context.request
    headers = dict(request.headers) if isinstance(request, HTTPConnection) else {}
    return Requester(context.caller.identity, headers)
