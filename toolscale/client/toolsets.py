"""The toolsets of a catalogue: in its index, or through the service that holds the index."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import httpx2

from shared.errors import IndexHeld, ServiceRejected, ServiceUnreachable
from shared.index.open_versions import open_index_versions
from shared.text.display import printable
from shared.text.embedding import FastEmbedder
from shared.toolset import Toolset
from toolscale.client.instance import service_url

if TYPE_CHECKING:
    from shared.settings import Settings

_NEEDS_TOKEN = (401, 403)
TIMEOUT_S = 10.0


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

    Raises:
        ServiceUnreachable: it does not answer, or with a server error.
        ServiceRejected: it rejects the request; the message has the reason.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    base = url.rstrip("/").removesuffix("/mcp")
    try:
        with httpx2.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as client:
            response = client.request(method, f"{base}/toolsets{path}", json=body)
    except httpx2.HTTPError as error:
        raise ServiceUnreachable(
            f"{base} does not answer: {type(error).__name__}; is `toolscale serve` running?"
        ) from error
    if response.is_success:
        return response.json() if response.content else None
    if response.status_code in _NEEDS_TOKEN:
        needed = "pass a token with the permission toolsets:write by --token or TOOLSCALE_TOKEN"
        raise ServiceRejected(f"{base} answered {response.status_code}: {needed}")
    message = f"{base} answered {response.status_code}: {printable(response.text[:500])}"
    raise ServiceUnreachable(message) if response.is_server_error else ServiceRejected(message)
