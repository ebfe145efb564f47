"""One session with one server: connect, walk over the pages of `tools/list`, part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import anyio
from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, Implementation

from shared.catalog import Listing
from shared.errors import ListingTooLarge, ProtocolViolation, ServerFailed
from shared.upstream.dial import Target
from shared.upstream.secrets import secrets_of
from shared.upstream.transport.errors import FOREIGN_ERRORS, timeout_error, to_server_error
from shared.upstream.transport.open import open_transport
from shared.upstream.transport.session_state import SessionState
from workers.fetch.definitions import ListingBuilder
from workers.fetch.fetch import Limits
from workers.fetch.raw_tools import RawToolInterceptor

_FAREWELL_S = 2.0
_DECLARED_NAME_CHARACTERS = 200
_US = Implementation(name="toolscale", version="1")


async def list_tools(server_id: str, target: Target, limits: Limits, may_hold_much: Callable[[], bool]) -> Listing:
    """Do what `workers.fetch.fetch.fetch_tools` promises."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + limits.timeout_s)
    state = SessionState(server_id, scope, secrets_of(target), may_hold_large=may_hold_much)
    listing: Listing | None = None
    try:
        with scope:
            interceptor = RawToolInterceptor(
                open_transport(target, limits.max_message_bytes, limits.timeout_s, state), state
            )
            async with Client(interceptor, mode="auto", cache=None, client_info=_US) as client:
                listing = await _walk(client, interceptor, limits, state)
                # the list is complete: nothing is gained by a long farewell
                scope.deadline = min(scope.deadline, anyio.current_time() + _FAREWELL_S)
    except FOREIGN_ERRORS as error:
        if listing is None:
            raise to_server_error(state, error) or error from error
    if listing is None:
        raise timeout_error(state, limits.timeout_s)
    return listing


async def _walk(client: Client, interceptor: RawToolInterceptor, limits: Limits, state: SessionState) -> Listing:
    """Follow the cursors to the end.

    Raises:
        ListingTooLarge: there are more pages, tools or bytes than allowed.
        ProtocolViolation: a cursor came twice, so that the walk would never end.
    """
    builder = ListingBuilder(state.server_id, client.protocol_version, limits)
    cursor: str | None = None
    seen: set[bytes] = set()
    for _ in range(limits.max_pages):
        cursor = await _next_page(client, cursor, state)
        builder.add(interceptor.take_page())
        await state.wait_for_slot(builder.size_bytes, nodes=0)
        if not cursor:  # an empty one is how some servers spell the end
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
            return None  # it offers no tools, and says so
        if error.code == INVALID_PARAMS and cursor is not None:
            # typically its list changed during the walk, so a new walk may succeed
            raise ServerFailed(state.server_id, "no longer accepts the cursor that it gave") from error
        raise


def _listing(client: Client, builder: ListingBuilder, state: SessionState) -> Listing:
    name = state.quote(client.server_info.name) if client.server_info else ""
    return Listing(
        declared_name=name[:_DECLARED_NAME_CHARACTERS],
        protocol_version=client.protocol_version,
        tools=tuple(builder.tools.values()),
        rejected=builder.rejected_summary(),
    )
