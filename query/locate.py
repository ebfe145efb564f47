"""From the name that a caller gives to the one tool it means, within what the caller may see."""

from __future__ import annotations

from dataclasses import replace

from query.catalogue import Catalogue
from query.search import best, search
from query.steps import embed_steps
from shared.catalog import IndexedTool, Scope, Status
from shared.errors import ServerNotRunning, ToolNotFound

CANDIDATES = 10
NEAREST = 3
_HIDDEN: tuple[Status, ...] = ("stopped", "quarantined")


def locate(name: str, scope: Scope, catalogue: Catalogue) -> IndexedTool:
    """Return the tool of the scope that `server:tool`, or a tool's name that is no other's, stands for.

    Raises:
        ToolNotFound: there is none of this name, or several; it names those that may have been meant.
        ServerNotRunning: there is one, but its server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
    """
    found = _named(name, scope, catalogue)
    if len(found) == 1:
        return found[0]
    if found:
        candidates = sorted(tool.qualified_name for tool in found)
        raise ToolNotFound(name, "is a tool of several servers", tuple(candidates))
    _refuse_hidden(name, scope, catalogue)
    raise ToolNotFound(name, "is no tool that you may use; the nearest", nearest(name, scope, catalogue))


def nearest(name: str, scope: Scope, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the tools of the scope that come closest to a name, as `server:tool`, the closest first.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    steps = embed_steps([name], catalogue.embedder)
    hits = best(search(steps, scope, catalogue.index), NEAREST, catalogue.index)
    return tuple(hit.tool.qualified_name for hit in hits)


def _named(name: str, scope: Scope, catalogue: Catalogue) -> list[IndexedTool]:
    found = catalogue.index.named(name, scope, CANDIDATES)
    # a tool may itself be named like another server's: the qualified name goes first
    qualified = [tool for tool in found if tool.qualified_name == name]
    return qualified or found


def _refuse_hidden(name: str, scope: Scope, catalogue: Catalogue) -> None:
    for status in _HIDDEN:
        for tool in _named(name, replace(scope, status=status), catalogue):
            raise ServerNotRunning(tool.server_id, f"is {status}, so its tools cannot be called now")
