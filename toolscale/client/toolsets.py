"""The toolsets of a catalogue: in its index, or through the service that holds the index."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from shared.errors import IndexHeld
from shared.index.versions import open_index_versions
from shared.text.embedding import FastEmbedder
from shared.toolset import Toolset
from toolscale.client.instance import service_url
from toolscale.client.requests import request_json

if TYPE_CHECKING:
    from shared.settings import Settings


class Toolsets(Protocol):
    """The stored toolsets."""

    def toolsets(self) -> list[Toolset]:
        """Return all toolsets, ordered by name."""
        ...

    def put_toolset(self, toolset: Toolset) -> None:
        """Write a toolset, replacing the one of this name."""
        ...


@contextmanager
def open_toolsets(settings: Settings, url: str | None = None, token: str | None = None) -> Generator[Toolsets]:
    """Yield the toolsets of a service at this URL, or by default of the index in the settings.

    Raises:
        ServiceUnreachable: the URL, or the process that holds the index, does not answer.
        ServiceRejected: the token has no permission.
        IndexUnavailable: Qdrant does not answer.
    """
    if url:
        yield _ServedToolsets(url, token)
        return
    try:
        versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    except IndexHeld:
        yield _ServedToolsets(service_url(settings), token)
        return
    with closing(versions.store):
        versions.ensure_own_version()
        yield versions.current()[0].index


@dataclass(frozen=True, slots=True)
class _ServedToolsets(Toolsets):
    url: str
    token: str | None

    def toolsets(self) -> list[Toolset]:
        found = request_toolsets("GET", "", self.url, self.token)["toolsets"]
        return [Toolset.model_validate(toolset, extra="ignore") for toolset in found]

    def put_toolset(self, toolset: Toolset) -> None:
        body = toolset.model_dump(mode="json", exclude_none=True)
        request_toolsets("PUT", f"/{quote(toolset.name, safe='')}", self.url, self.token, body)


def request_toolsets(method: str, path: str, url: str, token: str | None, body: object = None) -> Any:
    """Return the JSON of the response; None for an empty response.

    Raises: the errors of `request_json`.
    """
    return request_json(method, f"/toolsets{path}", url, token, body, permission="toolsets:write")
