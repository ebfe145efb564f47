"""One Qdrant with its collections: what the store of editions needs of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.index.contract import SERVERS_COLLECTION, TOOLSETS_COLLECTION
from shared.index.payload import SERVER_INDEXES, TOOL_INDEXES, tool_vector_schema
from shared.index.points import Indexes, PointCollection, VectorSchema

if TYPE_CHECKING:
    from shared.index.contract import Edition


@dataclass(frozen=True, slots=True)
class Kind:
    """A collection's name, the vectors of its points, and the payload keys that are indexed."""

    name: str
    vectors: VectorSchema
    indexes: Indexes


SERVERS_KIND = Kind(SERVERS_COLLECTION, VectorSchema(), SERVER_INDEXES)
TOOLSETS_KIND = Kind(TOOLSETS_COLLECTION, VectorSchema(), {})


def tools_kind(edition: Edition) -> Kind:
    """Return the kind of an edition's collection."""
    return Kind(edition.name, tool_vector_schema(edition.dimension), TOOL_INDEXES)


class Engine(Protocol):
    """Collections by name. Safe to call from several threads.

    Every method raises IndexUnavailable when the engine does not answer.
    """

    def ensure(self, kind: Kind) -> None:
        """Create what is missing of this collection; others may do so meanwhile."""
        ...

    def collection(self, kind: Kind) -> PointCollection:
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
