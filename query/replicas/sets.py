"""The replica sets of a scope: its servers that offer the same tools. No I/O here.

Servers with the same catalogue id are replicas: they are interchangeable, and all their definitions are equal.
A search needs the tools of one replica only; the others would fill its candidates with copies.

Definitions can also be equal on servers whose catalogues differ, for example during an update. Such servers declare
the same name, since it is part of every digest. They are relatives. Servers without any name are not relatives, but
they can have equal definitions too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shared.catalog import Scope, ServerRecord


@dataclass(frozen=True, slots=True)
class ReplicaSets:
    """The servers of a scope by replica set. Each set is represented by its first server, by id.

    `by_server` has the set of each server with replicas, sorted. `relatives` has, for a representative, all
    representatives under the same declared name, sorted; it lacks those without relatives. `related` are
    the representatives whose definitions another one may have: those with relatives, and several without a name.
    `kinds` has the kind of each representative. `stale` are the servers whose last listing failed. `strangers` are the
    servers without an owner, in a scope with servers that have one, running or not. `visible` are all servers of the
    scope, of every status.
    """

    by_server: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    relatives: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    representatives: frozenset[str] = frozenset()
    related: frozenset[str] = frozenset()
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    stale: frozenset[str] = frozenset()
    strangers: frozenset[str] = frozenset()
    visible: frozenset[str] = frozenset()

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
    """Return the replica sets of the servers whose tools the scope contains as a whole.

    A server that changed after the revision `until` is in no set with others.
    """
    sets: dict[tuple[str, str], list[str]] = defaultdict(list)
    families: dict[str, list[str]] = defaultdict(list)
    kinds: dict[str, str] = {}
    stale: set[str] = set()
    everyone: set[str] = set()
    owned: set[str] = set()
    visible: set[str] = set()
    of_any_status = replace(scope, status=None)
    for record in sorted(filter(of_any_status.admits, records), key=lambda record: record.server_id):
        visible.add(record.server_id)
        if record.has_owner:
            owned.add(record.server_id)
        if scope.status in (None, record.status):
            key = set_key(record, scope, until)
            if key not in sets:
                kinds[record.server_id] = record.kind
                if record.is_listed:
                    families[record.declared_name].append(record.server_id)
            sets[key].append(record.server_id)
            if record.stale_since is not None:
                stale.add(record.server_id)
            everyone.add(record.server_id)
    return ReplicaSets(
        by_server={server_id: tuple(members) for members in sets.values() if len(members) > 1 for server_id in members},
        relatives=_relatives(families),
        representatives=frozenset(members[0] for members in sets.values()),
        related=frozenset(server_id for family in families.values() if len(family) > 1 for server_id in family),
        kinds=kinds,
        stale=frozenset(stale),
        strangers=frozenset(everyone - owned) if owned else frozenset(),
        visible=frozenset(visible),
    )


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
