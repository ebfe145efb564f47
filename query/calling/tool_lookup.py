"""Resolution of a tool's name within the caller's scope."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from query.catalogue import Catalogue
from query.replicas.sets import ReplicaSets
from query.search.search import best, search
from query.search.steps import embed_steps
from shared.catalog import IndexedTool, Scope, Status
from shared.errors import ServerNotRunning, ToolNotFound
from shared.index.tools import ToolIndex

CANDIDATES = 10
NEAREST = 3
_HIDDEN: tuple[Status, ...] = ("stopped", "quarantined")
_JOINT = re.compile(r"(?=(__|[./]))")
_DIGEST = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """The tool that a name stands for, and the servers that may serve it, sorted.

    A name that contains its server, or comes with it, has this server only.
    """

    tool: IndexedTool
    server_ids: tuple[str, ...]
    is_server_named: bool


def resolve_tool_name(name: str, scope: Scope, catalogue: Catalogue, server_id: str | None = None) -> ResolvedName:
    """Return the tool of the scope that a name stands for: `server:tool`, an unambiguous `tool`, or `tool@digest`.

    A name with a colon, or with `server_id`, never returns a tool of another server. Without a server, a
    name is unambiguous if all its tools have the same definition. An exact name has precedence over a digest.
    If no tool has the name, `server.tool`, `server__tool` and `server/tool` stand for `server:tool`.

    Raises:
        ToolNotFound: no tool has this name, or several definitions do; the error names candidates.
        ServerNotRunning: the tool's server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
    """
    owner_id = server_id or _server_of_name(name, scope, catalogue)
    if owner_id is not None:
        return _resolve_on_server(name, scope, catalogue, owner_id)
    catalogue.ledger.refresh()
    sets = catalogue.ledger.replica_sets(scope)
    narrowed = sets.without_copies(scope)
    definitions = _by_definition(_all_named(name, narrowed, catalogue.index, len(sets.representatives)), sets)
    if len(definitions) > 1:
        raise ToolNotFound(name, "is a tool of several servers", _candidates(definitions, sets))
    if definitions:
        (tools,) = definitions
        if tools[0].qualified_name == name:  # its server's record is missing
            return ResolvedName(tools[0], (tools[0].server_id,), is_server_named=True)
        return ResolvedName(tools[0], _servers(tools, sets), is_server_named=False)
    _raise_if_not_running(name, scope, catalogue)
    if joined := _resolve_joined(name, scope, catalogue):
        return joined
    raise _not_found(name, narrowed, catalogue)


def nearest(name: str, scope: Scope, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the qualified names of the tools nearest to a name, the nearest first.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    steps = embed_steps([name], catalogue.embedder)
    hits = best(search(steps, scope, catalogue.index), NEAREST, catalogue.index)
    return tuple(hit.tool.qualified_name for hit in hits)


def _resolve_on_server(name: str, scope: Scope, catalogue: Catalogue, server_id: str) -> ResolvedName:
    of_server = _only(scope, server_id)
    for known_as in (name, f"{server_id}:{name}", *_without_server(name, server_id)):
        for tool in _tools_named(known_as, of_server, catalogue.index, CANDIDATES):
            return ResolvedName(tool, (server_id,), is_server_named=True)
        _raise_if_not_running(known_as, of_server, catalogue)
    raise _not_found(name, scope, catalogue)


def _resolve_joined(name: str, scope: Scope, catalogue: Catalogue) -> ResolvedName | None:
    """Return the tool of a name such as `server.tool`; None where no server of the scope has it.

    Raises:
        ToolNotFound: the name may stand for tools of several servers.
        ServerNotRunning: the tool's server is stopped or quarantined.
    """
    splits = [split for split in _splits(name) if _is_known(split[0], scope, catalogue)]
    found = {
        tool.qualified_name: tool
        for server_id, tool_name in splits
        for tool in _tools_named(f"{server_id}:{tool_name}", _only(scope, server_id), catalogue.index, CANDIDATES)
    }
    if len(found) > 1:
        raise ToolNotFound(name, "may be a tool of several servers", tuple(sorted(found)))
    for tool in found.values():
        return ResolvedName(tool, (tool.server_id,), is_server_named=True)
    for server_id, tool_name in splits:
        _raise_if_not_running(f"{server_id}:{tool_name}", _only(scope, server_id), catalogue)
    return None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield each server and tool that a name may consist of."""
    for found in _JOINT.finditer(name):
        yield name[: found.start()], name[found.end(1) :]


