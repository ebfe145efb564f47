"""Searches on a Qdrant server: ids and scores, without the client's models, which take longer than the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from qdrant_client import QdrantClient, models
from typing_extensions import TypedDict

from shared.catalog import SparseVector
from shared.index.points import NamedVector, PointFilter, Scores
from shared.index.server.points import filter_of, struct_vector

_URL = "/collections/{collection_name}/points/query/batch"
_HEADERS = {"Content-Type": "application/json"}


class Search(TypedDict):
    """One search of a batch, as Qdrant reads it."""

    query: models.SparseVector | list[float]
    using: str
    filter: models.Filter
    limit: int
    params: models.SearchParams


class _Found(TypedDict):
    id: str
    score: float


class _List(TypedDict):
    points: list[_Found]


class _Response(TypedDict):
    result: list[_List]


def searches(vectors: Sequence[NamedVector], where: PointFilter, limit: int, corpus: PointFilter) -> Sequence[Search]:
    """Return a search for each vector; IDF is computed over the points of `corpus`."""
    only, params = filter_of(where), models.SearchParams(idf=models.IdfCorpusParams(corpus=filter_of(corpus)))
    return [
        Search(
            query=struct_vector(query.vector),
            using=query.name,
            filter=only,
            limit=limit,
            # a search of dense vectors rejects a corpus
            params=params if corpus and isinstance(query.vector, SparseVector) else models.SearchParams(),
        )
        for query in vectors
    ]


def search(client: QdrantClient, collection: str, batch: Sequence[Search]) -> list[Scores]:
    """Return the scores by point id of each search, in one request."""
    response: _Response = client.http.client.request(
        type_=_Response,
        method="POST",
        url=_URL,
        path_params={"collection_name": collection},
        headers=_HEADERS,
        content=to_json({"searches": batch}, exclude_none=True),
    )
    return [{point["id"]: point["score"] for point in found["points"]} for found in response["result"]]


def search_locally(client: QdrantClient, collection: str, batch: Sequence[Search]) -> list[Scores]:
    """Return the same of a client in local mode, which makes no requests."""
    requests = [models.QueryRequest.model_validate(each) for each in batch]
    found: Any = client.query_batch_points(collection, requests)
    return [{str(point.id): point.score for point in each.points} for each in found]
