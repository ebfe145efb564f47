"""Warnings about filters that name no server or group of the caller's scope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from shared.catalog import Scope

if TYPE_CHECKING:
    from query.savings.ledger import Ledger

# More would crowd out the tools of a short answer.
SHOWN = 3
SHOWN_CHARACTERS = 60


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