def _without_server(name: str, server_id: str) -> list[str]:
    """Return the qualified names of a server's tool whose name, after the server's, repeats the server."""
    own = name.removeprefix(f"{server_id}:")
    return [f"{server_id}:{tool_name}" for server, tool_name in _splits(own) if server == server_id]


def _is_known(server_id: str, scope: Scope, catalogue: Catalogue) -> bool:
    # a name may contain many joints, so the index is not read for each
    record = catalogue.ledger.record(server_id)
    return record is not None and replace(scope, status=record.status).admits(record)


def _server_of_name(name: str, scope: Scope, catalogue: Catalogue) -> str | None:
    """Return the server of the scope that a name begins with, in any status; a server's id contains no colon."""
    server_id, colon, _ = name.partition(":")
    record = catalogue.index.server(server_id) if colon else None
    return server_id if record and replace(scope, status=record.status).admits(record) else None


def _only(scope: Scope, server_id: str) -> Scope:
    allowed = frozenset({server_id})
    return replace(scope, servers=allowed if scope.servers is None else allowed & scope.servers)


def _all_named(name: str, scope: Scope, index: ToolIndex, limit: int) -> list[IndexedTool]:
    """Return the tools with this name; `limit` is the number of servers in the scope."""
    found = _tools_named(name, scope, index, CANDIDATES)
    if len(found) == CANDIDATES and len({tool.digest for tool in found}) == 1:
        found = _tools_named(name, scope, index, max(limit, CANDIDATES))  # another definition may follow
    return found or _tools_of_definition(name, scope, index, max(limit, CANDIDATES))


def _tools_named(name: str, scope: Scope, index: ToolIndex, limit: int) -> list[IndexedTool]:
    tools = index.find_by_name(name, scope, limit)
    # a tool's own name may have a colon, and must not receive the calls of another server's tool
    return [tool for tool in tools if tool.qualified_name == name] if ":" in name else tools


def _tools_of_definition(name: str, scope: Scope, index: ToolIndex, limit: int) -> list[IndexedTool]:
    """Return the tools that a name of the form `tool@digest` stands for."""
    tool_name, _, prefix = name.rpartition("@")
    if not (tool_name and _DIGEST.fullmatch(prefix)):
        return []
    return [tool for tool in index.find_by_name(tool_name, scope, limit) if tool.digest.startswith(prefix)]


def _by_definition(tools: Collection[IndexedTool], sets: ReplicaSets) -> list[list[IndexedTool]]:
    """Return the tools in groups of equal digests on interchangeable servers; a cleared digest equals no other."""
    groups: dict[tuple[str, str], list[IndexedTool]] = defaultdict(list)
    for tool in sorted(tools, key=lambda tool: tool.qualified_name):
        groups[tool.digest or tool.qualified_name, sets.kind(tool.server_id)].append(tool)
    return list(groups.values())


def _servers(tools: Sequence[IndexedTool], sets: ReplicaSets) -> tuple[str, ...]:
    return tuple(sorted({replica for tool in tools for replica in sets.replicas(tool.server_id)}))


def _candidates(definitions: Sequence[Sequence[IndexedTool]], sets: ReplicaSets) -> tuple[str, ...]:
    """Return a name for each definition: that of the tool, or of the definition if it alone has several servers."""
    kinds = Counter(tools[0].digest for tools in definitions)

    def name_of(tools: Sequence[IndexedTool]) -> str:
        is_own = bool(tools[0].digest) and kinds[tools[0].digest] == 1
        return tools[0].definition_name if is_own and len(_servers(tools, sets)) > 1 else tools[0].qualified_name

    return tuple(sorted(map(name_of, definitions)))


def _raise_if_not_running(name: str, scope: Scope, catalogue: Catalogue) -> None:
    for status in _HIDDEN:
        hidden = replace(scope, status=status)
        for tool in sorted(_all_named(name, hidden, catalogue.index, CANDIDATES), key=lambda tool: tool.qualified_name):
            raise ServerNotRunning(tool.server_id, f"is {status}, so its tools cannot be called now")


def _not_found(name: str, scope: Scope, catalogue: Catalogue) -> ToolNotFound:
    candidates = nearest(name, scope, catalogue)
    return ToolNotFound(name, f"is no tool that you may use{'; the nearest' if candidates else ''}", candidates)
