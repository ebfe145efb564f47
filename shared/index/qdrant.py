"""The index over two collections of points, whichever of Qdrant's engines holds them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from shared.catalog import NAMESPACE, Hit, TokenSum, ToolPage, point_id
from shared.index.payload import (
    COUNT_KEYS,
    matches_nothing,
    scope_conditions,
    server_from,
    server_payload,
    tool_from,
    tool_payload,
)
from shared.index.points import Above, Absent, AnyOf, Point, PointCollection, Where, walk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.catalog import EmbeddedTool, Encoding, Scope, ServerRecord, Status

# 100,000 real tools have about 1,500 distinct counts.
FACET_LIMIT = 4_096


class QdrantIndex:
    """A ToolIndex; see the contract for what its methods promise."""

    def __init__(self, tools: PointCollection, servers: PointCollection, facet_limit: int = FACET_LIMIT) -> None:
        self._tools = tools
        self._servers = servers
        self._facet_limit = facet_limit

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        """Write these tools whole."""
        self._tools.upsert([_tool_point(each) for each in tools])

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        """Remove these tools of a server."""
        self._tools.delete([point_id(server_id, name) for name in tool_names])

    def digests(self, server_id: str) -> dict[str, str]:
        """Return digests by tool name."""
        rows = walk(self._tools, (AnyOf("server_id", (server_id,)),), ("tool_name", "digest"))
        return {row["tool_name"]: row["digest"] for row in rows}

    def assign(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        """Set status and groups of a server's tools."""
        payload = {"status": status, "groups": sorted(groups)}
        self._tools.set_payload(payload, (AnyOf("server_id", (server_id,)),))

    def search(self, vector: NDArray[np.float32], scope: Scope, limit: int) -> list[Hit]:
        """Return the closest tools of the scope."""
        if limit < 1 or matches_nothing(scope):
            return []
        found = self._tools.nearest(vector, scope_conditions(scope), limit)
        return [Hit(tool_from(payload), score) for payload, score in found]

    def token_sum(self, scope: Scope, encoding: Encoding) -> TokenSum:
        """Return the exact sum: Qdrant has none of its own, but counts each value exactly."""
        if matches_nothing(scope):
            return TokenSum(0, 0, 0)
        where, key = scope_conditions(scope), COUNT_KEYS[encoding]
        tools_by_count = self._tools_by_count(where, key)
        return TokenSum(
            tokens=sum(count * tools for count, tools in tools_by_count.items()),
            counted=sum(tools_by_count.values()),
            uncounted=self._tools.count([*where, Absent(key)]),
        )

    def uncounted(self, scope: Scope, encoding: Encoding, limit: int) -> list[str]:
        """Return qualified names of tools without a count."""
        if limit < 1 or matches_nothing(scope):
            return []
        where = [*scope_conditions(scope), Absent(COUNT_KEYS[encoding])]
        rows = walk(self._tools, where, ("server_id", "tool_name"))
        return [f"{row['server_id']}:{row['tool_name']}" for row in islice(rows, limit)]

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        """Return a page of tools in the order of their points' ids."""
        if matches_nothing(scope):
            return ToolPage(())
        page, next_after = self._tools.scroll(scope_conditions(scope), limit, after)
        return ToolPage([tool_from(payload) for payload in page], next_after)

    def put_server(self, record: ServerRecord) -> None:
        """Write a server's record."""
        self._servers.upsert([Point(_server_point_id(record.server_id), server_payload(record))])

    def server(self, server_id: str) -> ServerRecord | None:
        """Return a server's record, or None."""
        payload = self._servers.retrieve(_server_point_id(server_id))
        return None if payload is None else server_from(payload)

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        """Return the records above a revision."""
        return [server_from(payload) for payload in walk(self._servers, (Above("revision", newer_than),))]

    def close(self) -> None:
        """Release both collections."""
        with closing(self._servers):
            self._tools.close()

    def _tools_by_count(self, where: Where, key: str) -> Mapping[int, int]:
        found = self._tools.facet(key, where, self._facet_limit)
        if len(found) < self._facet_limit:
            return found
        # the facet may have left values out: read every count instead
        return Counter(row[key] for row in walk(self._tools, where, (key,)) if key in row)


def _tool_point(embedded: EmbeddedTool) -> Point:
    tool = embedded.tool
    return Point(point_id(tool.server_id, tool.definition.name), tool_payload(tool), embedded.vector)


def _server_point_id(server_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, server_id))
