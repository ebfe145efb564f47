"""Call a tool on the server that owns it: the main path of `call_tool`. A read of its resources is the same.

request ─▶ the tool in the caller's scope ─▶ its running replicas ─▶ policy ─▶ arguments ─▶ confirmation
        ─▶ choice of a replica ─▶ connection ─▶ result
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from mcp import Client
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParamsMeta,
)
from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import override

from query.absent import absence
from query.answers.budget import ToolRequest, renamed, without_empty
from query.caller import Caller
from query.calling.limits import CallExchange
from query.calling.sessions import CallResources
from query.calling.tool_lookup import ResolvedName, resolve_tool_name
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.policy import Action
from query.questions import NO_INPUT, ClientInput
from query.search.request import ToolName
from shared.catalog import IndexedTool, ServerRecord, ToolDefinition
from shared.errors import (
    CallDenied,
    ResourceNotFound,
    ServerError,
    ServerFailed,
    ServerNotRunning,
    ToolExcluded,
    ToolNotFound,
)
from shared.upstream.session import current_exchange
from shared.validation import did_you_mean

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from query.calling.connection import Send

# The code of an unknown resource until 2025-11-25; from 2026-07-28 it is INVALID_PARAMS.
RESOURCE_NOT_FOUND = -32002

# A replica that needs no confirmation has precedence.
_PERMITTING: tuple[Action, ...] = ("allow", "ask")


ToolResult = CallToolResult | InputRequiredResult
ReadResult = ReadResourceResult | InputRequiredResult

_TOOL_RESULT: TypeAdapter[ToolResult] = TypeAdapter(ToolResult)
_READ_RESULT: TypeAdapter[ReadResult] = TypeAdapter(ReadResult)

# `username` and `server_id` are of the called tool, and `sever_name` is not.
_CLOSE = 0.85
# More nested calls than any agent was observed to send.
_MAX_WRAPPERS = 3
CALL_TOOL_NAME = "call_tool"


class CallRequest(ToolRequest):
    """A tool and its parameters.

    Also accepted: `name` for `tool_name`, `arguments` or `args` for `parameters`, parameters as JSON text, and the
    whole request nested in `parameters`.
    """

    aliases: ClassVar[Mapping[str, str]] = {"name": "tool_name", "arguments": "parameters", "args": "parameters"}

    tool_name: ToolName
    """`server:tool`, or the tool's name."""
    server_name: ToolName | None = None
    """Its server, if not in tool_name."""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    """As the tool's inputSchema says."""

    @model_validator(mode="before")
    @classmethod
    def _straighten(cls, raw: Any) -> Any:
        """Return the innermost request; a wrapper names no tool, or `call_tool`."""
        if not isinstance(raw, dict):
            return raw
        request = _normalized(cast("dict[str, Any]", raw))
        for _ in range(_MAX_WRAPPERS):
            inner = request.get("parameters")
            is_ours = request.get("tool_name") == CALL_TOOL_NAME and request.get("server_name") is None
            if not (is_ours or request.get("tool_name") is None) or not isinstance(inner, dict):
                break
            wrapped = _normalized(cast("dict[str, Any]", inner))
            if wrapped.keys().isdisjoint(("tool_name", "parameters")):
                break
            rest = {key: value for key, value in request.items() if key not in ("tool_name", "parameters")}
            request = rest | wrapped
        return request

    @classmethod
    @override
    def unknown(cls, name: str, given: Collection[str]) -> str:
        """Return why an argument is refused: mostly it is one of the called tool."""
        meant = did_you_mean(name, (field for field in cls.model_fields if field not in given), _CLOSE)
        put = f"{meant} Put" if meant else "; put"
        return f"no argument of call_tool{put} what the called tool needs into `parameters`"

    @property
    def name(self) -> str:
        """Return the name to look up, qualified if the server is given."""
        if self.server_name is None or self.tool_name.startswith(f"{self.server_name}:"):
            return self.tool_name
        return f"{self.server_name}:{self.tool_name}"


