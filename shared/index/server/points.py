"""Batches of points, and vectors as Qdrant reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.catalog import SparseVector
from shared.index.points import Point, Vector

# With up to four bytes per character, a request has less than the server's default limit of 32 MB.
BATCH_POINTS = 256
BATCH_CHARACTERS = 4_000_000


def batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield batches of bounded count and size, in order; a larger point has its own batch."""
    batch: list[Point] = []
    characters = 0
    for point in points:
        size = _characters(point)
        if batch and (len(batch) == BATCH_POINTS or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(point)
        characters += size
    if batch:
        yield batch


def _characters(point: Point) -> int:
    return sum(len(value) for value in point.payload.values() if isinstance(value, str))


def sent_vectors(point: Point) -> dict[str, object]:
    """Return a point's vectors as Qdrant reads them."""
    return {name: sent_vector(vector) for name, vector in point.vectors.items()}


def sent_vector(vector: Vector) -> object:
    """Return a vector as Qdrant reads it."""
    if isinstance(vector, SparseVector):
        return {"indices": vector.indices, "values": vector.values}
    return vector.tolist()
