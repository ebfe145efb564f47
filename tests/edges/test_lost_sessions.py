"""A lost session is known by any spelling: one new `initialize`, and the call runs once, or its error says so."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from query.calling.connection import SESSION_LOST
from shared.upstream.target import HttpTarget
from tests.calling.test_sessions import Service, SessionServer, call, callers
from tests.support.calling import text_of
from tests.support.hostile.scripted_http import Exchange, scripted_http

pytestmark = [pytest.mark.process, pytest.mark.anyio]

Answer = Callable[[Exchange], None]


def rpc(status: int, message: str, code: object = -32000, *, with_id: bool = False, kind: str = "json") -> Answer:
    def refuse(exchange: Exchange) -> None:
        number = exchange.request_json.get("id") if with_id else None
        body = json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}).encode()
        if kind == "events":
            exchange.send(status, b"event: message\ndata: " + body + b"\n\n", "text/event-stream")
        else:
            exchange.send(status, body)

    return refuse


def other(status: int, body: str, kind: str = "application/json") -> Answer:
    return lambda exchange: exchange.send(status, body.encode(), kind)


# The server surely did not carry out the call.
REFUSED: dict[str, Answer] = {
    "404 in plain text": other(404, "not found", "text/plain"),
    "404 as HTML": other(404, "<h1>Not Found</h1>", "text/html"),
    "404 with a text as its code": rpc(404, "Session not found", "SESSION_NOT_FOUND"),
    "400 of FastMCP": rpc(400, "Bad Request: No valid session ID provided"),
    "400 of the TypeScript SDK": rpc(400, "Bad Request: Server not initialized"),
    "400 without a version": other(400, '{"error": {"code": -32000, "message": "Invalid session ID"}}'),
    "400 of another API": other(400, '{"detail": "Missing mcp-session-id header"}'),
    "400 of a transport": rpc(400, "No transport found for sessionId"),
    "400, initialize first": rpc(400, "Please send initialize first"),
    "401 of a server": rpc(401, "Unauthorized: session expired"),
    "401 as JSON": other(401, '{"error": "session_expired"}'),
    "403 with words": rpc(403, "Forbidden: unknown session"),
    "403 without words": other(403, ""),
    "409 with words": rpc(409, "Session is no longer active"),
    "410 without words": other(410, ""),
    "412 with words": other(412, "session terminated", "text/plain"),
    "422 of a validator": other(422, '{"detail": [{"loc": ["header", "mcp-session-id"], "msg": "unknown session"}]}'),
    "428 with words": other(428, "initialize required", "text/plain"),
}
# The call may have ended the session.
UNCERTAIN: dict[str, Answer] = {
    "500 without words": other(500, "Internal Server Error", "text/plain"),
    "500 with words": rpc(500, "KeyError: unknown session", -32603),
    "503 as HTML": other(503, "<h1>Service Unavailable</h1>", "text/html"),
    "503 with words": rpc(503, "Service Unavailable: unknown session", -32001),
    "200 with an id": rpc(200, "Session not found or expired", -32001, with_id=True),
    "200 without an id": rpc(200, "Session terminated", 32600),
    "200 as an event": rpc(200, "Invalid session", -32600, with_id=True, kind="events"),
    "200 with a text as its code": rpc(200, "session has expired", "SESSION_EXPIRED", with_id=True),
    "200, not initialized": rpc(200, "Received request before initialization was complete", -32602, with_id=True),
    "200, initialize again": rpc(200, "Server must be initialized first", -32002, with_id=True),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_call_runs_once_in_a_new_session(name: str) -> None:
    script = SessionServer(REFUSED[name])
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            assert text_of(await call(ann, "write")) == "done"
            script.sessions.clear()
            script.calls.clear()
            first, second = await call(ann, "write"), await call(ann, "write")

    assert (text_of(first), text_of(second)) == ("done", "done")
    assert script.calls == ["write", "write"]
    assert server.methods.count("initialize") == 2


@pytest.mark.parametrize(("tool", "is_repeated"), [("read", True), ("write", False)])
@pytest.mark.parametrize("name", UNCERTAIN)
async def test_a_call_that_may_have_run_is_repeated_only_if_it_reads(name: str, tool: str, is_repeated: bool) -> None:
    script = SessionServer(UNCERTAIN[name])
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, tool)
            script.sessions.clear()
            script.calls.clear()
            first, second = await call(ann, tool), await call(ann, tool)

    assert first.is_error is not is_repeated
    assert (SESSION_LOST in text_of(first)) is not is_repeated
    assert text_of(second) == "done"
    assert script.calls == [tool] * (1 + is_repeated)
    assert server.methods.count("initialize") == 2


@pytest.mark.parametrize(
    "answer",
    [
        rpc(400, "the browser session 7 is unknown", with_id=True),
        rpc(403, "this client may not write", with_id=True),
        rpc(500, "the database has closed the connection", with_id=True),
        rpc(200, "the database is not initialized", with_id=True),
        other(429, "too many sessions"),
        other(503, "busy", "text/plain"),
    ],
)
async def test_the_error_of_a_call_ends_no_session(answer: Answer) -> None:
    script = SessionServer()
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, "write")
            script.answer = answer
            refused = await call(ann, "write")
            script.answer = SessionServer().answer
            assert text_of(await call(ann, "write")) == "done"

    assert refused.is_error
    assert script.calls == ["write"] * 3
    assert server.methods.count("initialize") == 1
