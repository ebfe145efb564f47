"""The file of each client that `connect` writes, and the form of an entry in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigInvalid
from toolscale.importing.client_files import CLINE_FILE, EDITIONS, TITLES, Client, Machine, expanded

if TYPE_CHECKING:
    from pathlib import Path

NAME = "toolscale"
"""The name of Toolscale among the servers of a client."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Connection:
    """Toolscale as a client reaches it: the command that the client starts, or a URL."""

    command: Sequence[str] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The possible files of a client, the key of the servers, and the entries for a command and for a URL."""

    files: tuple[str, ...]
    key: str
    stdio: Callable[[Sequence[str]], Entry]
    http: Callable[[str], Entry] | None


def entry_for(client: Client, connection: Connection) -> Entry:
    """Return the entry of Toolscale in the form of this client.

    Raises:
        ConfigInvalid: the client cannot connect to a URL.
    """
    target = TARGETS[client]
    if connection.url is None:
        return target.stdio(connection.command)
    if target.http is None:
        raise ConfigInvalid(f"{TITLES[client]} starts its servers itself; leave --url out")
    return target.http(connection.url)


def file_of(client: Client, machine: Machine) -> Path:
    """Return the user's file of a client: the first that exists, else the first with a directory, else the first."""
    files = [path for pattern in TARGETS[client].files for path in expanded(pattern, machine.folders)]
    present = [path for path in files if path.is_file()] + [path for path in files if path.parent.is_dir()]
    return [*present, *files][0].resolve()


def _stdio(**keys: object) -> Callable[[Sequence[str]], Entry]:
    return lambda command: {**keys, "command": command[0], "args": list(command[1:])}


def _http(key: str = "url", **keys: object) -> Callable[[str], Entry]:
    return lambda url: {**keys, key: url}


def _goose(command: Sequence[str]) -> Entry:
    return {**_GOOSE, "type": "stdio", "cmd": command[0], "args": list(command[1:]), "envs": {}, "env_keys": []}


def _opencode(command: Sequence[str]) -> Entry:
    return {"type": "local", "command": list(command), "enabled": True}


_GOOSE: Mapping[str, Any] = {
    "enabled": True,
    "name": NAME,
    "description": "The tools of many MCP servers",
    "timeout": 300,
}
_ALL_TOOLS = ["*"]

TARGETS: Mapping[Client, Target] = {
    Client.CLAUDE: Target(("{claude}/.claude.json",), "mcpServers", _stdio(type="stdio"), _http(type="http")),
    Client.CLAUDE_DESKTOP: Target(("{programs}/Claude/claude_desktop_config.json",), "mcpServers", _stdio(), None),
    Client.CURSOR: Target(("{home}/.cursor/mcp.json",), "mcpServers", _stdio(), _http()),
    Client.VSCODE: Target(
        tuple(f"{{programs}}/{edition}/User/mcp.json" for edition in EDITIONS),
        "servers",
        _stdio(type="stdio"),
        _http(type="http"),
    ),
    Client.WINDSURF: Target(("{home}/.codeium/windsurf/mcp_config.json",), "mcpServers", _stdio(), _http("serverUrl")),
    Client.CLINE: Target(
        (
            *(f"{{programs}}/{edition}/{CLINE_FILE}" for edition in (*EDITIONS, "Cursor", "Windsurf")),
            "{home}/.cline/data/settings/cline_mcp_settings.json",
        ),
        "mcpServers",
        _stdio(),
        _http(type="streamableHttp"),
    ),
    Client.LMSTUDIO: Target(("{home}/.lmstudio/mcp.json",), "mcpServers", _stdio(), _http()),
    Client.COPILOT: Target(
        ("{copilot}/mcp-config.json",),
        "mcpServers",
        _stdio(type="local", tools=_ALL_TOOLS),
        _http(type="http", tools=_ALL_TOOLS),
    ),
    Client.GEMINI: Target(("{home}/.gemini/settings.json",), "mcpServers", _stdio(), _http("httpUrl")),
    Client.ZED: Target(("{zed}/settings.json",), "context_servers", _stdio(source="custom", env={}), _http()),
    Client.CODEX: Target(("{codex}/config.toml",), "mcp_servers", _stdio(), _http()),
    # Continue reads the JSON files of this directory; its config.yaml holds a list, which others may order.
    Client.CONTINUE: Target(
        (f"{{home}}/.continue/mcpServers/{NAME}.json",), "mcpServers", _stdio(), _http(type="streamable-http")
    ),
    Client.GOOSE: Target(
        ("{goose}/config.yaml",),
        "extensions",
        _goose,
        lambda url: {**_GOOSE, "type": "streamable_http", "uri": url},
    ),
    Client.OPENCODE: Target(
        ("{config}/opencode/opencode.json", "{config}/opencode/opencode.jsonc"),
        "mcp",
        _opencode,
        _http(type="remote", enabled=True),
    ),
}
