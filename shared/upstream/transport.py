"""The transport to one server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from shared.upstream.http import http_transport
from shared.upstream.session import SessionState
from shared.upstream.stdio import stdio_transport
from shared.upstream.target import HttpTarget, Target

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams as Streams


def open_transport(
    target: Target, max_message_bytes: int, timeout_s: float, state: SessionState
) -> AbstractAsyncContextManager[Streams]:
    """Return the guarded transport for this target; `timeout_s` limits single reads only."""
    if isinstance(target, HttpTarget):
        return http_transport(target, max_message_bytes, timeout_s, state)
    return stdio_transport(target, max_message_bytes, state)
