"""The only package that talks to Qdrant: one contract, two implementations."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.errors import ConfigInvalid
from shared.index.contract import collection_name

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.index.engine import Engine
    from shared.index.versions import IndexStore
    from shared.settings import Settings


def open_store(settings: Settings) -> IndexStore:
    """Return the index with all its editions: on the server at QDRANT_URL, without one on disk in `data_dir`.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: another process uses the directory, the server refuses the key, or the engine's package
            is not installed.
    """
    from shared.index.versions import IndexStore  # noqa: PLC0415  # numpy, which a producer does not need

    with _named(settings):
        return IndexStore(_engine(settings))


def open_index(settings: Settings, model: str, dimension: int) -> ToolIndex:
    """Return the index over this model's edition alone, in service or not, created where it is missing.

    Raises: as `open_store` does.
    """
    name = collection_name(model, dimension)
    with _named(settings):
        return _open(settings, name, dimension)


def _engine(settings: Settings) -> Engine:
    if settings.qdrant_url:
        from shared.index.server.engine import ServerEngine, connect  # noqa: PLC0415  # 3 s to import

        return ServerEngine(connect(settings.qdrant_url, settings.qdrant_api_key))
    from shared.index.edge.engine import EdgeEngine  # noqa: PLC0415  # in no image that has a server

    return EdgeEngine(settings.data_dir / "index")


def _open(settings: Settings, name: str, dimension: int) -> ToolIndex:
    if settings.qdrant_url:
        from shared.index.server.engine import open_server  # noqa: PLC0415  # 3 s to import

        return open_server(settings.qdrant_url, settings.qdrant_api_key, name, dimension)
    from shared.index.edge.engine import open_edge  # noqa: PLC0415  # in no image that has a server

    return open_edge(settings.data_dir / "index", name, dimension)


@contextmanager
def _named(settings: Settings) -> Generator[None]:
    """Name the setting that asks for a package which is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        setting = "set" if settings.qdrant_url else "not set"
        raise ConfigInvalid(f"QDRANT_URL is {setting}, which needs the package {error.name}") from error
