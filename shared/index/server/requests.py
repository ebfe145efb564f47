"""The frequent requests to a collection, without the models of Qdrant's client, which take longer than the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypeVar
from urllib.parse import quote

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from qdrant_client import models
from qdrant_client.http.exceptions import ResponseHandlingException
from typing_extensions import TypedDict

from shared.catalog import SparseVector
from shared.index.points import Filter, NamedVector, Payload, Point, Scores, Vector
from shared.index.server.client import ServerClient
from shared.index.server.points import sent_vector, sent_vectors

T = TypeVar("T")

Keys = bool | list[str]
"""The keys of a payload that are read; True: all."""

Page = tuple[list[Payload], str | None]
"""Payloads, and the id of the point that follows them."""

# Writes go through a leader of each shard, so that all replicas apply them in the same order. The leader is a living
# replica: a permanent leader, of the ordering "strong", would stop all writes of its shards while its node is down.
IN_ORDER = models.WriteOrdering.MEDIUM


def searches(vectors: Sequence[NamedVector], where: Filter, limit: int, corpus: Filter | None) -> list[object]:
    """Return a search for each vector, as Qdrant reads it; IDF is computed over the points of `corpus`."""
    params = {"idf": {"corpus": corpus}}
    return [
        {
            "query": sent_vector(query.vector),
            "using": query.name,
            "filter": where,
            "limit": limit,
            # a search of dense vectors rejects a corpus
            "params": params if corpus and isinstance(query.vector, SparseVector) else {},
        }
        for query in vectors
    ]


class _Found(TypedDict):
    id: str
    score: float


class _List(TypedDict):
    points: list[_Found]


class _Lists(TypedDict):
    result: list[_List]


class _Record(TypedDict):
    id: str
    payload: NotRequired[dict[str, Any] | None]


class _Records(TypedDict):
    result: list[_Record]


class _Scrolled(TypedDict):
    points: list[_Record]
    next_page_offset: NotRequired[str | None]


class _ScrolledPage(TypedDict):
    result: _Scrolled


class _Sparse(TypedDict):
    indices: list[int]
    values: list[float]


class _Sampled(_Record):
    vector: dict[str, list[float] | _Sparse]


class _Sample(TypedDict):
    points: list[_Sampled]


class _Samples(TypedDict):
    result: list[_Sample]


class _Hit(TypedDict):
    value: int | str
    count: int


class _Facet(TypedDict):
    hits: list[_Hit]


class _Hits(TypedDict):
    result: _Facet


class _Counted(TypedDict):
    count: int


class _Count(TypedDict):
    result: _Counted


class _Write(TypedDict):
    status: str


class _Written(TypedDict):
    result: _Write


_LISTS, _RECORDS, _PAGE = TypeAdapter(_Lists), TypeAdapter(_Records), TypeAdapter(_ScrolledPage)
_SAMPLES, _WRITTEN = TypeAdapter(_Samples), TypeAdapter(_Written)
_HITS, _COUNT = TypeAdapter(_Hits), TypeAdapter(_Count)


class Requests:
    """The frequent requests to one collection."""

    def __init__(self, client: ServerClient, collection: str) -> None:
        self._client = client
        self._path = f"/collections/{quote(collection, safe='')}"

    def search(self, batch: Sequence[object]) -> list[Scores]:
        """Return the scores by point id of each search, in one request."""
        lists = self._read(_LISTS, "/points/query/batch", {"searches": batch})["result"]
        return [{point["id"]: point["score"] for point in found["points"]} for found in lists]

    def retrieve(self, ids: Sequence[str], keys: Keys) -> dict[str, Payload]:
        """Return the payloads of those points that exist, by id."""
        records = self._read(_RECORDS, "/points", {"ids": ids, "with_payload": keys})["result"]
        return {record["id"]: record.get("payload") or {} for record in records}

    def scroll(self, where: Filter, limit: int, offset: str | None, keys: Keys) -> Page:
        """Return at most `limit` payloads in the order of their ids, from the id `offset` on."""
        asked = {"filter": where, "limit": limit, "offset": offset, "with_payload": keys}
        page = self._read(_PAGE, "/points/scroll", asked)["result"]
        return [record.get("payload") or {} for record in page["points"]], page.get("next_page_offset")

    def facet(self, key: str, where: Filter, limit: int) -> dict[int | str, int]:
        """Return the exact number of matching points by value, for at most `limit` values."""
        hits = self._read(_HITS, "/facet", {"key": key, "filter": where, "limit": limit, "exact": True})["result"]
        return {hit["value"]: hit["count"] for hit in hits["hits"]}

    def count(self, where: Filter) -> int:
        """Return the exact number of matching points."""
        return self._read(_COUNT, "/points/count", {"filter": where, "exact": True})["result"]["count"]

    def sample(self, where: Sequence[Filter], keys: Keys) -> list[Point | None]:
        """Return a matching point of each filter with these keys and its vectors, in one request."""
        sought = [{"filter": each, "limit": 1, "with_payload": keys, "with_vector": True} for each in where]
        return _points(self._read(_SAMPLES, "/points/query/batch", {"searches": sought}))

    def upsert(self, points: Sequence[Point]) -> str:
        """Write these points whole, in one request; return the status of the write."""
        sent = [{"id": point.id, "vector": sent_vectors(point), "payload": point.payload} for point in points]
        path = f"{self._path}/points?wait=true&ordering={IN_ORDER.value}"
        response = self._client.request("PUT", path, to_json({"points": sent}))
        return _parsed(_WRITTEN, response)["result"]["status"]

    def _read(self, expected: TypeAdapter[T], path: str, asked: object) -> T:
        return _parsed(expected, self._client.request("POST", self._path + path, to_json(asked, exclude_none=True)))


def _parsed(expected: TypeAdapter[T], response: bytes) -> T:
    try:
        return expected.validate_json(response)
    except ValidationError as error:
        raise ResponseHandlingException(error) from error


def _points(samples: _Samples) -> list[Point | None]:
    return [_point(sample["points"][0]) if sample["points"] else None for sample in samples["result"]]


def _point(stored: _Sampled) -> Point:
    vectors = {name: _vector(vector) for name, vector in stored["vector"].items()}
    return Point(stored["id"], stored.get("payload") or {}, vectors)


def _vector(stored: list[float] | _Sparse) -> Vector:
    if isinstance(stored, list):
        return np.asarray(stored, dtype=np.float32)
    return SparseVector(tuple(stored["indices"]), tuple(stored["values"]))
