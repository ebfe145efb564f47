"""The demo's third-party servers: really installed from the package index, really started, really asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from shared.errors import Retryable
from toolscale.demo.servers import (
    DEMO_SERVERS,
    LEGACY,
    MODERN,
    NODE,
    LaunchableServer,
    PythonEnvironment,
    install,
    write_config,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

NODE_IDS = {server.server_id for server in DEMO_SERVERS if server.environment is NODE}
needs_node = pytest.mark.skipif(not shutil.which("npm"), reason="Node.js and npm are not installed")


@pytest.mark.index
def test_the_python_servers_list_at_least_twenty_tools_without_nodejs(demo_servers: Path) -> None:
    tools = list_tools([server for server in configured(demo_servers) if server.server_id not in NODE_IDS])

    assert all(tools.values()), f"a server without tools: {tools}"
    assert len(tools) >= 4
    assert sum(tools.values()) >= 20


@needs_node
@pytest.mark.index
@pytest.mark.node
def test_the_nodejs_servers_bring_the_demo_to_eight_servers_and_58_tools(demo_servers: Path) -> None:
    tools = list_tools(configured(demo_servers))

    assert all(tools.values()), f"a server without tools: {tools}"
    assert tools.keys() >= NODE_IDS
    assert len(tools) >= 8
    assert sum(tools.values()) >= 58


@pytest.mark.index
def test_a_second_installation_leaves_everything_as_it_is(demo_servers: Path) -> None:
    before = modification_times(demo_servers)
    lines: list[str] = []

    install(demo_servers, lines.append)

    assert modification_times(demo_servers) == before
    assert not [line for line in lines if line.startswith("Install")]


def _is_installed(_environment: PythonEnvironment, _directory: Path) -> bool:
    return True


@needs_node
@pytest.mark.node
def test_a_failing_npm_leaves_out_its_servers_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PythonEnvironment, "is_installed", _is_installed)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    lines: list[str] = []

    servers = install(tmp_path / "demo", lines.append)

    assert {server.server_id for server in servers} >= {"time", "fetch", "sqlite"}
    assert not {server.server_id for server in servers} & NODE_IDS
    assert [line for line in lines if line.startswith("Continuing without the node servers: npm ci")]


@pytest.mark.index
def test_packages_that_differ_from_the_lock_are_rejected(tmp_path: Path) -> None:
    lock = tmp_path / "wrong.lock"
    lock.write_text(f"six==1.17.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    environment = PythonEnvironment("wrong", lock)

    with pytest.raises(Retryable, match=r"(?is)install .*failed.*hash"):
        environment.install(tmp_path)

    assert not environment.is_installed(tmp_path)


def test_without_uv_the_environment_is_made_by_venv_and_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("uv"):
        pytest.skip("uv is among the system's own programs")
    environment = environment_of_nothing(tmp_path)

    environment.install(tmp_path)

    assert environment.is_installed(tmp_path)
    assert (environment.programs(tmp_path) / "pip").exists()


def test_a_changed_lock_file_makes_an_environment_count_as_not_installed(tmp_path: Path) -> None:
    environment = environment_of_nothing(tmp_path)
    environment.install(tmp_path)
    assert environment.is_installed(tmp_path)

    environment.lock.write_text("# something else now\n", encoding="utf-8")

    assert not environment.is_installed(tmp_path)


def test_an_environment_moved_elsewhere_counts_as_not_installed(tmp_path: Path) -> None:
    environment = environment_of_nothing(tmp_path)
    environment.install(tmp_path / "here")

    (tmp_path / "here").rename(tmp_path / "there")

    assert not environment.is_installed(tmp_path / "there")


def test_every_server_id_is_distinct_and_every_environment_has_servers() -> None:
    assert len({server.server_id for server in DEMO_SERVERS}) == len(DEMO_SERVERS)
    assert {server.environment for server in DEMO_SERVERS} == {MODERN, LEGACY, NODE}


def environment_of_nothing(directory: Path) -> PythonEnvironment:
    lock = directory / "nothing.lock"
    lock.write_text("# no packages\n", encoding="utf-8")
    return PythonEnvironment("nothing", lock)


def configured(target_dir: Path) -> list[LaunchableServer]:
    """Read the servers back from the file that a user would hand to `toolscale serve`."""
    document: dict[str, dict[str, Any]] = json.loads(write_config(target_dir).read_text(encoding="utf-8"))
    return [
        LaunchableServer(server_id, entry["command"], tuple(entry["args"]), entry["env"])
        for server_id, entry in document["mcpServers"].items()
    ]


def list_tools(servers: list[LaunchableServer]) -> dict[str, int]:
    """Return each server's number of tools."""
    counts: dict[str, int] = {}
    limiter = anyio.Semaphore(3)

    async def ask(server: LaunchableServer) -> None:
        async with limiter:
            counts[server.server_id] = await count_tools(server)

    async def ask_all() -> None:
        with anyio.fail_after(90):
            async with anyio.create_task_group() as group:
                for server in servers:
                    group.start_soon(ask, server)

    anyio.run(ask_all)
    return counts


async def count_tools(server: LaunchableServer) -> int:
    parameters = StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env))
    async with Client(parameters, cache=None) as client:
        return len((await client.list_tools()).tools)


def modification_times(directory: Path) -> dict[Path, int]:
    environments = (MODERN, LEGACY, NODE)
    roots = [directory / environment.name for environment in environments if (directory / environment.name).exists()]
    return {path: path.lstat().st_mtime_ns for root in roots for path in root.iterdir()}
