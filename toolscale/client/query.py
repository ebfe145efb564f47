"""A client of the query service: over MCP if a service runs, else on the index in this process.

Only one process can open an embedded index. If it is open already, the client calls that process over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INTERNAL_ERROR, ElicitResult, Implementation, InputRequiredResult, TextContent

from query.app import MCP_PATH
from query.calling.upstreams import upstreams_of
from query.catalogue import catalogue_of
from query.server.mcp import service_of
from query.server.usage import COMMAND_LINE
from query.tools.tool import CATALOGUE_UNREACHABLE, CURSOR_STORE_UNAVAILABLE
from shared.errors import IndexHeld, ServiceRejected, ServiceUnreachable, ToolscaleError
from shared.index.versions import open_index_versions
from shared.settings import Settings
from shared.text.embedding import FastEmbedder
from shared.upstream.session import leaves
from toolscale.client.instance import service_url
from toolscale.console import err

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp.client.context import ClientRequestContext
    from mcp.server import Server
    from mcp.types import CallToolResult, ElicitRequestParams, InputResponses

TIMEOUT_S = 60.0

Ask = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Call a tool of the query service and return its structured content."""

Confirm = Callable[[str], bool]
"""Return whether the user confirms a call; the argument is the question."""

_ASKING = "Asking the catalogue ..."

_FOREIGN_ERRORS = (ExceptionGroup, MCPError, httpx2.HTTPError, httpx2.InvalidURL, anyio.ClosedResourceError)
_COMMAND = Implementation(name=COMMAND_LINE, version="1")
_NEEDS_TOKEN = (401, 403)
_NOT_NOW = (CATALOGUE_UNREACHABLE, CURSOR_STORE_UNAVAILABLE)


class CallTool(Protocol):
    """Calls a tool of the query service and returns its whole result."""

    def __call__(self, tool: str, arguments: Mapping[str, Any], confirm: Confirm = lambda _: False) -> CallToolResult:
        """Return the result; `confirm` is called in this thread if the operator's policy requires a confirmation."""
        ...


@contextmanager
def open_query_client(settings: Settings, url: str | None = None, token: str | None = None) -> Generator[Ask]:
    """Yield a function that asks tools at this URL, or by default on the catalogue of the settings.

    Raises: the errors of `open_call_client`.
    """
    with open_call_client(settings, url, token) as call:
        yield asking(call)


def asking(call: CallTool) -> Ask:
    """Return a function that asks tools of the query service with these calls."""
    return lambda tool, arguments: _answer(call(tool, arguments))


@contextmanager
def open_call_client(settings: Settings, url: str | None = None, token: str | None = None) -> Generator[CallTool]:
    """Yield a function that calls tools at this URL, or by default on the catalogue of the settings.

    Raises:
        ServiceUnreachable: the URL, or the process that holds the index, does not answer.
        InstanceMismatch: another service answers at the address of that process.
        ServiceRejected: the token is missing or wrong, or the arguments are invalid.
        IndexUnavailable: Qdrant does not answer.
    """
    with ExitStack() as opened:
        with err.status(_ASKING):
            call = opened.enter_context(_over_http(url, token) if url else _of_catalogue(settings, token))
        yield call


@contextmanager
def _of_catalogue(settings: Settings, token: str | None) -> Generator[CallTool]:
    with ExitStack() as opened:
        try:
            service = opened.enter_context(_own_service(settings))
        except IndexHeld as held:
            yield opened.enter_context(_of_holder(settings, token, held))
        else:
            client = Client(service, cache=None, elicitation_callback=_decline)
            yield opened.enter_context(_session(client, "the catalogue"))


@contextmanager
def _own_service(settings: Settings) -> Generator[Server[Any]]:
    """Open the index and yield the service over it; the first query loads the model, and the first call a server."""
    versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    with closing(versions.store), closing(upstreams_of(settings)) as upstreams:
        versions.ensure_own_version()
        active, _ = versions.current()
        yield service_of(catalogue_of(active.index, active.embedder, settings), upstreams)


