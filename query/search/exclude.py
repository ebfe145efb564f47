"""The definitions that a request excludes by the name of a tool on a server, or by `tool@digest`."""

from __future__ import annotations

from collections.abc import Collection

from query.replicas.serving import MAX_NAMESAKES, without_digest
from shared.catalog import Scope, point_id
from shared.index.tools import ToolIndex


def excluded_definitions(
    names: Collection[str], allowed: Scope, representatives: Scope, index: ToolIndex
) -> frozenset[str]:
    """Return the digests of these tools of the allowed scope, whose representatives have all of its definitions.

    A name without a server or digest has no digest: the filter by name excludes it on all servers.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    ids = [point_id(server_id, tool) for server_id, colon, tool in (name.partition(":") for name in names) if colon]
    on_servers = {tool.digest for tool in index.get(ids).values() if allowed.contains(tool)} if ids else set[str]()
    shortened = {tool_name for name in names if (tool_name := without_digest(name)) != name}
    found = index.tool_names(shortened, representatives, MAX_NAMESAKES) if shortened else []
    by_digest = {tool.digest for tool in found if f"{tool.name}@{tool.digest[:8]}" in names}
    return frozenset(on_servers | by_digest).difference({""})