def _normalized(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the request with the names of the fields, without empty values, and with parsed parameters.

    Raises:
        ValueError: a field is given twice, under two names, or the parameters are broken JSON.
    """
    aliases = CallRequest.aliases
    given = without_empty(raw, CallRequest.model_fields.keys() | aliases.keys())
    if {"tool_name", "name"} <= given.keys():  # many tools have a parameter of this name
        raise ValueError(f"name: {CallRequest.unknown('name', CallRequest.model_fields)}")
    request = renamed(given, aliases)
    text = request.get("parameters")
    if isinstance(text, str):
        try:
            request["parameters"] = json.loads(text) if text.strip() else {}
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise ValueError(
                f"parameters: expected an object; as JSON, this text breaks at {where}: {error.msg}"
            ) from None
        except (ValueError, RecursionError):
            pass  # the validation of the field rejects it
    return request


@dataclass(frozen=True, slots=True)
class ResolvedTool:
    """The tool of a request, and the records of the servers that may serve it: one, or the tool's replicas.

    The policy has this action for a call of each of them; it denies none. `timeout_s` is the longest time of their
    options for a call; None: that of all servers.
    """

    tool: IndexedTool
    replicas: tuple[ServerRecord, ...]
    action: Action = "allow"
    timeout_s: float | None = None


def resolve_tool(request: CallRequest, caller: Caller, catalogue: Catalogue) -> ResolvedTool:
    """Return the tool to call and its replicas; their servers may have failed their last listings.

    The replicas are those whose options include the tool, and whose calls the policy allows; if there are none, those
    that it asks about.

    Raises:
        ToolNotFound: the caller's scope has no tool of this name, or several.
        CallDenied: it has one, and the policy denies the call on each of its servers.
        ServerNotRunning: its server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
        ToolExcluded: from `permitted_tool`.
    """
    pinned = catalogue.pinned()
    found = _resolved(request, caller, pinned)
    tool, is_replicated = found.tool, len(found.server_ids) > 1
    # reading each record of replicas from the index would take a request per replica
    read = pinned.ledger.record if is_replicated else pinned.index.server
    records = tuple(filter(None, map(read, found.server_ids)))
    if not records:
        raise ToolNotFound(request.name, "is no tool of a known server any more", ())
    if not is_replicated and records[0].status != "running":
        raise ServerNotRunning(tool.server_id, absence(records[0]))
    return permitted_tool(tool, records, caller, catalogue, request.name)


def _resolved(request: CallRequest, caller: Caller, catalogue: Catalogue) -> ResolvedName:
    scope = catalogue.scope(caller)
    try:
        return resolve_tool_name(request.name, scope, catalogue, request.server_name)
    except ToolNotFound as missing:
        if not scope.policy:
            raise
        try:
            denied = resolve_tool_name(request.name, caller.scope, catalogue, request.server_name).tool
        except (ToolNotFound, ServerError):
            raise missing from None
        tool = denied.definition.name
        raise CallDenied(denied.server_id, tool, missing.name, missing.candidates, missing.hints) from None


def permitted_tool(
    tool: IndexedTool, records: Sequence[ServerRecord], caller: Caller, catalogue: Catalogue, name: str = ""
) -> ResolvedTool:
    """Return the tool with those of its servers that the options and the policy allow for a call by this name.

    Raises:
        ToolExcluded: the operator excludes the tool from each server that offers it.
        CallDenied: the policy denies the call on each of the others.
    """
    # replicas have equal definitions, and options and rules may distinguish their servers
    options = {record.server_id: catalogue.read_options(record.server_id, record.labels) for record in records}
    # the index has an excluded tool until its server is listed again
    records = [record for record in records if options[record.server_id].offers(tool.definition.name)]
    if not records:
        raise ToolExcluded(tool.server_id, tool.definition.name)
    rules = catalogue.read_policy().of(caller)
    actions = {record.server_id: rules.action(record.server_id, tool.definition) for record in records}
    for action in _PERMITTING:
        if replicas := tuple(record for record in records if actions[record.server_id] == action):
            times_s = [options[record.server_id].timeout_s for record in replicas]
            return ResolvedTool(tool, replicas, action, max(filter(None, times_s), default=None))
    raise CallDenied(tool.server_id, tool.definition.name, name)


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
    meta: Mapping[str, Any] | None = None,
    given: ClientInput = NO_INPUT,
) -> tuple[ToolResult, str]:
    """Return the tool's own result, which may be an error or a question, and the server that returned it.

    `meta` is forwarded without the keys of our connection.

    Raises:
        ServerError, CallsExhausted: from `Upstreams.call`.
    """
    definition, replicas = resolved.tool.definition, resolved.replicas
    may_repeat = is_repeatable(definition)
    send = tool_call(definition, request.parameters, forwarded(meta), given)
    return await upstreams.call(send, replicas, resources, is_repeatable=may_repeat, timeout_s=resolved.timeout_s)


def tool_call(
    definition: ToolDefinition,
    arguments: dict[str, Any],
    meta: RequestParamsMeta | None = None,
    given: ClientInput = NO_INPUT,
) -> Send[ToolResult]:
    """Return the request that calls a tool; over HTTP, its headers repeat the arguments that the definition marks."""
    params = CallToolRequestParams(
        name=definition.name,
        arguments=arguments,
        input_responses=given.responses,
        request_state=given.state,
        _meta=meta,
    )
    headers = param_headers(definition, arguments)

    async def send(client: Client, on_progress: ProgressFnT) -> ToolResult:
        if isinstance(exchange := current_exchange.get(), CallExchange):
            exchange.headers = headers
        # not Client.call_tool, which lists all tools first and refuses a result that its output schema does not allow
        request = CallToolRequest(params=params)
        return await client.session.send_request(request, _TOOL_RESULT, progress_callback=on_progress)

    return send


def param_headers(definition: ToolDefinition, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat arguments; none where the definition marks them in a wrong way."""
    schema = definition.as_object().get("inputSchema")
    if X_MCP_HEADER_KEY not in definition.wire or find_invalid_x_mcp_header(schema) is not None:
        return {}
    return mcp_param_headers(x_mcp_header_map(schema), arguments)


async def read_resource(
    uri: str,
    resolved: ResolvedTool,
    upstreams: Upstreams,
    resources: CallResources,
    meta: Mapping[str, Any] | None = None,
    given: ClientInput = NO_INPUT,
) -> tuple[ReadResult, str]:
    """Return the resource that the tool's server has at its own URI, or a question; `meta` as for `call_tool`.

    The tool has one server, that of the link: a replica may not have the resource.

    Raises:
        ResourceNotFound: the server has no such resource.
        ServerError, CallsExhausted: from `Upstreams.call`.
    """
    params = ReadResourceRequestParams(
        uri=uri, input_responses=given.responses, request_state=given.state, _meta=forwarded(meta)
    )

    async def send(client: Client, on_progress: ProgressFnT) -> ReadResult:
        # not Client.read_resource, which asks this process for the input that a server requires
        request = ReadResourceRequest(params=params)
        return await client.session.send_request(request, _READ_RESULT, progress_callback=on_progress)

    try:
        return await upstreams.call(send, resolved.replicas, resources, timeout_s=resolved.timeout_s)
    except ServerFailed as error:
        if error.code in (RESOURCE_NOT_FOUND, INVALID_PARAMS):
            raise ResourceNotFound(str(error)) from error
        raise


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
