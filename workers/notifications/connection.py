"""One connection with one server, held open to hear when its tools change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import anyio
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shared.errors import NoNotifications, ServerTimeout, ServerUnreachable
from shared.upstream.dial import HttpTarget, Target
from shared.upstream.secrets import secrets_of
from shared.upstream.transport.errors import FOREIGN_ERRORS, explain
from shared.upstream.transport.open import open_transport
from workers.fetch.raw_tools import Tap
from workers.notifications.rate_limit import ListeningEvidence

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
    """Whom to tell: `connected` once nothing can be missed any more, `changed` of changes, `noticed` of each notice.

    All return at once. Notices are counted; one may be told of as several changes, and the other way round.
    """

    connected: Callable[[], None]
    changed: Callable[[], None]
    noticed: Callable[[], None]


async def listen(server_id: str, target: Target, ear: Ear, connect_s: float) -> NoReturn:
    """Listen until the connection ends; `connect_s` bounds how long it may take to come about.

    Cancelled, it still takes its leave of the server, within two seconds or so.

    Raises:
        NoNotifications: the server does not tell when its tools change.
        ServerError: why there is no connection, or none any more.
    """
    scope = anyio.CancelScope(deadline=anyio.current_time() + connect_s)
    evidence = ListeningEvidence(server_id, scope, secrets_of(target))
    visit = _Visit(target, ear, evidence)
    error: Exception = ServerUnreachable(server_id, "the connection ended")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_leave_when_cancelled, visit)
        with anyio.CancelScope(shield=True):
            error = await _outcome(visit, connect_s)
        tasks.cancel_scope.cancel()
    raise error


async def _leave_when_cancelled(visit: _Visit) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        visit.leave()


async def _outcome(visit: _Visit, connect_s: float) -> Exception:
    """Return why there is no connection, or none any more."""
    evidence = visit.evidence
    try:
        with evidence.scope:
            await visit.pay()
    except FOREIGN_ERRORS as error:
        ours = explain(evidence, error)
        if ours is None:
            return error
        ours.__cause__ = error  # it is raised where no group of tasks wraps it
        return ours
    return evidence.verdict or ServerTimeout(evidence.server_id, f"no connection to listen on within {connect_s:g} s")


class _Visit:
    """One session with one server, and the way to end it properly."""

    def __init__(self, target: Target, ear: Ear, evidence: ListeningEvidence) -> None:
        self.evidence = evidence
        self._target = target
        self._ear = ear
        self._staying: anyio.CancelScope | None = None

    def leave(self) -> None:
        """End the session; one that is not established yet is given up."""
        (self._staying or self.evidence.scope).cancel()

    async def pay(self) -> None:
        """Connect, listen for as long as it lasts, and leave.

        Raises:
            ServerError: the connection ended, or there was none to listen on.
        """
        evidence = self.evidence
        transport = Tap(open_transport(self._target, MAX_MESSAGE_BYTES, SILENCE_S, evidence), evidence)
        async with Client(transport, mode="auto", cache=None, client_info=_US, message_handler=self._hear) as client:
            with anyio.CancelScope() as self._staying:
                await self._listen(client)
            # a session that is not ended here stays open on its server
            evidence.scope.deadline = anyio.current_time() + _FAREWELL_S
        raise evidence.condemn(ServerUnreachable(evidence.server_id, "the connection ended"))

    async def _listen(self, client: Client) -> None:
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await _subscribe(client, replace(self._ear, connected=self._connected), self.evidence)
        else:
            await _await_stream(self._target, self.evidence)
            self._connected()
            await self.evidence.ended.wait()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):  # those of a subscription come here, too
            self._ear.noticed()
            self._ear.changed()

    def _connected(self) -> None:
        self.evidence.scope.deadline = math.inf
        self._ear.connected()


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
