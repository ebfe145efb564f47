"""Third-party MCP servers that start without an account, and a harmless call to each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.libraries import LockedEnvironment, locked_version, node, python
from toolscale.demo.servers import prepare_scratch

LEGACY = python("servers-legacy")
MODERN = python("servers-modern")
NODE = node("servers-node")
SERVER_ENVIRONMENTS: tuple[LockedEnvironment, ...] = (LEGACY, MODERN, NODE)


@dataclass(frozen=True)
class ThirdPartyServer:
    """A server, the task and the tool that answers it, and a part of the tool's result.

    `{files}` stands for the directory that `prepare_files` returns.
    """

    name: str
    package: str
    environment: LockedEnvironment
    program: str
    task: str
    tool: str
    parameters: Mapping[str, Any]
    result: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: str | None = None

    @property
    def needs_node(self) -> bool:
        """Return whether it is a program of Node.js."""
        return self.environment is NODE

    @property
    def version(self) -> str:
        """Return the locked version."""
        return locked_version(self.package, self.environment)

    def entry(self, environments: Path, files: Path) -> dict[str, Any]:
        """Return its entry in a client's configuration."""
        command = str(self.environment.programs(environments) / self.program)
        return {"command": command, **filled({"args": list(self.args), "env": dict(self.env)}, files)}


def prepare_files(directory: Path) -> Path:
    """Return the directory with the files that the calls read, and if git is installed, a `repository`."""
    (directory / "notes.txt").write_text("hear, hear\n")
    (directory / "code.js").write_text("let unused = 1;\n")
    (directory / "eslint.config.mjs").write_text('export default [{ rules: { "no-unused-vars": "error" } }];\n')
    return prepare_scratch(directory)


def filled(value: Mapping[str, Any], files: Path) -> dict[str, Any]:
    """Return a copy with the directory of the files."""
    copy: dict[str, Any] = json.loads(json.dumps(dict(value)).replace("{files}", str(files)))
    return copy


THIRD_PARTY_SERVERS = (
    ThirdPartyServer(
        "calculator",
        "mcp-server-calculator",
        LEGACY,
        "mcp-server-calculator",
        "calculate an arithmetic expression",
        "calculate",
        {"expression": "6 * 7"},
        "42",
    ),
    ThirdPartyServer(
        "papers",
        "arxiv-mcp-server",
        LEGACY,
        "arxiv-mcp-server",
        "list the downloaded arXiv papers",
        "list_papers",
        {},
        '"total_papers": 0',
        args=("--storage-path", "{files}/papers"),
    ),
    ThirdPartyServer(
        "editor",
        "mcp-text-editor",
        LEGACY,
        "mcp-text-editor",
        "read line ranges of text files",
        "get_text_file_contents",
        {"files": [{"file_path": "{files}/notes.txt", "ranges": [{"start": 1, "end": None}]}]},
        "hear, hear",
    ),
    ThirdPartyServer(
        "shell",
        "cli-mcp-server",
        LEGACY,
        "cli-mcp-server",
        "show the security rules for allowed commands",
        "show_security_rules",
        {},
        "Working Directory: {files}",
        env={"ALLOWED_DIR": "{files}", "ALLOWED_COMMANDS": "ls", "ALLOWED_FLAGS": "all"},
    ),
    ThirdPartyServer(
        "excel",
        "excel-mcp-server",
        MODERN,
        "excel-mcp-server",
        "create a new Excel workbook",
        "create_workbook",
        {"path": "{files}/book.xlsx"},
        "book.xlsx",
        args=("stdio", "--allow-dir", "{files}"),
    ),
    ThirdPartyServer(
        "database",
        "mcp-alchemy",
        MODERN,
        "mcp-alchemy",
        "execute an SQL query",
        "execute_query",
        {"query": "SELECT 6 * 7 AS answer"},
        "answer: 42",
        env={"DB_URL": "sqlite:///{files}/notes.db"},
    ),
    ThirdPartyServer(
        "git",
        "@cyanheads/git-mcp-server",
        NODE,
        "git-mcp-server",
        "show the status of the working tree of a repository",
        "git_status",
        {"path": "{files}/repository"},
        '"isClean": true',
        env={"MCP_TRANSPORT_TYPE": "stdio", "MCP_LOG_LEVEL": "error"},
        needs="git",
    ),
    ThirdPartyServer(
        "eslint",
        "@eslint/mcp",
        NODE,
        "mcp",
        "lint JavaScript files",
        "lint-files",
        {"filePaths": ["{files}/code.js"]},
        "no-unused-vars",
    ),
    ThirdPartyServer(
        "tasks",
        "@kazuph/mcp-taskmanager",
        NODE,
        "mcp-taskmanager",
        "list all requests of the task manager",
        "list_requests",
        {},
        "requests_listed",
        env={"TASK_MANAGER_FILE_PATH": "{files}/tasks.json"},
    ),
    ThirdPartyServer(
        "commands",
        "mcp-server-commands",
        NODE,
        "mcp-server-commands",
        "run a command",
        "run_command",
        {"command": "echo hear"},
        "hear",
    ),
)
