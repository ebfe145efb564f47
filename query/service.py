"""The query service as one MCP server: our tools over a catalogue, the ways to call others, and toolsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from query.server import anyone, build_server
from query.tools import offers
from query.toolsets.toolsets import toolsets_of

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

    from query.caller import Caller
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue


def service_of(
    catalogue: Catalogue,
    upstreams: Upstreams | None = None,
    caller_of: Callable[[ServerRequestContext[Any]], Caller] = anyone,
) -> Server[Any]:
    """Return the server of this catalogue; without a way to the servers, nothing can be called."""
    ours = offers(catalogue, upstreams)
    return build_server(ours, caller_of, catalogue.answers, toolsets_of(catalogue, ours), catalogue.metrics)
