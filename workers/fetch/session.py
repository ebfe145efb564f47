"""The walk over the pages of `tools/list` in one session."""

from __future__ import annotations

import hashlib

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from shared.catalog import Listing
from shared.errors import ListingTooLarge, ProtocolViolation, ServerFailed
from shared.upstream.transport.session_state import SessionState
from workers.fetch.definitions import MAX_NAMED, ListingBuilder
from workers.fetch.limits import Limits
from workers.fetch.raw_tools import RawToolInterceptor

_DECLARED_NAME_CHARACTERS = 200


async def walk(client: Client, interceptor: RawToolInterceptor, limits: Limits, state: SessionState) -> Listing:
    """Return the tools of all pages.

    Raises:
        ListingTooLarge: the pages, tools or bytes exceed a limit.
        ProtocolViolation: a cursor came twice, so the walk would not end.
    """
    builder = ListingBuilder(state.server_id, client.protocol_version, limits)
    cursor: str | None = None
    seen: set[bytes] = set()
    for _ in range(limits.max_pages):
        cursor = await _next_page(client, cursor, state)
        builder.add(interceptor.take_page())
        await state.wait_for_slot(builder.size_bytes, nodes=0)
        if not cursor:  # some servers end with an empty one
            return _listing(client, builder, state)
        cursor_digest = hashlib.sha256(cursor.encode()).digest()  # a cursor may be as long as a message
        if cursor_digest in seen:
            raise ProtocolViolation(state.server_id, "gives the same cursor twice")
        seen.add(cursor_digest)
    raise ListingTooLarge(state.server_id, f"more than {limits.max_pages} pages of tools")


async def _next_page(client: Client, cursor: str | None, state: SessionState) -> str | None:
    try:
        return (await client.list_tools(cursor=cursor)).next_cursor
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and client.server_capabilities.tools is None:
            return None  # its capabilities have no tools
        if error.code == INVALID_PARAMS and cursor is not None:
            # its list may have changed during the walk: a new walk may succeed
            raise ServerFailed(state.server_id, "no longer accepts the cursor that it gave") from error
        raise


def _listing(client: Client, builder: ListingBuilder, state: SessionState) -> Listing:
    name = state.line(client.server_info.name) if client.server_info else ""
    return Listing(
        declared_name=name[:_DECLARED_NAME_CHARACTERS],
        protocol_version=client.protocol_version,
        tools=tuple(builder.tools.values()),
        rejected=builder.rejected_summary(),
        marked=tuple(builder.marked[:MAX_NAMED]),
    )
