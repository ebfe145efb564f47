"""How Qdrant Edge keeps and searches vectors."""

from __future__ import annotations

from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeSparseVectorParams,
    EdgeVectorParams,
    HnswIndexConfig,
    Modifier,
    QuantizationSearchParams,
    ScalarQuantizationConfig,
    ScalarType,
    SearchParams,
)

from shared.index.points import VectorSchema

# A graph walks over vectors of one byte a number; twice as many candidates as asked for are then compared exactly.
DENSE_SEARCH = SearchParams(quantization=QuantizationSearchParams(rescore=True, oversampling=2.0))

_GRAPH = HnswIndexConfig(m=16, ef_construct=64, full_scan_threshold=1_000)
_BYTES = ScalarQuantizationConfig(ScalarType.Int8)
_NO_GRAPHS_HERE = EdgeOptimizersConfig(indexing_threshold=0)
# in KiB: everything; and one segment, since each has a graph of its own to be walked over
_GRAPH_OVER_ALL = EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1)


def searching(schema: VectorSchema) -> EdgeConfig:
    """Return the configuration of a shard in use: graphs are searched, and none is built."""
    return _config(schema, _NO_GRAPHS_HERE)


def building(schema: VectorSchema) -> EdgeConfig:
    """Return the same for optimising the shard, which then builds a graph."""
    return _config(schema, _GRAPH_OVER_ALL)


def _config(schema: VectorSchema, optimizers: EdgeOptimizersConfig) -> EdgeConfig:
    if not schema.dense:
        # a shard must declare some vector; a sparse one costs nothing while no point has it
        return EdgeConfig(sparse_vectors={"none": EdgeSparseVectorParams()})
    return EdgeConfig(
        vectors={name: EdgeVectorParams(schema.dimension, Distance.Cosine) for name in schema.dense},
        sparse_vectors={name: EdgeSparseVectorParams(modifier=Modifier.Idf) for name in schema.sparse},
        hnsw_config=_GRAPH,
        quantization_config=_BYTES,
        optimizers=optimizers,
    )
