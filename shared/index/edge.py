"""The index in this process, on disk, with no server: Qdrant Edge.

Every call into Qdrant Edge holds the GIL (measured for 0.9: a thread that only ticks stands still), so a thread
in the background would stop everybody else as well. Hence no HNSW graph, whose construction takes 1.5 s at
10,000 tools and 24 s at 50,000: searches compare all vectors in scope, which takes 1 and 4 ms there, and are exact.
For more tools than that there is the Qdrant server.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from qdrant_edge import (
    CountRequest,
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeSparseVectorParams,
    EdgeVectorParams,
    FacetRequest,
    FieldCondition,
    Filter,
    HasIdCondition,
    IsEmptyCondition,
    MatchAny,
    Modifier,
    PayloadSchemaType,
    Query,
    QueryBatchRequest,
    QueryRequest,
    RangeFloat,
    ScoredPoint,
    ScrollRequest,
    UpdateOperation,
)
from qdrant_edge import Point as EdgePoint
from qdrant_edge import SparseVector as EdgeSparseVector

from shared.catalog import SparseVector
from shared.errors import ConfigInvalid, IndexLost, IndexUnavailable
from shared.index.engine import SERVERS_KIND, TOOLSETS_KIND, Kind
from shared.index.payload import TOOL_INDEXES, tool_vector_schema
from shared.index.points import (
    Above,
    Absent,
    AmongPoints,
    AnyOf,
    Indexes,
    Nearest,
    NoneOf,
    Payload,
    Point,
    Scores,
    Vector,
    VectorSchema,
    Where,
)
from shared.index.qdrant import FACET_LIMIT, QdrantIndex

# Points between two flushes. What is not flushed is replayed from the log after a crash: 0.3 s for this many.
FLUSH_EVERY = 5_000

_SCHEMA = {"keyword": PayloadSchemaType.Keyword, "integer": PayloadSchemaType.Integer}


def open_edge(directory: Path, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> QdrantIndex:
    """Return the index kept below `directory`, created on first use.

    Raises:
        ConfigInvalid: another process uses the directory, or it cannot be created.
    """
    engine = EdgeEngine(directory)
    with ExitStack() as opened:
        opened.callback(engine.close)
        # this one has the same name for every model, so two processes always meet here
        engine.ensure(SERVERS_KIND)
        kind = Kind(collection, tool_vector_schema(dimension), TOOL_INDEXES)
        engine.ensure(kind)
        engine.ensure(TOOLSETS_KIND)
        opened.pop_all()
    servers, toolsets = engine.collection(SERVERS_KIND), engine.collection(TOOLSETS_KIND)
    return QdrantIndex(engine.collection(kind), servers, toolsets, facet_limit)


class EdgeEngine:
    """The collections below a directory; each is opened once, since only one holder can have it."""

    def __init__(self, directory: Path) -> None:
        """Make the directory.

        Raises:
            ConfigInvalid: it cannot be made.
        """
        _make(directory)
        self._directory = directory
        self._open: dict[str, EdgeCollection] = {}
        self._opening = threading.Lock()

    def ensure(self, kind: Kind) -> None:
        """Open the collection, created on first use."""
        with self._opening:
            if kind.name not in self._open:
                self._open[kind.name] = EdgeCollection(self._directory / kind.name, _config(kind.vectors), kind.indexes)

    def collection(self, kind: Kind) -> EdgeCollection:
        """Return the collection."""
        if not self.exists(kind.name):
            raise IndexLost(f"{self._directory / kind.name} is gone")
        self.ensure(kind)
        return self._open[kind.name]

    def exists(self, name: str) -> bool:
        """Return whether the collection is on disk."""
        return (self._directory / name).is_dir()

    def names(self) -> list[str]:
        """Return the collections on disk."""
        return sorted(path.name for path in self._directory.iterdir() if path.is_dir() and path.name[0] != ".")

    def drop(self, name: str) -> None:
        """Remove the collection; renamed first, so that a crash leaves no half of it under its name."""
        with self._opening:
            if opened := self._open.pop(name, None):
                opened.close()
            if self.exists(name):
                doomed = Path(tempfile.mkdtemp(prefix=".dropped-", dir=self._directory))
                (self._directory / name).rename(doomed / name)
                shutil.rmtree(doomed)

    def close(self) -> None:
        """Release every collection, also those after one that cannot be."""
        with self._opening, ExitStack() as closing:
            for opened in self._open.values():
                closing.callback(opened.close)


class EdgeCollection:
    """One shard on disk. Its write-ahead log keeps what a call has confirmed when the process is killed."""

    def __init__(self, path: Path, config: EdgeConfig, indexes: Indexes) -> None:
        self._path = path
        self._unflushed = 0
        with self._translated():
            if not path.exists():
                _create(path, config)
            self._shard = EdgeShard.load(str(path), config)
            self._create_indexes(indexes)
            self._shard.optimize()  # gives back the space of deleted points, while nobody waits for an answer

    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points."""
        self._update(UpdateOperation.upsert_points([_edge_point(point) for point in points]), len(points))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove these points."""
        self._update(UpdateOperation.delete_points(list(ids)), len(ids))

    def set_payload(self, payload: Payload, where: Where) -> None:
        """Set keys on matching points."""
        self._update(UpdateOperation.set_payload_by_filter(_filter(where), payload), 1)

    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        """Return the points' payloads."""
        wanted = True if keys is None else list(keys)
        with self._translated():
            found = self._shard.retrieve(list(ids), with_payload=wanted, with_vector=False)
        return {str(point.id): point.payload or {} for point in found}

    def one_of_each(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        """Return for each keyword one point that has it."""
        requests = [
            QueryRequest(1, filter=_filter((AnyOf(key, (value,)),)), with_payload=list(keys), with_vector=True)
            for value in values
        ]
        with self._translated():
            answers = self._shard.query_batch(QueryBatchRequest(requests))
        return {value: _point(found[0]) for value, found in zip(values, answers, strict=True) if found}

    def nearest(self, questions: Sequence[Nearest], where: Where, limit: int) -> list[Scores]:
        """Return the closest matching points for each question."""
        only = _filter(where)
        requests = [
            QueryRequest(limit, query=Query.Nearest(_edge_vector(each.vector), using=each.name), filter=only)
            for each in questions
        ]
        with self._translated():
            answers = self._shard.query_batch(QueryBatchRequest(requests))
        return [{str(point.id): point.score for point in found} for found in answers]

    def facet(self, key: str, where: Where, limit: int) -> dict[int, int]:
        """Return how many points have each value."""
        with self._translated():
            response = self._shard.facet(FacetRequest(key, limit, exact=True, filter=_filter(where)))
        return {int(hit.value): hit.count for hit in response.hits}

    def count(self, where: Where) -> int:
        """Return the number of matching points."""
        with self._translated():
            return self._shard.count(CountRequest(exact=True, filter=_filter(where)))

    def scroll(
        self, where: Where, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        """Return a page of points."""
        wanted = True if keys is None else list(keys)
        request = ScrollRequest(offset=offset, limit=limit, filter=_filter(where), with_payload=wanted)
        with self._translated():
            records, following = self._shard.scroll(request)
        return [record.payload or {} for record in records], None if following is None else str(following)

    def close(self) -> None:
        """Flush and release the shard."""
        with self._translated():
            self._shard.close()

    def _update(self, operation: UpdateOperation, points: int) -> None:
        with self._translated():
            self._shard.update(operation)
            self._unflushed += points
            if self._unflushed >= FLUSH_EVERY:
                self._unflushed = 0
                self._shard.flush()

    def _create_indexes(self, indexes: Indexes) -> None:
        for key in indexes.keys() - self._shard.info().payload_schema.keys():
            self._shard.update(UpdateOperation.create_field_index(key, _SCHEMA[indexes[key]]))

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # Qdrant Edge raises the bare class; any other is a mistake of ours
                raise
            if "failed to open WAL" in str(error):
                raise ConfigInvalid(
                    f"another Toolscale process uses {self._path.parent}: connect to that one over HTTP, use another "
                    "data directory, or share a Qdrant server by QDRANT_URL"
                ) from error
            raise IndexUnavailable(f"{self._path}: {error}") from error


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"data_dir: cannot create {directory}: {error.strerror}") from error


def _create(path: Path, config: EdgeConfig) -> None:
    """Make the shard elsewhere and rename it into place, so that a crash leaves either none or a whole one."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as temporary:
        made = Path(temporary) / "shard"
        EdgeShard.create(str(made), config).close()
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # another process may have been faster; loading tells which of us has it
                raise


def _config(schema: VectorSchema) -> EdgeConfig:
    return _with_vectors(schema) if schema.dense else _without_vectors()


def _with_vectors(schema: VectorSchema) -> EdgeConfig:
    return EdgeConfig(
        vectors={name: EdgeVectorParams(schema.dimension, Distance.Cosine) for name in schema.dense},
        sparse_vectors={name: EdgeSparseVectorParams(modifier=Modifier.Idf) for name in schema.sparse},
        optimizers=EdgeOptimizersConfig(indexing_threshold=0),  # no graph, see above
    )


def _without_vectors() -> EdgeConfig:
    # a shard must declare some vector; a sparse one costs nothing while no point has it
    return EdgeConfig(sparse_vectors={"none": EdgeSparseVectorParams()})


def _edge_point(point: Point) -> EdgePoint:
    return EdgePoint(point.id, {name: _edge_vector(each) for name, each in point.vectors.items()}, point.payload)


def _point(stored: ScoredPoint) -> Point:
    vectors = cast("dict[str, EdgeSparseVector | list[float]]", stored.vector)
    return Point(str(stored.id), stored.payload or {}, {name: _vector(each) for name, each in vectors.items()})


def _vector(stored: EdgeSparseVector | list[float]) -> Vector:
    if isinstance(stored, EdgeSparseVector):
        return SparseVector(tuple(stored.indices), tuple(stored.values))
    return np.asarray(stored, dtype=np.float32)


def _edge_vector(vector: Vector) -> EdgeSparseVector | list[float]:
    if isinstance(vector, SparseVector):
        return EdgeSparseVector(list(vector.indices), list(vector.values))
    dense: list[float] = vector.tolist()
    return dense


def _filter(where: Where) -> Filter:
    return Filter(
        must=[_condition(each) for each in where if not isinstance(each, NoneOf | AmongPoints)],
        must_not=[_condition(each) for each in where if isinstance(each, NoneOf)],
        should=[each for among in where if isinstance(among, AmongPoints) for each in _alternatives(among)] or None,
    )


def _alternatives(among: AmongPoints) -> list[FieldCondition | HasIdCondition]:
    return [HasIdCondition(set(among.ids)), FieldCondition(among.key, match=MatchAny(list(among.values)))]


def _condition(condition: AnyOf | NoneOf | Absent | Above) -> FieldCondition | IsEmptyCondition:
    match condition:
        case AnyOf(key, values) | NoneOf(key, values):
            return FieldCondition(key, match=MatchAny(list(values)))
        case Above(key, bound):
            return FieldCondition(key, range=RangeFloat(gt=float(bound)))
        case _:
            return IsEmptyCondition(condition.key)
