"""`toolscale import` of third-party servers from the files of four clients, and `toolscale serve` on the result."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.clients.serving import WITHOUT_STORES
from tests.clients.third_party import ThirdPartyServer, filled
from tests.support.processes import Composition
from tests.support.transcripts.serving import called
from tests.support.warm import run

CLIENTS = 4

Entry = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ImportedService:
    """A service over HTTP, the output of the import, and the directory of the files."""

    url: str
    imported: str
    files: Path

    def play(self, server: ThirdPartyServer) -> int:
        """List, find and call the server's tools; return their number."""
        tool = f"{server.name}:{server.tool}"
        given = filled(server.parameters, self.files)

        (listed,) = self._ask("list_available_tools", servers=[server.name])["structuredContent"]["toolsByServer"]
        found = self._ask("find_tool", tool_description=server.task)["structuredContent"]["tools"]
        result = self._ask("call_tool", tool_name=tool, parameters=given)

        assert f"{server.name}: added (" in self.imported
        assert server.tool in listed["names"].split()
        assert tool in [each["name"] for each in found]
        assert not result.get("isError"), result
        expected = server.result.replace("{files}", str(self.files))
        assert expected in "\n".join(block["text"] for block in result["content"]), result
        return len(listed["names"].split())

    def _ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return anyio.run(lambda: called(self.url, tool, **arguments))


@contextmanager
def serving_imported(
    servers: Iterable[ThirdPartyServer], environments: Path, files: Path, home: Path
) -> Generator[ImportedService]:
    """Import the servers in a home directory, and serve them after all are listed."""
    entries = [(server.name, server.entry(environments, files)) for server in servers]
    write_clients(home, entries)
    environment = {**WITHOUT_STORES, "HOME": str(home), "XDG_CONFIG_HOME": "", "TOOLSCALE_MCP_CONFIG": ""}
    composition = Composition("", home, environment)
    command = [sys.executable, "-m", "toolscale", "import", "--project", str(home / "project"), "--apply"]
    done = run(command, env=composition.environment, cwd=home)
    assert done.returncode == 0, done.stderr
    with composition.run("serve", "-m", "toolscale", "serve", "--port", "0") as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url, running.output()
        running.wait_for("server_indexed", within_s=120, times=len(entries))
        yield ImportedService(url.group(), done.stdout, files)


def write_clients(home: Path, entries: Sequence[Entry]) -> None:
    """Divide the servers among the files of four clients, in the shape of each."""
    code, desktop, cursor, vscode = (entries[number::CLIENTS] for number in range(CLIENTS))
    project = home / "project"
    write(home / ".claude.json", {"numStartups": 3, "mcpServers": typed(code)})
    write(home / ".config" / "Claude" / "claude_desktop_config.json", {"mcpServers": dict(desktop)})
    write(project / ".cursor" / "mcp.json", {"mcpServers": dict(cursor)})
    write(project / ".vscode" / "mcp.json", {"inputs": [], "servers": typed(vscode)}, "// servers of this project\n")


def typed(entries: Iterable[Entry]) -> dict[str, Any]:
    return {name: {"type": "stdio", **entry} for name, entry in entries}


def write(path: Path, document: dict[str, Any], comment: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(comment + json.dumps(document, indent=2), encoding="utf-8")
