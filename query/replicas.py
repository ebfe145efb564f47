"""Servers that offer the same tools: the replica sets of a scope, and the servers and names of a found tool.

Servers with the same catalogue id are replicas: they are interchangeable, and all their definitions are equal.
A search needs the tools of one replica only; the others would fill its candidates with copies.

Definitions can also be equal on servers whose catalogues differ, for example during an update. Such servers declare
the same name, since it is part of every digest. They are relatives. Servers without any name are not relatives, but
they can have equal definitions too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shared.catalog import IndexedTool, Scope, ScopeRule, ServerRecord, ToolName

if TYPE_CHECKING:
    from shared.index.tools import ToolIndex

# More tools of one name are never all shown; `tool@digest` names each of them.
MAX_NAMESAKES = 1_000

_SUFFIX = re.compile("@[0-9a-f]{8}$")
# `server:tool`, a definition's name, and the names of a toolset's tools in `tools/list`.
_OUR_FORMS = re.compile(":|__|@[0-9a-f]{8}$|_[0-9a-f]{16}$")
# Models write `server.tool` and `server/tool` as well.
_JOINT = re.compile("[./]")


@dataclass(frozen=True, slots=True)
class ReplicaSets:
    """The servers of a scope by replica set. Each set is represented by its first server."""

    by_server: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The set of each server with replicas: sorted, those of which a scope has some tools only at the end."""
    relatives: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """All representatives under the declared name of one, sorted; without those that have no relatives."""
    representatives: frozenset[str] = frozenset()
    related: frozenset[str] = frozenset()
    """Representatives whose definitions another one may have: those with relatives, and several without a name."""
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """The kind of each representative."""
    stale: Mapping[str, float] = field(default_factory=dict[str, float])
    """Servers whose last listing failed, and since when, in seconds since the epoch."""
    strangers: frozenset[str] = frozenset()
    """Servers without an owner, in a scope with servers that have one, running or not."""
    visible: frozenset[str] = frozenset()
    """All servers of the scope, of every status."""

    def kind(self, server_id: str) -> str:
        """Return the kind of a server, which interchangeable servers share."""
        return self.kinds.get(self.representative(server_id), server_id)

    def has_other_kinds(self, server_id: str) -> bool:
        """Return whether a server of the same declared name is of another kind."""
        relatives = self.relatives.get(self.representative(server_id), ())
        return any(self.kind(relative) != self.kind(server_id) for relative in relatives)

    def best_first(self, server_ids: Iterable[str]) -> list[str]:
        """Return these servers by id, the stale ones last."""
        return sorted(server_ids, key=lambda server_id: (server_id in self.stale, server_id))

    def stale_since(self, servers: Sequence[str]) -> float | None:
        """Return since when none of these servers, stale ones last, could be listed; None: one could."""
        return max(self.stale[server_id] for server_id in servers) if servers[0] in self.stale else None

    def replicas(self, server_id: str) -> tuple[str, ...]:
        """Return the replica set of a server, itself included."""
        return self.by_server.get(server_id, (server_id,))

    def representative(self, server_id: str) -> str:
        """Return the server that represents this server's set."""
        return self.replicas(server_id)[0]

    @property
    def copies(self) -> frozenset[str]:
        """Return the servers that another server represents."""
        return frozenset(server_id for server_id, replicas in self.by_server.items() if server_id != replicas[0])

    def without_copies(self, scope: Scope) -> Scope:
        """Return the scope with the representatives only; a tool excluded on any replica is excluded on all."""
        if not self.by_server:
            return scope
        excluded = {self.represented(name) for name in scope.exclude}
        narrowed = replace(scope, exclude=scope.exclude | excluded)
        if len(self.representatives) < len(self.by_server):
            return replace(narrowed, servers=self.representatives)
        return replace(narrowed, hidden=self.copies)

    def represented(self, name: str) -> str:
        """Return `server:tool` with the server that represents this one; any other name as it is."""
        server_id, colon, tool_name = name.partition(":")
        return f"{self.representative(server_id)}:{tool_name}" if colon else name


