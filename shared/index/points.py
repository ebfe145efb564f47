"""A collection of points: what the index needs of an engine, in words that no engine owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.catalog import SparseVector

Payload = dict[str, Any]
Vector = NDArray[np.float32] | SparseVector
IndexKind = Literal["keyword", "integer"]

# Larger pages gain nothing measurable, and a page of definitions stays around a megabyte.
PAGE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The keyword under `key`, or one of its keywords, is among `values`."""

    key: str
    values: Sequence[str]


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
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class HasIdOrAny:
    """The point itself is one of `ids`, or the keyword under `key` is among `values`; at most one in a `Where`."""

    ids: Sequence[str]
    key: str
    values: Sequence[str]


Condition = AnyOf | NoneOf | IsEmpty | GreaterThan | HasIdOrAny
PointFilter = Sequence[Condition]
"""All of these hold; empty: every point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point to be written; `id` is a UUID, `vectors` are those its collection has, by name."""

    id: str
    payload: Payload
    vectors: Mapping[str, Vector] = field(default_factory=dict[str, Vector])


@dataclass(frozen=True, slots=True)
class NamedVector:
    """A question: which points' vector of this name is closest to this one."""

    name: str
    vector: Vector


Scores = dict[str, float]
"""Points by id, best first: cosine similarity or, of sparse vectors, the dot product times IDF."""


@dataclass(frozen=True, slots=True)
class VectorSchema:
    """The vectors of a collection's points, by name: dense ones of this dimension, sparse ones scored with IDF."""

    dimension: int = 0
    dense: Sequence[str] = ()
    sparse: Sequence[str] = ()


class PointCollection(Protocol):
    """One collection in one engine. Safe to call from several threads; writes are visible when they return.

    Every method raises IndexUnavailable when the engine does not answer.
    """

    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points whole."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove these points, as far as they are there."""
        ...

    def set_payload(self, payload: Payload, where: PointFilter) -> None:
        """Set these keys on all matching points and leave their other keys alone."""
        ...

    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        """Return the payloads, or only `keys` of them, of those of these points that there are, by id."""
        ...

    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        """Return for each of these keywords one point that has it under `key`, if there is one, in one round trip.

        The points come with their vectors, and with `keys` of their payloads, `key` among them.
        """
        ...

    def query(self, vectors: Sequence[NamedVector], where: PointFilter, limit: int) -> list[Scores]:
        """Return the closest matching points for each question, in one round trip.

        A sparse vector finds only points that share an index with it.
        """
        ...

    def facet(self, key: str, where: PointFilter, limit: int) -> dict[int, int]:
        """Return how many matching points have each value of an integer key, exactly, for at most `limit` values."""
        ...

    def count(self, where: PointFilter) -> int:
        """Return the exact number of matching points."""
        ...

    def scroll(
        self, where: PointFilter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        """Return a page of matching points in the order of their ids, and where the next one begins.

        Only `keys` of their payloads are read; None reads all.
        """
        ...

    def close(self) -> None:
        """Release the collection. Closing it twice is no error."""
        ...


def walk(collection: PointCollection, where: PointFilter, keys: Sequence[str] | None = None) -> Iterator[Payload]:
    """Yield the payloads of all matching points, a page at a time."""
    offset: str | None = None
    while True:
        page, offset = collection.scroll(where, PAGE_SIZE, offset, keys)
        yield from page
        if offset is None:
            return


Indexes = Mapping[str, IndexKind]
"""The payload keys an engine must index: all that is filtered, faceted or compared."""
