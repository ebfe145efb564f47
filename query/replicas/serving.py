"""The servers behind each found definition, its other versions, and the name to call it by."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from query.replicas.sets import ReplicaSets
from shared.catalog import IndexedTool, Scope, ToolName
from shared.index.tools import ToolIndex

# More tools of one name are never all shown; `tool@digest` names each of them.
MAX_NAMESAKES = 1_000

_SUFFIX = re.compile("@[0-9a-f]{8}$")
# `server:tool`, a definition's name, and the names of a toolset's tools in `tools/list`.
_OUR_FORMS = re.compile(":|__|@[0-9a-f]{8}$|_[0-9a-f]{16}$")
# Models write `server.tool` and `server/tool` as well.
_JOINT = re.compile("[./]")


@dataclass(frozen=True, slots=True)
class Serving:
    """The servers that offer one definition, stale ones last, and the name to call it by.

    `versions` counts the definitions of this name under the same declared server name, itself included.
    `also_on` are servers that offer an equal tool and are not interchangeable with this one, so `name` has its server.
    """

    name: str
    servers: Sequence[str]
    versions: int = 1
    also_on: Sequence[str] = ()


def first_server(name: str, servers: Sequence[str]) -> tuple[str, str]:
    """Return the first server of a tool, and the tool's name there, given its name for calls.

    `servers` are the first servers of a replicated tool, empty for any other.
    """
    return (servers[0], without_digest(name)) if servers else split_name(name)


def split_name(name: str) -> tuple[str, str]:
    """Return the server and the tool of `server:tool`; a server's id has no colon, and a tool's name may."""
    server_id, _, tool_name = name.partition(":")
    return server_id, tool_name


def without_digest(name: str) -> str:
    """Return the tool's name of `tool@digest`; any other name as it is."""
    return _SUFFIX.sub("", name)


def reads_as_another_name(name: str, servers: Container[str]) -> bool:
    """Return whether a tool's own name could stand for another tool, of one of these servers or of any.

    Else a server could name its tool like another server's, and receive that one's calls.
    """
    return bool(_OUR_FORMS.search(name)) or any(name[: joint.start()] in servers for joint in _JOINT.finditer(name))


@dataclass(frozen=True, slots=True)
class Replicated:
    """A scope with the representatives of its replica sets only, and these sets."""

    scope: Scope
    sets: ReplicaSets

    @classmethod
    def of(cls, scope: Scope, sets: ReplicaSets) -> Replicated:
        """Return a scope with its replica sets, without their copies."""
        return cls(sets.without_copies(scope), sets)


def servings(
    tools: Sequence[IndexedTool], searched: Replicated, allowed: Replicated, index: ToolIndex
) -> Mapping[str, Serving]:
    """Return the servers of these tools by the tools' qualified names.

    Names are unambiguous within `allowed`, where they are called; servers are those of the search.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    replicated = {tool.definition.name for tool in tools if _may_be_elsewhere(tool, searched.sets)}
    found = index.tool_names(replicated, searched.scope, MAX_NAMESAKES) if replicated else []
    is_all = allowed.scope == searched.scope
    callable_tools = found if is_all else index.tool_names(replicated, allowed.scope, MAX_NAMESAKES)
    return {
        tool.qualified_name: _serving(tool, searched.sets, found, _CallableTools(callable_tools, allowed.sets))
        for tool in tools
    }


def _may_be_elsewhere(tool: IndexedTool, sets: ReplicaSets) -> bool:
    return tool.server_id in sets.by_server or tool.server_id in sets.related


def _serving(
    tool: IndexedTool, sets: ReplicaSets, found: Collection[ToolName], callable_tools: _CallableTools
) -> Serving:
    namesakes = [other for other in found if other.name == tool.definition.name]
    equal = {other.server_id for other in namesakes if other.digest and other.digest == tool.digest}
    offering = {replica for server_id in equal | {tool.server_id} for replica in sets.replicas(server_id)}
    servers = sets.best_first(offering)
    family = {tool.server_id, *sets.relatives.get(tool.server_id, ())}
    versions = max(1, _distinct(other for other in namesakes if other.server_id in family))
    # a name with a colon has its server
    if ":" in tool.definition.name or not callable_tools.are_interchangeable(tool):
        shown = min(servers, key=lambda server_id: (server_id in sets.strangers, server_id != tool.server_id))
        others = [server_id for server_id in servers if server_id != shown]
        return Serving(f"{shown}:{tool.definition.name}", [shown], versions, others)
    is_ambiguous = callable_tools.is_ambiguous(tool)
    # while its digest is cleared, no name stands for an ambiguous tool on several servers
    if len(servers) == 1 or (is_ambiguous and not tool.digest):
        return Serving(tool.qualified_name, [tool.server_id], versions)
    return Serving(tool.definition_name if is_ambiguous else tool.definition.name, servers, versions)


@dataclass(frozen=True, slots=True)
class _CallableTools:
    """The tools that a caller may call by these names."""

    found: Collection[ToolName]
    sets: ReplicaSets

    def is_ambiguous(self, tool: IndexedTool) -> bool:
        """Return whether the tool's name alone may stand for another definition, or reads as another name."""
        name = tool.definition.name
        if reads_as_another_name(name, self.sets.visible) or len(self.found) >= MAX_NAMESAKES:
            return True
        return _distinct(other for other in self.found if other.name == name) > 1

    def are_interchangeable(self, tool: IndexedTool) -> bool:
        """Return whether all servers with this definition are of one kind."""
        servers = {other.server_id for other in self.found if tool.digest and other.digest == tool.digest}
        return len({self.sets.kind(server_id) for server_id in servers | {tool.server_id}}) == 1


def _distinct(tools: Iterable[ToolName]) -> int:
    return len({tool.digest or tool.server_id for tool in tools})
