"""Server records and toolsets: points without vectors, each with a document in JSON."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog

from shared.catalog import NAMESPACE, ServerRecord
from shared.index.points import CollectionSpec, Filter, Payload, Point, PointCollection, greater_than, must, walk
from shared.toolset import StoredToolset

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.toolset import Toolset

SERVERS_COLLECTION = "servers"
TOOLSETS_COLLECTION = "toolsets"
COPIED = "copied"
"""The key of the marks of a model change."""
SERVERS_SPEC = CollectionSpec(SERVERS_COLLECTION, {"revision": "integer", COPIED: "integer"})
TOOLSETS_SPEC = CollectionSpec(TOOLSETS_COLLECTION)

_log = structlog.get_logger()

M = TypeVar("M")


class Records:
    """The documents of an index."""

    def __init__(self, servers: PointCollection, toolsets: PointCollection) -> None:
        self._servers = servers
        self._toolsets = toolsets

    def put_server(self, record: ServerRecord) -> None:
        """Write a server's record, replacing the last record."""
        self._servers.upsert([Point(_server_point_id(record.server_id), server_payload(record))])

    def server(self, server_id: str) -> ServerRecord | None:
        """Return a server's record, or None if it was never written."""
        found = self._servers.retrieve([_server_point_id(server_id)])
        return next(map(server_from, found.values()), None)

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        """Return all records whose revision is above `newer_than`, in no particular order."""
        return list(filter(None, map(server_from, walk(self._servers, _revised_after(newer_than)))))

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        """Return each revision above `newer_than` by server, far cheaper than the records."""
        rows = walk(self._servers, _revised_after(newer_than), ("server_id", "revision"))
        return {row["server_id"]: row["revision"] for row in rows}

    def put_toolset(self, toolset: Toolset) -> None:
        """Write a toolset, replacing a toolset of this name."""
        self._toolsets.upsert([Point(_toolset_point_id(toolset.name), toolset_payload(toolset))])

    def toolset(self, name: str) -> Toolset | None:
        """Return the toolset of this name, or None."""
        found = self._toolsets.retrieve([_toolset_point_id(name)])
        return next(map(toolset_from, found.values()), None)

    def toolsets(self) -> list[Toolset]:
        """Return all toolsets by their names."""
        readable = filter(None, map(toolset_from, walk(self._toolsets, {})))
        return sorted(readable, key=lambda toolset: toolset.name)

    def delete_toolset(self, name: str) -> None:
        """Remove the toolset of this name."""
        self._toolsets.delete([_toolset_point_id(name)])


def _server_point_id(server_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, server_id))


def _toolset_point_id(name: str) -> str:
    return str(uuid.uuid5(NAMESPACE, name))


def _revised_after(revision: int) -> Filter:
    return must(greater_than("revision", revision))


def server_payload(record: ServerRecord) -> Payload:
    """Return the payload of a server: its record as JSON, and the keys for filters."""
    # not model_dump_json, which rejects lone surrogates in a server's error text
    stored = json.dumps(record.model_dump(mode="python"), default=list)
    return {"server_id": record.server_id, "revision": record.revision, "record": stored}


def server_from(payload: Payload) -> ServerRecord | None:
    """Return the record of a payload without a newer release's fields; log an invalid one and return None."""
    stored = payload["record"]
    with suppress(ValueError):  # half the time, except for a text with lone surrogates
        return ServerRecord.model_validate_json(stored, extra="ignore")
    return _readable("server", stored, partial(ServerRecord.model_validate, extra="ignore"))


def toolset_payload(toolset: Toolset) -> Payload:
    """Return the payload of a toolset."""
    return {"name": toolset.name, "toolset": json.dumps(StoredToolset.of(toolset).model_dump())}


def toolset_from(payload: Payload) -> Toolset | None:
    """Return the toolset of a payload without a newer release's fields; log an invalid one and return None."""
    return _readable("toolset", payload["toolset"], lambda stored: StoredToolset.model_validate(stored).toolset)


def _readable(kind: Literal["server", "toolset"], stored: str, parse: Callable[[object], M]) -> M | None:
    try:
        return parse(json.loads(stored))
    except ValueError as error:
        _log.error("record_unreadable", kind=kind, reason=str(error))
        return None
