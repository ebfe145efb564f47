"""`toolscale drift`: the changes of definitions, from the index, or through the service that holds the index."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from rich.table import Table

from query.caller import ANYONE
from query.catalogue import catalogue_of
from query.reports.changes import ChangesRequest, changes_as_object
from shared.errors import IndexHeld
from shared.index.versions import open_index_versions
from shared.text.display import printable
from shared.text.embedding import FastEmbedder
from toolscale.client.instance import service_url
from toolscale.client.requests import request_json

if TYPE_CHECKING:
    from shared.settings import Settings

KIND_WORDS = {"meaning": "meaning changed"}


def changes(
    settings: Settings, asked: ChangesRequest, url: str | None = None, token: str | None = None
) -> dict[str, Any]:
    """Return the JSON of `changes_as_object` from a service at this URL, or by default of the catalogue's settings.

    Raises:
        ServerUnknown, ServiceRejected: there is no such server, or the service rejects the request.
        ServiceUnreachable: the URL, or the process that holds the index, does not answer.
        IndexUnavailable: Qdrant does not answer.
    """
    if url:
        return _served(url, token, asked)
    try:
        versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    except IndexHeld:
        return _served(service_url(settings), token, asked)
    with closing(versions.store):
        versions.ensure_own_version()
        active, _ = versions.current()
        return changes_as_object(ANYONE.scope, catalogue_of(active.index, active.embedder, settings), asked)


def table(found: Collection[dict[str, Any]]) -> Table:
    """Return the changes as a table, in their order."""
    shown = Table(box=None, header_style="bold")
    for column in ("time", "tool", "change"):
        shown.add_column(column, no_wrap=column != "tool", overflow="fold")
    shown.add_column("parts", overflow="fold", ratio=1)
    for change in found:
        name = f"{change['server_id']}:{change['tool']}"
        kind = KIND_WORDS.get(change["kind"], change["kind"])
        shown.add_row(change["at"], printable(name), kind, printable(", ".join(change["parts"])))
    return shown


def lines(change: dict[str, Any]) -> list[str]:
    """Return a change of one server as lines with its diff."""
    kind = KIND_WORDS.get(change["kind"], change["kind"])
    parts = f" ({', '.join(change['parts'])})" if change["parts"] else ""
    return [f"{change['at']} {change['tool']}: {kind}{parts}", *_digests(change), *change["diff"].splitlines(), ""]


def _digests(change: dict[str, Any]) -> list[str]:
    before, after = change["before"], change["after"]
    return [f"digest {before} to {after}"] if change["kind"] == "meaning" and before else []


def _served(url: str, token: str | None, asked: ChangesRequest) -> dict[str, Any]:
    query = urlencode(asked.model_dump(exclude_none=True))
    answer = request_json("GET", f"/ui/changes.json?{query}", url, token, permission="catalog:read")
    return cast("dict[str, Any]", answer)
