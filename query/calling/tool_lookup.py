"""From the name that a caller gives to the one tool it means, within what the caller may see."""

from __future__ import annotations

from dataclasses import replace

from query.catalogue import Catalogue
from query.search.search import best, search
from query.search.steps import embed_steps
from shared.catalog import IndexedTool, Scope, Status
from shared.errors import ServerNotRunning, ToolNotFound

CANDIDATES = 10
NEAREST = 3
_HIDDEN: tuple[Status, ...] = ("stopped", "quarantined")


def locate(name: str, scope: Scope, catalogue: Catalogue, server_id: str | None = None) -> IndexedTool:
    """Return the tool of the scope that `server:tool`, or a tool's name that is no other's, stands for.

    A tool of another server than the one that is named is never returned, whatever it is called; `server_id` names it
    beside a name that may be qualified by it.

    Raises:
        ToolNotFound: there is none of this name, or several; it names those that may have been meant.
        ServerNotRunning: there is one, but its server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
    """
    owner = server_id or _owner(name, scope, catalogue)
    found = _named(name, scope, catalogue, owner)
    if len(found) == 1:
        return found[0]
    if found:
        candidates = sorted(tool.qualified_name for tool in found)
        raise ToolNotFound(name, "is a tool of several servers", tuple(candidates))
    _refuse_hidden(name, scope, catalogue, owner)
    raise ToolNotFound(name, "is no tool that you may use; the nearest", nearest(name, scope, catalogue))


def nearest(name: str, scope: Scope, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the tools of the scope that come closest to a name, as `server:tool`, the closest first.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    steps = embed_steps([name], catalogue.embedder)
    hits = best(search(steps, scope, catalogue.index), NEAREST, catalogue.index)
    return tuple(hit.tool.qualified_name for hit in hits)


def _owner(name: str, scope: Scope, catalogue: Catalogue) -> str | None:
    """Return the server of the scope that a name begins with, whatever its status; a server's id holds no colon."""
    server_id, colon, _ = name.partition(":")
    record = catalogue.index.server(server_id) if colon else None
    return server_id if record and replace(scope, status=record.status).admits(record) else None


def _named(name: str, scope: Scope, catalogue: Catalogue, owner: str | None) -> list[IndexedTool]:
    if owner is not None:
        allowed = frozenset({owner})
        scope = replace(scope, servers=allowed if scope.servers is None else allowed & scope.servers)
    found = catalogue.index.named(name, scope, CANDIDATES)
    # a tool may itself be named like a qualified one, which goes first
    qualified = [tool for tool in found if tool.qualified_name == name]
    return qualified or found


def _refuse_hidden(name: str, scope: Scope, catalogue: Catalogue, owner: str | None) -> None:
    for status in _HIDDEN:
        for tool in _named(name, replace(scope, status=status), catalogue, owner):
            raise ServerNotRunning(tool.server_id, f"is {status}, so its tools cannot be called now")
