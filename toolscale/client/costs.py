"""The cost of tools to a client's context by server, read from `list_available_tools`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from query.answers.detail import share
from shared.quoting import printable
from toolscale.client.query import Ask
from toolscale.console import percent, thousands

# The largest page of the service: no model reads these answers.
PAGE_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class ToolCost:
    """A tool and the tokens of its definition; None: not counted. `part` is its share of its server's tokens."""

    name: str
    tokens: int | None = None
    part: float | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class ServerCost:
    """A server with its searchable tools; `part` is its share of the tokens visible to the caller, 0 to 1.

    A server with replicas has the cost of all; `replicas` names the first of these `count` servers, itself included.
    """

    server: str
    tokens: int | None
    part: float | None
    tools: tuple[ToolCost, ...]
    replicas: tuple[str, ...] = ()
    count: int = 1


def costs(ask: Ask, server: str | None = None) -> dict[str, ServerCost]:
    """Return the costs of all servers, by id, with the names of their tools; or of one server, with their costs.

    Replicas have one cost, under the first of them.

    Stopped and hidden servers are absent.

    Raises: the errors of `ask`.
    """
    found: dict[str, ServerCost] = {}
    of_one = {"servers": [server], "detail": "summary"} if server else {}
    for page in _pages(ask, {"max_tokens": PAGE_TOKENS} | of_one):
        for entry in page["toolsByServer"]:
            before = found[entry["serverName"]].tools if entry["serverName"] in found else ()
            found[entry["serverName"]] = _server(entry, page["meta"], before)
    return found


def cost_as_object(server: str, cost: ServerCost | None) -> dict[str, Any]:
    """Return a server's tools as JSON, the costliest first."""
    tools = [{"name": tool.name, "tokens": tool.tokens, "share": tool.part} for tool in _costliest_first(cost)]
    known = {"tokens": cost.tokens, "share": cost.part} if cost else {"tokens": None, "share": None}
    return {"server_id": server, **known, "tools": tools}


def cost_table(cost: ServerCost) -> Table:
    """Return a server's tools as a table, the costliest first."""
    table = Table(box=None, header_style="bold")
    table.add_column("tool", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what it does", ratio=1)
    for tool in _costliest_first(cost):
        table.add_row(
            printable(tool.name),
            thousands(tool.tokens),
            percent(tool.part),
            printable(tool.description),
        )
    return table


def _costliest_first(cost: ServerCost | None) -> list[ToolCost]:
    return sorted(cost.tools if cost else (), key=lambda tool: (-(tool.tokens or 0), tool.name))


def _pages(ask: Ask, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = ask("list_available_tools", arguments | ({"cursor": cursor} if cursor else {}))
        yield page
        cursor = page.get("nextCursor")
        if cursor is None:
            return


def _server(entry: dict[str, Any], meta: dict[str, Any], before: tuple[ToolCost, ...]) -> ServerCost:
    tokens = entry["context"]["tokens"]
    part = share(tokens, meta["totalPossibleContext"]["tokens"])
    served_by = entry.get("servedBy", {"count": 1, "servers": ()})
    tools = (*before, *_tools(entry))
    return ServerCost(entry["serverName"], tokens, part, tools, tuple(served_by["servers"]), served_by["count"])


def _tools(entry: dict[str, Any]) -> Iterator[ToolCost]:
    yield from map(ToolCost, shlex.split(entry.get("names", "")))
    for tool in entry.get("tools", ()):
        context = tool["context"]
        yield ToolCost(tool["name"], context["tokens"], context["percentTotal"], tool["description"])
