"""Points, filters and collections: the language between the index and its two engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.catalog import SparseVector

Payload = dict[str, Any]
Vector: TypeAlias = "NDArray[np.float32] | SparseVector"
IndexKind = Literal["keyword", "exact keyword", "integer", "count"]
"""A vector search with a filter needs links in the graph for a `keyword`, and none for an `exact keyword`.

An `integer` has a range index; a `count` is only equal to others, in facets.
"""

# Larger pages are not measurably faster, and a page of definitions has about a megabyte.
PAGE_SIZE = 1_000

Condition = Mapping[str, Any]
Filter = Mapping[str, Any]
"""A filter as Qdrant's REST API has it: conditions under `must`, `must_not` and `should`; empty: every point.

A filter that is not empty is a condition too.
"""


def must(*conditions: Condition) -> Filter:
    """Return the filter for points that meet all of these conditions."""
    return {"must": conditions}


def any_of(key: str, values: Iterable[str]) -> Condition:
    """Return the condition that the keyword under `key`, or one of its keywords, is among `values`."""
    return {"key": key, "match": {"any": tuple(values)}}


def equal_to(key: str, value: str) -> Condition:
    """Return the condition that the keyword under `key` is `value`; every point has one of a few keywords there."""
    return {"key": key, "match": {"value": value}}


def greater_than(key: str, bound: int) -> Condition:
    """Return the condition that the integer under `key` is greater than `bound`."""
    return {"key": key, "range": {"gt": bound}}


def is_empty(key: str) -> Condition:
    """Return the condition that the payload has no `key`."""
    return {"is_empty": {"key": key}}


@dataclass(frozen=True, slots=True)
class Point:
    """A point; `id` is a UUID, and `vectors` are by name."""

    id: str
    payload: Payload
    vectors: Mapping[str, Vector] = field(default_factory=dict[str, "Vector"])


@dataclass(frozen=True, slots=True)
class NamedVector:
    """A query vector for the points' vectors of this name."""

    name: str
    vector: Vector


Scores = dict[str, float]
"""Scores by point id, best first: the cosine similarity, or for sparse vectors the dot product with IDF."""


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """A collection's name, the payload keys to index, and the names of its vectors.

    All keys in filters, facets and comparisons need an index. Dense vectors have this dimension; sparse ones are
    scored with IDF.
    """

    name: str
    indexes: Mapping[str, IndexKind] = field(default_factory=dict[str, IndexKind])
    dimension: int = 0
    dense: Sequence[str] = ()
    sparse: Sequence[str] = ()


class PointCollection(Protocol):
    """One collection in one engine. Safe to call from several threads; writes are visible when they return.

    Every method raises IndexUnavailable if the engine does not answer, and IndexLost if the collection is gone.
    """

    content: object
    """The same object until the next write; None where other processes write too."""

    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points whole."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Delete these points; missing points are no error."""
        ...

    def set_payload(self, payload: Payload, where: Filter) -> None:
        """Set these keys on all matching points; other keys stay unchanged."""
        ...

    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        """Return the payloads of existing points by id, with all keys or only `keys`."""
        ...

    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        """Return one point per keyword under `key`, if there is a point, in one round trip.

        The points have their vectors and these `keys`, including `key`.
        """
        ...

    def query(
        self, vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None = None
    ) -> list[Scores]:
        """Return the closest matching points for each vector, in one round trip.

        A sparse vector finds only points that share an index with it. IDF is computed over the points of `corpus`.
        """
        ...

    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        """Return the exact number of matching points by value of an indexed key, for at most `limit` values."""
        ...

    def count(self, where: Filter) -> int:
        """Return the exact number of matching points."""
        ...

    def scroll(
        self, where: Filter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        """Return a page of matching points in the order of their ids, and the offset of the next page.

        `keys` restricts the payloads; None reads all keys.
        """
        ...


class Engine(Protocol):
    """The collections of one Qdrant, by name. Safe to call from several threads.

    Every method raises IndexUnavailable if the engine does not answer.
    """

    def ensure(self, spec: CollectionSpec) -> None:
        """Create the collection and its indexes if missing; safe with concurrent processes."""
        ...

    def collection(self, spec: CollectionSpec) -> PointCollection:
        """Return the collection without creating it; a missing one raises IndexLost, here or when it is called."""
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
        """Release all collections; a second call is no error."""
        ...


def behind(point: str | None) -> str | None:
    """Return where a page behind this point begins; None: where the first page begins."""
    # engines begin a page at an id, inclusive; no id is the greatest UUID, so this does not overflow
    return None if point is None else str(UUID(int=UUID(point).int + 1))


def walk(collection: PointCollection, where: Filter, keys: Sequence[str] | None = None) -> Iterator[Payload]:
    """Yield the payloads of all matching points, read in pages."""
    offset: str | None = None
    while True:
        page, offset = collection.scroll(where, PAGE_SIZE, offset, keys)
        yield from page
        if offset is None:
            return
