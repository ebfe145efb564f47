"""Merge of the servers found into an `mcp.json`: additions, duplicates and conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Literal, cast

from shared.upstream.mcp_json import server_id
from toolscale.importing.entries import OPERATORS_OWN, definition
from toolscale.importing.find import FoundServer

OnConflict = Literal["keep", "rename", "replace"]
Became = Literal["added", "renamed", "replaced", "there already", "kept out"]

Servers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The result for one server, and its name in the file; `kept out`: another server keeps the name."""

    server: FoundServer
    became: Became
    name: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The new servers of the file, and the result for each server found."""

    servers: dict[str, Any]
    outcomes: tuple[MergeOutcome, ...]


def merge(servers: Servers, candidates: Iterable[FoundServer], on_conflict: OnConflict) -> Merged:
    """Return the file's servers with the servers found. Idempotent: a second merge changes nothing.

    On a conflict of names `keep` skips the server found, and `rename` adds it under a new name.
    `replace` overwrites the entry of the file with the first server found, and keeps the operator's keys.
    """
    merging = _Merging(dict(servers))
    return Merged(merging.servers, tuple([merging.merge_one(server, on_conflict) for server in candidates]))


class _Merging:
    def __init__(self, servers: dict[str, Any]) -> None:
        self.servers = servers
        self._keys = {server_id(key): key for key in servers}
        self._settled: set[str] = set()

    def merge_one(self, server: FoundServer, on_conflict: OnConflict) -> MergeOutcome:
        taken = takewhile(lambda name: name in self._keys, _names(server))
        if present := next((name for name in taken if self._is_present(name, server)), None):
            return self._record_outcome(server, "there already", present)
        if server.server_id not in self._keys:
            return self._write(server, "added", server.server_id, {})
        if on_conflict == "rename":
            free = next(name for name in _names(server) if name not in self._keys)
            return self._write(server, "renamed", free, {})
        if on_conflict == "replace" and server.server_id not in self._settled:
            return self._write(server, "replaced", server.server_id, self._own(server.server_id))
        return MergeOutcome(server, "kept out", server.server_id)

    def _is_present(self, name: str, server: FoundServer) -> bool:
        entry = self.servers[self._keys[name]]
        return isinstance(entry, dict) and definition(cast("Servers", entry)) == definition(server.entry)

    def _own(self, name: str) -> dict[str, Any]:
        entry = self.servers[self._keys[name]]
        return {key: entry[key] for key in OPERATORS_OWN if key in entry} if isinstance(entry, dict) else {}

    def _write(self, server: FoundServer, became: Became, name: str, own: dict[str, Any]) -> MergeOutcome:
        key = self._keys.setdefault(name, name)
        self.servers[key] = server.entry | own
        return self._record_outcome(server, became, name)

    def _record_outcome(self, server: FoundServer, became: Became, name: str) -> MergeOutcome:
        self._settled.add(name)
        return MergeOutcome(server, became, name)


def _names(server: FoundServer) -> Iterator[str]:
    """Yield names for a server without end: its id, then the id with its origin and a number."""
    yield server.server_id
    origin = server_id(server.project.name if server.project else server.file.client or server.file.path.stem)
    named = f"{server.server_id}-{origin}"
    yield named
    yield from (f"{named}-{number}" for number in count(2))
