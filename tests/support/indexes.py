"""An index over one version, without the store that chooses the active version."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from shared.index import open_engine
from shared.index.points import Engine
from shared.index.records import SERVERS_SPEC, TOOLSETS_SPEC
from shared.index.tools import FACET_LIMIT, ToolIndex
from shared.index.versions import IndexVersion, tools_spec
from shared.settings import Settings


class OpenIndex(ToolIndex):
    """An index over one collection of tools, with missing collections created. It closes its engine."""

    def __init__(self, engine: Engine, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> None:
        spec = replace(tools_spec(IndexVersion("", dimension)), name=collection)
        with ExitStack() as opened:
            opened.callback(engine.close)
            # every version has the collection of servers, so two processes always meet here
            for needed in (SERVERS_SPEC, spec, TOOLSETS_SPEC):
                engine.ensure(needed)
            opened.pop_all()
        tools, servers, toolsets = map(engine.collection, (spec, SERVERS_SPEC, TOOLSETS_SPEC))
        super().__init__(tools, servers, toolsets, facet_limit)
        self.close = engine.close


def open_index(settings: Settings, model: str, dimension: int) -> OpenIndex:
    """Return the index over this model's version, active or not."""
    return OpenIndex(open_engine(settings), IndexVersion(model, dimension).name, dimension)


def open_edge(directory: Path, collection: str, dimension: int, facet_limit: int = FACET_LIMIT) -> OpenIndex:
    """Return the index on Qdrant Edge below `directory`."""
    from shared.index.edge import EdgeEngine

    return OpenIndex(EdgeEngine(directory), collection, dimension, facet_limit)


def open_server(url: str, collection: str, dimension: int) -> OpenIndex:
    """Return the index on the Qdrant server at `url`."""
    from shared.index.client import ServerClient
    from shared.index.server import ServerEngine

    return OpenIndex(ServerEngine(ServerClient(url, None)), collection, dimension)
