"""A scripted server whose list and behaviour change between two listings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.hostile.messages import Message, cursor_of, failure, initialized, result, tool
from tests.support.hostile.scripted_http import Exchange

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PROBE = ["server/discover"]
SESSION = {HANDSHAKE: ["initialize", "notifications/initialized", "tools/list"], MODERN: ["tools/list"]}
"""The methods of a listing without a probe."""


@dataclass
class ListedServer:
    """A server of either protocol, which a test may change.

    `salt` is put into each page, and `act` answers `tools/list` in its place; `error` is the code of a rejected one.
    `methods` are those of all requests, but for the stream of server messages, which is opened beside them at any time.
    """

    protocol: str = HANDSHAKE
    name: str = "scripted"
    pages: list[list[Message]] = field(default_factory=lambda: [[tool("one")]])
    has_sessions: bool = False
    sends_events: bool = False
    salt: Callable[[], str] = str
    act: Callable[[Exchange], None] | None = None
    cookie: str = ""
    pages_are_named: bool = True
    declares_tools: bool = True
    needs_a_probe: bool = False
    fails: bool = False
    error: int = -32601
    methods: list[str] = field(default_factory=list[str])
    sessions: list[str] = field(default_factory=list[str])
    numbers: Any = field(default_factory=itertools.count)

    def respond(self, exchange: Exchange) -> None:
        request, method = exchange.request_json, exchange.method
        if exchange.command == "GET":
            exchange.send(405)
            return
        self.methods.append(method)
        if self.fails:
            exchange.send(503)
        elif self.has_sessions and method not in ("initialize", *PROBE):
            self._in_session(exchange)
        elif "id" not in request:
            exchange.send(202)
        elif method == "tools/list" and self.act:
            self.act(exchange)
        else:
            self.answer(exchange)

    def _in_session(self, exchange: Exchange) -> None:
        session = exchange.headers.get("mcp-session-id")
        if session not in self.sessions:
            exchange.send(404)
        elif exchange.command == "DELETE":
            self.sessions.remove(session)
            exchange.send(204)
        elif "id" not in exchange.request_json:
            exchange.send(202)
        else:
            self.answer(exchange)

    def answer(self, exchange: Exchange) -> None:
        """Answer a request by its pages."""
        version = exchange.headers.get("mcp-protocol-version")
        message, headers = self._message(exchange.request_json, version), {}
        if self.has_sessions and exchange.method == "initialize":
            self.sessions.append(f"session-{next(self.numbers)}")
            headers = {"mcp_session_id": self.sessions[-1]}
        headers |= {"set_cookie": self.cookie} if self.cookie else {}
        body, kind = json.dumps(message).encode(), "application/json"
        if self.sends_events:
            body, kind = b"event: message\ndata: " + body + b"\n\n", "text/event-stream; charset=utf-8"
        exchange.send(200, body, kind, **headers)

    def _message(self, request: Message, version: str | None) -> Message:
        match request["method"]:
            case "initialize" if self.protocol == HANDSHAKE:
                return initialized(request, name=self.name)
            case "server/discover" if self.protocol == MODERN:
                capabilities: Message = {"tools": {}} if self.declares_tools else {}
                offered: Message = {"supportedVersions": [MODERN], "capabilities": capabilities}
                return result(request, offered | self._envelope(is_named=True))
            case "tools/list" if self.pages and version == self.protocol and self._is_probed():
                number = int(cursor_of(request) or 0)
                following = {"nextCursor": str(number + 1)} if number + 1 < len(self.pages) else {}
                envelope = self._envelope(is_named=self.pages_are_named) if self.protocol == MODERN else {}
                return result(request, {"tools": self.pages[number], "x-salt": self.salt()} | following | envelope)
            case method:
                return failure(request, self.error if method == "tools/list" else -32601, f"no {method}")

    def _is_probed(self) -> bool:
        return self.methods[-2:-1] == PROBE or not self.needs_a_probe

    def _envelope(self, *, is_named: bool) -> Message:
        about = {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "1"}}
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | ({"_meta": about} if is_named else {})
