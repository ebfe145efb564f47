"""Token costs of tools by server, read from `list_available_tools`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from shared.text.display import printable
from toolscale.client.query import Ask
from toolscale.console import percent, thousands

# The largest page of the service: no model reads these answers.
PAGE_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class _ToolCost:
    """A tool and the tokens of its definition; None: not counted. `summary` begins with the name."""

    name: str
    tokens: int | None
    part: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class ServerCost:
    """A server with its searchable tools; `part` is its share of the tokens visible to the caller, 0 to 1."""

    server: str
    tokens: int | None
    part: float | None
    tools: tuple[_ToolCost, ...]


def costs(ask: Ask, servers: list[str] | None = None, *, detail: str = "name") -> dict[str, ServerCost]:
    """Return the costs of all servers, or of these, by id. Stopped and hidden servers are absent.

    Raises: the errors of `ask`.
    """
    found: dict[str, ServerCost] = {}
    for page in _pages(ask, {"detail": detail, "max_tokens": PAGE_TOKENS} | ({"servers": servers} if servers else {})):
        for entry in page["toolsByServer"]:
            before = found[entry["server"]].tools if entry["server"] in found else ()
            tools = (*before, *map(_tool, entry["tools"]))
            found[entry["server"]] = ServerCost(entry["server"], *_context(entry), tools)
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
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it does", ratio=1)
    for tool in _costliest_first(cost):
        table.add_row(
            printable(tool.name),
            thousands(tool.tokens),
            percent(tool.part),
            printable(tool.summary.removeprefix(tool.name)),
        )
    return table


def _costliest_first(cost: ServerCost | None) -> list[_ToolCost]:
    return sorted(cost.tools if cost else (), key=lambda tool: (-(tool.tokens or 0), tool.name))


def _pages(ask: Ask, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = ask("list_available_tools", arguments | ({"cursor": cursor} if cursor else {}))
        yield page
        cursor = page.get("nextCursor")
        if cursor is None:
            return


def _tool(listed: dict[str, Any]) -> _ToolCost:
    return _ToolCost(listed["name"], *_context(listed), listed.get("summary") or listed["name"])


def _context(listed: dict[str, Any]) -> tuple[int | None, float | None]:
    return listed["context"]["tokens"], listed["context"]["percentTotal"]
