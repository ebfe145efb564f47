"""A server whose tools do things, run as a program: `python callable_server.py stdio|http|legacy|sse [FD]`.

`waits` writes its result to a file, so that a test can see the messages that reached this process.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.good_server import run

Context = ServerRequestContext[Any, Any]
Arguments = dict[str, Any]
PNG = "iVBORw0KGgo="
_counted = itertools.count(1)


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


async def echo(_context: Context, arguments: Arguments) -> types.CallToolResult:
    return types.CallToolResult(content=[text(f"{arguments['words']} from {os.getpid()}")])


async def rich(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Every kind of content, structured content and metadata."""
    return types.CallToolResult(
        content=[
            text("a picture"),
            types.ImageContent(type="image", data=PNG, mime_type="image/png"),
            types.ResourceLink(type="resource_link", name="notes", uri="file:///notes.txt"),
        ],
        structured_content={"answer": 42},
        _meta={"example.org/trace": "abc"},
    )


async def heard(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Return the kinds of content that the first revisions lack."""
    return types.CallToolResult(
        content=[
            types.AudioContent(type="audio", data="UklGRg==", mime_type="audio/wav"),
            types.ResourceLink(type="resource_link", name="notes", uri="file:///notes.txt"),
        ]
    )


async def listed(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    return types.CallToolResult(content=[], structured_content=[1, 2])


async def hears(context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Return the metadata of the call."""
    return types.CallToolResult(content=[text(json.dumps(context.meta))])


async def refuses(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    return types.CallToolResult(content=[text("no such record")], is_error=True)


async def raises(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    raise MCPError(code=-32050, message="the disk is on fire")


async def steps(context: Context, arguments: Arguments) -> types.CallToolResult:
    for number in range(1, arguments["count"] + 1):
        await context.session.report_progress(number, arguments["count"], f"step {number}")
        await anyio.sleep(arguments.get("pause_s", 0.05))
    return types.CallToolResult(content=[text("done")])


async def waits(context: Context, arguments: Arguments) -> types.CallToolResult:
    """Write to a file that it began, and that it ended or was cancelled.

    It ends after `for_s` seconds, or when the file `until` exists.
    """
    tell = Path(arguments["file"]).write_text
    tell("began")
    await context.session.report_progress(1, 2, "began")
    try:
        with anyio.move_on_after(arguments.get("for_s", 60)):
            while not await anyio.Path(arguments.get("until", "")).is_file():  # noqa: ASYNC110  # a test writes it
                await anyio.sleep(0.02)
    except anyio.get_cancelled_exc_class():
        tell("cancelled")
        raise
    tell("ended")
    return types.CallToolResult(content=[text("waited")])


async def huge(_context: Context, arguments: Arguments) -> types.CallToolResult:
    return types.CallToolResult(content=[text("a" * arguments["size_bytes"])])


async def counts(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Return the number of these calls that reached this process."""
    return types.CallToolResult(content=[text(f"{next(_counted)} from {os.getpid()}")])


async def dies(_context: Context, _arguments: Arguments) -> types.CallToolResult:
    os._exit(3)


async def capabilities(context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Return what the client declares."""
    declared = context.session.client_capabilities or types.ClientCapabilities()
    return types.CallToolResult(content=[text(declared.model_dump_json(by_alias=True, exclude_none=True))])


MARKED = {
    "region": {"type": "string", "x-mcp-header": "Region"},
    "shard": {"type": "object", "properties": {"number": {"type": "integer", "x-mcp-header": "Shard"}}},
    "words": {"type": "string"},
}


async def routed(context: Context, _arguments: Arguments) -> types.CallToolResult:
    """Return the headers that repeat arguments; the SDK refuses a call where they do not."""
    headers: dict[str, str] = dict(context.request.headers) if context.request else {}
    repeated = {name: value for name, value in headers.items() if name.startswith("mcp-param-")}
    return types.CallToolResult(content=[text(json.dumps(repeated))])


REQUESTS: dict[str, types.InputRequest] = {
    "form": types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message="Which branch?", requested_schema={"type": "object", "properties": {"branch": {"type": "string"}}}
        )
    ),
    "url": types.ElicitRequest(
        params=types.ElicitRequestURLParams(
            message="Pay here", url="https://pay.example/1", elicitation_id="of-the-server"
        )
    ),
    "sampling": types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Capital?"))],
            max_tokens=10,
        )
    ),
    "roots": types.ListRootsRequest(),
}


