"""The index on a Qdrant server, shared by any number of processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Generic, Literal, NotRequired, TypeVar
from urllib.parse import quote

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from qdrant_client import models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse
from typing_extensions import TypedDict, override

from shared.catalog import SparseVector
from shared.errors import ConfigInvalid, IndexLost, IndexUnavailable
from shared.index.client import ServerClient
from shared.index.points import (
    CollectionSpec,
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
from shared.settings import CollectionOptions

# A collection that another process is creating exists, and its nodes answer 404 or 500 until they can read it.
CREATION_S = 20.0
_BEING_CREATED = (HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR)

# One node may die, and the others answer with all points.
CLUSTER_REPLICAS = 2

# With up to four bytes per character, a request has less than the server's default limit of 32 MB.
BATCH_POINTS = 256
BATCH_CHARACTERS = 4_000_000

# Writes go through a leader of each shard, so that all replicas apply them in the same order. The leader is a living
# replica: a permanent leader, of the ordering "strong", would stop all writes of its shards while its node is down.
_IN_ORDER = models.WriteOrdering.MEDIUM

_KEYWORD, _INTEGER = models.KeywordIndexType.KEYWORD, models.IntegerIndexType.INTEGER
_SCHEMA: Mapping[IndexKind, models.KeywordIndexParams | models.IntegerIndexParams] = {
    "keyword": models.KeywordIndexParams(type=_KEYWORD),
    "exact keyword": models.KeywordIndexParams(type=_KEYWORD, enable_hnsw=False),
    "integer": models.IntegerIndexParams(type=_INTEGER),
    "count": models.IntegerIndexParams(type=_INTEGER, lookup=True, range=False, enable_hnsw=False),
}
_WORDS_CHARACTERS = 500

_INT8 = models.ScalarQuantization(
    scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True),
)

T = TypeVar("T")


class ServerEngine(Engine):
    """The collections of a server; those that it creates get the options."""

    def __init__(self, client: ServerClient, options: CollectionOptions | None = None) -> None:
        self._client = client
        self._options = options or CollectionOptions()

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        """Create the collection and its payload indexes if missing, and return when it can be read.

        Safe with concurrent processes, one of which creates it.
        """
        until = time.monotonic() + CREATION_S
        with _asking(spec.name):
            while not self._is_ready(spec, until):
                time.sleep(0.1)

    @override
    def collection(self, spec: CollectionSpec) -> ServerCollection:
        return ServerCollection(self._client, spec.name)

    @override
    def exists(self, name: str) -> bool:
        with _asking(name):
            return self._client.collection_exists(name)

    @override
    def names(self) -> list[str]:
        with _asking("names"):
            return sorted(collection.name for collection in self._client.get_collections().collections)

    @override
    def drop(self, name: str) -> None:
        with _asking(name):
            self._client.delete_collection(name)

    @override
    def server_version(self) -> str:
        with _asking("version"):
            return self._client.info().version

    @override
    def close(self) -> None:
        with _asking("client"):
            self._client.close()

    def _is_ready(self, spec: CollectionSpec, until: float) -> bool:
        """Create the missing parts; return False while another process is creating the collection."""
        if not self._client.collection_exists(spec.name):
            self._create(spec)
        try:
            existing = self._client.get_collection(spec.name).payload_schema
            for key in spec.indexes.keys() - existing.keys():
                self._client.create_payload_index(spec.name, key, _SCHEMA[spec.indexes[key]], wait=True)
            self._client.scroll(spec.name, limit=1, with_payload=False)
        except UnexpectedResponse as error:
            if error.status_code not in _BEING_CREATED or time.monotonic() > until:
                raise
            return False
        return True

    def _create(self, spec: CollectionSpec) -> None:
        options = self._options
        dense = models.VectorParams(
            size=spec.dimension,
            distance=models.Distance.COSINE,
            on_disk=options.on_disk,
            datatype=models.Datatype.FLOAT16,
        )
        sparse_index = None if options.on_disk is None else models.SparseIndexParams(on_disk=options.on_disk)
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF, index=sparse_index)
        try:
            self._client.create_collection(
                spec.name,
                vectors_config=dict.fromkeys(spec.dense, dense),
                sparse_vectors_config=dict.fromkeys(spec.sparse, sparse),
                shard_number=options.shard_number,
                replication_factor=options.replication_factor or (CLUSTER_REPLICAS if self._nodes() > 1 else 1),
                write_consistency_factor=options.write_consistency_factor,
                on_disk_payload=options.on_disk_payload,
                quantization_config=_INT8 if options.quantization else None,
            )
        except UnexpectedResponse:
            if not self._client.collection_exists(spec.name):  # another process may have created it
                raise

    def _nodes(self) -> int:
        try:
            # the client's model of this response requires fields that other versions of Qdrant lack
            found: dict[str, Any] = self._client.http.client.request(type_=dict[str, Any], method="GET", url="/cluster")
        except UnexpectedResponse:
            return 1  # a provider may hide its cluster
        return len(found["result"].get("peers", ()))


class ServerCollection(PointCollection):
    """One collection of a server.

    Frequent requests go without the models of Qdrant's client, which take longer than the search.
    """

    content: object = None

    def __init__(self, client: ServerClient, name: str) -> None:
        self._client = client
        self._name = name
        self._path = f"/collections/{quote(name, safe='')}"

    @override
    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points in bounded batches."""
        for batch in batches(points):
            sent = [
                {
                    "id": point.id,
                    "vector": {name: _sent(vector) for name, vector in point.vectors.items()},
                    "payload": point.payload,
                }
                for point in batch
            ]
            path = f"/points?wait=true&ordering={_IN_ORDER.value}"
            # not without nulls, as reads: a payload may have some
            _assert_done(self._ask(_WRITTEN, "PUT", path, to_json({"points": sent}))["status"])

    @override
    def delete(self, ids: Sequence[str]) -> None:
        if ids:
            with _asking(self._name):
                selected = models.PointIdsList(points=list(ids))
                _assert_done(self._client.delete(self._name, selected, wait=True, ordering=_IN_ORDER).status)

    @override
    def set_payload(self, payload: Payload, where: Filter) -> None:
        with _asking(self._name):
            selected = models.Filter.model_validate(where)
            written = self._client.set_payload(self._name, payload, selected, wait=True, ordering=_IN_ORDER)
            _assert_done(written.status)

    @override
    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        records = self._read(_RECORDS, "/points", {"ids": ids, "with_payload": True if keys is None else keys})
        return {record["id"]: record.get("payload") or {} for record in records}

    @override
    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        searches = [
            {"filter": must(any_of(key, (value,))), "limit": 1, "with_payload": keys, "with_vector": True}
            for value in values
        ]
        samples = self._read(_SAMPLES, "/points/query/batch", {"searches": searches})
        return {
            value: _point(sample["points"][0])
            for value, sample in zip(values, samples, strict=True)
            if sample["points"]
        }

    @override
    def query(
        self, vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None = None
    ) -> list[Scores]:
        of_terms = {"idf": {"corpus": corpus}} if corpus else {}
        searches = [
            {
                "query": _sent(question.vector),
                "using": question.name,
                "filter": where,
                "limit": limit,
                # a search of dense vectors rejects a corpus
                "params": of_terms if isinstance(question.vector, SparseVector) else {},
            }
            for question in vectors
        ]
        lists = self._read(_LISTS, "/points/query/batch", {"searches": searches})
        return [{point["id"]: point["score"] for point in found["points"]} for found in lists]

    @override
    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        found = self._read(_FACET, "/facet", {"key": key, "filter": where, "limit": limit, "exact": True})
        return {hit["value"]: hit["count"] for hit in found["hits"]}

    @override
    def count(self, where: Filter) -> int:
        return self._read(_COUNT, "/points/count", {"filter": where, "exact": True})["count"]

    @override
    def scroll(
        self, where: Filter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        asked = {"filter": where, "limit": limit, "offset": offset, "with_payload": True if keys is None else keys}
        page = self._read(_PAGE, "/points/scroll", asked)
        return [record.get("payload") or {} for record in page["points"]], page.get("next_page_offset")

    def _read(self, expected: TypeAdapter[_Answer[T]], path: str, asked: object) -> T:
        return self._ask(expected, "POST", path, to_json(asked, exclude_none=True))

    def _ask(self, expected: TypeAdapter[_Answer[T]], method: Literal["POST", "PUT"], path: str, body: bytes) -> T:
        with _asking(self._name):
            response = self._client.request(method, self._path + path, body)
            try:
                return expected.validate_json(response)["result"]
            except ValidationError as error:
                raise ResponseHandlingException(error) from error


def batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield batches of bounded count and size, in order; a larger point has its own batch."""
    batch: list[Point] = []
    characters = 0
    for point in points:
        size = sum(len(value) for value in point.payload.values() if isinstance(value, str))
        if batch and (len(batch) == BATCH_POINTS or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(point)
        characters += size
    if batch:
        yield batch


class _Answer(TypedDict, Generic[T]):
    result: T


class _Found(TypedDict):
    id: str
    score: float


class _Record(TypedDict):
    id: str
    payload: NotRequired[dict[str, Any] | None]


class _Sparse(TypedDict):
    indices: list[int]
    values: list[float]


class _Sample(_Record):
    vector: dict[str, list[float] | _Sparse]


class _Points(TypedDict, Generic[T]):
    points: list[T]


class _Page(_Points[_Record]):
    next_page_offset: NotRequired[str | None]


class _Hit(TypedDict):
    value: int | str
    count: int


class _Facet(TypedDict):
    hits: list[_Hit]


class _Count(TypedDict):
    count: int


class _Write(TypedDict):
    status: str


class _Refused(TypedDict):
    error: str


class _Refusal(TypedDict):
    status: _Refused


_Problem = TypeAdapter(_Refusal)
_LISTS = TypeAdapter(_Answer[list[_Points[_Found]]])
_RECORDS = TypeAdapter(_Answer[list[_Record]])
_SAMPLES = TypeAdapter(_Answer[list[_Points[_Sample]]])
_PAGE = TypeAdapter(_Answer[_Page])
_FACET = TypeAdapter(_Answer[_Facet])
_COUNT = TypeAdapter(_Answer[_Count])
_WRITTEN = TypeAdapter(_Answer[_Write])


def _sent(vector: Vector) -> object:
    """Return a vector as Qdrant reads it."""
    if isinstance(vector, SparseVector):
        return {"indices": vector.indices, "values": vector.values}
    return vector.tolist()


def _point(stored: _Sample) -> Point:
    vectors = {name: _vector(vector) for name, vector in stored["vector"].items()}
    return Point(stored["id"], stored.get("payload") or {}, vectors)


def _vector(stored: list[float] | _Sparse) -> Vector:
    if isinstance(stored, list):
        return np.asarray(stored, dtype=np.float32)
    return SparseVector(tuple(stored["indices"]), tuple(stored["values"]))


@contextmanager
def _asking(collection: str) -> Generator[None]:
    """Translate errors of Qdrant's client.

    Raises:
        IndexLost: there is no such collection.
        ConfigInvalid: the server refuses the key.
        IndexUnavailable: no address answers, what answers is not Qdrant, or it refuses the request.
    """
    try:
        yield
    except UnexpectedResponse as error:
        words = _words(error.content)
        if error.status_code == HTTPStatus.NOT_FOUND and words is not None:
            raise IndexLost(f"Qdrant has no collection {collection}") from error
        if error.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ConfigInvalid(f"QDRANT_API_KEY: Qdrant refuses it ({error.status_code})") from error
        answer = f"HTTP {error.status_code} {error.reason_phrase}"
        if words is None:  # of a proxy, or of another program
            raise IndexUnavailable(f"{_NO_QDRANT}: {answer}; correct its host, port or path") from error
        raise IndexUnavailable(f"Qdrant at QDRANT_URL answered {answer}: {words}") from error
    except (ApiException, QdrantException, ValueError, AssertionError) as error:
        cause = error.source if isinstance(error, ResponseHandlingException) else error
        if isinstance(cause, (ValueError, AssertionError)):  # it has a part of the answer
            raise IndexUnavailable(f"{_NO_QDRANT}; correct its host, port or path") from error
        reason = " ".join(str(cause).split())
        if "WRONG_VERSION_NUMBER" in reason:
            raise IndexUnavailable("QDRANT_URL begins with https://, and what answers there has no TLS") from error
        raise IndexUnavailable(f"Qdrant at QDRANT_URL does not answer: {reason or type(cause).__name__}") from error


_NO_QDRANT = "what answers at QDRANT_URL is not Qdrant"


def _words(body: bytes) -> str | None:
    """Return the words of Qdrant's own error, None for a body of something else."""
    try:
        document = _Problem.validate_json(body)
    except ValueError:
        return None
    return document["status"]["error"][:_WORDS_CHARACTERS]


def _assert_done(status: str) -> None:
    """Raise IndexUnavailable if Qdrant has only acknowledged a write: sums read next would miss it."""
    if status != models.UpdateStatus.COMPLETED:
        raise IndexUnavailable(f"Qdrant has not carried out a write in time: {status}")
