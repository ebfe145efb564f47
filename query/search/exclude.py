"""The definitions that a request excludes by the name of a tool on a server, or by `tool@digest`."""

from __future__ import annotations

from collections.abc import Collection

from query.replicas.serving import MAX_NAMESAKES, without_digest
from query.replicas.sets import ReplicaSets
from shared.catalog import Scope, ToolName
from shared.index.contract import ToolIndex


def excluded_definitions(names: Collection[str], allowed: Scope, sets: ReplicaSets, index: ToolIndex) -> frozenset[str]:
    """Return the digests of these tools; `allowed` has the representatives of its replica sets only.

    A name without a server or digest has no digest: the filter by name excludes it on all servers.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    represented = {sets.represented(name) for name in names}
    tool_names = {without_digest(name.partition(":")[2] or name) for name in represented} - represented
    found = index.tool_names(tool_names, allowed, MAX_NAMESAKES) if tool_names else []
    return frozenset(tool.digest for tool in found if tool.digest and not represented.isdisjoint(_forms(tool)))


def _forms(tool: ToolName) -> tuple[str, str]:
    return f"{tool.server_id}:{tool.name}", f"{tool.name}@{tool.digest[:8]}"
