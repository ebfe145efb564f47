"""The engines that the index's contract is tested on."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from shared.index.contract import ToolIndex
from tests.support.fakes import DIMENSION, FakeIndex
from tests.support.indexes import index_on, open_edge
from tests.support.own_collections import own_collections

QDRANT_URL = os.environ.get("QDRANT_URL")
ENGINES = ("fake", "edge", *(["server"] if QDRANT_URL else []))


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


_MADE = {"fake": _fake, "edge": _edge}


@contextmanager
def _on_server() -> Generator[ToolIndex]:
    with own_collections(str(QDRANT_URL)) as engine:
        yield index_on(engine, "tools", DIMENSION)
