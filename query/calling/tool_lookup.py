"""Resolution of tools' names within the caller's scope.

`server:tool` names one tool. `tool` and `tool@digest` name a definition if all servers that have it are
interchangeable. A server may give its tool any name, also one that reads as another server's tool: such a tool is
reached as `server:tool` alone, so that no name leads to a server that it does not mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from query.absent import absence, unknown_tool_hints
from query.catalogue import Catalogue
from query.records import Ledger
from query.replicas import MAX_NAMESAKES, ReplicaSets, reads_as_another_name, split_name, without_digest
from query.search.ranking import DEPTH, rank
from query.search.search import STEPS_AT_A_TIME, embed_steps
from query.turns import give_way
from shared.catalog import IndexedTool, Scope, Status, ToolName, point_id
from shared.errors import NEEDS_SIGN_IN, NO_SUCH_TOOL, ServerNotRunning, SignInRequired, ToolNotFound
from shared.index.tools import ToolIndex

NEAREST = 3
_HIDDEN: tuple[Status, ...] = ("stopped", "quarantined")


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """The tool that a name stands for, and the servers that may serve it, sorted.

    A name that contains its server, or comes with it, has this server only.
    """

    tool: IndexedTool
    server_ids: tuple[str, ...]
    is_server_named: bool


Resolution = ResolvedName | ToolNotFound | ServerNotRunning | SignInRequired


def resolve_tool_name(name: str, scope: Scope, catalogue: Catalogue, server_id: str | None = None) -> ResolvedName:
    """Return the tool of the scope that a name stands for; with `server_id`, the tool of this server.

    Raises:
        ToolNotFound: no tool has this name, or several definitions do; the error names candidates.
        ServerNotRunning: the tool's server is stopped or quarantined.
        SignInRequired: the named server has no tools yet, since it needs a sign-in.
        IndexUnavailable: the index did not answer.
    """
    if server_id is not None and not name.startswith(f"{server_id}:"):
        name = f"{server_id}:{name}"
    resolution = resolve_tool_names([name], scope, catalogue)[name]
    if isinstance(resolution, ResolvedName):
        return resolution
    raise resolution


def resolve_tool_names(names: Collection[str], scope: Scope, catalogue: Catalogue) -> dict[str, Resolution]:
    """Return the tool of each name, or the reason why it stands for none, in the order of the names.

    Any number of names takes a handful of reads, and a search for every five without a tool.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    with_server = [name for name in names if ":" in name]
    bare = [name for name in names if ":" not in name]
    resolved = _with_server(with_server, scope, catalogue) if with_server else {}
    resolved |= _without_server(bare, scope, catalogue) if bare else {}
    if unknown := [name for name in names if name not in resolved]:
        absent, stale = catalogue.ledger.absent(scope), catalogue.ledger.stale(scope)
        for name, candidates in _nearest(unknown, scope, catalogue):
            resolved[name] = ToolNotFound(name, NO_SUCH_TOOL, candidates, unknown_tool_hints(name, absent, stale))
    return {name: resolved[name] for name in names}


def _with_server(names: Sequence[str], scope: Scope, catalogue: Catalogue) -> dict[str, Resolution]:
    index, ledger = catalogue.index, catalogue.ledger
    points = {name: point_id(*split_name(name)) for name in names}
    tools = index.get(list(points.values()))
    resolved: dict[str, Resolution] = {}
    unknown: list[str] = []
    for name, point in points.items():
        tool = tools.get(point)
        if tool is not None and scope.contains(tool):
            resolved[name] = ResolvedName(tool, (tool.server_id,), is_server_named=True)
        elif tool is not None and tool.status in _HIDDEN and replace(scope, status=tool.status).contains(tool):
            resolved[name] = _not_running(tool.server_id, tool.status, ledger)
        elif tool is None or tool.status in _HIDDEN or scope.permits(tool.server_id, tool.definition):
            unknown.append(name)
    return resolved | (_of_absent_servers(unknown, scope, ledger) if unknown else {})


def _of_absent_servers(names: Sequence[str], scope: Scope, ledger: Ledger) -> dict[str, Resolution]:
    """Return why the tools with these names cannot be called, as far as their servers have none now."""
    ledger.refresh()
    absent = {record.server_id: record for record in ledger.absent(scope)}
    resolved: dict[str, Resolution] = {}
    for name in names:
        server_id, tool_name = split_name(name)
        record = absent.get(server_id)
        if record is None or (scope.within and not scope.within.admits(server_id, tool_name)):
            continue
        if record.state == "sign-in":
            reason = (record.last_error or NEEDS_SIGN_IN).removeprefix(f"{server_id}: ")
            resolved[name] = SignInRequired(server_id, reason)
        else:
            resolved[name] = ServerNotRunning(server_id, absence(record))
    return resolved


