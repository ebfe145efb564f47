"""The only package that talks to Qdrant: one contract, two engines."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from shared.errors import ConfigInvalid

if TYPE_CHECKING:
    from shared.index.points import Engine
    from shared.index.versions import IndexStore
    from shared.settings import Settings


DEFAULT_PORT = 6333
TIMEOUT_S = 5.0
_NOT_FOUND = 404  # of a path that leads elsewhere; every Qdrant that is supported has `/readyz`


def open_store(settings: Settings) -> IndexStore:
    """Return the index with all its versions.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: another process uses the directory, the server refuses the key, or the engine's package
            is not installed.
    """
    from shared.index.versions import IndexStore  # noqa: PLC0415  # numpy, which a producer does not need

    return IndexStore(open_engine(settings))


def open_engine(settings: Settings) -> Engine:
    """Return the Qdrant server at QDRANT_URL; without this setting, Qdrant Edge in `data_dir`.

    Raises:
        ConfigInvalid: the directory cannot be created, or the engine's package is not installed.
    """
    try:
        if settings.qdrant_url:
            with _without_fastembed():
                from shared.index.client import ServerClient  # noqa: PLC0415  # a second to import
                from shared.index.server import ServerEngine  # noqa: PLC0415  # as above

                client = ServerClient(settings.qdrant_url, settings.qdrant_api_key)
            return ServerEngine(client, settings.qdrant_collection)
        from shared.index.edge import EdgeEngine  # noqa: PLC0415  # in no image that has a server

        return EdgeEngine(settings.data_dir / "index")
    except ModuleNotFoundError as error:
        setting = "set" if settings.qdrant_url else "not set"
        raise ConfigInvalid(f"QDRANT_URL is {setting}, which needs the package {error.name}") from error


def addresses(url: str) -> tuple[str, ...]:
    """Return the addresses in `url`, which commas separate, each with its port and without a final slash."""
    found: list[str] = []
    for address in url.split(","):
        if address.strip():
            parts = urlsplit(address.strip().rstrip("/"))
            found.append((parts if parts.port else parts._replace(netloc=f"{parts.netloc}:{DEFAULT_PORT}")).geturl())
    return tuple(found)


def unreachable_reason(url: str) -> str | None:
    """Return the reason why no server at the addresses in `url` answers, None if one does."""
    import httpx2  # noqa: PLC0415  # a producer does not ask; Qdrant's client takes seconds to import

    reasons: list[str] = []
    for address in addresses(url):
        try:
            response = httpx2.get(f"{address}/readyz", timeout=TIMEOUT_S)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        is_other = response.is_redirect or response.status_code == _NOT_FOUND
        if not (response.is_server_error or is_other or "html" in response.headers.get("content-type", "")):
            return None
        reasons.append(f"HTTP {response.status_code}, which is not the answer of a Qdrant that is ready")
    return reasons[0]


@contextmanager
def _without_fastembed() -> Generator[None]:
    """Let Qdrant's client be imported and made without fastembed, which would embed texts for it.

    Toolscale embeds by itself, and most processes never: fastembed and ONNX Runtime take 2 s and 40 MB.
    """
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    if "fastembed" in modules:
        yield
        return
    modules["fastembed"] = None
    try:
        yield
    finally:
        del modules["fastembed"]
