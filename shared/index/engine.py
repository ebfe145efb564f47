"""The protocol of an engine: one Qdrant with its collections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.index.contract import SERVERS_COLLECTION, TOOLSETS_COLLECTION
from shared.index.payload import SERVER_INDEXES, TOOL_INDEXES, tool_vector_schema
from shared.index.points import Indexes, PointCollection, VectorSchema

if TYPE_CHECKING:
    from shared.index.contract import IndexVersion


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """A collection's name, vectors, and indexed payload keys."""

    name: str
    vectors: VectorSchema
    indexes: Indexes


SERVERS_SPEC = CollectionSpec(SERVERS_COLLECTION, VectorSchema(), SERVER_INDEXES)
TOOLSETS_SPEC = CollectionSpec(TOOLSETS_COLLECTION, VectorSchema(), {})


def tools_spec(version: IndexVersion) -> CollectionSpec:
    """Return the specification of an index version's collection."""
    return CollectionSpec(version.name, tool_vector_schema(version.dimension), TOOL_INDEXES)


class Engine(Protocol):
    """Collections by name. Safe to call from several threads.

    Every method raises IndexUnavailable if the engine does not answer.
    """

    def ensure(self, spec: CollectionSpec) -> None:
        """Create the collection and its indexes if missing; safe with concurrent processes."""
        ...

    def collection(self, spec: CollectionSpec) -> PointCollection:
        """Return the collection without creating it; calls to a missing collection raise IndexLost."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is a collection of this name."""
        ...

    def names(self) -> list[str]:
        """Return the names of all collections."""
        ...

    def drop(self, name: str) -> None:
        """Delete a collection with its points; a missing collection is no error."""
        ...

    def server_version(self) -> str:
        """Return the version of the server; empty without a server."""
        ...

    def close(self) -> None:
        """Release all collections."""
        ...
