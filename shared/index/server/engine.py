"""The index on a Qdrant server, shared by any number of processes."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus

from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from typing_extensions import override

from shared.catalog import SparseVector
from shared.errors import ConfigInvalid, IndexLost, IndexUnavailable
from shared.index.engine import CollectionSpec, Engine
from shared.index.points import (
    AnyOf,
    Indexes,
    NamedVector,
    Payload,
    Point,
    PointCollection,
    PointFilter,
    Scores,
    VectorSchema,
)
from shared.index.server.points import filter_of, point_from, struct, struct_vector

TIMEOUT_S = 30

# With up to four bytes per character, a request has less than the server's default limit of 32 MB.
BATCH_POINTS = 256
BATCH_CHARACTERS = 4_000_000

# The message of local mode's ValueError.
_LOCALLY_GONE = re.compile(r"^Collection .* not found")

_SCHEMA = {"keyword": models.PayloadSchemaType.KEYWORD, "integer": models.PayloadSchemaType.INTEGER}


def connect(url: str, api_key: str | None) -> QdrantClient:
    """Return a client of the server at `url`, without a request."""
    # a comparison of versions would cost a request and only warn
    return QdrantClient(url=url, api_key=api_key, timeout=TIMEOUT_S, check_compatibility=False)


class ServerEngine(Engine):
    """The collections of a server whose names begin with `prefix`.

    A lock serialises calls of a client in local mode, which is not thread-safe.
    """

    def __init__(self, client: QdrantClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._is_local = client.init_options["location"] == ":memory:"
        self._guard = threading.RLock() if self._is_local else nullcontext()

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        indexes: Indexes = {} if self._is_local else spec.indexes  # local mode has no indexes and logs a warning
        self.collection(spec).ensure(spec.vectors, indexes)

    @override
    def collection(self, spec: CollectionSpec) -> _ServerCollection:
        return _ServerCollection(self._client, self._prefix + spec.name, self._guard)

    @override
    def exists(self, name: str) -> bool:
        with _asking(self._guard, self._prefix + name):
            return self._client.collection_exists(self._prefix + name)

    @override
    def names(self) -> list[str]:
        """Return the names of the collections with the prefix, without it."""
        with _asking(self._guard, "names"):
            found = [collection.name for collection in self._client.get_collections().collections]
        return sorted(name.removeprefix(self._prefix) for name in found if name.startswith(self._prefix))

    @override
    def drop(self, name: str) -> None:
        with _asking(self._guard, self._prefix + name):
            self._client.delete_collection(self._prefix + name)

    @override
    def close(self) -> None:
        with _asking(self._guard, "client"):
            self._client.close()


def _params(query: NamedVector, corpus: PointFilter) -> models.SearchParams | None:
    # a search of dense vectors rejects a corpus
    if not corpus or not isinstance(query.vector, SparseVector):
        return None
    return models.SearchParams(idf=models.IdfCorpusParams(corpus=filter_of(corpus)))


# Writes go through the leader of each shard, so that all replicas apply them in the same order.
_IN_ORDER = models.WriteOrdering.STRONG


class _ServerCollection(PointCollection):
    """One collection of a server. Every call of the client holds `guard`."""

    def __init__(self, client: QdrantClient, name: str, guard: AbstractContextManager[object]) -> None:
        self._client = client
        self._name = name
        self._guard = guard

    def ensure(self, vectors: VectorSchema, indexes: Indexes) -> None:
        """Create the collection and its payload indexes if missing; safe with concurrent processes."""
        with self._asking():
            if not self._client.collection_exists(self._name):
                self._create(vectors)
            existing = self._client.get_collection(self._name).payload_schema
            for key in indexes.keys() - existing.keys():
                self._client.create_payload_index(self._name, key, _SCHEMA[indexes[key]], wait=True)

    @override
    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points in bounded batches."""
        for batch in batches(points):
            with self._asking():
                structs = [struct(point) for point in batch]
                _assert_done(self._client.upsert(self._name, structs, wait=True, ordering=_IN_ORDER))

    @override
    def delete(self, ids: Sequence[str]) -> None:
        if ids:
            with self._asking():
                selected = models.PointIdsList(points=list(ids))
                _assert_done(self._client.delete(self._name, selected, wait=True, ordering=_IN_ORDER))

    @override
    def set_payload(self, payload: Payload, where: PointFilter) -> None:
        with self._asking():
            selected = filter_of(where)
            _assert_done(self._client.set_payload(self._name, payload, selected, wait=True, ordering=_IN_ORDER))

    @override
    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        wanted = True if keys is None else list(keys)
        with self._asking():
            found = self._client.retrieve(self._name, list(ids), with_payload=wanted)
        return {str(point.id): point.payload or {} for point in found}

    @override
    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        requests = [
            models.QueryRequest(
                filter=filter_of((AnyOf(key, (value,)),)), limit=1, with_payload=list(keys), with_vector=True
            )
            for value in values
        ]
        with self._asking():
            answers = self._client.query_batch_points(self._name, requests)
        found = {value: answer.points for value, answer in zip(values, answers, strict=True)}
        return {value: point_from(points[0]) for value, points in found.items() if points}

    @override
    def query(
        self, vectors: Sequence[NamedVector], where: PointFilter, limit: int, corpus: PointFilter = ()
    ) -> list[Scores]:
        only = filter_of(where)
        requests = [
            models.QueryRequest(
                query=struct_vector(query.vector),
                using=query.name,
                filter=only,
                limit=limit,
                params=_params(query, corpus),
            )
            for query in vectors
        ]
        with self._asking():
            answers = self._client.query_batch_points(self._name, requests)
        return [{str(point.id): point.score for point in found.points} for found in answers]

    @override
    def facet(self, key: str, where: PointFilter, limit: int) -> dict[int | str, int]:
        with self._asking():
            response = self._client.facet(self._name, key, filter_of(where), limit, exact=True)
        return {hit.value: hit.count for hit in response.hits}

    @override
    def count(self, where: PointFilter) -> int:
        with self._asking():
            return self._client.count(self._name, filter_of(where), exact=True).count

    @override
    def scroll(
        self, where: PointFilter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        wanted = True if keys is None else list(keys)
        with self._asking():
            records, following = self._client.scroll(
                self._name, filter_of(where), limit, offset=offset, with_payload=wanted
            )
        return [record.payload or {} for record in records], None if following is None else str(following)

    @override
    def close(self) -> None:
        """Close the client, which all collections share."""
        with self._asking():
            self._client.close()

    def _create(self, vectors: VectorSchema) -> None:
        try:
            self._client.create_collection(
                self._name,
                vectors_config={
                    name: models.VectorParams(size=vectors.dimension, distance=models.Distance.COSINE)
                    for name in vectors.dense
                },
                sparse_vectors_config={
                    name: models.SparseVectorParams(modifier=models.Modifier.IDF) for name in vectors.sparse
                },
            )
        except UnexpectedResponse:
            if not self._client.collection_exists(self._name):  # another process may have created it
                raise

    def _asking(self) -> AbstractContextManager[None]:
        return _asking(self._guard, self._name)


@contextmanager
def _asking(guard: AbstractContextManager[object], collection: str) -> Generator[None]:
    with guard:
        try:
            yield
        except UnexpectedResponse as error:
            raise _refusal(error, collection) from error
        except (ApiException, QdrantException) as error:
            raise IndexUnavailable(f"Qdrant, collection {collection}: {error}") from error
        except ValueError as error:
            if not _LOCALLY_GONE.search(str(error)):
                raise
            raise IndexLost(f"Qdrant has no collection {collection}") from error


def _assert_done(result: models.UpdateResult) -> None:
    """Raise IndexUnavailable if Qdrant has only acknowledged a write: sums read next would miss it."""
    if result.status is not models.UpdateStatus.COMPLETED:
        raise IndexUnavailable(f"Qdrant has not carried out a write in time: {result.status}")


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


def _refusal(error: UnexpectedResponse, collection: str) -> ConfigInvalid | IndexUnavailable:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return IndexLost(f"Qdrant has no collection {collection}")
    if error.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ConfigInvalid(f"QDRANT_API_KEY: Qdrant refuses it ({error.status_code})")
    return IndexUnavailable(f"Qdrant answered {error}")
