"""The changes of tool definitions within a caller's scope: for the page and the command line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import ServerUnknown

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from shared.catalog import DefinitionChange, Scope

DAY_S = 86_400.0
MAX_SHOWN = 1_000


class ChangesRequest(BaseModel):
    """The first time in seconds since the epoch, and optionally a server and the kind; by default all changes."""

    model_config = ConfigDict(extra="ignore")

    since: int = Field(default=0, ge=0, le=10**12)
    server: str | None = None
    kind: Literal["meaning"] | None = None

    def admits(self, change: DefinitionChange) -> bool:
        """Return whether the time and the kind of the change are requested; added tools are not cosmetic."""
        return change.at > self.since and (self.kind is None or change.kind != "cosmetic")


def recent_changes(scope: Scope, catalogue: Catalogue, newer_than: float) -> dict[str, Sequence[DefinitionChange]]:
    """Return the changes after a time in seconds since the epoch by server, the newest first, without their diffs.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    found = catalogue.index.recent_changes(newer_than)
    known = _servers(scope, catalogue) if found else set[str]()
    seen = {server: _visible(server, changes, scope) for server, changes in found.items() if server in known}
    newest = sorted((server for server in seen if seen[server]), key=lambda server: (-seen[server][0].at, server))
    return {server: seen[server] for server in newest}


def server_changes(server_id: str, scope: Scope, catalogue: Catalogue) -> Sequence[DefinitionChange]:
    """Return all stored changes of a server, the newest first, with their diffs.

    Raises:
        ServerUnknown: the scope has no such server.
        IndexUnavailable: the index did not answer.
    """
    known = _servers(scope, catalogue)
    if server_id not in known:
        raise ServerUnknown(server_id, tuple(get_close_matches(server_id, known)))
    return _visible(server_id, catalogue.index.changes(server_id), scope)


def changed_servers_of_last_day(scope: Scope, catalogue: Catalogue) -> int:
    """Return the number of servers with changes in the last 24 hours; their changes are read only for a few tools.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    since = time.time() - DAY_S
    changed = catalogue.index.changed_servers(since)
    servers = changed & _servers(scope, catalogue) if changed else changed
    if scope.within is None or not scope.within.tools:
        return len(servers)
    visible = (_visible(server, catalogue.index.changes(server), scope) for server in servers)
    return sum(any(change.at > since for change in changes) for changes in visible)


def changes_as_object(scope: Scope, catalogue: Catalogue, asked: ChangesRequest) -> dict[str, Any]:
    """Return the newest MAX_SHOWN changes as JSON: of all servers without diffs, or of one server with them.

    `more` is whether older ones are left out.

    Raises: the errors of `server_changes`.
    """
    found = (
        {asked.server: server_changes(asked.server, scope, catalogue)}
        if asked.server
        else recent_changes(scope, catalogue, asked.since)
    )
    changes = [(server, change) for server in found for change in found[server] if asked.admits(change)]
    newest = sorted(changes, key=lambda row: -row[1].at)[:MAX_SHOWN]
    return {"changes": [_object(*row) for row in newest], "more": len(changes) > MAX_SHOWN}


def _object(server_id: str, change: DefinitionChange) -> dict[str, Any]:
    at = datetime.fromtimestamp(change.at, UTC).isoformat(timespec="seconds")
    stored = change.model_dump(mode="json", exclude={"at", "texts"})
    return {"server_id": server_id, "at": at, "kind": change.kind, **stored}


def _servers(scope: Scope, catalogue: Catalogue) -> set[str]:
    return {record.server_id for record in catalogue.ledger.known(scope)}


def _visible(server_id: str, changes: Sequence[DefinitionChange], scope: Scope) -> Sequence[DefinitionChange]:
    within = scope.within
    return changes if within is None else [each for each in changes if within.admits(server_id, each.tool)]
