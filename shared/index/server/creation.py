"""The parameters to create a collection with on a Qdrant server."""

from __future__ import annotations

from typing import Any

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from shared.collection_options import CollectionOptions
from shared.index.points import VectorSchema

# One node may die, and the others answer with all points.
CLUSTER_REPLICAS = 2

_INT8 = models.ScalarQuantization(
    scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True),
)


def with_replicas(options: CollectionOptions, client: QdrantClient) -> CollectionOptions:
    """Return the options with a replication factor: 2 on a cluster of two or more nodes, if they have none."""
    if options.replication_factor:
        return options
    return options.model_copy(update={"replication_factor": CLUSTER_REPLICAS if _nodes(client) > 1 else 1})


def _nodes(client: QdrantClient) -> int:
    try:
        # the client's model of this response requires fields that other versions of Qdrant lack
        found: dict[str, Any] = client.http.client.request(type_=dict[str, Any], method="GET", url="/cluster")
    except UnexpectedResponse:
        return 1  # a provider may hide its cluster
    return len(found["result"].get("peers", ()))


def parameters(vectors: VectorSchema, options: CollectionOptions) -> dict[str, Any]:
    """Return the arguments of `create_collection`."""
    on_disk = options.on_disk
    sparse_index = None if on_disk is None else models.SparseIndexParams(on_disk=on_disk)
    return {
        "vectors_config": {
            name: models.VectorParams(
                size=vectors.dimension,
                distance=models.Distance.COSINE,
                on_disk=on_disk,
                datatype=models.Datatype.FLOAT16,
            )
            for name in vectors.dense
        },
        "sparse_vectors_config": {
            name: models.SparseVectorParams(modifier=models.Modifier.IDF, index=sparse_index) for name in vectors.sparse
        },
        "shard_number": options.shard_number,
        "replication_factor": options.replication_factor,
        "write_consistency_factor": options.write_consistency_factor,
        "on_disk_payload": options.on_disk_payload,
        "quantization_config": _INT8 if options.quantization else None,
    }
