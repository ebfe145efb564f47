"""The protocol of a collection of points, independent of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from shared.catalog import SparseVector

Payload = dict[str, Any]
Vector = NDArray[np.float32] | SparseVector
IndexKind = Literal["keyword", "exact keyword", "integer", "count"]
"""A vector search with a filter needs links in the graph for a `keyword`, and none for an `exact keyword`.

An `integer` has a range index; a `count` is only equal to others, in facets.
"""

# Larger pages are not measurably faster, and a page of definitions has about a megabyte.
PAGE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The keyword under `key`, or one of its keywords, is among `values`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Is:
    """The keyword under `key` is `value`; every point of the collection has one keyword of a few under `key`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class IsEmpty:
    """The payload has no `key`."""

    key: str


@dataclass(frozen=True, slots=True)
class GreaterThan:
    """The integer under `key` is greater than `bound`."""

    key: str
    bound: int


@dataclass(frozen=True, slots=True)
class NoneOf:
    """Neither the keyword under `key` nor any of its keywords is among `values`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HasIdOrAny:
    """The point is one of `ids`, or the keyword under `key` is among `values`; at most one in a filter."""

    ids: Sequence[str]
    key: str
    values: Sequence[str]


Condition = AnyOf | Is | NoneOf | IsEmpty | GreaterThan | HasIdOrAny
PointFilter = Sequence[Condition]
"""All conditions hold; empty: every point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point; `id` is a UUID, and `vectors` are by name."""

    id: str
    payload: Payload
    vectors: Mapping[str, Vector] = field(default_factory=dict[str, Vector])


@dataclass(frozen=True, slots=True)
class NamedVector:
    """A query vector for the points' vectors of this name."""

    name: str
    vector: Vector


Scores = dict[str, float]
"""Scores by point id, best first: the cosine similarity, or for sparse vectors the dot product with IDF."""


@dataclass(frozen=True, slots=True)
class VectorSchema:
    """The names of a collection's vectors: dense vectors of this dimension, and sparse vectors scored with IDF."""

    dimension: int = 0
    dense: Sequence[str] = ()
    sparse: Sequence[str] = ()


class PointCollection(Protocol):
    """One collection in one engine. Safe to call from several threads; writes are visible when they return.

    Every method raises IndexUnavailable if the engine does not answer.
    """

    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points whole."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Delete these points; missing points are no error."""
        ...

    def set_payload(self, payload: Payload, where: PointFilter) -> None:
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
        self, vectors: Sequence[NamedVector], where: PointFilter, limit: int, corpus: PointFilter = ()
    ) -> list[Scores]:
        """Return the closest matching points for each vector, in one round trip.

        A sparse vector finds only points that share an index with it. IDF is computed over the points of `corpus`.
        """
        ...

    def facet(self, key: str, where: PointFilter, limit: int) -> dict[int | str, int]:
        """Return the exact number of matching points by value of an indexed key, for at most `limit` values."""
        ...

    def count(self, where: PointFilter) -> int:
        """Return the exact number of matching points."""
        ...

    def scroll(
        self, where: PointFilter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        """Return a page of matching points in the order of their ids, and the offset of the next page.

        `keys` restricts the payloads; None reads all keys.
        """
        ...

    def close(self) -> None:
        """Release the collection; a second call is no error."""
        ...


def behind(point: str | None) -> str | None:
    """Return where a page behind this point begins; None: where the first page begins."""
    # engines begin a page at an id, inclusive; no id is the greatest UUID, so this does not overflow
    return None if point is None else str(UUID(int=UUID(point).int + 1))


def walk(collection: PointCollection, where: PointFilter, keys: Sequence[str] | None = None) -> Iterator[Payload]:
    """Yield the payloads of all matching points, read in pages."""
    offset: str | None = None
    while True:
        page, offset = collection.scroll(where, PAGE_SIZE, offset, keys)
        yield from page
        if offset is None:
            return


Indexes = Mapping[str, IndexKind]
"""The payload keys to index: all keys in filters, facets and comparisons."""
