"""The engines that the index's contract is tested on."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from shared.index.tools import ToolIndex
from tests.support.fakes import DIMENSION, FakeIndex
from tests.support.indexes import OpenIndex, open_edge
from tests.support.own_collections import own_collections

QDRANT_URL = os.environ.get("QDRANT_URL")
ENGINES = ("fake", "edge", *(["server"] if QDRANT_URL else []))


@contextmanager
def opened(engine: str, directory: Path) -> Generator[ToolIndex]:
    """Yield an empty index on this engine and remove what it held."""
    if engine == "server":
        with own_collections(str(QDRANT_URL)) as server:
            yield OpenIndex(server, "tools", DIMENSION)
    elif engine == "edge":
        with closing(open_edge(directory, "tools", DIMENSION)) as edge:
            yield edge
    else:
        yield FakeIndex()
