"""The only package that talks to Qdrant: one contract, two implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigInvalid
from shared.index.contract import collection_name

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.settings import Settings


def open_index(settings: Settings, model: str, dimension: int) -> ToolIndex:
    """Return the index of this model's vectors: on the server at QDRANT_URL, without one on disk in `data_dir`.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: another process uses the directory, the server refuses the key, or the engine's package
            is not installed.
    """
    name = collection_name(model, dimension)
    try:
        return _open(settings, name, dimension)
    except ModuleNotFoundError as error:
        setting = "set" if settings.qdrant_url else "not set"
        raise ConfigInvalid(f"QDRANT_URL is {setting}, which needs the package {error.name}") from error


def _open(settings: Settings, name: str, dimension: int) -> ToolIndex:
    if settings.qdrant_url:
        from shared.index.server import open_server  # noqa: PLC0415  # 3 s to import

        return open_server(settings.qdrant_url, settings.qdrant_api_key, name, dimension)
    from shared.index.edge import open_edge  # noqa: PLC0415  # in no image that has a server

    return open_edge(settings.data_dir / "index", name, dimension)
