"""The door of `toolscale serve`: it recognises the operator by the secret, and notes when the service was last used."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_to_bytes

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route

from query.caller import OPERATOR, Caller, operator
from toolscale.client.instance import ATTEND_PATH, STOP_PATH
from toolscale.stdio import DIRECTORY_HEADER, GROUPS_HEADER, LISTEN, SESSION_HEADER, TOOLSET_HEADER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

IDLE_S = 600.0
"""Seconds after the last client, page or call at which a background service ends."""

# A proxy's name has 32.
MAX_SESSION_CHARACTERS = 100

# Programs that watch a service do not use it.
_WATCHING = frozenset({"/healthz", "/readyz", "/metrics"})
# A service that ends waits as long for its attending clients.
_POLL_S = 0.5


class Use:
    """The present use of a service: its requests in flight, and the clients over stdio, which attend by a request."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._last_s = clock_s()
        self.requests = self.clients = 0

    @property
    def idle_s(self) -> float:
        """Return the seconds since the last use; 0 while there is one."""
        return 0.0 if self.requests or self.clients else self._clock_s() - self._last_s

    @contextmanager
    def request(self) -> Generator[None]:
        """Count a request in the block."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1
            self._last_s = self._clock_s()

    @contextmanager
    def client(self) -> Generator[None]:
        """Count a client in the block."""
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1
            self._last_s = self._clock_s()


class Door:
    """ASGI: an application whose requests with the secret as bearer token are the operator's.

    Their headers limit the operator to groups and a toolset, and name its client; no other request may set them.
    """

    def __init__(self, app: ASGIApp, secret: str, use: Use) -> None:
        self._app = app
        self._authorization = f"Bearer {secret}".encode()
        self._use = use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its caller if that is the operator."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if hmac.compare_digest(headers.get("authorization", "").encode(), self._authorization):
            scope = {**scope, OPERATOR: _operator(headers)}
        if scope["path"] in (*_WATCHING, ATTEND_PATH, STOP_PATH):
            await self._app(scope, receive, send)
            return
        # a client that listens attends, and waits for no answer
        is_listening = headers.get("mcp-method") == LISTEN
        with self._use.client() if is_listening else self._use.request():
            await self._app(scope, receive, send)


def use_routes(use: Use, is_ending: Callable[[], bool], end: Callable[[], None] | None) -> list[Route]:
    """Return the routes of clients over stdio: they attend, and ask a background service, which has `end`, to end."""

    async def attend(request: Request) -> Response:
        if OPERATOR not in request.scope:
            return Response(status_code=404)
        with use.client():
            while not is_ending():
                with anyio.move_on_after(_POLL_S):
                    if (await request.receive())["type"] == "http.disconnect":
                        break
        return Response(status_code=204)

    async def stop(request: Request) -> Response:
        if OPERATOR not in request.scope:
            return Response(status_code=404)
        is_used = use.requests or ("alone" in request.query_params and use.clients)
        if end is None or is_used:
            return Response(status_code=409)
        end()
        return Response(status_code=202)

    return [Route(ATTEND_PATH, attend, methods=["POST"]), Route(STOP_PATH, stop, methods=["POST"])]


def _operator(headers: Headers) -> Caller:
    groups, toolset = headers.get(GROUPS_HEADER), headers.get(TOOLSET_HEADER)
    client, directory = headers.get(SESSION_HEADER, "")[:MAX_SESSION_CHARACTERS], headers.get(DIRECTORY_HEADER)
    known = None if groups is None else frozenset(part.strip() for part in unquote(groups).split(",") if part.strip())
    return operator(
        known,
        unquote(toolset) if toolset else None,
        client,
        os.fsdecode(unquote_to_bytes(directory)) if directory else None,
    )
