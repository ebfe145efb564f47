"""A proxy between the suite and a toolset: the suite has fixed names and URIs, and a toolset shows its own for them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shared.service.http import HttpConfig, bind
from tests.support.waiting import eventually

# the proxy's own, or of one connection
UNFORWARDED = {"content-length", "transfer-encoding", "connection", "keep-alive", "accept-encoding"}
COMPLETE = "completion/complete"
EXPRESSION = re.compile(r"\{[^{}]*\}")

Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Names:
    """How the names of a kind of thing (tools, prompts, resources) are shown: by a server itself, and by a toolset.

    A request of one of the methods, or its reference, has the name in a parameter; a result has a list of things with
    such a name.
    """

    methods: tuple[str, ...]
    parameter: str
    listed: str
    to_toolset: Rename
    from_toolset: Rename

    def in_request(self, message: dict[str, Any]) -> None:
        """Let a request name what the toolset shows."""
        params: dict[str, Any] | None = message.get("params")
        if message.get("method") not in self.methods or not isinstance(params, dict):
            return
        named = params.get("ref", params)
        if self.parameter in named:
            named[self.parameter] = self.to_toolset(named[self.parameter])

    def in_header(self, method: str | None, name: str) -> str:
        """Return the name in the header of such a request."""
        return self.to_toolset(name) if method in self.methods else name

    def in_result(self, result: dict[str, Any]) -> None:
        """Let a list name what the server shows."""
        for thing in result.get(self.listed, []):
            thing[self.parameter] = self.from_toolset(thing[self.parameter])


def prefixed(names: Mapping[str, object], server: str, methods: tuple[str, ...], listed: str) -> Names:
    """Return the renaming of a server's own names; those of Toolscale stay."""
    prefix = f"{server}__"
    return Names(
        methods,
        "name",
        listed,
        lambda name: prefix + name if name in names else name,
        lambda name: name.removeprefix(prefix),
    )


async def linked(server: str, toolset: str) -> tuple[Names, Names]:
    """Return the renaming of the resources and the templates of the server at a URL, as the toolset lists them now."""
    async with Client(server) as alone, Client(toolset) as behind:
        own, shown = await _listed(alone), await _listed(behind)
    links = {uri: shown[name] for name, uri in own.items()}
    own_of = {link: uri for uri, link in links.items()}

    def to_toolset(uri: str) -> str:
        for template, link in links.items():
            if expanded := re.fullmatch("(.+)".join(map(re.escape, EXPRESSION.split(template))), uri):
                first, *others = EXPRESSION.split(link)
                return first + "".join(value + text for value, text in zip(expanded.groups(), others, strict=True))
        return uri

    return (
        Names(("resources/read", COMPLETE), "uri", "resources", to_toolset, own_of.__getitem__),
        Names((), "uriTemplate", "resourceTemplates", to_toolset, own_of.__getitem__),
    )


async def _listed(client: Client) -> dict[str, str]:
    """Return the URIs of resources and templates by their names, which a toolset leaves as they are."""
    resources = (await client.list_resources()).resources
    templates = (await client.list_resource_templates()).resource_templates
    return {one.name: one.uri for one in resources} | {one.name: one.uri_template for one in templates}


@contextmanager
def renamed(target: str, kinds: tuple[Names, ...]) -> Generator[str]:
    """Yield the URL of a proxy for the MCP server at `target`, which renames, and forwards all else as it is."""
    listener = bind("127.0.0.1", 0, "of the test")
    server = uvicorn.Server(HttpConfig(_app(target, kinds)))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join(60)


def _app(target: str, kinds: tuple[Names, ...]) -> Starlette:
    # a stream is silent for as long as its server likes
    client = httpx2.AsyncClient(timeout=None, trust_env=False)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    async def forward(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in UNFORWARDED]
        method = request.headers.get("mcp-method")
        for kind in kinds:
            headers = [(name, kind.in_header(method, v) if name == "mcp-name" else v) for name, v in headers]
        sent = client.build_request(
            request.method, target, headers=headers, content=_renamed_request(await request.body(), kinds)
        )
        answer = await client.send(sent, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in UNFORWARDED}
        if "text/event-stream" in answer.headers.get("content-type", ""):
            return StreamingResponse(_renamed_events(answer, kinds), answer.status_code, kept)
        body = _renamed_result(await answer.aread(), kinds)
        await answer.aclose()
        return Response(body, answer.status_code, kept)

    return Starlette(routes=[Route("/mcp", forward, methods=["GET", "POST", "DELETE"])], lifespan=lifespan)


async def _renamed_events(answer: httpx2.Response, kinds: tuple[Names, ...]) -> AsyncGenerator[bytes]:
    try:
        async for line in answer.aiter_lines():
            field, _, data = line.partition(": ")
            text = f"data: {_renamed_result(data.encode(), kinds).decode()}" if field == "data" else line
            yield f"{text}\n".encode()
    finally:
        await answer.aclose()


def _renamed_request(body: bytes, kinds: tuple[Names, ...]) -> bytes:
    message = _object(body)
    if message is None:
        return body
    for kind in kinds:
        kind.in_request(message)
    return json.dumps(message).encode()


def _renamed_result(body: bytes, kinds: tuple[Names, ...]) -> bytes:
    message = _object(body)
    if message is None or not isinstance(message.get("result"), dict):
        return body
    for kind in kinds:
        kind.in_result(message["result"])
    return json.dumps(message).encode()


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        message: dict[str, Any] | list[Any] | None = json.loads(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
