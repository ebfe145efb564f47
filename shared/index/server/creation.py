"""The parameters of a collection on a Qdrant server: those to create it with, and those that it has."""

from __future__ import annotations

from collections import Counter
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


def deviations(client: QdrantClient, name: str, options: CollectionOptions) -> list[str]:
    """Return the options that a collection does not have, with what it has; options without a value are ignored."""
    found = _found(client, name)
    wanted = options.model_dump(exclude_none=True)
    return [
        f"{name}: {option} is {found[option]}, not {value}"
        for option, value in wanted.items()
        if _deviates(option, found.get(option, value), value)
    ]


def _deviates(option: str, found: object, wanted: object) -> bool:
    if option == "replication_factor":
        return isinstance(found, int) and isinstance(wanted, int) and found < wanted
    return found != wanted


def _found(client: QdrantClient, name: str) -> dict[str, object]:
    """Return the options of a collection; the replicas are those of the shard with the fewest active ones."""
    config = client.get_collection(name).config
    params, vectors = config.params, config.params.vectors
    found: dict[str, object] = {
        "shard_number": params.shard_number,
        "replication_factor": _active_replicas(client, name),
        "write_consistency_factor": params.write_consistency_factor,
        "on_disk_payload": params.on_disk_payload,
    }
    if isinstance(vectors, dict) and vectors:
        found["on_disk"] = all(vector.on_disk for vector in vectors.values())
        found["quantization"] = "int8" if isinstance(config.quantization_config, models.ScalarQuantization) else None
    return found


def _active_replicas(client: QdrantClient, name: str) -> int:
    info = client.collection_cluster_info(name)
    replicas = [(shard.shard_id, shard.state) for shard in info.local_shards]
    replicas += [(shard.shard_id, shard.state) for shard in info.remote_shards]
    active = Counter(shard for shard, state in replicas if state is models.ReplicaState.ACTIVE)
    return min((active[shard] for shard, _ in replicas), default=0)
