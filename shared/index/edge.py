"""The index in this process, on disk, with no server: Qdrant Edge."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from uuid import UUID

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
    HasIdCondition,
    IdfParams,
    IsEmptyCondition,
    MatchAny,
    MatchValue,
    Modifier,
    PayloadSchemaType,
    Query,
    QueryBatchRequest,
    QueryRequest,
    RangeFloat,
    ScoredPoint,
    ScrollRequest,
    SearchParams,
    UpdateOperation,
    VectorStorageDatatype,
)
from qdrant_edge import Filter as EdgeFilter
from qdrant_edge import Point as EdgePoint
from qdrant_edge import SparseVector as EdgeSparseVector
from typing_extensions import override

from shared.catalog import SparseVector
from shared.errors import ConfigInvalid, IndexHeld, IndexLost, IndexUnavailable
from shared.index.points import (
    CollectionSpec,
    Condition,
    Engine,
    Filter,
    IndexKind,
    NamedVector,
    Payload,
    Point,
    PointCollection,
    Scores,
    Vector,
    any_of,
    must,
)
from shared.service.files import FREE_SOME, disk_problem, make_private_directory

if TYPE_CHECKING:
    from qdrant_edge import ConditionType

# Points between two flushes. After a crash the log replays unflushed points: 0.3 s for this many.
FLUSH_EVERY = 5_000

# More than any key of the condition `equal_to` has.
MAX_VALUES = 100

# Qdrant Edge holds the GIL while it builds an HNSW graph, so no graph is built and every search is exact.
_NO_HNSW = EdgeOptimizersConfig(indexing_threshold=0)

# A single thread is the caller's own. By default, four threads for each core wait for work that a search hands over.
_SEARCH_THREADS = 1

_SCHEMA: Mapping[IndexKind, PayloadSchemaType] = {
    "keyword": PayloadSchemaType.Keyword,
    "exact keyword": PayloadSchemaType.Keyword,
    "integer": PayloadSchemaType.Integer,
    "count": PayloadSchemaType.Integer,
}


class EdgeEngine(Engine):
    """The collections below a directory; each is opened once, since a shard has one holder."""

    def __init__(self, directory: Path) -> None:
        """Create the directory.

        Raises:
            ConfigInvalid: it cannot be created.
        """
        try:
            make_private_directory(directory)
        except OSError as error:
            raise ConfigInvalid(f"data_dir: cannot create {directory}: {error.strerror}") from error
        self._directory = directory
        self._open: dict[str, EdgeCollection] = {}
        self._opening = threading.Lock()

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        with self._opening:
            if spec.name not in self._open:
                self._open[spec.name] = EdgeCollection(self._directory / spec.name, spec)

    @override
    def collection(self, spec: CollectionSpec) -> EdgeCollection:
        if not self.exists(spec.name):
            raise IndexLost(f"{self._directory / spec.name} is gone")
        self.ensure(spec)
        return self._open[spec.name]

    @override
    def exists(self, name: str) -> bool:
        return (self._directory / name).is_dir()

    @override
    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir() if path.is_dir() and path.name[0] != ".")

    @override
    def drop(self, name: str) -> None:
        """Delete the collection; a rename first ensures that a crash leaves no partial collection of this name."""
        with self._opening:
            if opened := self._open.pop(name, None):
                opened.close()
            if self.exists(name):
                doomed = Path(tempfile.mkdtemp(prefix=".dropped-", dir=self._directory))
                (self._directory / name).rename(doomed / name)
                shutil.rmtree(doomed)

    @override
    def server_version(self) -> str:
        return ""

    @override
    def close(self) -> None:
        with self._opening, ExitStack() as closing:
            for opened in self._open.values():
                closing.callback(opened.close)


class EdgeCollection(PointCollection):
    """A collection in one shard on disk. Its write-ahead log keeps every confirmed write when the process is killed."""

    def __init__(self, path: Path, spec: CollectionSpec) -> None:
        """Open the shard at `path`, created if it is missing.

        Raises:
            IndexHeld: another process holds it.
            IndexUnavailable: it cannot be opened.
        """
        self._path = path
        self._unflushed = 0
        self.content = object()  # another one after each write
        self._values: dict[str, tuple[object, frozenset[str]]] = {}
        self._found_nothing: tuple[object, Filter] = (None, {})
        _assert_room(path)
        with self._asking():
            if not path.exists():
                _create(path, spec)
            with suppress(OSError):  # another process may hold the shard and change it; loading reports that
                _read_ahead(path)
            # without a configuration, stored dense vectors keep the type of their numbers
            self._shard = EdgeShard.load(str(path), _configuration(spec, dense=None))
            for key in spec.indexes.keys() - self._shard.info().payload_schema.keys():
                self._shard.update(UpdateOperation.create_field_index(key, _SCHEMA[spec.indexes[key]]))
            self._shard.optimize()  # frees the space of deleted points before the first search

    @override
    def upsert(self, points: Sequence[Point]) -> None:
        written = [
            EdgePoint(point.id, {name: _edge_vector(vector) for name, vector in point.vectors.items()}, point.payload)
            for point in points
        ]
        self._update(UpdateOperation.upsert_points(written), len(points))

    @override
    def delete(self, ids: Sequence[str]) -> None:
        self._update(UpdateOperation.delete_points(list(ids)), len(ids))

    @override
    def set_payload(self, payload: Payload, where: Filter) -> None:
        self._update(UpdateOperation.set_payload_by_filter(_filter(where), payload), 1)

    @override
    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        wanted = True if keys is None else list(keys)
        with self._asking():
            found = self._shard.retrieve(list(ids), with_payload=wanted, with_vector=False)
        return {_id_of(point.id.int): point.payload or {} for point in cast("list[_Stored]", found)}

    @override
    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        requests = [
            QueryRequest(1, filter=_filter(must(any_of(key, (value,)))), with_payload=list(keys), with_vector=True)
            for value in values
        ]
        with self._asking():
            answers = self._shard.query_batch(QueryBatchRequest(requests))
        return {value: _point(found[0]) for value, found in zip(values, answers, strict=True) if found}

    @override
    def query(
        self, vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None = None
    ) -> list[Scores]:
        cheaper = self._cheaper(where)
        only = _filter(cheaper)
        # dense vectors are searched faster without a filter; BM25 scores would change in their last bits by that
        of_dense = only if any(cheaper.values()) else None
        requests = [
            QueryRequest(
                limit,
                query=Query.Nearest(_edge_vector(question.vector), using=question.name),
                filter=only if isinstance(question.vector, SparseVector) else of_dense,
                params=_params(question, corpus),
            )
            for question in vectors
        ]
        with self._asking():
            answers = self._shard.query_batch(QueryBatchRequest(requests))
        lists = cast("list[list[_Found]]", answers)
        return [{_id_of(point.id.int): point.score for point in found} for found in lists]

    @override
    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        with self._asking():
            response = self._shard.facet(FacetRequest(key, limit, exact=True, filter=_filter(where)))
        return {hit.value: hit.count for hit in response.hits}

    @override
    def count(self, where: Filter) -> int:
        with self._asking():
            return self._shard.count(CountRequest(exact=True, filter=_filter(where)))

    @override
    def scroll(
        self, where: Filter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        content = self.content  # before the read, which may miss a write that comes now
        if self._found_nothing == (content, where):
            return [], None
        wanted = True if keys is None else list(keys)
        request = ScrollRequest(offset=offset, limit=limit, filter=_filter(where), with_payload=wanted)
        with self._asking():
            records, following = self._shard.scroll(request)
        if not records and offset is None:
            self._found_nothing = content, where
        return [record.payload or {} for record in records], None if following is None else str(following)

    def close(self) -> None:
        """Flush and release the shard; a second call is no error."""
        with self._asking():
            self._shard.close()

    @contextmanager
    def _asking(self) -> Generator[None]:
        """Translate errors of the engine.

        Raises:
            IndexHeld: another process holds the shard.
            IndexUnavailable: the engine failed.
        """
        try:
            yield
        except Exception as error:
            if type(error) is not Exception and not isinstance(error, OSError):
                raise  # Qdrant Edge raises the bare class; any other is our own bug
            if "failed to open WAL" in str(error) and "WouldBlock" in str(error):
                raise IndexHeld(
                    f"another Toolscale process uses {self._path.parent}: connect to that process over HTTP, use "
                    "another data directory, or share a Qdrant server by QDRANT_URL"
                ) from error
            raise IndexUnavailable(f"{self._path}: {error}") from error

    def _update(self, operation: UpdateOperation, points: int) -> None:
        """Write; `points` is the approximate number of points written."""
        _assert_room(self._path)
        try:
            with self._asking():
                self._shard.update(operation)
                self._unflushed += points
                if self._unflushed >= FLUSH_EVERY:
                    self._unflushed = 0
                    self._shard.flush()
        finally:  # a write that fails may have written some points
            self.content = object()

    def _cheaper(self, where: Filter) -> Filter:
        """Return an equal filter without wanted values: most points have them, and a check of each takes longest.

        Not for the corpus of IDF: without conditions, the engine counts deleted points too.
        """
        kept, unwanted = list[Condition](), list[Condition]()
        for condition in where.get("must", ()):
            match condition:
                case {"key": key, "match": {"value": value}}:
                    others = self._stored_values(key) - {value}
                    unwanted += [any_of(key, sorted(others))] if others else []
                case _:
                    kept.append(condition)
        return {**where, "must": kept, "must_not": [*where.get("must_not", ()), *unwanted]}

    def _stored_values(self, key: str) -> frozenset[str]:
        """Return all values under `key`, read again after each write."""
        content, values = self._values.get(key, (None, frozenset[str]()))
        if content is not self.content:
            content = self.content  # before the read, which may miss a write that comes now
            values = frozenset(map(str, self.facet(key, {}, MAX_VALUES)))
            self._values[key] = content, values
        return values


def _assert_room(path: Path) -> None:
    """Raise IndexUnavailable on a full disk: the engine would be killed by a signal when it writes."""
    if problem := disk_problem(path.parent.parent):
        raise IndexUnavailable(f"{problem}: {FREE_SOME}")


def _create(path: Path, spec: CollectionSpec) -> None:
    """Create the shard elsewhere and rename it into place, so that a crash leaves either no shard or a whole one."""
    dense = {
        name: EdgeVectorParams(spec.dimension, Distance.Cosine, datatype=VectorStorageDatatype.Float16)
        for name in spec.dense
    }
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as temporary:
        made = Path(temporary) / "shard"
        EdgeShard.create(str(made), _configuration(spec, dense or None)).close()
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # another process may have been faster; loading reports which process holds it
                raise


def _configuration(spec: CollectionSpec, dense: dict[str, EdgeVectorParams] | None) -> EdgeConfig:
    sparse = {name: EdgeSparseVectorParams(modifier=Modifier.Idf) for name in spec.sparse}
    return EdgeConfig(
        vectors=dense,
        # a shard must declare some vector; a sparse one costs nothing while no point has it
        sparse_vectors=sparse or {"none": EdgeSparseVectorParams()},
        optimizers=_NO_HNSW,
        max_search_threads=_SEARCH_THREADS,
    )


def _read_ahead(path: Path) -> None:
    """Read all files once, since the engine blocks the whole process while it waits for the disk."""
    chunk = bytearray(1 << 20)
    for file_path in path.rglob("*"):
        if file_path.is_file():
            with file_path.open("rb", buffering=0) as file:
                while file.readinto(chunk):
                    pass


# A search returns hundreds of ids, mostly of the same tools; formatting them takes longer than the search.
@lru_cache(maxsize=200_000)
def _id_of(number: int) -> str:
    return str(UUID(int=number))


class _Stored(Protocol):
    """A point; all ids are UUIDs."""

    id: UUID
    payload: Payload | None


class _Found(_Stored, Protocol):
    """A point that a search found."""

    score: float


def _params(question: NamedVector, corpus: Filter | None) -> SearchParams | None:
    # a search of dense vectors rejects a corpus
    if not corpus or not isinstance(question.vector, SparseVector):
        return None
    return SearchParams(idf=IdfParams(_filter(corpus)))


def _edge_vector(vector: Vector) -> EdgeSparseVector | list[float]:
    if isinstance(vector, SparseVector):
        return EdgeSparseVector(list(vector.indices), list(vector.values))
    dense: list[float] = vector.tolist()
    return dense


def _point(stored: ScoredPoint) -> Point:
    vectors = cast("dict[str, EdgeSparseVector | list[float]]", stored.vector)
    return Point(str(stored.id), stored.payload or {}, {name: _vector(vector) for name, vector in vectors.items()})


def _vector(stored: EdgeSparseVector | list[float]) -> Vector:
    if isinstance(stored, EdgeSparseVector):
        return SparseVector(tuple(stored.indices), tuple(stored.values))
    return np.asarray(stored, dtype=np.float32)


def _filter(where: Filter) -> EdgeFilter:
    wanted, alternatives, unwanted = (
        [_condition(condition) for condition in where.get(name, ())] for name in ("must", "should", "must_not")
    )
    return EdgeFilter(wanted, alternatives or None, unwanted)


def _condition(condition: Condition) -> ConditionType:
    match condition:
        case {"key": key, "match": {"any": values}}:
            return _match_any(key, values)
        case {"key": key, "match": {"value": value}}:
            return FieldCondition(key, match=MatchValue(value))
        case {"key": key, "range": {"gt": bound}}:
            return FieldCondition(key, range=RangeFloat(gt=float(bound)))
        case {"is_empty": {"key": key}}:
            return IsEmptyCondition(key)
        case {"has_id": ids}:
            return HasIdCondition(set(ids))
        case {"must": _} | {"should": _} | {"must_not": _}:
            return _filter(condition)
        case _:
            raise ValueError(f"a condition that no filter here has: {condition}")


# Searches share the conditions of a scope; converting one of 2,400 servers takes longer than all else of a filter.
@lru_cache(maxsize=16)
def _match_any(key: str, values: tuple[str, ...]) -> FieldCondition:
    return FieldCondition(key, match=MatchAny(list(values)))