def _without_server(names: Sequence[str], scope: Scope, catalogue: Catalogue) -> dict[str, Resolution]:
    index, ledger = catalogue.index, catalogue.ledger
    ledger.refresh()
    sets = ledger.replica_sets(scope)
    by_name = _tools_by_name(names, sets.without_copies(scope), index, len(sets.representatives))
    choices = {name: _definitions(name, by_name[without_digest(name)], sets) for name in names}

    resolved: dict[str, Resolution] = {}
    strangers_only = [name for name in names if all(tool.server_id in sets.strangers for tool in chain(*choices[name]))]
    for name, tool, status in _stopped(strangers_only, scope, sets, index):
        record = ledger.record(tool.server_id)
        if not choices[name]:
            resolved.setdefault(name, _not_running(tool.server_id, status, ledger))
        elif record and record.has_owner:  # a stranger does not take the name of an owner's tool meanwhile
            choices[name].append([tool])

    single = {name: found[0][0] for name, found in choices.items() if len(found) == 1}
    points = {name: point_id(tool.server_id, tool.name) for name, tool in single.items()}
    tools = index.get(list(points.values()))
    for name, found in choices.items():
        if len(found) > 1:
            candidates = sorted(f"{servers[0].server_id}:{servers[0].name}" for servers in found)
            resolved[name] = ToolNotFound(name, "is a tool of several servers", tuple(candidates))
        elif found and points[name] in tools and scope.contains(tools[points[name]]):
            servers = sorted({replica for tool in found[0] for replica in sets.replicas(tool.server_id)})
            resolved[name] = ResolvedName(tools[points[name]], tuple(servers), is_server_named=False)
    return resolved


def _tools_by_name(
    names: Sequence[str], scope: Scope, index: ToolIndex, servers: int
) -> defaultdict[str, list[ToolName]]:
    """Return all tools of the scope, which has so many servers, with one of these names, by their own name."""
    own = {without_digest(name) for name in names}
    found = index.tool_names(own, scope, MAX_NAMESAKES)
    by_name: defaultdict[str, list[ToolName]] = defaultdict(list)
    if len(found) < MAX_NAMESAKES:
        for tool in found:
            by_name[tool.name].append(tool)
        return by_name
    for name in sorted(own):  # many servers have one of the names, and may hide the tools with the others
        give_way()
        by_name[name] = index.tool_names({name}, scope, max(servers, 1))
    return by_name


def _definitions(name: str, tools: Collection[ToolName], sets: ReplicaSets) -> list[list[ToolName]]:
    """Return the tools that a name may stand for, in groups of equal definitions on interchangeable servers.

    A cleared digest equals no other.
    """
    digest = name.removeprefix(without_digest(name)).removeprefix("@")
    if not digest and reads_as_another_name(name, sets.visible):
        return []
    groups: dict[tuple[str, str], list[ToolName]] = defaultdict(list)
    for tool in sorted(tools, key=lambda tool: tool.server_id):
        if tool.digest.startswith(digest):
            groups[tool.digest or tool.server_id, sets.kind(tool.server_id)].append(tool)
    return list(groups.values())


def _stopped(
    names: Sequence[str], scope: Scope, sets: ReplicaSets, index: ToolIndex
) -> Iterator[tuple[str, ToolName, Status]]:
    """Yield the tools with one of these names whose servers do not run, by server, and the name that they have."""
    asked = {name for name in names if without_digest(name) != name or not reads_as_another_name(name, sets.visible)}
    for status in _HIDDEN if asked else ():
        tools = index.tool_names(set(map(without_digest, asked)), replace(scope, status=status), MAX_NAMESAKES)
        for tool in sorted(tools, key=lambda tool: tool.server_id):
            for name in asked.intersection((tool.name, f"{tool.name}@{tool.digest[:8]}")):
                yield name, tool, status


def _not_running(server_id: str, status: Status, ledger: Ledger) -> ServerNotRunning:
    record = ledger.record(server_id)
    # a record that was read at another moment may have another status
    has_status = record is not None and record.status == status
    reason = absence(record) if record and has_status else f"is {status}, so its tools cannot be called now"
    return ServerNotRunning(server_id, reason)


def _nearest(names: Sequence[str], scope: Scope, catalogue: Catalogue) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name with the qualified names of the tools nearest to it, the nearest first."""
    points: dict[str, list[str]] = {}
    for start in range(0, len(names), STEPS_AT_A_TIME):
        give_way()
        part = names[start : start + STEPS_AT_A_TIME]
        queries = [step.whole for step in embed_steps(part, catalogue.embedder)]
        for name, candidates in zip(part, catalogue.index.search(queries, scope, DEPTH), strict=True):
            points[name] = list(islice(rank(candidates), NEAREST))
    tools = catalogue.index.get(list(dict.fromkeys(chain(*points.values()))))
    for name, nearest in points.items():
        yield name, tuple(tools[point].qualified_name for point in nearest if point in tools)
