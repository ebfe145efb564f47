"""Real third-party MCP servers for a first run, and their installation.

They have separate environments, since they need other versions of the MCP SDK than Toolscale.
All of them list their tools without a network, an account or another service.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from shared.errors import ToolscaleError
from toolscale.demo.environments import Environment, NodeEnvironment, PythonEnvironment, prepare_scratch

Progress = Callable[[str], None]
"""Shows one line of progress; called from several threads."""

HERE = Path(__file__).parent

MODERN = PythonEnvironment("modern", HERE / "modern.lock")
LEGACY = PythonEnvironment("legacy", HERE / "legacy.lock")
NODE = NodeEnvironment("node", HERE / "package.json", HERE / "package-lock.json")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DemoServer:
    """A third-party server: `program` is in the environment, `{scratch}` stands for a working directory.

    `needs` names another program that must be on the machine.
    """

    server_id: str
    environment: Environment
    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchableServer:
    """An installed server: the command that starts it, with absolute paths."""

    server_id: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]


DEMO_SERVERS: tuple[DemoServer, ...] = (
    DemoServer("time", MODERN, "mcp-server-time", ("--local-timezone", "UTC")),
    DemoServer("git", MODERN, "mcp-server-git", ("--repository", "{scratch}/repository"), needs="git"),
    DemoServer("fetch", MODERN, "mcp-server-fetch"),
    DemoServer("sqlite", LEGACY, "mcp-server-sqlite", ("--db-path", "{scratch}/notes.db")),
    DemoServer("powerpoint", LEGACY, "ppt_mcp_server"),
    DemoServer("redis", LEGACY, "redis-mcp-server", ("--url", "redis://127.0.0.1:6379/0")),
    DemoServer("duckduckgo", LEGACY, "duckduckgo-mcp-server"),
    DemoServer("everything", NODE, "mcp-server-everything"),
    DemoServer("filesystem", NODE, "mcp-server-filesystem", ("{scratch}/files",)),
    DemoServer("memory", NODE, "mcp-server-memory", env={"MEMORY_FILE_PATH": "{scratch}/memory.jsonl"}),
    DemoServer("sequential-thinking", NODE, "mcp-server-sequential-thinking"),
)


def install(target_dir: Path, progress: Progress) -> list[LaunchableServer]:
    """Install all environments in parallel, and return the servers that can be started.

    Complete environments are skipped. If Node.js or its packages are unavailable, its servers are skipped
    and `progress` shows the reason.

    Raises:
        Retryable: the installation of a Python environment failed; the message ends with the installer's.
    """
    with ThreadPoolExecutor() as pool:
        optional = pool.submit(_install_or_warn, NODE, target_dir, progress)
        required = [pool.submit(_install, environment, target_dir, progress) for environment in (MODERN, LEGACY)]
        for installation in (optional, *required):
            installation.result()
    return launchable(target_dir)


def launchable(target_dir: Path) -> list[LaunchableServer]:
    """Return the servers installed below `target_dir`, and create their working files."""
    scratch = prepare_scratch(target_dir.resolve() / "scratch")
    return [_launch(server, target_dir, scratch) for server in _installed(target_dir)]


def write_config(target_dir: Path) -> Path:
    """Write the installed servers to `mcp.json` in `target_dir`; return its path."""
    servers = {
        server.server_id: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
        for server in launchable(target_dir)
    }
    path = target_dir / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}, indent=2) + "\n", encoding="utf-8")
    return path


def _install(environment: Environment, target_dir: Path, progress: Progress) -> None:
    if environment.is_installed(target_dir):
        return
    progress(f"Installing the {environment.name} servers (once) ...")
    environment.install(target_dir)
    progress(f"Installed the {environment.name} servers")


def _install_or_warn(environment: Environment, target_dir: Path, progress: Progress) -> None:
    try:
        _install(environment, target_dir, progress)
    except ToolscaleError as error:
        _log.warning("demo_servers_left_out", environment=environment.name, reason=str(error))
        progress(f"Continuing without the {environment.name} servers: {error}")


def _installed(target_dir: Path) -> Iterator[DemoServer]:
    ready = {environment.name for environment in (MODERN, LEGACY, NODE) if environment.is_installed(target_dir)}
    for server in DEMO_SERVERS:
        if server.environment.name in ready and (server.needs is None or shutil.which(server.needs)):
            yield server


def _launch(server: DemoServer, target_dir: Path, scratch: Path) -> LaunchableServer:
    def fill(text: str) -> str:
        return text.replace("{scratch}", str(scratch))

    return LaunchableServer(
        server.server_id,
        str(server.environment.programs(target_dir) / server.program),
        tuple(fill(arg) for arg in server.args),
        {name: fill(value) for name, value in server.env.items()},
    )
