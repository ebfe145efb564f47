"""The first screen: what is saved, the map of tools, problems, and the feed; on an empty catalogue, the first steps."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any

from query.caller import ANYONE
from query.listener import MCP_PATH
from query.servers import ServerRow, ServerTable
from query.usage.recent_calls import DAYS as CALL_DAYS
from query.usage.report import is_unrestricted, totals_for
from query.web.feed import feed_values
from query.web.page import Page, PageRequest, followed_config, read_usage, servers_of
from query.web.tool_map import calls_of, tool_map
from shared.index.tools import EMBEDDED_MAX_ADVISED_TOOLS

DAYS = 14
MOST_PROBLEMS = 8
_TOKEN_HEADER = {"Authorization": "Bearer TOKEN"}


@dataclass(frozen=True, slots=True)
class Saved:
    """Tokens of contexts with all tools, and with Toolscale, over the days with figures."""

    before: int
    after: int
    contexts: int
    days: int

    @property
    def net(self) -> int:
        """Return what was kept out of contexts; negative where Toolscale cost more."""
        return self.before - self.after

    @property
    def part(self) -> float | None:
        """Return the saved part, 0 to below 1, so that no rounding claims all of it; None if nothing is saved."""
        return min(self.net / self.before, 0.999) if self.net > 0 else None


def overview(request: PageRequest) -> Page:
    """Return the first screen."""
    table = servers_of(request)
    url, needs_token = request.address + MCP_PATH, request.caller is not ANYONE
    is_large = request.catalogue.index_is_embedded and table.tools > EMBEDDED_MAX_ADVISED_TOOLS
    problems = [row for row in table.rows if row.needs_attention]
    values: dict[str, Any] = {
        "servers": table,
        "saved": _saved(request),
        "price": request.price,
        "map": _map(request, table),
        "problems": problems,
        "kinds": Counter(map(kind_of, problems)),
        "kind_of": kind_of,
        "shown": MOST_PROBLEMS,
        "call_days": CALL_DAYS,
        "advised_tools": EMBEDDED_MAX_ADVISED_TOOLS if is_large else None,
        "followed": followed_config(request),
        "dead_letters": request.catalogue.dead_letters() if is_unrestricted(request.caller) else None,
        "command": claude_command(url, needs_token=needs_token),
        "config": client_config(url, needs_token=needs_token),
        "needs_token": needs_token,
    }
    return Page("overview.html", values | feed_values(request, table), live=True)


def _saved(request: PageRequest) -> Saved | None:
    found = read_usage(request, lambda usage: totals_for(request.caller, DAYS, usage))
    if found is None:
        return None
    totals, days = found
    return Saved(totals.baseline_tokens, totals.listed_tokens + totals.answer_tokens, totals.contexts, days)


def kind_of(row: ServerRow) -> str:
    """Return the kind of a server's problem: its state, else `changed` or `unusable` tools."""
    if row.state in ("failing", "stale", "quarantined", "sign-in"):
        return row.state
    return "changed" if row.record.unaccepted else "unusable"


def _map(request: PageRequest, table: ServerTable) -> object:
    largest = request.largest
    if largest is None or not table.tools:
        return None
    calls = read_usage(request, lambda usage: calls_of(usage, request.caller, table))
    return tool_map(largest.of(request.scope, table), table, calls)


def claude_command(url: str, *, needs_token: bool) -> str:
    """Return the command that adds the service at this address to Claude Code."""
    header = f" --header {shlex.quote(': '.join(*_TOKEN_HEADER.items()))}" if needs_token else ""
    return f"claude mcp add --transport http toolscale {shlex.quote(url)}{header}"


def client_config(url: str, *, needs_token: bool) -> str:
    """Return the `mcp.json` of a client of the service at this address."""
    entry = {"type": "http", "url": url, **({"headers": _TOKEN_HEADER} if needs_token else {})}
    return json.dumps({"mcpServers": {"toolscale": entry}}, indent=2)
