"""Opens a client in the way that its server understands: some know neither the version probe nor streamable HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from mcp import Client

from shared.errors import ProtocolViolation, ServerUnreachable
from shared.upstream.http import NOT_CONNECTED, http_transport
from shared.upstream.session import FOREIGN_ERRORS, SessionState, leaves, to_server_error
from shared.upstream.stdio import stdio_transport
from shared.upstream.target import HttpTarget, StdioTarget, Target

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams as Streams

PROBE = "auto"
"""The mode for an unknown protocol. The client sends a request that most servers of earlier protocols reject."""

HANDSHAKE = "legacy"

# A server that was updated is asked in the usual way again.
_KNOWN_S = 3_600.0
# A process that holds so many forgets them all, since URLs and commands may come and go.
_MOST_KNOWN = 10_000


class _Way(NamedTuple):
    mode: str
    is_sse: bool = False


# By the command or URL of a server: the way that worked where the usual one did not.
_known: dict[str | tuple[str, ...], tuple[_Way, float]] = {}


@asynccontextmanager
async def open_client(
    client_of: Callable[[AbstractAsyncContextManager[Streams], str], Client],
    target: Target,
    max_message_bytes: int,
    timeout_s: float,
    state: SessionState,
    mode: str = PROBE,
) -> AsyncGenerator[Client]:
    """Yield the client that `client_of` makes of a guarded transport and a mode; `timeout_s` limits single reads only.

    A server that ends, breaks off or is silent at the probe is contacted again without it. One that answers
    `initialize` with a status of 4xx is asked for the stream of the older SSE transport, as MCP describes it.
    What worked is used at once the next time.

    Raises:
        FOREIGN_ERRORS: the session cannot be opened.
    """
    key = target.url if isinstance(target, HttpTarget) else (target.command, *target.args)
    is_sse = isinstance(target, HttpTarget) and target.transport == "sse"
    usual = _Way(HANDSHAKE if is_sse else mode, is_sse)  # the older transport has no other
    known, until_s = _known.get(key, (usual, 0.0))
    known = known if time.monotonic() < until_s else usual
    way = known if known.is_sse or mode == PROBE else usual
    async with AsyncExitStack() as stack:
        try:
            transport = _transport(target, way, max_message_bytes, timeout_s, state)
            client = await stack.enter_async_context(client_of(transport, way.mode))
        except FOREIGN_ERRORS as error:
            other = _other_way(target, usual, way, state, error)
            if other is None:
                raise
            first = to_server_error(state, error) or error
            _known.pop(key, None)
            state.begin_again()
            try:
                transport = _transport(target, other, max_message_bytes, timeout_s, state)
                client = await stack.enter_async_context(client_of(transport, other.mode))
            except FOREIGN_ERRORS:
                if other.is_sse and not state.is_sse:
                    raise first from error  # there is no such stream either
                raise
            if other != usual:
                if len(_known) >= _MOST_KNOWN:
                    _known.clear()
                _known[key] = other, time.monotonic() + _KNOWN_S
        yield client


def _transport(
    target: Target, way: _Way, max_message_bytes: int, timeout_s: float, state: SessionState
) -> AbstractAsyncContextManager[Streams]:
    if isinstance(target, StdioTarget):
        return stdio_transport(target, max_message_bytes, state)
    to = replace(target, transport="sse") if way.is_sse else target
    return http_transport(to, max_message_bytes, timeout_s, state)


def _other_way(target: Target, usual: _Way, way: _Way, state: SessionState, error: Exception) -> _Way | None:
    """Return another way to open a session that failed, None if the way was not the reason."""
    if state.error or any(isinstance(leaf, (OSError, *NOT_CONNECTED)) for leaf in leaves(error)):
        return None  # nothing was reached, or the session is cancelled
    if way != usual:
        return usual  # the server may be another one by now
    if state.is_sse:
        return _Way(HANDSHAKE, is_sse=True) if not way.is_sse else None
    has_probe = way.mode == PROBE
    if isinstance(target, StdioTarget):
        return _Way(HANDSHAKE) if has_probe and state.took_probe else None
    ours = to_server_error(state, error)
    if state.http_status is None:
        return _Way(HANDSHAKE) if has_probe and isinstance(ours, ProtocolViolation | ServerUnreachable) else None
    is_4xx = HTTPStatus.BAD_REQUEST <= state.http_status < HTTPStatus.INTERNAL_SERVER_ERROR
    return _Way(HANDSHAKE, is_sse=True) if is_4xx and isinstance(ours, ProtocolViolation) and not way.is_sse else None
