"""Call a tool on the server that owns it: the main path of `call_tool`. A read of its resources is the same.

request ─▶ the tool in the caller's scope ─▶ its running replicas ─▶ policy ─▶ arguments ─▶ confirmation
        ─▶ choice of a replica ─▶ connection ─▶ result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    InputRequiredResult,
    ReadResourceResult,
    RequestParamsMeta,
)

from query.caller import Caller
from query.calling.request import CallRequest
from query.calling.sessions import CallResources
from query.calling.tool_lookup import resolve_tool_name
from query.calling.upstream_request import ResourceRead
from query.calling.upstreams import ReplicatedCall, Upstreams
from query.catalogue import Catalogue
from query.policy import Action, CallerRules
from shared.catalog import IndexedTool, Scope, ServerRecord, ToolDefinition
from shared.errors import CallDenied, ResourceNotFound, ServerFailed, ServerNotRunning, ToolNotFound
from shared.quoting import quoted_name

# The code of an unknown resource until 2025-11-25; from 2026-07-28 it is INVALID_PARAMS.
RESOURCE_NOT_FOUND = -32002

# A replica that needs no confirmation has precedence.
_PERMITTING: tuple[Action, ...] = ("allow", "ask")


@dataclass(frozen=True, slots=True)
class ResolvedTool:
    """The tool of a request, and the records of the servers that may serve it: one, or the tool's replicas.

    The policy has this action for a call of each of them; it denies none.
    """

    tool: IndexedTool
    replicas: tuple[ServerRecord, ...]
    action: Action = "allow"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The tool's own result, and the server that returned it."""

    result: CallToolResult
    server_id: str


def resolve_tool(request: CallRequest, caller: Caller, catalogue: Catalogue) -> ResolvedTool:
    """Return the tool to call and its replicas; their servers may have failed their last listings.

    The replicas are those whose calls the policy allows; if there are none, those that it asks about.

    Raises:
        ToolNotFound: the caller's scope has no tool of this name, or several.
        ServerNotRunning: its server is stopped or quarantined.
        CallDenied: the policy denies the call on each server that offers the tool.
        IndexUnavailable: the index did not answer.
    """
    return _permitted(_resolve(request, caller.scope, catalogue.pinned()), catalogue.read_policy().of(caller))


def _permitted(resolved: ResolvedTool, rules: CallerRules) -> ResolvedTool:
    # replicas have equal definitions, and rules may distinguish their servers
    definition = resolved.tool.definition
    actions = {record.server_id: rules.action(record.server_id, definition) for record in resolved.replicas}
    for action in _PERMITTING:
        replicas = tuple(record for record in resolved.replicas if actions[record.server_id] == action)
        if replicas:
            return replace(resolved, replicas=replicas, action=action)
    raise CallDenied(resolved.tool.server_id, definition.name)


def _resolve(request: CallRequest, allowed: Scope, catalogue: Catalogue) -> ResolvedTool:
    resolved = resolve_tool_name(request.name, allowed, catalogue, request.server_name)
    if len(resolved.server_ids) > 1:
        # reading each record from the index would take a request per replica
        known = tuple(filter(None, map(catalogue.ledger.record, resolved.server_ids)))
        if not known:
            raise _without_server(request)
        return ResolvedTool(resolved.tool, known)
    server_id = resolved.tool.server_id
    record = catalogue.index.server(server_id)
    if record is None:
        raise _without_server(request)
    if record.status != "running":
        raise ServerNotRunning(server_id, f"is {record.status}, so its tools cannot be called now")
    return ResolvedTool(resolved.tool, (record,))


def _without_server(request: CallRequest) -> ToolNotFound:
    return ToolNotFound(request.name, "is no tool of a known server any more", ())


def check_parameters(request: CallRequest, resolved: ResolvedTool) -> None:
    """Return if the tool's server may accept the parameters.

    Raises:
        ArgumentsInvalid: the tool's input schema forbids them.
    """
    from query.calling.arguments import check_arguments  # noqa: PLC0415  # a library of 15 MB, for calls alone

    check_arguments(resolved.tool.definition, request.parameters)


async def call_tool(
    request: CallRequest,
    resolved: ResolvedTool,
    upstreams: Upstreams,
    resources: CallResources,
    caller: str = "",
    meta: Mapping[str, Any] | None = None,
) -> CallResult:
    """Return the tool's own result, which may be an error; `meta` is forwarded without the keys of our connection.

    Raises:
        ServerError, CallsExhausted: from `Upstreams.call`.
    """
    definition = resolved.tool.definition
    call = ReplicatedCall(
        tool=definition.name,
        arguments=request.parameters,
        replicas=resolved.replicas,
        is_repeatable=len(resolved.replicas) > 1 and is_repeatable(definition),
        caller=caller,
        meta=forwarded(meta),
    )
    served = await upstreams.call(call, resources)
    if isinstance(served.result, InputRequiredResult):
        reason = f"{quoted_name(definition.name)} asks for input in mid-call, which Toolscale cannot pass on"
        raise ServerFailed(served.server_id, reason)
    return CallResult(served.result, served.server_id)


async def read_resource(
    uri: str,
    resolved: ResolvedTool,
    upstreams: Upstreams,
    resources: CallResources,
    meta: Mapping[str, Any] | None = None,
) -> ReadResourceResult:
    """Return the resource that the tool's server has at its own URI; `meta` as for `call_tool`.

    Raises:
        ResourceNotFound: the server has no such resource.
        ServerError, CallsExhausted: from `Upstreams.read`.
    """
    (server,) = resolved.replicas
    version = server.protocol_version
    read = ResourceRead(server_id=server.server_id, protocol_version=version, meta=forwarded(meta), uri=uri)
    try:
        result = await upstreams.read(read, server.endpoint, resources)
    except ServerFailed as error:
        if error.code in (RESOURCE_NOT_FOUND, INVALID_PARAMS):
            raise ResourceNotFound(str(error)) from error
        raise
    if isinstance(result, InputRequiredResult):
        raise ServerFailed(server.server_id, "asks for input to read a resource, which Toolscale cannot pass on")
    return result


def is_repeatable(definition: ToolDefinition) -> bool:
    """Return whether the tool declares `readOnlyHint` or `idempotentHint`: a second call does no further harm."""
    annotations = definition.as_object().get("annotations")
    return isinstance(annotations, dict) and any(
        cast("dict[str, Any]", annotations).get(hint) is True for hint in ("readOnlyHint", "idempotentHint")
    )


# Each connection has its own progress token; the SDK and the wire spell the key differently.
_OF_THIS_CONNECTION = frozenset({"progress_token", "progressToken"})
_PROTOCOL = frozenset({"modelcontextprotocol", "mcp"})


def forwarded(meta: Mapping[str, Any] | None) -> RequestParamsMeta:
    """Return the caller's trace context, baggage and vendor keys.

    The progress token and the protocol's own keys belong to the caller's connection, and are left out.
    """
    kept = {
        key: value
        for key, value in (meta or {}).items()
        if key not in _OF_THIS_CONNECTION and not _is_of_the_protocol(key)
    }
    return cast("RequestParamsMeta", kept)


def _is_of_the_protocol(key: str) -> bool:
    """Return whether the key's prefix is reserved: its second label is the protocol's name."""
    prefix, slash, _ = key.rpartition("/")
    return bool(slash) and not _PROTOCOL.isdisjoint(prefix.split(".")[1:2])
