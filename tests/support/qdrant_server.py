"""The Qdrant server at QDRANT_URL, which a run that uses all of it finds empty and leaves empty."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import quote

from shared.settings import load_settings


def qdrant_url() -> str | None:
    """Return where the Qdrant server is, None where the index is Qdrant Edge."""
    return load_settings().qdrant_url


def own_qdrant_url() -> str | None:
    """Return the URL of a Qdrant server without other users; None under xdist, where processes share it."""
    return None if "PYTEST_XDIST_WORKER" in os.environ else qdrant_url()


@contextmanager
def emptied_qdrant() -> Generator[None]:
    """Remove at the end of the block what it wrote to the server; without a server there is nothing to do.

    Raises:
        RuntimeError: the server holds collections already, which may be somebody's.
    """
    url = qdrant_url()
    if url and (held := _collections(url)):
        raise RuntimeError(f"expected an empty Qdrant server at QDRANT_URL, found the collections {', '.join(held)}")
    try:
        yield
    finally:
        if url:
            delete_collections(url)


def delete_collections(url: str) -> None:
    """Delete all that the server holds; for within `emptied_qdrant`, where all of it is the run's own."""
    for name in _collections(url):
        _ask(f"{url}/collections/{quote(name)}", "DELETE")


def _collections(url: str) -> list[str]:
    found = json.loads(_ask(f"{url}/collections"))
    return [str(collection["name"]) for collection in found["result"]["collections"]]


def _ask(url: str, method: str = "GET") -> bytes:
    key = load_settings().qdrant_api_key
    request = urllib.request.Request(url, headers={"api-key": key} if key else {}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())