def replica_sets(records: Iterable[ServerRecord], scope: Scope, until: int | None = None) -> ReplicaSets:
    """Return the replica sets of the servers whose tools the scope contains as a whole, or divides in the same way.

    A server of which the scope has all tools represents the others of its set. A server that changed after the revision
    `until` is in no set with others.
    """
    sets: dict[tuple[str, str], dict[tuple[ScopeRule, ...], list[ServerRecord]]] = defaultdict(dict)
    families: dict[str, list[str]] = defaultdict(list)
    everyone: dict[str, ServerRecord] = {}
    owned: set[str] = set()
    visible: set[str] = set()
    of_any_status = replace(scope, status=None)
    for record in sorted(filter(of_any_status.admits, records), key=lambda record: record.server_id):
        visible.add(record.server_id)
        if record.has_owner:
            owned.add(record.server_id)
        if scope.status in (None, record.status):
            everyone[record.server_id] = record
            sets[set_key(record, scope, until)].setdefault(scope.rules_of(record.server_id), []).append(record)
    members = [of_set for by_rules in sets.values() for of_set in _represented(by_rules)]
    for first, *_ in members:
        if first.is_listed:
            families[first.declared_name].append(first.server_id)
    ids = [tuple(record.server_id for record in of_set) for of_set in members]
    return ReplicaSets(
        by_server={server_id: of_set for of_set in ids if len(of_set) > 1 for server_id in of_set},
        relatives=_relatives(families),
        representatives=frozenset(of_set[0] for of_set in ids),
        related=frozenset(server_id for family in families.values() if len(family) > 1 for server_id in family),
        kinds={first.server_id: first.kind for first, *_ in members},
        stale={each.server_id: each.stale_since for each in everyone.values() if each.stale_since is not None},
        strangers=frozenset(everyone.keys() - owned) if owned else frozenset(),
        visible=frozenset(visible),
    )


def _represented(by_rules: Mapping[tuple[ScopeRule, ...], Sequence[ServerRecord]]) -> list[Sequence[ServerRecord]]:
    """Return the sets of servers with equal tools, given by the rules that divide them, each after its first."""
    whole = by_rules.get(())
    if whole is None:
        return list(by_rules.values())
    divided = (record for rules, records in by_rules.items() if rules for record in records)
    return [[*whole, *divided]]


def set_key(record: ServerRecord, scope: Scope, until: int | None = None) -> tuple[str, str]:
    """Return a key that the replicas within the scope share, whatever their status; see `replica_sets`."""
    is_settled = record.is_listed and (until is None or record.revision <= until)
    if is_settled and _admits_whole(scope, record.server_id) and (catalogue_id := record.catalogue_id):
        return catalogue_id, ""
    return "", record.server_id


def _admits_whole(scope: Scope, server_id: str) -> bool:
    return scope.within is None or server_id in scope.within.servers


