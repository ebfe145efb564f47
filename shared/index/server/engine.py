"""The index on a Qdrant server, shared by any number of processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from qdrant_client import models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from typing_extensions import override

from shared.collection_options import CollectionOptions
from shared.errors import ConfigInvalid, IndexLost, IndexUnavailable
from shared.index.engine import CollectionSpec, Engine
from shared.index.points import (
    Filter,
    Indexes,
    IndexKind,
    NamedVector,
    Payload,
    Point,
    PointCollection,
    Scores,
    VectorSchema,
    any_of,
    must,
)
from shared.index.server.client import ServerClient
from shared.index.server.creation import parameters, with_replicas
from shared.index.server.points import batches
from shared.index.server.requests import IN_ORDER, Requests, searches

_KEYWORD, _INTEGER = models.KeywordIndexType.KEYWORD, models.IntegerIndexType.INTEGER
_SCHEMA: Mapping[IndexKind, models.KeywordIndexParams | models.IntegerIndexParams] = {
    "keyword": models.KeywordIndexParams(type=_KEYWORD),
    "exact keyword": models.KeywordIndexParams(type=_KEYWORD, enable_hnsw=False),
    "integer": models.IntegerIndexParams(type=_INTEGER),
    "count": models.IntegerIndexParams(type=_INTEGER, lookup=True, range=False, enable_hnsw=False),
}


# A collection that another process is creating exists, and its nodes answer 404 or 500 until they can read it.
CREATION_S = 20.0
_BEING_CREATED = (HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR)


class ServerEngine(Engine):
    """The collections of a server; those that it creates get the options."""

    def __init__(self, client: ServerClient, options: CollectionOptions | None = None) -> None:
        self._client = client
        self._options = options or CollectionOptions()

    @override
    def ensure(self, spec: CollectionSpec) -> None:
        self.collection(spec).ensure(spec.vectors, spec.indexes)

    @override
    def collection(self, spec: CollectionSpec) -> _ServerCollection:
        return _ServerCollection(self._client, spec.name, self._options)

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


class _ServerCollection(PointCollection):
    def __init__(self, client: ServerClient, name: str, options: CollectionOptions) -> None:
        self._client = client
        self._name = name
        self._options = options
        self._requests = Requests(client, name)

    def ensure(self, vectors: VectorSchema, indexes: Indexes) -> None:
        """Create the collection and its payload indexes if missing, and return when it can be read.

        Safe with concurrent processes, one of which creates it.
        """
        until = time.monotonic() + CREATION_S
        with _asking(self._name):
            while not self._is_ready(vectors, indexes, until):
                time.sleep(0.1)

    def _is_ready(self, vectors: VectorSchema, indexes: Indexes, until: float) -> bool:
        """Create the missing parts; return False while another process is creating the collection."""
        if not self._client.collection_exists(self._name):
            self._create(vectors)
        try:
            existing = self._client.get_collection(self._name).payload_schema
            for key in indexes.keys() - existing.keys():
                self._client.create_payload_index(self._name, key, _SCHEMA[indexes[key]], wait=True)
            self._client.scroll(self._name, limit=1, with_payload=False)
        except UnexpectedResponse as error:
            if error.status_code not in _BEING_CREATED or time.monotonic() > until:
                raise
            return False
        return True

    @override
    def upsert(self, points: Sequence[Point]) -> None:
        """Write these points in bounded batches."""
        for batch in batches(points):
            with _asking(self._name):
                _assert_done(self._requests.upsert(batch))

    @override
    def delete(self, ids: Sequence[str]) -> None:
        if ids:
            with _asking(self._name):
                selected = models.PointIdsList(points=list(ids))
                _assert_done(self._client.delete(self._name, selected, wait=True, ordering=IN_ORDER).status)

    @override
    def set_payload(self, payload: Payload, where: Filter) -> None:
        with _asking(self._name):
            selected = models.Filter.model_validate(where)
            written = self._client.set_payload(self._name, payload, selected, wait=True, ordering=IN_ORDER)
            _assert_done(written.status)

    @override
    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        with _asking(self._name):
            return self._requests.retrieve(ids, True if keys is None else list(keys))

    @override
    def sample_by_value(self, key: str, values: Sequence[str], keys: Sequence[str]) -> dict[str, Point]:
        with _asking(self._name):
            samples = self._requests.sample([must(any_of(key, (value,))) for value in values], list(keys))
        return {value: point for value, point in zip(values, samples, strict=True) if point}

    @override
    def query(
        self, vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None = None
    ) -> list[Scores]:
        batch = searches(vectors, where, limit, corpus)
        with _asking(self._name):
            return self._requests.search(batch)

    @override
    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        with _asking(self._name):
            return self._requests.facet(key, where, limit)

    @override
    def count(self, where: Filter) -> int:
        with _asking(self._name):
            return self._requests.count(where)

    @override
    def scroll(
        self, where: Filter, limit: int, offset: str | None = None, keys: Sequence[str] | None = None
    ) -> tuple[list[Payload], str | None]:
        with _asking(self._name):
            return self._requests.scroll(where, limit, offset, True if keys is None else list(keys))

    @override
    def close(self) -> None:
        """Close the client, which all collections share."""
        with _asking(self._name):
            self._client.close()

    def _create(self, vectors: VectorSchema) -> None:
        options = with_replicas(self._options, self._client)
        try:
            self._client.create_collection(self._name, **parameters(vectors, options))
        except UnexpectedResponse:
            if not self._client.collection_exists(self._name):  # another process may have created it
                raise


@contextmanager
def _asking(collection: str) -> Generator[None]:
    try:
        yield
    except UnexpectedResponse as error:
        raise _refusal(error, collection) from error
    except (ApiException, QdrantException) as error:
        raise IndexUnavailable(f"Qdrant, collection {collection}: {error}") from error


def _assert_done(status: str) -> None:
    """Raise IndexUnavailable if Qdrant has only acknowledged a write: sums read next would miss it."""
    if status != models.UpdateStatus.COMPLETED:
        raise IndexUnavailable(f"Qdrant has not carried out a write in time: {status}")


def _refusal(error: UnexpectedResponse, collection: str) -> ConfigInvalid | IndexUnavailable:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return IndexLost(f"Qdrant has no collection {collection}")
    if error.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ConfigInvalid(f"QDRANT_API_KEY: Qdrant refuses it ({error.status_code})")
    return IndexUnavailable(f"Qdrant answered {error}")
