"""The walk over the pages of `tools/list` in one session."""

from __future__ import annotations

import hashlib
from typing import cast

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY, ListToolsResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from shared.catalog import Listing
from shared.errors import ListingTooLarge, ProtocolViolation, ServerFailed
from shared.upstream.session import SessionState
from workers.fetch.definitions import MAX_NAMED, ListingBuilder
from workers.fetch.limits import Limits
from workers.fetch.raw_tools import RawToolInterceptor

PROBE = "auto"
"""The mode for an unknown protocol. The client sends a request that most servers of earlier protocols reject."""

_HANDSHAKE = "legacy"
_DECLARED_NAME_CHARACTERS = 200


def connect_mode(listing: Listing) -> str:
    """Return the mode in which a server with such a list connects without a probe.

    A server of protocol 2026-07-28 is not asked for its name, so its pages have to contain it.
    """
    if listing.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return _HANDSHAKE
    return listing.protocol_version if listing.names_server else PROBE


async def walk(client: Client, interceptor: RawToolInterceptor, limits: Limits, state: SessionState) -> Listing:
    """Return the tools of all pages.

    Raises:
        ListingTooLarge: the pages, tools or bytes exceed a limit.
        ProtocolViolation: a cursor came twice, so the walk would not end; or the session had no probe, and no page
            names the server.
    """
    builder = ListingBuilder(state.server_id, client.protocol_version, limits)
    cursor, name = None, None
    seen: set[bytes] = set()
    for _ in range(limits.max_pages):
        page = await _next_page(client, cursor, state)
        cursor, name = page.next_cursor, name or _name_in(page, client)
        builder.add(interceptor.take_page())
        await state.wait_for_slot(builder.size_bytes, nodes=0)
        if not cursor:  # some servers end with an empty one
            return _listing(client, builder, state, name)
        cursor_digest = hashlib.sha256(cursor.encode()).digest()  # a cursor may be as long as a message
        if cursor_digest in seen:
            raise ProtocolViolation(state.server_id, "gives the same cursor twice")
        seen.add(cursor_digest)
    raise ListingTooLarge(state.server_id, f"more than {limits.max_pages} pages of tools")


async def _next_page(client: Client, cursor: str | None, state: SessionState) -> ListToolsResult:
    try:
        return await client.list_tools(cursor=cursor)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and cursor is None and client.server_capabilities.tools is None:
            return ListToolsResult(tools=[])  # its capabilities have no tools
        if error.code == INVALID_PARAMS and cursor is not None:
            # its list may have changed during the walk: a new walk may succeed
            raise ServerFailed(state.server_id, "no longer accepts the cursor that it gave") from error
        raise


def _name_in(page: ListToolsResult, client: Client) -> str | None:
    """Return the server's name in a page of a protocol that has it there."""
    about = (page.meta or {}).get(SERVER_INFO_META_KEY) if client.protocol_version in MODERN_PROTOCOL_VERSIONS else None
    name = cast("dict[str, object]", about).get("name") if isinstance(about, dict) else None
    return name if isinstance(name, str) and name else None


def _listing(client: Client, builder: ListingBuilder, state: SessionState, name_in_pages: str | None) -> Listing:
    # without a probe, the SDK invents capabilities without tools, and no name
    if name_in_pages is None and client.mode not in (PROBE, _HANDSHAKE):
        raise ProtocolViolation(state.server_id, "no longer names itself in its pages")
    probed = client.server_info.name if client.server_info else ""
    name = state.line(probed if name_in_pages is None else name_in_pages)
    return Listing(
        declared_name=name[:_DECLARED_NAME_CHARACTERS],
        protocol_version=client.protocol_version,
        tools=tuple(builder.tools.values()),
        rejected=builder.rejected_summary(),
        marked=tuple(builder.marked[:MAX_NAMED]),
        names_server=name_in_pages is not None,
    )
