"""The engines that the index's contract is tested on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from shared.index.contract import SERVERS_COLLECTION, TOOLSETS_COLLECTION, ToolIndex
from tests.support.fakes import DIMENSION, FakeIndex
from tests.support.indexes import index_on, open_edge

QDRANT_URL = os.environ.get("QDRANT_URL")
ENGINES = ("fake", "edge", "local", *(["server"] if QDRANT_URL else []))


@contextmanager
def opened(engine: str, directory: Path) -> Generator[ToolIndex]:
    """Yield an empty index on this engine and remove what it held."""
    if engine == "server":
        with _on_server() as index:
            yield index
    else:
        with closing(_MADE[engine](directory)) as index:
            yield index


def _fake(_directory: Path) -> ToolIndex:
    return FakeIndex()


def _edge(directory: Path) -> ToolIndex:
    return open_edge(directory, "tools", DIMENSION)


def _local(_directory: Path) -> ToolIndex:
    from qdrant_client import QdrantClient  # noqa: TID251  # the adapter under test takes a client

    from shared.index.server.engine import ServerEngine

    return index_on(ServerEngine(QdrantClient(":memory:")), "tools", DIMENSION)


_MADE = {"fake": _fake, "edge": _edge, "local": _local}


@contextmanager
def _on_server() -> Generator[ToolIndex]:
    from shared.index.server.client import ServerClient
    from shared.index.server.engine import ServerEngine

    client = ServerClient(str(QDRANT_URL), os.environ.get("QDRANT_API_KEY"))
    prefix = f"test-{uuid.uuid4().hex[:12]}-"
    try:
        yield index_on(ServerEngine(client, prefix), "tools", DIMENSION)
    finally:
        for name in ("tools", SERVERS_COLLECTION, TOOLSETS_COLLECTION):
            client.delete_collection(prefix + name)
        client.close()
