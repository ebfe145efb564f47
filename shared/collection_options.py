"""The options of the collections that Toolscale creates on a Qdrant server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000)]


class CollectionOptions(BaseModel):
    """Options of Qdrant, under the names of its API; None leaves an option to the server.

    `replication_factor` is by default 2 on a cluster of two or more nodes. `on_disk` is for vectors and the sparse
    index. `quantization` keeps vectors of one byte per dimension in memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shard_number: Count | None = None
    replication_factor: Count | None = None
    write_consistency_factor: Count | None = None
    on_disk: bool | None = None
    on_disk_payload: bool | None = None
    quantization: Literal["int8"] | None = None
