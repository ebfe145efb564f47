"""The messages that a recount reads: tools as each server sends them, and all that callers and the service exchange."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import anyio
import httpx2
import uvicorn
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCResponse, TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.waiting import eventually
from toolscale.demo.servers import LaunchableServer

Message = dict[str, Any]

MAX_PAGES = 20
_HOP_BY_HOP = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding")
_TIMEOUT_S = 120.0


# A server's own list


def raw_tools(servers: Sequence[LaunchableServer], *, can_be_asked: bool = True) -> dict[str, list[Message]]:
    """Return the tools of these servers by id, as a client of the SDK receives them: with their keys in order.

    A server may have tools for clients that can be asked, as Toolscale's service can.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        listed = pool.map(partial(_tools_of, can_be_asked=can_be_asked), servers)
        return {server.server_id: tools for server, tools in zip(servers, listed, strict=True)}


def _tools_of(server: LaunchableServer, *, can_be_asked: bool) -> list[Message]:
    return anyio.run(partial(_listed, server, can_be_asked=can_be_asked))


async def _listed(server: LaunchableServer, *, can_be_asked: bool) -> list[Message]:
    parameters = StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env))
    received: list[Message] = []
    refuse: Any = _refuse if can_be_asked else None
    client = Client(
        _copying(parameters, received),
        cache=None,
        list_roots_callback=refuse,
        sampling_callback=refuse,
        elicitation_callback=refuse,
    )
    async with client:
        cursor = (await client.list_tools()).next_cursor
        while cursor:
            cursor = (await client.list_tools(cursor=cursor)).next_cursor
    return [tool for result in received for tool in result.get("tools", ())]


async def _refuse(*_: object) -> ErrorData:
    return ErrorData(code=INVALID_REQUEST, message="there is nobody to ask")


@asynccontextmanager
async def _copying(parameters: StdioServerParameters, received: list[Message]) -> AsyncGenerator[Any]:
    """Connect to the server and keep a copy of each result, before the SDK reads it."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def copy() -> None:
        async with send:
            async for message in read:
                if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
                    received.append(json.loads(json.dumps(message.message.result)))
                await send.send(message)

    async with (
        stdio_client(parameters, subprocess.DEVNULL) as (read, write),  # type: ignore[arg-type]  # a file of Popen
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(copy)
        yield receive, write
        tasks.cancel_scope.cancel()


# The proxy


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response; `caller` is the bearer token, and `path` names the toolset."""

    path: str
    caller: str
    request: Message
    response: Message

    @property
    def method(self) -> str:
        """Return the request's method."""
        return str(self.request["method"])

    @property
    def params(self) -> Message:
        """Return the request's parameters, which a request may lack."""
        return cast("Message | None", self.request.get("params")) or {}

    @property
    def arguments(self) -> Message:
        """Return the arguments of a called tool."""
        return cast("Message | None", self.params.get("arguments")) or {}

    @property
    def result(self) -> Message:
        """Return the result; an error has none."""
        return cast("Message | None", self.response.get("result")) or {}


@dataclass(slots=True)
class Recorder:
    """The recorded exchanges in the order of their responses, and the address of the proxy."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list[Exchange])


@contextmanager
def recording(service: str) -> Generator[Recorder]:
    """Run a proxy of this service (`http://host:port`), which records JSON-RPC as it is on the wire."""
    recorder = Recorder()

    async def forward(request: Request) -> Response:
        body, url = await request.body(), service + request.url.path
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            answered = await client.request(request.method, url, content=body, headers=_passed_on(request.headers))
        response = _response(answered)
        if body and response and "method" in (asked := json.loads(body)):
            caller = request.headers.get("authorization", "").removeprefix("Bearer ")
            recorder.exchanges.append(Exchange(request.url.path, caller, asked, response))
        return Response(answered.content, answered.status_code, _passed_on(answered.headers))

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "PUT", "DELETE"])])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, name="recording proxy", daemon=True)
    thread.start()
    eventually(lambda: server.started, what="the proxy")
    recorder.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield recorder
    finally:
        server.should_exit = True
        thread.join(30)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _response(answered: httpx2.Response) -> Message | None:
    """Return the response to a request, from JSON or from the last event of a stream with one."""
    if "text/event-stream" in answered.headers.get("content-type", ""):
        lines = [line.removeprefix("data:") for line in answered.text.splitlines() if line.startswith("data:")]
        messages = [json.loads(line) for line in lines if line.strip()]
        return next((message for message in reversed(messages) if "result" in message or "error" in message), None)
    return answered.json() if answered.content else None


# A caller


@dataclass(frozen=True, slots=True)
class Agent:
    """A session of a caller, who uses Toolscale as an agent does."""

    client: Client

    async def list_tools(self) -> None:
        """Read all pages of `tools/list`."""
        cursor = (await self.client.list_tools()).next_cursor
        while cursor:
            cursor = (await self.client.list_tools(cursor=cursor)).next_cursor

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """Return the last text of the answer; an empty text for a protocol error."""
        try:
            result = await self.client.call_tool(tool, arguments)
        except MCPError:
            return ""
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        return texts[-1] if texts else ""

    async def call_pages(self, tool: str, /, **arguments: Any) -> None:
        """Read the pages of an answer, at most MAX_PAGES."""
        cursor = _cursor(await self.call(tool, **arguments))
        for _ in range(MAX_PAGES - 1):
            if not cursor:
                return
            # call_tool reads the rest by its cursor alone; other tools take the same arguments
            repeated = {"tool_name": arguments["tool_name"]} if tool == "call_tool" else arguments
            cursor = _cursor(await self.call(tool, **{**repeated, "cursor": cursor}))


@asynccontextmanager
async def session(url: str, token: str, mode: str = "auto") -> AsyncGenerator[Agent]:
    """Connect to this URL with this bearer token."""
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield Agent(client)


def _cursor(text: str) -> str | None:
    try:
        answer: object = json.loads(text)
    except ValueError:
        return None
    return cast("Message", answer).get("nextCursor") if isinstance(answer, dict) else None
