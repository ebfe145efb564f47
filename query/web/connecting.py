"""Texts that connect a client to this service over HTTP, for the page and the terminal."""

from __future__ import annotations

import json
import shlex

_TOKEN_HEADER = {"Authorization": "Bearer TOKEN"}


def claude_command(url: str, *, needs_token: bool) -> str:
    """Return the command that adds the service at this address to Claude Code."""
    header = f" --header {shlex.quote(': '.join(*_TOKEN_HEADER.items()))}" if needs_token else ""
    return f"claude mcp add --transport http toolscale {shlex.quote(url)}{header}"


def client_config(url: str, *, needs_token: bool) -> str:
    """Return the `mcp.json` of a client of the service at this address."""
    entry: dict[str, object] = {"type": "http", "url": url}
    return json.dumps(
        {"mcpServers": {"toolscale": entry | ({"headers": _TOKEN_HEADER} if needs_token else {})}}, indent=2
    )