ANSWERS: dict[str, type[types.Result]] = {
    "form": types.ElicitResult,
    "url": types.ElicitResult,
    "sampling": types.CreateMessageResult,
    "roots": types.ListRootsResult,
}


async def asks(context: Context, arguments: Arguments) -> Any:
    """Ask the client for each of `kinds`, one after another; return the first process, the last, and the answers.

    As a server of the client's revision does: by a result that is an open question, or by requests in mid-call.
    """
    kinds: list[str] = arguments["kinds"]
    given: list[Any] = [os.getpid()]
    if context.protocol_version == types.LATEST_PROTOCOL_VERSION:
        params: Any = context.params
        given = json.loads(params.get("requestState") or json.dumps(given))
        responses: dict[str, Any] = params.get("inputResponses") or {}
        given += responses.values()
        if kinds[len(given) - 1 :]:
            kind = kinds[len(given) - 1]
            return types.InputRequiredResult(input_requests={kind: REQUESTS[kind]}, request_state=json.dumps(given))
    else:
        try:
            given += [await in_mid_call(context, kind) for kind in kinds]
        except MCPError as error:
            return types.CallToolResult(content=[text(error.message)], is_error=True)
    asked_by, *answers = given
    return types.CallToolResult(content=[text(json.dumps([asked_by, os.getpid(), *answers]))])


async def asks_and_waits(context: Context, arguments: Arguments) -> Any:
    """Ask for a form in mid-call, and then do as `waits`."""
    await in_mid_call(context, "form")
    return await waits(context, arguments)


async def asks_at_once(context: Context, arguments: Arguments) -> Any:
    """Ask for all `kinds` in mid-call at the same time; return how many were answered and refused."""
    counts = {"answered": 0, "refused": 0}

    async def ask(kind: str) -> None:
        try:
            await in_mid_call(context, kind)
            counts["answered"] += 1
        except MCPError:
            counts["refused"] += 1

    async with anyio.create_task_group() as tasks:
        for kind in arguments["kinds"]:
            tasks.start_soon(ask, kind)
    return types.CallToolResult(content=[text(json.dumps(counts))])


async def requires(_context: Context, _arguments: Arguments) -> Any:
    """Refuse a client, as if it lacked sampling."""
    needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
    raise MCPError(code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="no sampling", data=needed)


async def in_mid_call(context: Context, kind: str) -> Any:
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    request: Any = REQUESTS[kind]
    answer = await context.session.send_request(request, ANSWERS[kind], metadata=metadata)
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


async def links(_context: Context, arguments: Arguments) -> types.CallToolResult:
    uri = f"tool:{arguments['tool']}?{json.dumps(arguments['arguments'])}"
    return types.CallToolResult(content=[types.ResourceLink(type="resource_link", name="result", uri=uri)])


TOOLS: dict[str, Callable[[Context, Arguments], Awaitable[Any]]] = {
    function.__name__: function
    for function in (
        echo,
        rich,
        heard,
        listed,
        hears,
        refuses,
        raises,
        steps,
        waits,
        huge,
        counts,
        dies,
        asks,
        asks_and_waits,
        asks_at_once,
        requires,
        links,
        capabilities,
        routed,
    )
}
SCHEMAS: dict[str, dict[str, Any]] = {"routed": {"type": "object", "properties": MARKED}}


async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    schemas = {name: SCHEMAS.get(name, {"type": "object"}) for name in TOOLS}
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schemas[name]) for name in TOOLS])


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
    return await TOOLS[params.name](context, params.arguments or {})


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> Any:
    """Read `tool:NAME?ARGUMENTS`: the text that this tool returns."""
    name, _, arguments = params.uri.removeprefix("tool:").partition("?")
    result = await TOOLS[name](context, json.loads(arguments))
    if not isinstance(result, types.CallToolResult):
        return result
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    return types.ReadResourceResult(
        contents=[types.TextResourceContents(uri=params.uri, text=text) for text in texts],
        _meta={"example.org/trace": "abc"},
    )


server: Server[Any] = Server(
    "callable", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_read_resource=read_resource
)

if __name__ == "__main__":
    run(server)
