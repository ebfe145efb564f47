"""The overview: recent savings, the size of the catalogue and its cost, problems, and the way to connect a client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from query.app import MCP_PATH
from query.caller import ANYONE
from query.reports.access import is_unrestricted
from query.web.connecting import claude_command, client_config
from query.web.context_map import context_map
from query.web.page import Page, PageRequest
from query.web.servers import by_tokens, servers_for
from query.web.views.history import known_days, savings_charts, savings_report
from shared.index.tools import EMBEDDED_MAX_ADVISED_TOOLS

if TYPE_CHECKING:
    from shared.upstream.followed_config import FollowedConfig

LARGEST = 8
OVERVIEW_DAYS = 14


def overview(request: PageRequest) -> Page:
    """Return recent savings, the catalogue's size and cost, its problems, and texts for clients."""
    servers = servers_for(request.caller, request.catalogue)
    report = savings_report(request, OVERVIEW_DAYS)
    exceeds_advice = request.catalogue.index_is_embedded and servers.tools > EMBEDDED_MAX_ADVISED_TOOLS
    url, needs_token = request.address + MCP_PATH, request.caller is not ANYONE
    values: dict[str, Any] = {
        "servers": servers,
        "largest": [of_set for of_set in sorted(servers.sets, key=by_tokens)[:LARGEST] if of_set.tokens],
        "map": context_map(request, servers),
        "report": report,
        "known_days": known_days(report) if report else 0,
        "advised_tools": EMBEDDED_MAX_ADVISED_TOOLS if exceeds_advice else None,
        "followed": followed_config(request),
        "dead_letters": request.catalogue.dead_letters() if is_unrestricted(request.caller) else None,
        "attention": [row for row in servers.rows if row.needs_attention][:LARGEST],
        "command": claude_command(url, needs_token=needs_token),
        "config": client_config(url, needs_token=needs_token),
        "needs_token": needs_token,
        "now": time.time(),
    }
    return Page("overview.html", values | savings_charts(report))


def followed_config(request: PageRequest) -> FollowedConfig | None:
    """Return the state of the followed `mcp.json` for a caller without restriction, else None."""
    return request.catalogue.followed_config() if is_unrestricted(request.caller) else None
