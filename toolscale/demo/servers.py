"""Real third-party MCP servers for a first run, and their installation.

They have separate environments, installed from lock files with hashes, since they need other versions of the MCP SDK
than Toolscale. All of them list their tools without a network, an account or another service.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from shared.errors import Permanent, Retryable, ToolscaleError

Progress = Callable[[str], None]
"""Shows one line of progress; called from several threads."""

HERE = Path(__file__).parent
TIMEOUT_S = 300
# Installers print the reason on several lines.
SHOWN_CHARACTERS = 600

_log = structlog.get_logger()


class Environment(Protocol):
    """Programs in one directory below the target directory."""

    @property
    def name(self) -> str:
        """Return the directory's name."""
        ...

    def programs(self, target_dir: Path) -> Path:
        """Return the absolute directory that holds the installed programs."""
        ...

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation of this lock file is complete."""
        ...

    def install(self, target_dir: Path) -> None:
        """Install from scratch, replacing an earlier installation.

        Raises:
            Retryable: the installer failed; the message ends with its output.
            Permanent: the installer is missing on this machine.
        """
        ...


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment, installed by uv if present, else by venv and pip."""

    name: str
    lock: Path

    def programs(self, target_dir: Path) -> Path:
        """Return the environment's `bin`."""
        return target_dir.resolve() / self.name / "bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether the installation is complete and its lock file unchanged."""
        return _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Create a new virtual environment and install the lock file into it."""
        directory = _emptied(target_dir.resolve() / self.name)
        # --no-deps: a lock file has all packages, and pip would also ask for a pin of each extra
        locked = ["--no-deps", "--require-hashes", "-r", str(self.lock)]
        python = str(directory / "bin" / "python")
        if shutil.which("uv"):
            run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)], directory.parent)
            run(["uv", "pip", "install", "--quiet", "--python", python, *locked], directory.parent)
        else:
            run([sys.executable, "-m", "venv", str(directory)], directory.parent)
            # compiling takes longer than installing, and a server imports few modules
            pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            run([python, *pip, *locked], directory.parent)
        _complete(directory, [self.lock])


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """A directory with npm packages, installed by `npm ci`."""

    name: str
    package: Path
    lock: Path

    def programs(self, target_dir: Path) -> Path:
        """Return `node_modules/.bin`."""
        return target_dir.resolve() / self.name / "node_modules" / ".bin"

    def is_installed(self, target_dir: Path) -> bool:
        """Return whether Node.js exists, the installation is complete and its lock file unchanged."""
        return shutil.which("node") is not None and _is_complete(target_dir.resolve() / self.name, [self.lock])

    def install(self, target_dir: Path) -> None:
        """Copy the package and lock files and install them without running package scripts."""
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise Permanent("Node.js and npm are not installed")
        directory = _emptied(target_dir.resolve() / self.name)
        for file in (self.package, self.lock):
            shutil.copy(file, directory)
        run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], directory)
        _complete(directory, [self.lock])


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _is_complete(directory: Path, sources: Sequence[Path]) -> bool:
    stamp = directory / ".complete"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _fingerprint(directory, sources)


def _complete(directory: Path, sources: Sequence[Path]) -> None:
    (directory / ".complete").write_text(_fingerprint(directory, sources), encoding="utf-8")


def _fingerprint(directory: Path, sources: Sequence[Path]) -> str:
    """Return a digest of the lock files, the Python version and the path: programs contain absolute paths."""
    material = [*(source.read_bytes() for source in sources), sys.version.encode(), str(directory).encode()]
    return hashlib.sha256(b"\0".join(material)).hexdigest()


def run(command: Sequence[str], cwd: Path) -> None:
    """Run the program to its end without showing its output.

    Raises:
        Retryable: it failed, or exceeded TIMEOUT_S; the message ends with its last lines.
        Permanent: it cannot be started.
    """
    try:
        subprocess.run(  # noqa: S603  # programs and paths are fixed
            command, cwd=cwd, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise Retryable(f"{_shown(command)} failed: {error.stderr.strip()[-SHOWN_CHARACTERS:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Retryable(f"{_shown(command)} did not end within {TIMEOUT_S} s") from error
    except OSError as error:
        raise Permanent(f"{_shown(command)} cannot be started: {error}") from error


def _shown(command: Sequence[str]) -> str:
    return f"{Path(command[0]).name} {' '.join(command[1:4])}"


MODERN = PythonEnvironment("modern", HERE / "modern.lock")
LEGACY = PythonEnvironment("legacy", HERE / "legacy.lock")
NODE = NodeEnvironment("node", HERE / "package.json", HERE / "package-lock.json")


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


def launchable(target_dir: Path, working_dir: Path | None = None) -> list[LaunchableServer]:
    """Return the servers installed below `target_dir`, and create their working files, there or in `working_dir`."""
    scratch = str(prepare_scratch((working_dir or target_dir / "scratch").resolve()))
    ready = {environment.name for environment in (MODERN, LEGACY, NODE) if environment.is_installed(target_dir)}
    return [
        LaunchableServer(
            server.server_id,
            str(server.environment.programs(target_dir) / server.program),
            tuple(arg.replace("{scratch}", scratch) for arg in server.args),
            {name: value.replace("{scratch}", scratch) for name, value in server.env.items()},
        )
        for server in DEMO_SERVERS
        if server.environment.name in ready and (server.needs is None or shutil.which(server.needs))
    ]


def prepare_scratch(directory: Path) -> Path:
    """Return `directory` with a `files` directory and, if git is installed, a `repository`.

    Existing files stay unchanged.
    """
    (directory / "files").mkdir(parents=True, exist_ok=True)
    git = shutil.which("git")
    if git and not (directory / "repository" / ".git").exists():
        run([git, "init", "--quiet", "repository"], directory)
    return directory


def write_config(target_dir: Path) -> Path:
    """Write the installed servers to `mcp.json` in `target_dir`; return its path."""
    return write_servers(launchable(target_dir), target_dir)


def write_servers(servers: Sequence[LaunchableServer], directory: Path) -> Path:
    """Write these servers to `mcp.json` in `directory`; return its path."""
    entries = {
        server.server_id: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
        for server in servers
    }
    path = directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}, indent=2) + "\n", encoding="utf-8")
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
