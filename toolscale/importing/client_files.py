"""Configuration files of MCP clients on Linux, macOS and Windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Client(StrEnum):
    """A supported client."""

    CLAUDE_CODE = "claude-code"
    CLAUDE_DESKTOP = "claude-desktop"
    CURSOR = "cursor"
    VSCODE = "vscode"


TITLES: Mapping[Client, str] = {
    Client.CLAUDE_CODE: "Claude Code",
    Client.CLAUDE_DESKTOP: "Claude Desktop",
    Client.CURSOR: "Cursor",
    Client.VSCODE: "VS Code",
}

_VSCODE_EDITIONS = ("Code", "Code - Insiders", "VSCodium")


@dataclass(frozen=True, slots=True)
class Machine:
    """Operating system (a value of `sys.platform`), home directory and environment of a user."""

    system: str
    home: Path
    environ: Mapping[str, str]

    @property
    def programs(self) -> Path:
        """Return the directory of the user's application settings."""
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        if self.system == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData" / "Roaming")
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.home / ".config")

    @property
    def claude_code_state(self) -> Path:
        """Return the file of Claude Code with the servers of the user and of each project."""
        return Path(self.environ.get("CLAUDE_CONFIG_DIR") or self.home) / ".claude.json"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A configuration file, which may not exist.

    `client` is None for a file named by the user; `project` is the directory of a project's file.
    """

    path: Path
    client: Client | None = None
    project: Path | None = None

    @property
    def title(self) -> str:
        """Return the name of the client, or of the file."""
        return TITLES[self.client] if self.client else self.path.name


def this_machine() -> Machine:
    """Return the machine and user of this process."""
    return Machine(sys.platform, Path.home(), os.environ)


def client_files(machine: Machine, project: Path, clients: Iterable[Client]) -> list[ClientFile]:
    """Return the possible files of these clients; files of the project precede those of the user."""
    files = [file for client in clients for file in _PLACES[client](machine, project)]
    return list({place.path: place for place in reversed(files)}.values())[::-1]


def named_file(path: Path) -> ClientFile:
    """Return a file named by the user; its path may show that it belongs to a project."""
    if path.name == ".mcp.json":
        return ClientFile(path, project=path.parent)
    return ClientFile(path, project=path.parent.parent if path.parent.name in (".cursor", ".vscode") else None)


def _claude_code(machine: Machine, project: Path) -> Iterator[ClientFile]:
    yield ClientFile(project / ".mcp.json", Client.CLAUDE_CODE, project)
    yield ClientFile(machine.claude_code_state, Client.CLAUDE_CODE)


def _claude_desktop(machine: Machine, _project: Path) -> Iterator[ClientFile]:
    yield ClientFile(machine.programs / "Claude" / "claude_desktop_config.json", Client.CLAUDE_DESKTOP)


def _cursor(machine: Machine, project: Path) -> Iterator[ClientFile]:
    if project != machine.home:
        yield ClientFile(project / ".cursor" / "mcp.json", Client.CURSOR, project)
    yield ClientFile(machine.home / ".cursor" / "mcp.json", Client.CURSOR)


def _vscode(machine: Machine, project: Path) -> Iterator[ClientFile]:
    for name in ("mcp.json", "settings.json"):
        yield ClientFile(project / ".vscode" / name, Client.VSCODE, project)
    for edition in _VSCODE_EDITIONS:
        user = machine.programs / edition / "User"
        for directory in (user, *sorted(user.glob("profiles/*"))):
            yield ClientFile(directory / "mcp.json", Client.VSCODE)
            yield ClientFile(directory / "settings.json", Client.VSCODE)


_PLACES: Mapping[Client, Callable[[Machine, Path], Iterator[ClientFile]]] = {
    Client.CLAUDE_CODE: _claude_code,
    Client.CLAUDE_DESKTOP: _claude_desktop,
    Client.CURSOR: _cursor,
    Client.VSCODE: _vscode,
}
