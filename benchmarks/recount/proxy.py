"""A proxy on loopback that records each JSON-RPC request and its response, as they are on the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.waiting import eventually

Message = dict[str, Any]

_HOP_BY_HOP = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding")
_TIMEOUT_S = 120.0


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
        params: Message | None = self.request.get("params")
        return params or {}

    @property
    def arguments(self) -> Message:
        """Return the arguments of a called tool."""
        arguments: Message | None = self.params.get("arguments")
        return arguments or {}

    @property
    def result(self) -> Message:
        """Return the result; an error has none."""
        result: Message | None = self.response.get("result")
        return result or {}


@dataclass(slots=True)
class Recorder:
    """The recorded exchanges in the order of their responses, and the address of the proxy."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list[Exchange])


@contextmanager
def recording(service: str) -> Generator[Recorder]:
    """Run a proxy of this service (`http://host:port`) until the block ends."""
    recorder = Recorder()

    async def forward(request: Request) -> Response:
        body = await request.body()
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            answered = await client.request(
                request.method, service + request.url.path, content=body, headers=_passed_on(request.headers)
            )
        sent = _sent(answered)
        if body and sent and "method" in (asked := json.loads(body)):
            caller = request.headers.get("authorization", "").removeprefix("Bearer ")
            recorder.exchanges.append(Exchange(request.url.path, caller, asked, sent))
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


def _sent(answered: httpx2.Response) -> Message | None:
    """Return the response to a request, from JSON or from the last event of a stream with one."""
    if "text/event-stream" in answered.headers.get("content-type", ""):
        lines = [line.removeprefix("data:") for line in answered.text.splitlines() if line.startswith("data:")]
        messages = [json.loads(line) for line in lines if line.strip()]
        return next((message for message in reversed(messages) if "result" in message or "error" in message), None)
    return answered.json() if answered.content else None
