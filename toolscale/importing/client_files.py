"""Clients, and their configuration files on Linux, macOS and Windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path


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


EDITIONS = ("Code", "Code - Insiders", "VSCodium")
_VSCODE = tuple(f"{folder}/{name}" for folder in ("", "/profiles/*") for name in ("mcp.json", "settings.json"))
CLINE_FILE = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"

# The title and the files of each client. A star stands for any name; `Machine.folders` has the words in braces.
_CLIENTS: Mapping[Client, tuple[str, ...]] = {
    Client.CLAUDE: ("Claude Code", "{project}/.mcp.json", "{claude}/.claude.json"),
    Client.CLAUDE_DESKTOP: ("Claude Desktop", "{programs}/Claude/claude_desktop_config.json"),
    Client.CURSOR: ("Cursor", "{project}/.cursor/mcp.json", "{home}/.cursor/mcp.json"),
    Client.VSCODE: (
        "VS Code",
        "{project}/.vscode/mcp.json",
        "{project}/.vscode/settings.json",
        *(f"{{programs}}/{edition}/User{file}".replace("//", "/") for edition in EDITIONS for file in _VSCODE),
    ),
    Client.WINDSURF: ("Windsurf", "{home}/.codeium/windsurf/mcp_config.json"),
    Client.CLINE: (
        "Cline",
        *(f"{{programs}}/{edition}/{CLINE_FILE}" for edition in (*EDITIONS, "Cursor", "Windsurf")),
        "{home}/.cline/data/settings/cline_mcp_settings.json",
    ),
    Client.LMSTUDIO: ("LM Studio", "{home}/.lmstudio/mcp.json"),
    Client.COPILOT: ("Copilot CLI", "{copilot}/mcp-config.json"),
    Client.GEMINI: ("Gemini CLI", "{project}/.gemini/settings.json", "{home}/.gemini/settings.json"),
    Client.ZED: ("Zed", "{project}/.zed/settings.json", "{zed}/settings.json"),
    Client.CODEX: ("Codex", "{project}/.codex/config.toml", "{codex}/config.toml"),
    Client.CONTINUE: (
        "Continue",
        *(
            f"{{{folder}}}/.continue/{name}"
            for folder in ("project", "home")
            for name in ("config.yaml", "config.json", "mcpServers/*.yaml", "mcpServers/*.yml", "mcpServers/*.json")
        ),
    ),
    Client.GOOSE: ("Goose", "{goose}/config.yaml"),
    Client.OPENCODE: (
        "opencode",
        *(
            f"{folder}/opencode.{suffix}"
            for folder in ("{project}", "{config}/opencode")
            for suffix in ("json", "jsonc")
        ),
    ),
}

TITLES: Mapping[Client, str] = {client: title for client, (title, *_) in _CLIENTS.items()}


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
            "codex": self._named("CODEX_HOME", ".codex"),
            "copilot": self._named("COPILOT_HOME", ".copilot"),
            "zed": programs / ("Zed" if is_windows else "zed"),
            "goose": programs / ("Block/goose/config" if is_windows else "goose"),
        }

    @property
    def claude_code_state(self) -> Path:
        """Return the file of Claude Code with the servers of the user and of each project."""
        return self.folders["claude"] / ".claude.json"

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
        return TITLES[self.client] if self.client else self.path.name


def this_machine() -> Machine:
    """Return the machine and user of this process."""
    return Machine(sys.platform, Path.home(), os.environ)


def client_files(machine: Machine, project: Path, clients: Iterable[Client]) -> list[ClientFile]:
    """Return the possible files of these clients; files of the project precede those of the user."""
    files = [file for client in clients for file in _files(client, machine, project)]
    return list({file.path: file for file in reversed(files)}.values())[::-1]


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


def _files(client: Client, machine: Machine, project: Path) -> Iterator[ClientFile]:
    """Yield the files of a client; a file of the home directory is the user's, also if that is the project."""
    paths = _CLIENTS[client][1:]
    users = [path for pattern in paths if "{project}" not in pattern for path in expanded(pattern, machine.folders)]
    for pattern in paths:
        if "{project}" in pattern:
            found = expanded(pattern, {"project": project})
            yield from (ClientFile(path, client, project) for path in found if path not in users)
    yield from (ClientFile(path, client) for path in users)


def expanded(pattern: str, folders: Mapping[str, Path]) -> list[Path]:
    """Return the paths of a pattern; a path without a star may not exist."""
    folder, _, rest = pattern.removeprefix("{").partition("}/")
    return sorted(folders[folder].glob(rest)) if "*" in rest else [folders[folder] / rest]
