"""A collection of points: what the index needs of an engine, in words that no engine owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Payload = dict[str, Any]
IndexKind = Literal["keyword", "integer"]

# Larger pages gain nothing measurable, and a page of definitions stays around a megabyte.
PAGE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The keyword under `key`, or one of its keywords, is among `values`."""

    key: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Absent:
    """The payload has no `key`."""

    key: str


@dataclass(frozen=True, slots=True)
class Above:
    """The integer under `key` is greater than `bound`."""

    key: str
    bound: int


Condition = AnyOf | Absent | Above
Where = Sequence[Condition]
"""All of these hold; empty: every point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point to be written; `id` is a UUID, `vector` has shape (dimension,), absent where points have none."""

    id: str
    payload: Payload
    vector: NDArray[np.float32] | None = None


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

    def set_payload(self, payload: Payload, where: Where) -> None:
        """Set these keys on all matching points and leave their other keys alone."""
        ...

    def retrieve(self, point_id: str) -> Payload | None:
        """Return the payload of a point, or None when there is no such point."""
        ...

    def nearest(self, vector: NDArray[np.float32], where: Where, limit: int) -> list[tuple[Payload, float]]:
        """Return payloads and cosine similarities of the closest matching points, closest first."""
        ...

    def facet(self, key: str, where: Where, limit: int) -> dict[int, int]:
        """Return how many matching points have each value of an integer key, exactly, for at most `limit` values."""
        ...

    def count(self, where: Where) -> int:
        """Return the exact number of matching points."""
        ...

    def scroll(
        self, where: Where, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        """Return a page of matching points in the order of their ids, and where the next one begins.

        Only `keys` of their payloads are read; None reads all.
        """
        ...

    def close(self) -> None:
        """Release the collection. Closing it twice is no error."""
        ...


def walk(collection: PointCollection, where: Where, keys: Sequence[str] | None = None) -> Iterator[Payload]:
    """Yield the payloads of all matching points, a page at a time."""
    offset: str | None = None
    while True:
        page, offset = collection.scroll(where, PAGE_SIZE, offset, keys)
        yield from page
        if offset is None:
            return


Indexes = Mapping[str, IndexKind]
"""The payload keys an engine must index: all that is filtered, faceted or compared."""
