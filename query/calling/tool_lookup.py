"""Resolution of a tool's name within the caller's scope."""

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


def resolve_tool_name(name: str, scope: Scope, catalogue: Catalogue, server_id: str | None = None) -> IndexedTool:
    """Return the tool of the scope that a qualified name, or an unambiguous name, stands for.

    A name that is qualified, or comes with `server_id`, never returns a tool of another server.

    Raises:
        ToolNotFound: no tool has this name, or several do; the error names candidates.
        ServerNotRunning: the tool's server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
    """
    owner_id = server_id or _server_of_name(name, scope, catalogue)
    tools = _tools_named(name, scope, catalogue, owner_id)
    if len(tools) == 1:
        return tools[0]
    if tools:
        candidates = sorted(tool.qualified_name for tool in tools)
        raise ToolNotFound(name, "is a tool of several servers", tuple(candidates))
    _raise_if_not_running(name, scope, catalogue, owner_id)
    raise ToolNotFound(name, "is no tool that you may use; the nearest", nearest(name, scope, catalogue))


def nearest(name: str, scope: Scope, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the qualified names of the tools nearest to a name, the nearest first.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    steps = embed_steps([name], catalogue.embedder)
    hits = best(search(steps, scope, catalogue.index), NEAREST, catalogue.index)
    return tuple(hit.tool.qualified_name for hit in hits)


def _server_of_name(name: str, scope: Scope, catalogue: Catalogue) -> str | None:
    """Return the server of the scope that a name begins with, in any status; a server's id contains no colon."""
    server_id, colon, _ = name.partition(":")
    record = catalogue.index.server(server_id) if colon else None
    return server_id if record and replace(scope, status=record.status).admits(record) else None


def _tools_named(name: str, scope: Scope, catalogue: Catalogue, owner_id: str | None) -> list[IndexedTool]:
    if owner_id is not None:
        allowed = frozenset({owner_id})
        scope = replace(scope, servers=allowed if scope.servers is None else allowed & scope.servers)
    tools = catalogue.index.find_by_name(name, scope, CANDIDATES)
    # a tool's plain name may look qualified; the qualified match has precedence
    qualified = [tool for tool in tools if tool.qualified_name == name]
    return qualified or tools


def _raise_if_not_running(name: str, scope: Scope, catalogue: Catalogue, owner_id: str | None) -> None:
    for status in _HIDDEN:
        for tool in _tools_named(name, replace(scope, status=status), catalogue, owner_id):
            raise ServerNotRunning(tool.server_id, f"is {status}, so its tools cannot be called now")
