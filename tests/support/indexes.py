"""An index over one version, without the store that chooses the active version."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from shared.index import open_engine
from shared.index.contract import IndexVersion
from shared.index.engine import SERVERS_SPEC, TOOLSETS_SPEC, CollectionSpec, Engine
from shared.index.payload import TOOL_INDEXES, tool_vector_schema
from shared.index.tool_index import FACET_LIMIT, QdrantIndex
from shared.settings import Settings


def open_index(settings: Settings, model: str, dimension: int) -> QdrantIndex:
    """Return the index over this model's version, active or not."""
    return index_on(open_engine(settings), IndexVersion(model, dimension).name, dimension)


def open_edge(directory: Path, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> QdrantIndex:
    """Return the index on Qdrant Edge below `directory`."""
    from shared.index.edge.engine import EdgeEngine

    return index_on(EdgeEngine(directory), collection, dimension, facet_limit)


def open_server(url: str, collection: str, dimension: int) -> QdrantIndex:
    """Return the index on the Qdrant server at `url`."""
    from shared.index.server.client import ServerClient
    from shared.index.server.engine import ServerEngine

    return index_on(ServerEngine(ServerClient(url, None)), collection, dimension)


def index_on(engine: Engine, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> QdrantIndex:
    """Return the index over this collection, with missing collections created; closes the engine if this fails."""
    spec = CollectionSpec(collection, tool_vector_schema(dimension), TOOL_INDEXES)
    with ExitStack() as opened:
        opened.callback(engine.close)
        # every version has the collection of servers, so two processes always meet here
        for needed in (SERVERS_SPEC, spec, TOOLSETS_SPEC):
            engine.ensure(needed)
        opened.pop_all()
    servers, toolsets = engine.collection(SERVERS_SPEC), engine.collection(TOOLSETS_SPEC)
    return QdrantIndex(engine.collection(spec), servers, toolsets, facet_limit)
