"""The MCP clients that Toolscale knows: their files on Linux, macOS and Windows, and the form of an entry in them.

Another client is another row of `CLIENTS`, and a fixture of the tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from shared.errors import ConfigInvalid
from shared.upstream.mcp_json import SERVERS_KEYS
from toolscale.mcp_clients import entries
from toolscale.mcp_clients.entries import Object

NAME = "toolscale"
"""The name of Toolscale among the servers of a client."""

Entry = dict[str, Any]


class Client(StrEnum):
    """A supported client, by the name of its program."""

    CLAUDE = "claude"
    CLAUDE_DESKTOP = "claude-desktop"
    CURSOR = "cursor"
    VSCODE = "vscode"
    WINDSURF = "windsurf"
    CLINE = "cline"
    LMSTUDIO = "lmstudio"
    COPILOT = "copilot"
    GEMINI = "gemini"
    ZED = "zed"
    CODEX = "codex"
    CONTINUE = "continue"
    GOOSE = "goose"
    OPENCODE = "opencode"


@dataclass(frozen=True, slots=True)
class ClientForm:
    """The files of a client, and the form of a server in them.

    In a file a star stands for any name, and `Machine.folders` has the words in braces. `connect` writes the user's
    files, or those of `connected`. The servers are at `key`; those at `unknown`, of an earlier form, cannot be read.
    """

    title: str
    files: tuple[str, ...]
    stdio: Callable[[Sequence[str]], Entry]
    """Returns the entry of a command."""
    http: Callable[[str], Entry] | None
    """Returns the entry of a URL; None: the client takes only commands."""
    key: str = "mcpServers"
    read: Callable[[Object], Object] = entries.mcp_json
    """Returns the entry of an `mcp.json`."""
    connected: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tool_prefix: str = "{}_"
    """What the client puts before the name of a tool, with the name of its server in place of the braces."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the dotted keys at which servers are read; the usual one has several spellings."""
        usual = (*SERVERS_KEYS, *(f"mcp.{key}" for key in SERVERS_KEYS))
        return usual if self.key in SERVERS_KEYS else (self.key,)


def _stdio(**keys: object) -> Callable[[Sequence[str]], Entry]:
    return lambda command: {**keys, "command": command[0], "args": list(command[1:])}


def _http(key: str = "url", **keys: object) -> Callable[[str], Entry]:
    return lambda url: {**keys, key: url}


_EDITIONS = ("Code", "Code - Insiders", "VSCodium")
_CLINE_FILE = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_GOOSE = {"enabled": True, "name": NAME, "description": "The tools of many MCP servers", "timeout": 300}