@contextmanager
def _of_holder(settings: Settings, token: str | None, held: IndexHeld) -> Generator[CallTool]:
    try:
        url = service_url(settings)
    except ServiceUnreachable as error:
        raise ServiceUnreachable(f"{settings.data_dir} is in use by another Toolscale process: {error}") from held
    with _over_http(url, token) as call:
        yield call


@contextmanager
def _over_http(url: str, token: str | None) -> Generator[CallTool]:
    statuses: list[int] = []
    address = url.rstrip("/") if MCP_PATH in url else url.rstrip("/") + MCP_PATH
    with _session(_http_client(address, token, statuses), address, statuses) as call:
        yield call


@asynccontextmanager
async def _http_client(url: str, token: str | None, statuses: list[int]) -> AsyncGenerator[Client]:
    async def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    http = httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S, trust_env=False, event_hooks={"response": [note]})
    transport = streamable_http_client(url, http_client=http)
    async with http, Client(transport, cache=None, elicitation_callback=_decline, client_info=_COMMAND) as client:
        yield client


async def _decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
    """Declare that the client can ask. `_Calls` asks, in the thread of the command, which an interrupt ends."""
    return ElicitResult(action="decline")


@contextmanager
def _session(
    session: AbstractAsyncContextManager[Client], where: str, statuses: list[int] | None = None
) -> Generator[CallTool]:
    try:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(session) as client:
            yield _Calls(portal, client)
    except _FOREIGN_ERRORS as error:
        raise _explained(error, where, statuses or []) from error


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of tools in one session."""

    portal: BlockingPortal
    client: Client

    def __call__(self, tool: str, arguments: Mapping[str, Any], confirm: Confirm = lambda _: False) -> CallToolResult:
        result = self._send(tool, arguments)
        while isinstance(result, InputRequiredResult):
            result = self._send(tool, arguments, _answers(result, confirm), result.request_state)
        return result

    def _send(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        answers: InputResponses | None = None,
        state: str | None = None,
    ) -> CallToolResult | InputRequiredResult:
        call = partial(self.client.session.call_tool, tool, dict(arguments), allow_input_required=True)
        with err.status(_ASKING):
            return self.portal.call(partial(call, input_responses=answers, request_state=state))


def _answers(asked: InputRequiredResult, confirm: Confirm) -> InputResponses:
    """Return the user's answer to each question of a call."""
    questions = {key: getattr(request.params, "message", "") for key, request in (asked.input_requests or {}).items()}
    return {
        key: ElicitResult(action="accept", content={}) if confirm(question) else ElicitResult(action="decline")
        for key, question in questions.items()
    }


def _answer(result: CallToolResult) -> dict[str, Any]:
    if result.is_error:
        message = " ".join(block.text for block in result.content if isinstance(block, TextContent))
        raise (ServiceUnreachable if message in _NOT_NOW else ServiceRejected)(message)
    return cast("dict[str, Any]", result.structured_content or {})


def _explained(error: Exception, where: str, statuses: list[int]) -> ToolscaleError:
    """Return the Toolscale error for an exception of a session."""
    found = list(leaves(error))
    ours = next((leaf for leaf in found if isinstance(leaf, ToolscaleError)), None)
    if ours:
        return ours
    if statuses and statuses[-1] in _NEEDS_TOKEN:
        return ServiceRejected(f"{where} answered {statuses[-1]}: pass a token with --token or TOOLSCALE_TOKEN")
    refused = next((leaf for leaf in found if isinstance(leaf, MCPError)), None)
    if refused and statuses and statuses[-1] < 300:  # noqa: PLR2004  # the error is MCP's, not HTTP's
        is_internal = refused.code == INTERNAL_ERROR  # such as a call that a stopping service cut off
        return (ServiceUnreachable if is_internal else ServiceRejected)(f"{where}: {refused.message}")
    return ServiceUnreachable(f"{where} does not answer as an MCP server: {type(found[0]).__name__}: {found[0]}")
