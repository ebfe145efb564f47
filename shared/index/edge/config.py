"""The configuration of a Qdrant Edge shard."""

from __future__ import annotations

from qdrant_edge import Distance, EdgeConfig, EdgeOptimizersConfig, EdgeSparseVectorParams, EdgeVectorParams, Modifier

from shared.index.points import VectorSchema

# Qdrant Edge holds the GIL while it builds an HNSW graph, so no graph is built and every search is exact.
_NO_HNSW = EdgeOptimizersConfig(indexing_threshold=0)

# A single thread is the caller's own. By default, four threads for each core wait for work that a search hands over.
_SEARCH_THREADS = 1


def shard_config(schema: VectorSchema) -> EdgeConfig:
    """Return the configuration of a shard with these vectors; searches compare all vectors in scope."""
    if not schema.dense:
        # a shard must declare some vector; a sparse one costs nothing while no point has it
        return EdgeConfig(sparse_vectors={"none": EdgeSparseVectorParams()}, max_search_threads=_SEARCH_THREADS)
    return EdgeConfig(
        vectors={name: EdgeVectorParams(schema.dimension, Distance.Cosine) for name in schema.dense},
        sparse_vectors={name: EdgeSparseVectorParams(modifier=Modifier.Idf) for name in schema.sparse},
        optimizers=_NO_HNSW,
        max_search_threads=_SEARCH_THREADS,
    )
