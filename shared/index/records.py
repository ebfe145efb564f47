"""Server records, changes of definitions, and toolsets: points without vectors, each with a document in JSON."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog
from pydantic import TypeAdapter

from shared.catalog import NAMESPACE, ServerRecord
from shared.catalog.drift import StoredChanges
from shared.index.points import (
    CollectionSpec,
    Filter,
    Payload,
    Point,
    PointCollection,
    greater_than,
    must,
    walk,
)
from shared.toolset import StoredToolset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.catalog import DefinitionChange
    from shared.toolset import Toolset

SERVERS_COLLECTION = "servers"
TOOLSETS_COLLECTION = "toolsets"
COPIED = "copied"
"""The key of the marks of a model change."""
SERVERS_SPEC = CollectionSpec(SERVERS_COLLECTION, {"revision": "integer", "changed_at": "integer", COPIED: "integer"})
TOOLSETS_SPEC = CollectionSpec(TOOLSETS_COLLECTION)

_DIFFS = TypeAdapter(list[str])

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

    def put_changes(self, server_id: str, changes: Sequence[DefinitionChange]) -> None:
        """Replace the stored changes of a server's definitions by these; without any, delete them."""
        point = _changes_point_id(server_id)
        if changes:
            self._servers.upsert([Point(point, changes_payload(server_id, changes))])
        else:
            self._servers.delete([point])

    def changes(self, server_id: str) -> Sequence[DefinitionChange]:
        """Return the stored changes of a server's definitions, newest first."""
        found = self._servers.retrieve([_changes_point_id(server_id)])
        return next(map(changes_from, found.values()), ())

    def recent_changes(self, newer_than: float) -> dict[str, Sequence[DefinitionChange]]:
        """Return the changes after a time in seconds since the epoch by server, newest first, without their diffs."""
        rows = walk(self._servers, _changed_after(newer_than), ("server_id", "changes"))
        found = {row["server_id"]: [change for change in changes_from(row) if change.at > newer_than] for row in rows}
        return {server_id: changes for server_id, changes in found.items() if changes}

    def changed_servers(self, newer_than: float) -> set[str]:
        """Return the servers with changes after a time, in whole seconds: far cheaper than the changes."""
        return {row["server_id"] for row in walk(self._servers, _changed_after(newer_than), ("server_id",))}

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


def _changes_point_id(server_id: str) -> str:
    # nested, so that it differs from every server's id; without a revision, so that no reader takes it for a record
    return str(uuid.uuid5(uuid.uuid5(NAMESPACE, "changes"), server_id))


def _toolset_point_id(name: str) -> str:
    return str(uuid.uuid5(NAMESPACE, name))


def _revised_after(revision: int) -> Filter:
    return must(greater_than("revision", revision))


def _changed_after(time_s: float) -> Filter:
    return must(greater_than("changed_at", int(time_s) - 1))  # the stored times are whole seconds


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


def changes_payload(server_id: str, changes: Sequence[DefinitionChange]) -> Payload:
    """Return the payload of a server's changes, newest first: the diffs are apart, since most readers need none."""
    stored = StoredChanges(changes=tuple(change.without_diff for change in changes))
    return {
        "server_id": server_id,
        "changed_at": int(changes[0].at),
        "changes": json.dumps(stored.model_dump()),
        "diffs": json.dumps([change.diff for change in changes]),
    }


def changes_from(payload: Payload) -> Sequence[DefinitionChange]:
    """Return the changes of a payload, with diffs if it has them; log an invalid payload and return none."""
    return _readable("changes", payload["changes"], partial(_with_diffs, diffs=payload.get("diffs"))) or ()


def _with_diffs(stored: object, diffs: str | None) -> Sequence[DefinitionChange]:
    changes = StoredChanges.model_validate(stored).changes
    if diffs is None:
        return changes
    texts = zip(changes, _DIFFS.validate_python(json.loads(diffs)), strict=True)
    return tuple(change.model_copy(update={"diff": diff}) for change, diff in texts)


def _readable(kind: Literal["server", "toolset", "changes"], stored: str, parse: Callable[[object], M]) -> M | None:
    try:
        return parse(json.loads(stored))
    except ValueError as error:
        _log.error("record_unreadable", kind=kind, reason=str(error))
        return None