CLIENTS: Mapping[Client, ClientForm] = {
    Client.CLAUDE: ClientForm(
        "Claude Code",
        ("{project}/.mcp.json", "{claude}/.claude.json"),
        _stdio(type="stdio"),
        _http(type="http"),
        tool_prefix="mcp__{}__",
    ),
    Client.CLAUDE_DESKTOP: ClientForm(
        "Claude Desktop", ("{programs}/Claude/claude_desktop_config.json",), _stdio(), None
    ),
    Client.CURSOR: ClientForm(
        "Cursor",
        ("{project}/.cursor/mcp.json", "{home}/.cursor/mcp.json"),
        _stdio(),
        _http(),
        tool_prefix="Mcp({}:",
    ),
    Client.VSCODE: ClientForm(
        "VS Code",
        (
            "{project}/.vscode/mcp.json",
            "{project}/.vscode/settings.json",
            *(
                f"{{programs}}/{edition}/User/{folder}{name}"
                for edition in _EDITIONS
                for folder in ("", "profiles/*/")
                for name in ("mcp.json", "settings.json")
            ),
        ),
        _stdio(type="stdio"),
        _http(type="http"),
        key="servers",
        connected=tuple(f"{{programs}}/{edition}/User/mcp.json" for edition in _EDITIONS),
    ),
    Client.WINDSURF: ClientForm(
        "Windsurf", ("{home}/.codeium/windsurf/mcp_config.json",), _stdio(), _http("serverUrl")
    ),
    Client.CLINE: ClientForm(
        "Cline",
        (
            *(f"{{programs}}/{edition}/{_CLINE_FILE}" for edition in (*_EDITIONS, "Cursor", "Windsurf")),
            "{home}/.cline/data/settings/cline_mcp_settings.json",
        ),
        _stdio(),
        _http(type="streamableHttp"),
        read=entries.cline,
    ),
    Client.LMSTUDIO: ClientForm("LM Studio", ("{home}/.lmstudio/mcp.json",), _stdio(), _http()),
    Client.COPILOT: ClientForm(
        "Copilot CLI",
        ("{copilot}/mcp-config.json",),
        _stdio(type="local", tools=["*"]),
        _http(type="http", tools=["*"]),
    ),
    Client.GEMINI: ClientForm(
        "Gemini CLI",
        ("{project}/.gemini/settings.json", "{home}/.gemini/settings.json"),
        _stdio(),
        _http("httpUrl"),
        read=entries.gemini,
        tool_prefix="{}__",
    ),
    Client.ZED: ClientForm(
        "Zed",
        ("{project}/.zed/settings.json", "{zed}/settings.json"),
        _stdio(source="custom", env={}),
        _http(),
        key="context_servers",
        read=entries.zed,
        tool_prefix="mcp:{}:",
    ),
    Client.CODEX: ClientForm(
        "Codex",
        ("{project}/.codex/config.toml", "{codex}/config.toml"),
        _stdio(),
        _http(),
        key="mcp_servers",
        read=entries.codex,
    ),
    Client.CONTINUE: ClientForm(
        "Continue",
        tuple(
            f"{{{folder}}}/.continue/{name}"
            for folder in ("project", "home")
            for name in ("config.yaml", "config.json", "mcpServers/*.yaml", "mcpServers/*.yml", "mcpServers/*.json")
        ),
        _stdio(),
        _http(type="streamable-http"),
        read=entries.continue_,
        # its config.yaml holds a list, which others may order
        connected=(f"{{home}}/.continue/mcpServers/{NAME}.json",),
        unknown=("experimental.modelContextProtocolServers",),
    ),
    Client.GOOSE: ClientForm(
        "Goose",
        ("{goose}/config.yaml",),
        lambda command: {
            **_GOOSE,
            "type": "stdio",
            "cmd": command[0],
            "args": list(command[1:]),
            "envs": {},
            "env_keys": [],
        },
        _http("uri", **_GOOSE, type="streamable_http"),
        key="extensions",
        read=entries.goose,
        tool_prefix="{}__",
    ),
    Client.OPENCODE: ClientForm(
        "opencode",
        tuple(
            f"{folder}/opencode.{suffix}"
            for folder in ("{project}", "{config}/opencode")
            for suffix in ("json", "jsonc")
        ),
        lambda command: {"type": "local", "command": list(command), "enabled": True},
        _http(type="remote", enabled=True),
        key="mcp",
        read=entries.opencode,
    ),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Operating system (a value of `sys.platform`), home directory and environment of a user."""

    system: str
    home: Path
    environ: Mapping[str, str]

    @property
    def folders(self) -> dict[str, Path]:
        """Return the directories of the user's settings by their names in the table of clients."""
        config = self._named("XDG_CONFIG_HOME", ".config")
        is_windows = self.system == "win32"
        programs = self._named("APPDATA", "AppData/Roaming") if is_windows else config
        return {
            "home": self.home,
            "config": config,
            "programs": self.home / "Library" / "Application Support" if self.system == "darwin" else programs,
            "claude": self._named("CLAUDE_CONFIG_DIR", ""),
            "claude_settings": self._named("CLAUDE_CONFIG_DIR", ".claude"),
            "codex": self._named("CODEX_HOME", ".codex"),
            "copilot": self._named("COPILOT_HOME", ".copilot"),
            "zed": programs / ("Zed" if is_windows else "zed"),
            "goose": programs / ("Block/goose/config" if is_windows else "goose"),
        }

    def _named(self, variable: str, default: str) -> Path:
        return Path(self.environ.get(variable) or self.home / default)


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A configuration file, which may not exist.

    `client` is None if the file is no client's; `project` is the directory of a project's file. `is_named` is true for
    a file that the user names.
    """

    path: Path
    client: Client | None = None
    project: Path | None = None
    is_named: bool = False

    @property
    def title(self) -> str:
        """Return the name of the client, or of the file."""
        return CLIENTS[self.client].title if self.client else self.path.name

    @property
    def is_required(self) -> bool:
        """Return whether it is an error that the file has no servers."""
        return self.is_named or self.client is None


def this_machine() -> Machine:
    """Return the machine and user of this process."""
    return Machine(sys.platform, Path.home(), os.environ)


def client_files(machine: Machine, project: Path, clients: Iterable[Client]) -> list[ClientFile]:
    """Return the possible files of these clients; files of the project precede those of the user."""
    files = [file for client in clients for file in _files(client, machine, project)]
    return list({file.path: file for file in reversed(files)}.values())[::-1]


def _files(client: Client, machine: Machine, project: Path) -> Iterator[ClientFile]:
    """Yield the files of a client; a file of the home directory is the user's, also if that is the project."""
    patterns = CLIENTS[client].files
    users = [path for each in patterns if "{project}" not in each for path in _expanded(each, machine.folders)]
    for pattern in patterns:
        if "{project}" in pattern:
            found = _expanded(pattern, {"project": project})
            yield from (ClientFile(path, client, project) for path in found if path not in users)
    yield from (ClientFile(path, client) for path in users)


def named_file(path: Path) -> ClientFile:
    """Return a file named by the user; its path may show that it belongs to a project."""
    if path.name == ".mcp.json":
        return ClientFile(path, project=path.parent, is_named=True)
    project = path.parent.parent if path.parent.name in (".cursor", ".vscode") else None
    return ClientFile(path, project=project, is_named=True)


def known_or_named(path: Path, machine: Machine, project: Path) -> ClientFile:
    """Return a file named by the user: a client's, if it is in the client's place."""
    known = {file.path: file for file in client_files(machine, project, Client)}
    return replace(known[path], is_named=True) if path in known else named_file(path)


def file_to_connect(client: Client, machine: Machine) -> Path:
    """Return the user's file of a client: the first that exists, else the first with a directory, else the first."""
    form = CLIENTS[client]
    patterns = form.connected or [pattern for pattern in form.files if "{project}" not in pattern]
    files = [path for pattern in patterns for path in _expanded(pattern, machine.folders)]
    present = [path for path in files if path.is_file()] + [path for path in files if path.parent.is_dir()]
    return [*present, *files][0].resolve()


def entry_for(client: Client, command: Sequence[str], url: str | None = None) -> Entry:
    """Return the entry of Toolscale in the form of this client: the command that the client starts, or the URL.

    Raises:
        ConfigInvalid: the client cannot connect to a URL.
    """
    form = CLIENTS[client]
    if url is None:
        return form.stdio(command)
    if form.http is None:
        raise ConfigInvalid(f"{form.title} starts its servers itself; leave --url out")
    return form.http(url)


def _expanded(pattern: str, folders: Mapping[str, Path]) -> list[Path]:
    """Return the paths of a pattern; a path without a star may not exist."""
    folder, _, rest = pattern.removeprefix("{").partition("}/")
    return sorted(folders[folder].glob(rest)) if "*" in rest else [folders[folder] / rest]
