"""One Qdrant with its collections: what the store of editions needs of an engine."""

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
    """A collection's name, the vectors of its points, and the payload keys that are indexed."""

    name: str
    vectors: VectorSchema
    indexes: Indexes


SERVERS_SPEC = CollectionSpec(SERVERS_COLLECTION, VectorSchema(), SERVER_INDEXES)
TOOLSETS_SPEC = CollectionSpec(TOOLSETS_COLLECTION, VectorSchema(), {})


def tools_spec(version: IndexVersion) -> CollectionSpec:
    """Return the kind of an edition's collection."""
    return CollectionSpec(version.name, tool_vector_schema(version.dimension), TOOL_INDEXES)


class Engine(Protocol):
    """Collections by name. Safe to call from several threads.

    Every method raises IndexUnavailable when the engine does not answer.
    """

    def ensure(self, spec: CollectionSpec) -> None:
        """Create what is missing of this collection; others may do so meanwhile."""
        ...

    def collection(self, spec: CollectionSpec) -> PointCollection:
        """Return this collection, which is not created; calls to one that is gone raise IndexLost."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is a collection of this name."""
        ...

    def names(self) -> list[str]:
        """Return the names of all collections."""
        ...

    def drop(self, name: str) -> None:
        """Remove a collection with all that it holds; one that is not there is no error."""
        ...

    def close(self) -> None:
        """Release all collections."""
        ...
