"""Merge of the servers found into an `mcp.json`: additions, duplicates and conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Literal, cast

from shared.errors import ConfigInvalid
from shared.server_ids import server_id
from shared.upstream.spellings import spelled
from toolscale.mcp_clients.entries import OPERATORS_OWN, Object, definition, offers_no_more, replacing
from toolscale.mcp_clients.find import FoundServer

OnConflict = Literal["keep", "rename", "replace"]
Became = Literal["added", "renamed", "replaced", "there already", "kept out"]


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


def merge(servers: Object, candidates: Iterable[FoundServer], on_conflict: OnConflict) -> Merged:
    """Return the file's servers with the servers found. Idempotent: a second merge changes nothing.

    A server that the file has under another name, with the same groups and labels, is there already.
    On a conflict of names `keep` skips the server found, and `rename` adds it under a new name.
    `replace` overwrites the entry of the file with the first server found, and keeps the operator's keys. An entry with
    the same connection and more tools than the one found is a conflict too.
    """
    merged, outcomes = dict(servers), list[MergeOutcome]()
    keys = {server_id(key): key for key in servers}
    present = {name: _known(servers[key]) for name, key in keys.items()}
    settled = set[str]()
    for server in candidates:
        may_replace = on_conflict == "replace" and server.server_id not in settled
        became, name = _outcome(server, present, may_rename=on_conflict == "rename", may_replace=may_replace)
        outcomes.append(MergeOutcome(server, became, name))
        if became == "kept out":
            continue
        settled.add(name)
        if became != "there already":
            key = keys.setdefault(name, server.name if name == server.server_id else name)
            present[name] = merged[key] = replacing(server.entry, present.get(name, {}))
    return Merged(merged, tuple(outcomes))


def _outcome(
    server: FoundServer, present: Mapping[str, Object], *, may_rename: bool, may_replace: bool
) -> tuple[Became, str]:
    """Return what becomes of a server beside those that are present, by their ids, and its name among them."""
    names = list(islice(_names(server), len(present) + 1))
    under_another_name = [each for each in present if each not in names and _is_shared(present[each], server.entry)]
    for name in (*names, *under_another_name):
        if name in present and _is_same(present[name], server.entry):
            return "there already", name
    name = next(each for each in names if each not in present)
    if name == server.server_id:
        return "added", name
    if may_rename:
        return "renamed", name
    return ("replaced" if may_replace else "kept out"), server.server_id


def _known(entry: object) -> Object:
    """Return an entry of the file in the spelling of those found, and one that cannot be used as it is."""
    try:
        return spelled("", entry).entry
    except ConfigInvalid:
        return cast("Object", entry) if isinstance(entry, dict) else {}


def _is_same(entry: Object, found: Object) -> bool:
    """Return whether an entry has the connection of the one found, and offers no tool that its client restricts."""
    return definition(entry) == definition(found) and offers_no_more(entry, found)


def _is_shared(entry: Object, found: Object) -> bool:
    """Return whether the same callers would see both entries: two names for one server may be for two groups."""
    return all(entry.get(key) == found.get(key) for key in OPERATORS_OWN)


def _names(server: FoundServer) -> Iterator[str]:
    """Yield names for a server without end: its id, then the id with its origin and a number."""
    yield server.server_id
    origin = server_id(server.project.name if server.project else server.file.client or server.file.path.stem)
    named = f"{server.server_id}-{origin}"
    yield named
    yield from (f"{named}-{number}" for number in count(2))