def _relatives(families: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    # one list for all members: thousands of servers may declare the same name
    related = {name: family for name, family in families.items() if name and len(family) > 1}
    return {server_id: family for family in related.values() for server_id in family}


@dataclass(frozen=True, slots=True)
class Serving:
    """The servers that offer one definition, stale ones last, and the name to call it by.

    `stale_since` is since when none of them could be listed, in seconds since the epoch; None: one could.
    `versions` counts the definitions of this name under the same declared server name, itself included.
    `also_on` are servers that offer an equal tool and are not interchangeable with this one, so `name` has its server.
    """

    name: str
    servers: tuple[str, ...]
    stale_since: float | None = None
    versions: int = 1
    also_on: tuple[str, ...] = ()


def first_server(name: str, servers: Sequence[str]) -> tuple[str, str]:
    """Return the first server of a tool, and the tool's name there, given its name for calls.

    `servers` are the first servers of a replicated tool, empty for any other.
    """
    return (servers[0], without_digest(name)) if servers else split_name(name)


def split_name(name: str) -> tuple[str, str]:
    """Return the server and the tool of `server:tool`; a server's id has no colon, and a tool's name may."""
    server_id, _, tool_name = name.partition(":")
    return server_id, tool_name


def without_digest(name: str) -> str:
    """Return the tool's name of `tool@digest`; any other name as it is."""
    return _SUFFIX.sub("", name)


def reads_as_another_name(name: str, servers: Container[str]) -> bool:
    """Return whether a tool's own name could stand for another tool, of one of these servers or of any.

    Else a server could name its tool like another server's, and receive that one's calls.
    """
    return bool(_OUR_FORMS.search(name)) or any(name[: joint.start()] in servers for joint in _JOINT.finditer(name))


@dataclass(frozen=True, slots=True)
class Replicated:
    """A scope with the representatives of its replica sets only, and these sets."""

    scope: Scope
    sets: ReplicaSets

    @classmethod
    def of(cls, scope: Scope, sets: ReplicaSets) -> Replicated:
        """Return a scope with its replica sets, without their copies."""
        return cls(sets.without_copies(scope), sets)


def servings(
    tools: Sequence[IndexedTool], searched: Replicated, allowed: Replicated, index: ToolIndex
) -> Mapping[str, Serving]:
    """Return the servers of these tools by the tools' qualified names.

    Names are unambiguous within `allowed`, where they are called; servers are those of the search.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    replicated = {tool.definition.name for tool in tools if _may_be_elsewhere(tool, searched.sets)}
    found = index.tool_names(replicated, searched.scope, MAX_NAMESAKES) if replicated else []
    is_all = allowed.scope == searched.scope
    callable_tools = found if is_all else index.tool_names(replicated, allowed.scope, MAX_NAMESAKES)
    known = _CallableTools(callable_tools, allowed.sets)
    return {
        tool.qualified_name: _serving(tool, searched, allowed.scope, found, known)
        if tool.definition.name in replicated
        else Serving(tool.qualified_name, (tool.server_id,), searched.sets.stale_since([tool.server_id]))
        for tool in tools
    }


def _may_be_elsewhere(tool: IndexedTool, sets: ReplicaSets) -> bool:
    return tool.server_id in sets.by_server or tool.server_id in sets.related


def _serving(
    tool: IndexedTool,
    searched: Replicated,
    allowed: Scope,
    found: Collection[ToolName],
    callable_tools: _CallableTools,
) -> Serving:
    sets = searched.sets
    namesakes = [other for other in found if other.name == tool.definition.name]
    equal = {other.server_id for other in namesakes if other.digest and other.digest == tool.digest}
    offering = {replica for server_id in equal | {tool.server_id} for replica in sets.replicas(server_id)}
    servers = tuple(sets.best_first(each for each in offering if allowed.permits(each, tool.definition)))
    family = {tool.server_id, *sets.relatives.get(tool.server_id, ())}
    versions = max(1, _distinct(other for other in namesakes if other.server_id in family))
    # a name with a colon has its server
    if ":" in tool.definition.name or not callable_tools.are_interchangeable(tool):
        shown = min(servers, key=lambda server_id: (server_id in sets.strangers, server_id != tool.server_id))
        others = tuple(server_id for server_id in servers if server_id != shown)
        return Serving(f"{shown}:{tool.definition.name}", (shown,), sets.stale_since([shown]), versions, others)
    is_ambiguous = callable_tools.is_ambiguous(tool)
    # while its digest is cleared, no name stands for an ambiguous tool on several servers
    if len(servers) == 1 or (is_ambiguous and not tool.digest):
        return Serving(tool.qualified_name, (tool.server_id,), sets.stale_since([tool.server_id]), versions)
    name = tool.definition_name if is_ambiguous else tool.definition.name
    return Serving(name, servers, sets.stale_since(servers), versions)


@dataclass(frozen=True, slots=True)
class _CallableTools:
    """The tools that a caller may call by these names."""

    found: Collection[ToolName]
    sets: ReplicaSets

    def is_ambiguous(self, tool: IndexedTool) -> bool:
        """Return whether the tool's name alone may stand for another definition, or reads as another name."""
        name = tool.definition.name
        if reads_as_another_name(name, self.sets.visible) or len(self.found) >= MAX_NAMESAKES:
            return True
        return _distinct(other for other in self.found if other.name == name) > 1

    def are_interchangeable(self, tool: IndexedTool) -> bool:
        """Return whether all servers with this definition are of one kind."""
        servers = {other.server_id for other in self.found if tool.digest and other.digest == tool.digest}
        return len({self.sets.kind(server_id) for server_id in servers | {tool.server_id}}) == 1


def _distinct(tools: Iterable[ToolName]) -> int:
    return len({tool.digest or tool.server_id for tool in tools})
