"""One connection with one server, held open to hear when its tools change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import anyio
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shared.errors import NoNotifications, ServerTimeout, ServerUnreachable
from shared.upstream.dial import HttpTarget, Target
from shared.upstream.explain import FOREIGN_ERRORS, explain
from shared.upstream.secrets import secrets_of
from shared.upstream.transports import open_transport
from workers.listening.evidence import ListeningEvidence
from workers.tap import Tap

# No tools come over this connection, so its messages are small.
MAX_MESSAGE_BYTES = 256 << 10
# Servers say something every 15 s or never; a connection that is silent for longer than this is made anew.
SILENCE_S = 600.0

_STREAM_PATIENCE_S = 5.0
_FAREWELL_S = 2.0
_US = Implementation(name="toolscale", version="1")
_CANNOT_LISTEN = (METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)


@dataclass(frozen=True, slots=True)
class Ear:
    """Whom to tell: `connected` once nothing can be missed any more, `changed` for each change. Both return at once."""

    connected: Callable[[], None]
    changed: Callable[[], None]


async def listen(server_id: str, target: Target, ear: Ear, connect_s: float) -> NoReturn:
    """Listen until the connection ends; `connect_s` bounds how long it may take to come about.

    Raises:
        NoNotifications: the server does not tell when its tools change.
        ServerError: why there is no connection, or none any more.
    """
    scope = anyio.CancelScope(deadline=anyio.current_time() + connect_s)
    evidence = ListeningEvidence(server_id, scope, secrets_of(target))
    try:
        with scope:
            await _connect(target, ear, evidence)
    except FOREIGN_ERRORS as error:
        raise explain(evidence, error) or error from error
    raise evidence.verdict or ServerTimeout(server_id, f"no connection to listen on within {connect_s:g} s")


async def _connect(target: Target, ear: Ear, evidence: ListeningEvidence) -> None:
    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            ear.changed()

    def connected() -> None:
        evidence.scope.deadline = math.inf
        ear.connected()

    transport = Tap(open_transport(target, MAX_MESSAGE_BYTES, SILENCE_S, evidence), evidence)
    async with Client(transport, mode="auto", cache=None, client_info=_US, message_handler=hear) as client:
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await _subscribe(client, Ear(connected, ear.changed), evidence)
        else:
            await _await_stream(target, evidence)
            connected()
            await evidence.ended.wait()
        # a session that is not ended here stays open on its server
        evidence.scope.deadline = anyio.current_time() + _FAREWELL_S
    raise evidence.condemn(ServerUnreachable(evidence.server_id, "the connection ended"))


async def _subscribe(client: Client, ear: Ear, evidence: ListeningEvidence) -> None:
    """Listen by `subscriptions/listen` until either side ends it."""
    try:
        async with client.listen(tools_list_changed=True) as subscription:
            if not subscription.honored.tools_list_changed:
                raise evidence.condemn(NoNotifications(evidence.server_id, "it does not tell of changed tools"))
            ear.connected()
            async for _ in subscription:
                ear.changed()
    except MCPError as error:
        if error.code in _CANNOT_LISTEN:
            raise evidence.condemn(NoNotifications(evidence.server_id, "it has no subscriptions")) from error
        raise
    except SubscriptionLost as error:
        raise evidence.condemn(ServerUnreachable(evidence.server_id, "the subscription was lost")) from error


async def _await_stream(target: Target, evidence: ListeningEvidence) -> None:
    """Wait until a server of an earlier revision can tell; only streamable HTTP needs a stream of its own for that."""
    if not isinstance(target, HttpTarget) or target.transport != "streamable-http":
        return
    with anyio.move_on_after(_STREAM_PATIENCE_S):
        await evidence.opened.wait()
    if not evidence.opened.is_set():  # the SDK asks for none without a session
        raise evidence.condemn(NoNotifications(evidence.server_id, "it keeps no session that it could tell us in"))
