"""Tools that the index does not have, since a server has them only in a session of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.calling.call import CallRequest, ResolvedTool, permitted_tool, resolve_tool
from query.replicas import split_name
from query.turns import run_in_thread
from shared.catalog import IndexedTool, ServerRecord, digest
from shared.errors import CallDenied, ServerNotRunning, ToolNotFound

if TYPE_CHECKING:
    from query.caller import Caller
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from shared.upstream.auth import Requester


async def resolve_called_tool(
    request: CallRequest, caller: Caller, requester: Requester, catalogue: Catalogue, upstreams: Upstreams
) -> ResolvedTool:
    """Return the tool to call: that of the catalogue, or one that the named server has in the caller's session.

    Raises:
        ServerError: the session's tools cannot be listed.
        Others: from `resolve_tool`.
    """
    try:
        return await run_in_thread(caller.name, resolve_tool, request, caller, catalogue)
    except CallDenied:
        raise
    except (ToolNotFound, ServerNotRunning):
        server_id, name = split_name(request.name)
        if not name:
            raise
        server = await run_in_thread(caller.name, _server, server_id, caller, catalogue)
        definition = await upstreams.session_tool(name, server, requester) if server else None
        if server is None or definition is None:
            raise
        tool = IndexedTool(server_id, definition, digest(definition, server.declared_name), {}, server.groups)
        if not caller.scope.contains(tool):
            raise
        return await run_in_thread(caller.name, permitted_tool, tool, (server,), caller, catalogue)


def _server(server_id: str, caller: Caller, catalogue: Catalogue) -> ServerRecord | None:
    """Return the record of a running server of the caller's scope whose new tools need no approval."""
    record = catalogue.pinned().index.server(server_id)
    if record is None or not catalogue.scope(caller).admits(record):
        return None
    known = catalogue.intents.definitions(server_id) if catalogue.intents else None
    return record if record and record.status == "running" and known and not known.held else None
