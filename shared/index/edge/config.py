"""The configuration of a Qdrant Edge shard."""

from __future__ import annotations

from typing import Any

from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeSparseVectorParams,
    EdgeVectorParams,
    Modifier,
    VectorStorageDatatype,
)

from shared.index.points import VectorSchema

# Qdrant Edge holds the GIL while it builds an HNSW graph, so no graph is built and every search is exact.
_NO_HNSW = EdgeOptimizersConfig(indexing_threshold=0)

# A single thread is the caller's own. By default, four threads for each core wait for work that a search hands over.
_SEARCH_THREADS = 1


def new_shard(schema: VectorSchema) -> EdgeConfig:
    """Return the configuration of a shard with these vectors; searches compare all vectors in scope."""
    dense = {
        name: EdgeVectorParams(schema.dimension, Distance.Cosine, datatype=VectorStorageDatatype.Float16)
        for name in schema.dense
    }
    return EdgeConfig(vectors=dense or None, **_options(schema))


def existing_shard(schema: VectorSchema) -> EdgeConfig:
    """Return the configuration to open a shard, whose dense vectors keep the type of their numbers."""
    return EdgeConfig(**_options(schema))


def _options(schema: VectorSchema) -> dict[str, Any]:
    # a shard must declare some vector; a sparse one costs nothing while no point has it
    sparse = {name: EdgeSparseVectorParams(modifier=Modifier.Idf) for name in schema.sparse}
    return {
        "sparse_vectors": sparse or {"none": EdgeSparseVectorParams()},
        "optimizers": _NO_HNSW,
        "max_search_threads": _SEARCH_THREADS,
    }
