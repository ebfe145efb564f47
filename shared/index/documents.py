"""The documents of an index: server records, changes of definitions, and toolsets, as points without vectors."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from typing_extensions import override

from shared.catalog import NAMESPACE
from shared.index.contract import SHARES, ToolIndex
from shared.index.payload import (
    CHANGE_KEYS,
    changes_from,
    changes_payload,
    server_from,
    server_payload,
    toolset_from,
    toolset_payload,
)
from shared.index.points import Filter, Point, PointCollection, behind, greater_than, must, walk

if TYPE_CHECKING:
    from shared.catalog import DefinitionChange, ServerRecord
    from shared.toolset import Toolset

# Shares are equal ranges of the records' point ids, in whose order an engine returns pages.
_SHARE_SIZE = 2**128 // SHARES


class DocumentIndex(ToolIndex):
    """The part of a ToolIndex that has documents."""

    def __init__(self, servers: PointCollection, toolsets: PointCollection) -> None:
        self._servers = servers
        self._toolsets = toolsets

    @override
    def put_server(self, record: ServerRecord) -> None:
        self._servers.upsert([Point(_server_point_id(record.server_id), server_payload(record))])

    @override
    def server(self, server_id: str) -> ServerRecord | None:
        found = self._servers.retrieve([_server_point_id(server_id)])
        return next(map(server_from, found.values()), None)

    @override
    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        return list(filter(None, map(server_from, walk(self._servers, must(greater_than("revision", newer_than))))))

    @override
    def share(self, number: int, *, limit: int, after: str = "") -> list[str]:
        begin = behind(_server_point_id(after)) if after else str(uuid.UUID(int=number * _SHARE_SIZE))
        page, _ = self._servers.scroll(must(greater_than("revision", 0)), limit, begin, ("server_id",))
        return [row["server_id"] for row in page if _share_of(row["server_id"]) == number]

    @override
    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        rows = walk(self._servers, must(greater_than("revision", newer_than)), ("server_id", "revision"))
        return {row["server_id"]: row["revision"] for row in rows}

    @override
    def put_changes(self, server_id: str, changes: Sequence[DefinitionChange]) -> None:
        point = _changes_point_id(server_id)
        if changes:
            self._servers.upsert([Point(point, changes_payload(server_id, changes))])
        else:
            self._servers.delete([point])

    @override
    def changes(self, server_id: str) -> Sequence[DefinitionChange]:
        found = self._servers.retrieve([_changes_point_id(server_id)])
        return next(map(changes_from, found.values()), ())

    @override
    def recent_changes(self, newer_than: float) -> dict[str, Sequence[DefinitionChange]]:
        rows = walk(self._servers, _changed_after(newer_than), CHANGE_KEYS)
        found = {row["server_id"]: [change for change in changes_from(row) if change.at > newer_than] for row in rows}
        return {server_id: changes for server_id, changes in found.items() if changes}

    @override
    def changed_servers(self, newer_than: float) -> set[str]:
        return {row["server_id"] for row in walk(self._servers, _changed_after(newer_than), ("server_id",))}

    @override
    def put_toolset(self, toolset: Toolset) -> None:
        self._toolsets.upsert([Point(_toolset_point_id(toolset.name), toolset_payload(toolset))])

    @override
    def toolset(self, name: str) -> Toolset | None:
        found = self._toolsets.retrieve([_toolset_point_id(name)])
        return next(map(toolset_from, found.values()), None)

    @override
    def toolsets(self) -> list[Toolset]:
        readable = filter(None, map(toolset_from, walk(self._toolsets, {})))
        return sorted(readable, key=lambda toolset: toolset.name)

    @override
    def delete_toolset(self, name: str) -> None:
        self._toolsets.delete([_toolset_point_id(name)])

    @override
    def close(self) -> None:
        with closing(self._toolsets):
            self._servers.close()


def _server_point_id(server_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, server_id))


def _changed_after(time_s: float) -> Filter:
    return must(greater_than("changed_at", int(time_s) - 1))  # the stored times are whole seconds


def _changes_point_id(server_id: str) -> str:
    # nested, so that it differs from every server's id; without a revision, so that no reader takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, "changes"), server_id))


def _share_of(server_id: str) -> int:
    return uuid.UUID(_server_point_id(server_id)).int // _SHARE_SIZE


def _toolset_point_id(name: str) -> str:
    return str(uuid.uuid5(NAMESPACE, name))
