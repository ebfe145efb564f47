"""The list of tools beside the map, and the tools that a person leaves out of a toolset or of an `mcp.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pydantic import ValidationError

from query.answers.answer import first_sentence
from query.tools.list_available_tools import tools_of
from query.usage.recent_calls import DAYS as CALL_DAYS
from query.web.changes import DONE, done
from query.web.page import Page, PageRequest, message_page, page_of_rows, read_usage, servers_of
from query.web.tool_map import MappedTool, Tool, calls_of, tool_map
from shared.catalog import OPERATOR_SOURCE, point_id
from shared.errors import ConfigInvalid, EventInvalid
from shared.toolset import Toolset
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from starlette.responses import Response

    from query.web.writes import Form

MCP_JSON = "mcp.json"
_TOOLSET = "toolset:"
MOST_LEFT_OUT = 200
Chosen = Sequence[tuple[MappedTool, Sequence[str]]]
"""Tools, and the servers of each: itself and its replicas."""
NO_TOOL = "No tool was chosen, or none of them may be seen by you."


def tools(request: PageRequest) -> Page:
    """Return the map, and the list of the largest tools, or of all tools of a server."""
    assert request.largest
    table = servers_of(request)
    calls = read_usage(request, lambda usage: calls_of(usage, request.caller, table))
    server_id, only_unused = request.query.get("server", ""), bool(request.query.get("unused"))
    largest = request.largest.of(request.scope, table)
    listed = request.largest.of_server(request.scope, server_id) if server_id else largest
    if only_unused and calls is not None:
        listed = [tool for tool in listed if not calls.get(tool.key)]
    rows, pages = page_of_rows(list(listed), request)
    has_calls = calls is not None
    values: dict[str, Any] = {
        "servers": table,
        "map": None if server_id or not table.tools else tool_map(largest, table, calls),
        "tools": [
            (tool, first_sentence(tool.does), None if calls is None else calls.get(tool.key, 0)) for tool in rows
        ],
        "has_calls": has_calls,
        "call_days": CALL_DAYS,
        "widest": listed[0].tokens if listed else 0,
        "found": len(listed),
        "found_tokens": sum(tool.tokens for tool in listed),
        "is_cut": not server_id and table.distinct_tools > len(largest),
        "server_id": server_id,
        "only_unused": only_unused,
        "path": f"/ui/tools?{urlencode({'server': server_id, 'unused': '1' if only_unused else ''})}&",
        "done": DONE.get(request.query.get("done", "")),
    }
    return Page("tools.html", values | pages, live=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where tools can be left out: a toolset, or the `mcp.json`."""

    value: str
    toolset: Toolset | None = None
    widens: bool = False
    """Whether a server's id in the toolset becomes the names of its other tools."""


def leave_out(request: PageRequest) -> Page:
    """Return what leaving out these tools would save, and the places where it can be written, to be confirmed."""
    chosen = _chosen(request, request.tools)
    if not chosen:
        return message_page(404, "Nothing to leave out", NO_TOOL)
    servers = sorted({server for tool in chosen for server in tool[1]})
    names = sorted({tool.name for tool, _ in chosen})
    values = {
        "tools": [tool for tool, _ in chosen],
        "tokens": sum(tool.tokens for tool, _ in chosen),
        "places": _places(request, chosen),
        "policy": f"[[servers]]\nservers = {json.dumps(servers)}\nexcludeTools = {json.dumps(names)}",
        "file": request.means.config_file,
    }
    return Page("leave_out.html", values)


def left_out(request: PageRequest, form: Form) -> Page | Response:
    """Write the tools of the form to the place of the form."""
    chosen = _chosen(request, form.get("tool", []))
    wanted = form.get("place", [""])[-1]
    place = next((each for each in _places(request, chosen) if each.value == wanted), None)
    if place is None:
        return message_page(404, "Not left out", "There is no such place where you may leave these tools out.")
    try:
        if place.toolset:
            names = {f"{server}:{tool.name}" for tool, servers in chosen for server in servers}
            request.catalogue.index.put_toolset(without(place.toolset, names, lambda each: _names(request, each)))
        else:
            _exclude(request, chosen)
    except ValidationError as error:
        return message_page(400, "Not left out", first_invalid_argument(error))
    except ConfigInvalid as error:
        return message_page(400, "Not left out", f"{error}.")
    return done("/ui/tools", "left-out")


def without(toolset: Toolset, names: Collection[str], names_of: Callable[[str], Iterable[str]]) -> Toolset:
    """Return the toolset without these qualified names.

    The id of a server that has one of them is replaced by the names of its other tools, which `names_of` returns.

    Raises:
        ValidationError: it would have too many entries.
    """
    servers = {name.partition(":")[0] for name in names}
    entries: list[str] = []
    for entry in toolset.tools:
        if ":" not in entry and entry in servers:
            entries += [name for each in names_of(entry) if (name := f"{entry}:{each}") not in names]
        elif entry not in names:
            entries.append(entry)
    return Toolset.model_validate(toolset.model_dump() | {"tools": list(dict.fromkeys(entries))})


def _exclude(request: PageRequest, chosen: Chosen) -> None:
    assert request.means.exclude
    by_server: dict[str, set[str]] = {}
    for tool, servers in chosen:
        for server in servers:
            by_server.setdefault(server, set()).add(tool.name)
    request.means.exclude(by_server)
    for server in by_server:
        if request.means.resync:  # the index has the tools until their server is listed again
            with suppress(EventInvalid):  # it was never announced
                request.means.resync(server)


def _chosen(request: PageRequest, names: Iterable[str]) -> Chosen:
    """Return the named tools that the caller sees."""
    catalogue, table = request.catalogue, servers_of(request)
    sets = {row.record.server_id: of_set for of_set in table.sets for row in of_set.rows}
    keys: list[Tool] = [(server, tool) for server, _, tool in (name.partition(":") for name in names)][:MOST_LEFT_OUT]
    found = catalogue.pinned().index.get([point_id(*key) for key in keys])
    chosen: dict[Tool, tuple[MappedTool, Sequence[str]]] = {}
    for server, name in keys:
        tool = found.get(point_id(server, name))
        if tool is None or server not in sets or not request.scope.contains(tool):
            continue
        tokens = tool.model_counts.get(catalogue.encoding, 0)
        servers = [row.record.server_id for row in sets[server].rows]
        chosen[server, name] = MappedTool(server, name, tokens, tool.definition.description), servers
    return list(chosen.values())


def _places(request: PageRequest, chosen: Chosen) -> list[Place]:
    """Return the places where the caller may leave these tools out."""
    names = [(server, tool.name) for tool, servers in chosen for server in servers]
    places: list[Place] = []
    if "toolsets:write" in request.caller.permissions:
        for toolset in request.catalogue.index.toolsets():
            if request.caller.toolset in (None, toolset.name) and any(
                toolset.selection.admits(*name) for name in names
            ):
                widens = any(server in toolset.selection.servers for server, _ in names)
                places.append(Place(f"{_TOOLSET}{toolset.name}", toolset, widens))
    records = [request.catalogue.ledger.record(server) for server, _ in names]
    are_of_file = all(record is not None and record.source == OPERATOR_SOURCE for record in records)
    if chosen and request.may_operate and request.means.exclude and are_of_file:
        places.append(Place(MCP_JSON))
    return places


def _names(request: PageRequest, server_id: str) -> list[str]:
    scope = replace(request.scope, servers=frozenset({server_id}))
    return sorted(tool.definition.name for tool in tools_of(scope, request.catalogue))
