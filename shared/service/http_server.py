"""The configuration of every HTTP server: limits on its connections, on their silence, and on bodies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from shared.service.bodies import BODY_WITHIN_S, BUDGET_BYTES, BodyLimits
from shared.service.connections import Connections
from shared.service.open_files import caller_connections

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn.server import ServerState

REQUEST_WITHIN_S = 10.0
"""Seconds to the head of a connection's first request, and from a response to that of the next."""
READ_WITHIN_S = 30.0
"""Seconds in which a client reads some bytes of a response that waits for it."""
_CHECK_EVERY_S = 0.5

# More connections at a time would take more files before the limit closes any.
_ACCEPTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an HTTP server."""

    connections: int = field(default_factory=caller_connections)
    request_within_s: float = REQUEST_WITHIN_S
    read_within_s: float = READ_WITHIN_S
    body_within_s: float = BODY_WITHIN_S
    bodies_bytes: int = BUDGET_BYTES


class HttpConfig(uvicorn.Config):
    """The configuration of uvicorn for an application, with the limits."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits | None = None, *, grace_s: int | None = None, has_lifespan: bool = True
    ) -> None:
        """At the end, the responses in flight have `grace_s` seconds, or as long as they need."""
        self.limits = limits or HttpLimits()
        self.connections = Connections(self.limits.connections)
        # logging is configured by the process; each request has its own line already
        super().__init__(
            BodyLimits(app, self.limits.bodies_bytes, body_within_s=self.limits.body_within_s),
            http=LimitedProtocol,
            ws="none",
            loop="asyncio",
            interface="asgi3",
            lifespan="auto" if has_lifespan else "off",
            log_config=None,
            access_log=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=grace_s,
        )


class LimitedProtocol(H11Protocol):
    """Uvicorn's connection, which counts in the limit and is closed if its client is silent."""

    config: HttpConfig

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._idle_since_s = self._progress_at_s = self.loop.time()
        self._last_unsent_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in flight, and the client has read the last response."""
        return self._is_between_requests and not self._unsent_bytes

    @property
    def awaits_client(self) -> bool:
        """Return whether the client has to send the rest of a request, or to read a response."""
        return self._is_between_requests or self.cycle.more_body or bool(self._unsent_bytes)

    @property
    def _is_between_requests(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn sets None
        return cycle is None or cycle.response_complete

    @property
    def _unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.config.connections.add(self, self.client[0] if self.client else None)
        self._check_later()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.config.connections.remove(self)
        super().connection_lost(exc)

    @override
    def on_response_complete(self) -> None:
        self._idle_since_s = self.loop.time()
        self.config.connections.renew(self)
        super().on_response_complete()

    def abort(self) -> None:
        """Close the connection, without a wait for unread bytes."""
        self.transport.abort()

    def _check_later(self) -> None:
        self.loop.call_later(_CHECK_EVERY_S, self._check)

    def _check(self) -> None:
        if self not in self.config.connections:
            return
        if self._is_overdue(self.loop.time()):
            self.config.connections.close(self)
        else:
            self._check_later()

    def _is_overdue(self, now_s: float) -> bool:
        last_bytes, self._last_unsent_bytes = self._last_unsent_bytes, self._unsent_bytes
        if not self._last_unsent_bytes or self._last_unsent_bytes < last_bytes:
            self._progress_at_s = now_s
        if self._last_unsent_bytes:
            return now_s - self._progress_at_s > self.config.limits.read_within_s
        return self.is_idle and now_s - self._idle_since_s > self.config.limits.request_within_s
