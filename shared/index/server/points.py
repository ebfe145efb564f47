"""Batches of points, and points and conditions as models of Qdrant's client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdrant_client import models

from shared.catalog import SparseVector
from shared.index.points import AnyOf, GreaterThan, HasIdOrAny, Is, IsEmpty, NoneOf, Point, PointFilter, Vector

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


def struct_vectors(point: Point) -> dict[str, models.Vector]:
    """Return the client's models of a point's vectors."""
    return {name: struct_vector(vector) for name, vector in point.vectors.items()}


def struct_vector(vector: Vector) -> models.SparseVector | list[float]:
    """Return the client's model of a vector."""
    if isinstance(vector, SparseVector):
        return models.SparseVector(indices=list(vector.indices), values=list(vector.values))
    dense: list[float] = vector.tolist()
    return dense


def filter_of(where: PointFilter) -> models.Filter:
    """Return the client's model of a filter."""
    return models.Filter(
        must=[_condition(condition) for condition in where if not isinstance(condition, NoneOf | HasIdOrAny)],
        must_not=[_condition(condition) for condition in where if isinstance(condition, NoneOf)],
        should=[alternative for among in where if isinstance(among, HasIdOrAny) for alternative in _alternatives(among)]
        or None,
    )


def _alternatives(among: HasIdOrAny) -> list[models.Condition]:
    return [
        models.HasIdCondition(has_id=list(among.ids)),
        models.FieldCondition(key=among.key, match=models.MatchAny(any=list(among.values))),
    ]


def _condition(condition: AnyOf | Is | NoneOf | IsEmpty | GreaterThan) -> models.Condition:
    match condition:
        case Is(key, value):
            return models.FieldCondition(key=key, match=models.MatchValue(value=value))
        case AnyOf(key, values) | NoneOf(key, values):
            return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))
        case GreaterThan(key, bound):
            return models.FieldCondition(key=key, range=models.Range(gt=bound))
        case _:
            return models.IsEmptyCondition(is_empty=models.PayloadField(key=condition.key))
