"""Every tool a server offers: the complete walk over its pages, or an error that names the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from shared.catalog import Listing
    from workers.dial import Target


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server may ask of us.

    `timeout_s` covers connecting and all pages. `max_tools` and `max_total_bytes` are over all pages;
    `max_message_bytes` is the size of one response, event or line; a tool over `max_tool_bytes` is left out.
    """

    timeout_s: float = 30.0
    max_tools: int = 10_000
    max_pages: int = 1_000
    max_message_bytes: int = 16 << 20
    max_tool_bytes: int = 2 << 20
    max_total_bytes: int = 64 << 20


async def fetch_tools(server_id: str, target: Target, limits: Limits) -> Listing:
    """Return all tools the server offers now; a tool that cannot be used is among the rejected, with the reason.

    Never a partial list. The same definitions give the same wire JSON, whatever the order of their keys. Ends within
    `limits.timeout_s` and, for a child process that will not die, two seconds more.

    Raises:
        ServerUnreachable: no connection, or it broke.
        ServerTimeout: no complete list within the time.
        ServerFailed: the server answered with an error of its own.
        ServerRefused: it wants other credentials.
        ServerMisbehaved: it does not speak MCP as it should.
        ListingTooLarge: a limit was hit.
        AddressForbidden: it tried to send us elsewhere.
    """
    from workers.fetch_session import list_tools  # noqa: PLC0415  # the SDK takes a second to import

    return await list_tools(server_id, target, limits)


def fetch_tools_blocking(server_id: str, target: Target, limits: Limits) -> Listing:
    """Return what `fetch_tools` does, from a thread without an event loop."""
    return anyio.run(fetch_tools, server_id, target, limits)
