"""What the servers found make of an `mcp.json`: which are added, are there already, or stand against another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Literal, cast

from shared.upstream.mcp_json import server_id
from toolscale.importing.entries import OPERATORS_OWN, definition
from toolscale.importing.find import Found

OnConflict = Literal["keep", "rename", "replace"]
Became = Literal["added", "renamed", "replaced", "there already", "kept out"]

Servers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one server, and the name it has in the file; `kept out`: another of its name stays there."""

    found: Found
    became: Became
    name: str


@dataclass(frozen=True, slots=True)
class Merged:
    """The servers of the file afterwards, and what became of each that was found."""

    servers: dict[str, Any]
    outcomes: tuple[Outcome, ...]


def merge(servers: Servers, found: Iterable[Found], on_conflict: OnConflict) -> Merged:
    """Return the file's servers with those found. Doing it again with what comes out changes nothing.

    The first of several that are found under one name counts; `on_conflict` is for the others and for what the file
    has: `keep` leaves them out, `rename` adds them under a name of their own, and `replace` puts the first in the
    place of what the file has. What the operator added to an entry stays.
    """
    merging = _Merging(dict(servers))
    return Merged(merging.servers, tuple([merging.take(each, on_conflict) for each in found]))


class _Merging:
    def __init__(self, servers: dict[str, Any]) -> None:
        self.servers = servers
        self._keys = {server_id(key): key for key in servers}
        self._settled: set[str] = set()

    def take(self, found: Found, on_conflict: OnConflict) -> Outcome:
        taken = takewhile(lambda name: name in self._keys, _names(found))
        if there := next((name for name in taken if self._is_there(name, found)), None):
            return self._settle(found, "there already", there)
        if found.server_id not in self._keys:
            return self._write(found, "added", found.server_id, {})
        if on_conflict == "rename":
            free = next(name for name in _names(found) if name not in self._keys)
            return self._write(found, "renamed", free, {})
        if on_conflict == "replace" and found.server_id not in self._settled:
            return self._write(found, "replaced", found.server_id, self._own(found.server_id))
        return Outcome(found, "kept out", found.server_id)

    def _is_there(self, name: str, found: Found) -> bool:
        entry = self.servers[self._keys[name]]
        return isinstance(entry, dict) and definition(cast("Servers", entry)) == definition(found.entry)

    def _own(self, name: str) -> dict[str, Any]:
        entry = self.servers[self._keys[name]]
        return {key: entry[key] for key in OPERATORS_OWN if key in entry} if isinstance(entry, dict) else {}

    def _write(self, found: Found, became: Became, name: str, own: dict[str, Any]) -> Outcome:
        key = self._keys.setdefault(name, name)
        self.servers[key] = found.entry | own
        return self._settle(found, became, name)

    def _settle(self, found: Found, became: Became, name: str) -> Outcome:
        self._settled.add(name)
        return Outcome(found, became, name)


def _names(found: Found) -> Iterator[str]:
    """Yield the names a server may have, without an end: its own, and those that tell where it came from."""
    yield found.server_id
    origin = server_id(found.project.name if found.project else found.place.client or found.place.path.stem)
    named = f"{found.server_id}-{origin}"
    yield named
    yield from (f"{named}-{number}" for number in count(2))
