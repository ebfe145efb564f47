"""The filters of a request: the definitions that it excludes, and warnings about names of nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from query.replicas import MAX_NAMESAKES, split_name, without_digest
from shared.catalog import Scope, point_id

if TYPE_CHECKING:
    from query.records import Ledger
    from shared.index.tools import ToolIndex

# More would crowd out the tools of a short answer.
SHOWN = 3
SHOWN_CHARACTERS = 60


def excluded_definitions(
    names: Collection[str], allowed: Scope, representatives: Scope, index: ToolIndex
) -> frozenset[str]:
    """Return the digests of these tools of the allowed scope, named `server:tool` or `tool@digest`.

    The representatives have all definitions of the scope. A name without a server or digest has none here: the filter
    by name excludes it on all servers.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    ids = [point_id(*split_name(name)) for name in names if ":" in name]
    on_servers = {tool.digest for tool in index.get(ids).values() if allowed.contains(tool)} if ids else set[str]()
    shortened = {tool_name for name in names if (tool_name := without_digest(name)) != name}
    found = index.tool_names(shortened, representatives, MAX_NAMESAKES) if shortened else []
    by_digest = {tool.digest for tool in found if f"{tool.name}@{tool.digest[:8]}" in names}
    return frozenset(on_servers | by_digest).difference({""})


def filter_warnings(
    servers: Sequence[str] | None, groups: Sequence[str] | None, allowed: Scope, ledger: Ledger
) -> list[str]:
    """Return sentences about these servers and groups without a tool of the allowed scope, as of the last refresh.

    An unknown name comes with the nearest names of the scope.
    """
    return [
        *_shortened(_server_warnings(servers or (), allowed, ledger)),
        *_shortened(_group_warnings(groups or (), allowed, ledger)),
    ]


def _server_warnings(names: Sequence[str], allowed: Scope, ledger: Ledger) -> list[str]:
    statuses = {name: _status(name, allowed, ledger) for name in names}
    unknown = [name for name, status in statuses.items() if status is None]
    known = [record.server_id for record in ledger.records(allowed)] if unknown else []
    return [
        *(f"There is no server {_nearest(name, known)}." for name in unknown),
        *(
            f"The server {name} is {status}, so its tools are not shown."
            for name, status in statuses.items()
            if status not in (None, "running")
        ),
    ]


def _group_warnings(names: Sequence[str], allowed: Scope, ledger: Ledger) -> list[str]:
    unknown = [name for name in names if not _has_servers(name, allowed, ledger)]
    records = ledger.records(allowed) if unknown else []
    known = {group for record in records for group in record.groups if _is_allowed(group, allowed)}
    return [f"There is no running server in the group {_nearest(name, known)}." for name in unknown]


def _status(name: str, allowed: Scope, ledger: Ledger) -> str | None:
    """Return the status of a server of the scope; None: the scope has no such server."""
    record = ledger.record(name)
    return record.status if record and replace(allowed, status=record.status).admits(record) else None


def _has_servers(group: str, allowed: Scope, ledger: Ledger) -> bool:
    return _is_allowed(group, allowed) and bool(ledger.revisions(replace(allowed, groups=frozenset({group}))))


def _is_allowed(group: str, allowed: Scope) -> bool:
    return allowed.groups is None or group in allowed.groups


def _nearest(name: str, known: Iterable[str]) -> str:
    shown = name[:SHOWN_CHARACTERS]
    nearest = get_close_matches(shown, sorted(known), n=SHOWN)
    return f"{shown!r} that you may see" + (f"; the nearest: {', '.join(nearest)}" if nearest else "")


def _shortened(warnings: list[str]) -> list[str]:
    rest = len(warnings) - SHOWN
    return [*warnings[:SHOWN], f"Further names without tools: {rest}."] if rest > 0 else warnings
