"""Batches of requests with positive and negative tools; the same seed draws the same batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.model.data import MISSING, Data, Integers

Floats = NDArray[np.float32]

# Hard negatives are drawn from so many tools, the nearest to a request by the base weights.
NEAREST = 25
# A tool whose text has a higher cosine to a positive's does the same, so it is no negative.
NEAR_DUPLICATE = 0.9
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Base:
    """Unit vectors by the base weights, one row for each request or tool."""

    queries: Floats
    names: Floats
    texts: Floats


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests, and as columns one positive of each, then one hard negative of each."""

    queries: Integers
    """Shape (batch,)."""
    tools: Integers
    """Shape (2 * batch,)."""
    masked: NDArray[np.bool_]
    """Columns that are no negatives of a request, shape (batch, 2 * batch). A request's own positive is not masked."""
    weights: Floats
    """The share of each request in the loss, shape (batch,), mean 1."""


class Sampler:
    """Draws batches of `batch` requests, in a new order in each epoch."""

    def __init__(self, data: Data, base: Base, batch: int, seed: int, style_weights: Mapping[str, float]) -> None:
        self._data = data
        self._base = base
        self._batch = batch
        self._rng = np.random.default_rng(seed)
        self._weights = np.array([style_weights.get(str(style), 1.0) for style in data.styles], dtype=np.float32)
        self._nearest = nearest(data, base)
        self._by_server: list[NDArray[np.integer[Any]]] = [
            np.flatnonzero(data.servers == server) for server in range(data.servers.max() + 1)
        ]

    def epoch(self) -> Iterator[Batch]:
        """Yield batches that contain each request at most once; the last requests of the order are left out."""
        order = self._rng.permutation(len(self._data.queries)).astype(np.int32)
        for start in range(0, len(order) - self._batch + 1, self._batch):
            yield self._drawn(order[start : start + self._batch])

    def _drawn(self, queries: Integers) -> Batch:
        relevant = self._data.relevant[queries]
        positives = [self._one_of(row[row != MISSING]) for row in relevant]
        pairs = zip(queries, positives, strict=True)
        hard = [self._hard(query, tool, place) for place, (query, tool) in enumerate(pairs)]
        tools = np.array([*positives, *hard], dtype=np.int32)
        weights = self._weights[queries]
        return Batch(queries, tools, masked(relevant, tools, self._base.texts), weights / weights.mean())

    def _hard(self, query: int, positive: int, place: int) -> int:
        """Return a tool of the positive's server at even places, and one near the request at odd ones."""
        of_server = self._by_server[int(self._data.servers[positive])]
        siblings = of_server[~np.isin(of_server, self._data.relevant[query])]
        return self._one_of(siblings if place % 2 == 0 and len(siblings) else self._nearest[query])

    def _one_of(self, tools: NDArray[np.integer[Any]]) -> int:
        return int(tools[self._rng.integers(len(tools))])


def masked(relevant: Integers, tools: Integers, texts: Floats) -> NDArray[np.bool_]:
    """Return the columns that are no negatives: a request's positives and their near duplicates.

    `relevant` has shape (batch, most) and is filled with MISSING. Column i below `batch` is the positive of request i,
    and never masked there.
    """
    is_tool = relevant != MISSING
    cosines = texts[relevant] @ texts[tools].T
    # A positive is its own nearest duplicate.
    hidden: NDArray[np.bool_] = ((cosines > NEAR_DUPLICATE) & is_tool[:, :, None]).any(axis=1)
    own = np.arange(len(relevant))
    hidden[own, own] = False
    return hidden


def nearest(data: Data, base: Base) -> Integers:
    """Return the tools nearest to each request that it does not need, shape (requests, at most NEAREST)."""
    count = min(NEAREST, len(data.names) - data.relevant.shape[1])
    found = np.empty((len(data.queries), count), dtype=np.int32)
    for start in range(0, len(found), CHUNK):
        here = slice(start, start + CHUNK)
        scores = closeness(base.queries[here] @ base.names.T, base.queries[here] @ base.texts.T)
        rows, places = np.nonzero(data.relevant[here] != MISSING)
        scores[rows, data.relevant[here][rows, places]] = -np.inf
        found[here] = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return found


def closeness(name: Floats, text: Floats) -> Floats:
    """Return the product's closeness from two cosines: between their mean and their maximum."""
    half = np.float32(0.5)
    return half * (half * (name + text) + np.maximum(name, text))
