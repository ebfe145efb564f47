"""The MCP server of the query service: tools, and what the servers of a toolset have beside them.

With permissions, errors, and the pages of long results, of resources and of `tools/list`.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from anyio import to_thread
from mcp.server import Server
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ContentBlock,
    DiscoverResult,
    EmbeddedResource,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import HTTPConnection, Request

from query.answers.budget import Budget, PagedRequest, ResponsePolicy, items_that_fit
from query.answers.pages import OwnText, Reader, next_page, own_texts, paginate, surely_fits
from query.caller import ANYONE, OPERATOR, Caller
from query.calling.call import CALL_TOOL_NAME
from query.completion import COMPLETE, Complete
from query.digest import NO_DIGEST, Digest, Digests, with_digest
from query.kept import Kept
from query.listening import Listening
from query.metrics import REQUEST_SECONDS, REQUESTS, begin_series
from query.prompts import GET_PROMPT, GetPrompt, Prompts, prompt_of
from query.questions import question_of
from query.resources import Resources
from query.tool import (
    CATALOGUE_UNREACHABLE,
    CURSOR_STORE_UNAVAILABLE,
    ToolCallContext,
    ToolHandler,
    definition_of,
    error_result,
    temporary_error,
)
from query.tools.read_resource import READ_RESOURCE, ReadResource
from query.tools.registry import builtin_tools
from query.tools.server_request import requester_of
from query.tools.toolset_tools import NO_DIRECT_TOOLS, DirectTools, Toolsets, toolsets_of
from query.toolset_servers import ToolsetServers
from query.toolsets.offers import with_path_toolset, with_toolset_scope
from query.turns import continue_in_thread, run_in_thread
from query.usage.record import answer_rows, is_command, list_rows
from query.usage.usage import today
from shared.errors import (
    BudgetTooSmall,
    CallsExhausted,
    CursorInvalid,
    CursorsUnavailable,
    HistoryUnavailable,
    IndexUnavailable,
    InputRequired,
    StateInvalid,
)
from shared.upstream.auth import Requester
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from mcp.types import Tool

    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.records import Baseline
    from query.sign_in import SignInFlows

HISTORY_UNREACHABLE = "What was saved cannot be read at the moment. Try again in a few seconds."

# Before the digest, which Codex shows the beginning of: it cuts instructions at 250 characters.
WHEN_TO_SEARCH = "Search with find_tool before you assume that no tool exists for a task."
HOW_TO_CALL = (
    "Get the definition of a tool whose name you know with describe_tool. "
    "Call a tool with call_tool, with its name and the parameters of its input schema."
)

HANDSHAKES = ("initialize", "server/discover")

RequestContext = ServerRequestContext[Any]
Authenticate = Callable[[RequestContext], Caller]
T = TypeVar("T")

# The metric label of all toolset tools: their own names would make too many time series.
DIRECT = "direct"
NOTICE_URI = "toolscale://notice"
TOOLS_LIST = "tools/list"

# The built-in tools and the handshake change with a release, and toolsets at any time; a client that listens gets
# notified. All but the handshake depends on the caller.
TOOLSET_TTL_MS = 10_000
CACHE_HINTS: Mapping[CacheableMethod, CacheHint] = {
    "server/discover": CacheHint(600_000),
    "tools/list": CacheHint(600_000),
}

_log = structlog.get_logger()


def caller_or_anyone(context: RequestContext) -> Caller:
    """Return the operator if the request came with the secret of this process, else the caller without a name."""
    request: object = context.request
    operator: Caller | None = request.scope.get(OPERATOR) if isinstance(request, HTTPConnection) else None
    return operator or ANYONE


def caller_of_request(context: RequestContext) -> Caller:
    """Return the caller of an HTTP request, as `Endpoint` has found it.

    Raises:
        MCPError: the request was not checked.
    """
    request: object = context.request
    caller: Caller | None = (
        request.scope.get("state", {}).get("caller") if isinstance(request, HTTPConnection) else None
    )
    if caller is None:
        raise MCPError(code=INVALID_REQUEST, message="authentication required")
    return caller


def service_of(
    catalogue: Catalogue,
    upstreams: Upstreams | None = None,
    authenticate: Authenticate = caller_or_anyone,
    flows: SignInFlows | None = None,
) -> Server[Any]:
    """Return the MCP server of this catalogue; without upstreams no tool is called, without flows nobody signs in."""
    handlers = builtin_tools(catalogue, upstreams, flows)
    toolsets = toolsets_of(catalogue, handlers)
    beside = beside_tools(toolsets, upstreams) if upstreams else None
    return build_server(handlers, authenticate, catalogue.response_policy, toolsets, catalogue, beside, upstreams)


ListOf = Callable[[Caller, Requester, str | None], Awaitable[T]]
"""Returns the page of a list, at a cursor, for a caller with a toolset scope, who is the requester."""


@dataclass(frozen=True, slots=True)
class BesideTools:
    """What the servers of a toolset have beside tools; the handlers are tools in form."""

    list_prompts: ListOf[ListPromptsResult]
    list_resources: ListOf[ListResourcesResult]
    list_templates: ListOf[ListResourceTemplatesResult]
    get_prompt: ToolHandler
    read_resource: ToolHandler
    complete: ToolHandler


def beside_tools(toolsets: Toolsets, upstreams: Upstreams) -> BesideTools:
    """Return what callers see of the servers of these toolsets."""
    servers = ToolsetServers(toolsets, upstreams)
    prompts, resources = Prompts(servers), Resources(servers)
    return BesideTools(
        prompts.list,
        resources.list,
        resources.list_templates,
        GetPrompt(servers, prompts),
        ReadResource(toolsets.catalogue, upstreams, toolsets),
        Complete(servers, prompts),
    )


def build_server(
    handlers: Sequence[ToolHandler],
    authenticate: Authenticate = caller_or_anyone,
    policy: ResponsePolicy | None = None,
    toolsets: Toolsets | None = None,
    catalogue: Catalogue | None = None,
    beside: BesideTools | None = None,
    upstreams: Upstreams | None = None,
) -> Server[Any]:
    """Return an MCP server of these tools and of each caller's toolset; any replica answers any request.

    With `beside`, the server announces prompts, resources and completions to all callers; those without a toolset get
    empty lists, and read the links in results. The connections of upstreams outlive the requests that opened them, and
    end when the server does.

    The catalogue records lists and answers. The low-level server leaves schemas, errors and texts to us: a caller
    pays for their tokens.
    """
    tools = _Tools(handlers, authenticate, policy or ResponsePolicy(), toolsets, catalogue)
    server: Server[Any] = Server(
        "toolscale",
        version=importlib.metadata.version("toolscale"),
        instructions=f"{WHEN_TO_SEARCH} {HOW_TO_CALL}",
        on_list_tools=tools.list,
        on_call_tool=tools.call,
        # a server without these handlers does not announce the capability
        on_list_prompts=partial(tools.list_beside, beside.list_prompts) if beside else None,
        on_get_prompt=partial(tools.get_prompt, beside.get_prompt) if beside else None,
        on_list_resources=partial(tools.list_beside, beside.list_resources) if beside else None,
        on_list_resource_templates=partial(tools.list_beside, beside.list_templates) if beside else None,
        on_read_resource=partial(tools.read, beside.read_resource) if beside else None,
        on_completion=partial(tools.complete, beside.complete) if beside else None,
        on_subscriptions_listen=tools.listen,
        cache_hints=CACHE_HINTS,
        # else the SDK lists all tools on every call over HTTP, for headers that no built-in tool declares
        get_tool_input_schema=lambda _: None,
        # entered once for all requests over HTTP, and once for each client over stdio
        lifespan=lambda _: upstreams.running() if upstreams else nullcontext(),
    )
    server.add_request_handler("server/discover", RequestParams, partial(_discovered, server))
    server.middleware.append(tools.introduce)
    return server


async def _discovered(server: Server[Any], context: RequestContext, _: RequestParams) -> DiscoverResult:
    """Return what the SDK would, without the changes of prompts and resources that it would promise."""
    found = server.get_capabilities(protocol_version=context.protocol_version)
    unseen = {"list_changed": False}
    prompts = found.prompts and found.prompts.model_copy(update=unseen)
    resources = found.resources and found.resources.model_copy(update={**unseen, "subscribe": False})
    return DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=found.model_copy(update={"prompts": prompts, "resources": resources}),
        instructions=server.instructions,
    )


class _Tools:
    """The MCP methods on tools, prompts and resources, for any caller."""

    def __init__(
        self,
        handlers: Sequence[ToolHandler],
        authenticate: Authenticate,
        policy: ResponsePolicy,
        toolsets: Toolsets | None,
        catalogue: Catalogue | None,
    ) -> None:
        self._by_name = {handler.tool.name: handler for handler in handlers}
        self._authenticate = authenticate
        self._policy = policy
        self._toolsets = toolsets
        self._catalogue = catalogue
        self._listening = Listening(toolsets)
        self._digests = Digests(catalogue) if catalogue else None
        begin_series((*self._by_name, DIRECT, READ_RESOURCE, GET_PROMPT, COMPLETE))

    async def list(self, context: RequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return a page of the tools that the caller may use."""
        caller, direct = await self._caller_and_direct(context)
        allowed = [handler for handler in self._by_name.values() if handler.is_for(caller)]
        cursor = params.cursor if params else None
        page_of = partial(page_of_tools, [*allowed, *direct.handlers], cursor, caller, self._policy)
        with protocol_errors():  # in a thread where the list may have a cursor, which may call Redis
            page = await to_thread.run_sync(page_of) if cursor or direct.handlers else page_of()
        digest = await self._digest(caller)
        page = page.model_copy(update={"tools": [with_digest(tool, digest) for tool in page.tools]})
        if self._catalogue:
            record_list(self._catalogue, caller, page, context, is_first=cursor is None)
        may_change = caller.toolset or not digest.is_settled
        return page.model_copy(update={"meta": direct.meta, **({"ttl_ms": TOOLSET_TTL_MS} if may_change else {})})

    async def introduce(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Return the result of a request; that of a handshake has the digest of the caller's catalogue."""
        result = await call_next(ctx)
        if ctx.method in HANDSHAKES and isinstance(result, dict) and self._digests:
            with suppress(MCPError):  # a handshake needs no index
                digest = await self._digest(await self._caller(ctx))
                result["instructions"] = introduced(digest)
        return result

    async def _digest(self, caller: Caller) -> Digest:
        if self._digests is None:
            return NO_DIGEST
        if kept := self._digests.kept(caller):
            return kept
        try:
            return await run_in_thread(caller.name, self._digests.of, caller)
        except CallsExhausted:  # the list of our own tools waits for nobody
            return NO_DIGEST

    async def call(
        self, context: RequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Return the result of the named tool, a question to the client, or an error result.

        A caller without the permission gets an error result.
        """
        caller, arguments = await self._caller(context), params.arguments or {}
        handler = self._by_name.get(params.name) or (await self._direct(caller)).handler_named(params.name)
        if handler is None:
            expected = " or ".join(self._by_name)
            raise MCPError(code=INVALID_PARAMS, message=f"expected the tool {expected}, got {params.name!r}")
        label = params.name if params.name in self._by_name else DIRECT
        with ExitStack() as exit_stack, structlog.contextvars.bound_contextvars(caller=caller.name):
            call = ToolCallContext(
                caller, arguments, context, exit_stack, {}, params.request_state, params.input_responses
            )
            try:
                result = await self._permitted(handler, call, label)
            except InputRequired as required:
                return question_of(required)
        self._record_answer(label, call, result)
        return result

    async def listen(
        self, context: RequestContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Notify the client when the tools of its toolset change, until it leaves."""
        caller = with_path_toolset(self._authenticate(context), context)
        with structlog.contextvars.bound_contextvars(caller=caller.name), protocol_errors():
            return await self._listening.listen(caller, context, params)

    async def list_beside(
        self, list_of: ListOf[T], context: RequestContext, params: PaginatedRequestParams | None
    ) -> T:
        """Return a page of what the servers of the caller's toolset have beside tools."""
        caller = await self._caller(context)
        with structlog.contextvars.bound_contextvars(caller=caller.name), protocol_errors():
            return await list_of(caller, requester_of(caller, context), params.cursor if params else None)

    async def get_prompt(
        self, handler: ToolHandler, context: RequestContext, params: GetPromptRequestParams
    ) -> GetPromptResult | InputRequiredResult:
        """Return the prompt of a name, or its first page, or a question to the client."""
        arguments = {"name": params.name, "arguments": params.arguments}
        try:
            page, call = await self._answered(handler, arguments, context, params)
        except InputRequired as required:
            return question_of(required)
        self._record_answer(GET_PROMPT, call, page)
        return prompt_of(page, call)

    async def read(
        self, reader: ToolHandler, context: RequestContext, params: ReadResourceRequestParams
    ) -> ReadResourceResult | InputRequiredResult:
        """Return the resource of a link, or its first page, or a question to the client."""
        try:
            result, call = await self._answered(reader, {"uri": params.uri}, context, params)
        except InputRequired as required:
            return question_of(required)
        page = page_of_resource(result, params.uri)
        self._record_answer(READ_RESOURCE, call, page)
        return contents_of(page)

    async def complete(
        self, handler: ToolHandler, context: RequestContext, params: CompleteRequestParams
    ) -> CompleteResult:
        """Return the values for an argument of a prompt or a template."""
        result, _ = await self._answered(handler, {"params": params}, context)
        return CompleteResult(completion=Completion.model_validate(result.structured_content))

    async def _answered(
        self,
        handler: ToolHandler,
        arguments: dict[str, Any],
        context: RequestContext,
        given: GetPromptRequestParams | ReadResourceRequestParams | None = None,
    ) -> tuple[CallToolResult, ToolCallContext]:
        """Return the result of a handler that is no tool, and the context of its call; `given` may bring answers.

        Raises:
            MCPError: the result is an error.
            InputRequired: the client is asked.
        """
        caller = await self._caller(context)
        with ExitStack() as exit_stack, structlog.contextvars.bound_contextvars(caller=caller.name):
            state, responses = (given.request_state, given.input_responses) if given else (None, None)
            call = ToolCallContext(caller, arguments, context, exit_stack, {}, state, responses)
            result = await self._permitted(handler, call, handler.tool.name)
        if result.is_error:
            raise MCPError(code=INTERNAL_ERROR, message="".join(own_texts(result)))
        return result, call

    def _record_answer(self, tool: str, call: ToolCallContext, result: CallToolResult) -> None:
        if self._catalogue and not is_command(call.mcp_context):
            rows = answer_rows(
                today(),
                call.caller.name,
                tool,
                own_texts(result),
                self._catalogue.encoding,
                call.response,
                is_first_page=not call.arguments.get("cursor"),
            )
            self._catalogue.record(rows)

    async def _permitted(self, handler: ToolHandler, context: ToolCallContext, label: str) -> CallToolResult:
        """Return the result, and count the call; or an error result where the caller lacks the permission."""
        if not handler.is_for(context.caller):
            is_denied = handler.permission in context.caller.permissions
            reason = "the operator's policy denies it" if is_denied else f"it needs the permission {handler.permission}"
            return error_result(f"You may not use {handler.tool.name}: {reason}.")
        if handler.paging == "foreign":
            check_param_headers(handler.tool, context.arguments, context.mcp_context)
        started_s, outcome = time.perf_counter(), "error"
        try:
            result = await self._result(handler, context)
            outcome = "refused" if result.is_error else "ok"
            return result
        except InputRequired:
            outcome = "ok"
            raise
        except MCPError as error:
            outcome = "refused" if error.code == INVALID_PARAMS else "error"
            raise
        finally:
            REQUESTS.labels(label, outcome).inc()
            REQUEST_SECONDS.labels(label).observe(time.perf_counter() - started_s)

    async def _result(self, handler: ToolHandler, context: ToolCallContext) -> CallToolResult:
        """Return one page of the tool's result; errors that the model can act on become error results."""
        try:
            return await page_of_result(handler, context, self._policy)
        except (CursorInvalid, StateInvalid) as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        except (BudgetTooSmall, CallsExhausted) as error:
            return error_result(str(error))
        except IndexUnavailable as error:
            _log.warning("find_failed", reason=str(error))
            return temporary_error(CATALOGUE_UNREACHABLE)
        except HistoryUnavailable as error:
            _log.warning("savings_read_failed", reason=str(error))
            return temporary_error(HISTORY_UNREACHABLE)
        except CursorsUnavailable as error:
            _log.warning("cursor_store_unavailable", reason=str(error))
            return temporary_error(CURSOR_STORE_UNAVAILABLE)
        except (MCPError, InputRequired):
            raise
        except Exception:  # noqa: BLE001  # the SDK sends the exception's text to callers of older revisions
            _log.exception("call_failed", tool=handler.tool.name)
            raise MCPError(code=INTERNAL_ERROR, message="internal error") from None

    async def _caller(self, context: RequestContext) -> Caller:
        caller = with_path_toolset(self._authenticate(context), context)
        if self._toolsets is None or caller.toolset is None:
            return caller
        return await _read_index(caller, with_toolset_scope, caller, self._toolsets.catalogue.index)

    async def _caller_and_direct(self, context: RequestContext) -> tuple[Caller, DirectTools]:
        """Return both in one turn."""
        caller = with_path_toolset(self._authenticate(context), context)
        if self._toolsets is None or caller.toolset is None:
            return caller, NO_DIRECT_TOOLS
        return await _read_index(caller, self._toolsets.caller_and_direct, caller)

    async def _direct(self, caller: Caller) -> DirectTools:
        if self._toolsets is None or caller.toolset is None:
            return NO_DIRECT_TOOLS
        return await _read_index(caller, self._toolsets.direct, caller)


def introduced(digest: Digest) -> str:
    """Return the instructions of the service, with the digest of a catalogue."""
    return " ".join(filter(None, (WHEN_TO_SEARCH, digest.text, HOW_TO_CALL)))


@contextmanager
def protocol_errors() -> Generator[None]:
    """Raise the errors of a list as those of the protocol."""
    try:
        yield
    except CursorInvalid as error:
        raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=CURSOR_STORE_UNAVAILABLE) from error
    except CallsExhausted as error:
        raise MCPError(code=INTERNAL_ERROR, message=str(error)) from error
    except IndexUnavailable as error:
        _log.warning("toolset_read_failed", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=CATALOGUE_UNREACHABLE) from error


def record_list(
    catalogue: Catalogue, caller: Caller, page: ListToolsResult, context: RequestContext, *, is_first: bool
) -> None:
    """Record a page of `tools/list`, unless a command reads it; the first page has the baseline."""
    if not is_command(context):
        encoding = catalogue.encoding
        baseline = partial(_baseline, catalogue, caller) if is_first else None
        catalogue.record(list_rows(today(), caller.name, page, context.protocol_version, encoding, baseline))


def _baseline(catalogue: Catalogue, caller: Caller) -> Baseline:
    return catalogue.ledger.baseline(catalogue.scope(caller), catalogue.encoding)


async def _read_index(caller: Caller, read: Callable[..., T], *arguments: object) -> T:
    """Return the result of `read`, called in a turn of the caller.

    Raises:
        MCPError: the index did not answer, or too many requests of the caller wait.
    """
    with protocol_errors():
        return await run_in_thread(caller.name, read, *arguments)


def check_param_headers(tool: Tool, arguments: dict[str, Any], context: RequestContext) -> None:
    """Return if the request's headers repeat the arguments that the tool's input schema marks for headers.

    Only calls over HTTP have headers, and only newer revisions require these. The proxy of a client over stdio, which
    has none, sends the others with the operator's secret.

    Raises:
        MCPError: a header is missing or differs from its argument; over HTTP, status 400.
    """
    if not isinstance(context.request, Request) or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    if OPERATOR in context.request.scope:
        return
    rejection = validate_mcp_param_headers(tool.input_schema, arguments, context.request.headers)
    if rejection is not None:
        raise MCPError(code=rejection.code, message=rejection.message, data=rejection.data)


async def page_of_result(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    """Return the tool's result, or its first page; with a cursor, the next page of an earlier result.

    Raises:
        CursorInvalid: the cursor is not of this caller and tool, was changed, or has expired.
        CursorsUnavailable: a stored result cannot be read now.
    """
    if handler.paging == "own":
        return await handler.call(context)
    if handler.paging == "foreign":
        reader = Reader(context.caller.name, CALL_TOOL_NAME)
        return await _paginated(await handler.call(context), reader, policy.budget(), policy.kept)
    paging_arguments = {name: value for name, value in context.arguments.items() if name in PagedRequest.model_fields}
    tool_arguments = {name: value for name, value in context.arguments.items() if name not in PagedRequest.model_fields}
    try:
        request = PagedRequest.model_validate(paging_arguments)
    except ValidationError as error:
        return error_result(first_invalid_argument(error))
    reader, budget = Reader(context.caller.name, handler.tool.name), policy.budget(request.max_tokens)
    if request.cursor is not None:
        return await run_in_thread(reader.caller, next_page, request.cursor, reader, budget, policy.kept)
    return await _paginated(await handler.call(replace(context, arguments=tool_arguments)), reader, budget, policy.kept)


async def _paginated(result: CallToolResult, reader: Reader, budget: Budget, kept: Kept) -> CallToolResult:
    if surely_fits(result, budget):
        return result
    # counting a long text takes milliseconds, and storing its rest calls Redis
    return await continue_in_thread(reader.caller, paginate, result, reader, budget, kept)


def page_of_resource(result: CallToolResult, uri: str) -> CallToolResult:
    """Return a page of the resource at `uri` with its texts as embedded resources; the notice stays as it is."""

    def embedded(block: ContentBlock) -> ContentBlock:
        if isinstance(block, OwnText) or not isinstance(block, TextContent):
            return block
        return EmbeddedResource(resource=TextResourceContents(uri=uri, text=block.text))

    return result.model_copy(update={"content": list(map(embedded, result.content))})


def contents_of(page: CallToolResult) -> ReadResourceResult:
    """Return the contents of a page from `page_of_resource`.

    The notice of a further page has a URI of its own, since it is no part of the resource.
    """

    def contents(block: ContentBlock) -> TextResourceContents | BlobResourceContents:
        if isinstance(block, EmbeddedResource):
            return block.resource
        assert isinstance(block, OwnText)
        return TextResourceContents(uri=NOTICE_URI, text=block.text)

    return ReadResourceResult(contents=list(map(contents, page.content)), _meta=page.meta)


def page_of_tools(
    handlers: Sequence[ToolHandler], cursor: str | None, caller: Caller, policy: ResponsePolicy
) -> ListToolsResult:
    """Return a page of these tools: built-in tools on the first, then toolset tools in order, as many as fit.

    Every later page has at least one tool. If tools come and go between two pages, no tool is listed twice and no
    tool that stays is missing.

    Raises:
        CursorInvalid: the cursor is not of this caller's list, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be read or stored now.
    """
    is_first = cursor is None
    builtin = [offer for offer in handlers if is_first and offer.paging != "foreign"]
    last = "" if cursor is None else policy.kept.get(cursor, caller.name, TOOLS_LIST).decode()
    others = sorted((offer for offer in handlers if offer.paging == "foreign"), key=lambda offer: offer.sort_key)
    rest = [offer for offer in others if offer.sort_key > last]
    if not rest:
        return ListToolsResult(tools=list(map(definition_of, builtin)))  # counting their tokens would load a vocabulary
    # a definition cannot be divided, so a single one may exceed the budget
    texts = [offer.definition_text for offer in (*builtin, *rest)]
    count = max(items_that_fit(texts, policy.budget()) - len(builtin), 0 if is_first else 1)
    page = rest[:count]
    after = page[-1].sort_key if page else ""
    next_cursor = policy.kept.put(after.encode(), caller.name, TOOLS_LIST) if count < len(rest) else None
    return ListToolsResult(tools=list(map(definition_of, [*builtin, *page])), next_cursor=next_cursor)
