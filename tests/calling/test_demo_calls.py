"""The demo's third-party servers, called through the query service, and a client of the SDK's first generation."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult, ImageContent, ResourceLink, TextContent

from query.listener import open_listener
from query.mcp import build_server
from query.service import HttpServer
from query.tools.registry import builtin_tools
from shared.catalog import IndexedTool
from shared.settings import load_settings
from shared.upstream.target import StdioTarget
from tests.support.calling import calling, catalogue_of, upstreams_to
from tests.support.fakes import make_tool
from toolscale.demo.servers import LEGACY, launchable
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.anyio, pytest.mark.index]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
needs_node = pytest.mark.skipif(not shutil.which("npm"), reason="Node.js and npm are not installed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def listed(demo_servers: Path, server_id: str) -> tuple[StdioTarget, list[IndexedTool]]:
    """Return how a server is started, and its tools as they would be indexed."""
    (found,) = (server for server in launchable(demo_servers) if server.server_id == server_id)
    target = StdioTarget(found.command, found.args, found.env)
    listing = fetch_tools_blocking(server_id, target, Limits())
    return target, [
        replace(make_tool(server_id, definition.name), definition=definition) for definition in listing.tools
    ]


@asynccontextmanager
async def calls_to(demo_servers: Path, server_id: str, mode: str = "auto") -> AsyncGenerator[Client]:
    target, tools = await anyio.to_thread.run_sync(listed, demo_servers, server_id)
    async with calling({server_id: target}, *tools, mode=mode) as client:
        yield client


def words(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


@both_eras
async def test_time_converts(demo_servers: Path, mode: str) -> None:
    parameters = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    async with calls_to(demo_servers, "time", mode) as client:
        result = await client.call_tool("call_tool", {"tool_name": "time:convert_time", "parameters": parameters})

    assert "T21:00:00+09:00" in words(result)
    assert result.structured_content["target"]["timezone"] == "Asia/Tokyo"


async def test_a_missing_parameter_of_a_real_tool_is_named(demo_servers: Path) -> None:
    async with calls_to(demo_servers, "time") as client:
        request = {"tool_name": "time:convert_time", "parameters": {"time": "12:00"}}
        result = await client.call_tool("call_tool", request)

    assert result.is_error
    assert "parameters.source_timezone: is required" in words(result)


async def test_git_tells_its_status(demo_servers: Path) -> None:
    parameters = {"repo_path": str(demo_servers / "scratch" / "repository")}
    async with calls_to(demo_servers, "git") as client:
        result = await client.call_tool("call_tool", {"tool_name": "git_status", "arguments": parameters})

    assert not result.is_error
    assert "On branch" in words(result)


@both_eras
async def test_sqlite_of_the_first_sdk_answers_a_query(demo_servers: Path, mode: str) -> None:
    request = {"server_name": "sqlite", "tool_name": "read_query", "args": {"query": "SELECT 6 * 7 AS answer"}}
    async with calls_to(demo_servers, "sqlite", mode) as client:
        result = await client.call_tool("call_tool", request)

    assert "42" in words(result)


@needs_node
@pytest.mark.node
@both_eras
async def test_everything_reports_progress(demo_servers: Path, mode: str) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    request = {"tool_name": "trigger-long-running-operation", "parameters": {"duration": 1, "steps": 4}}
    async with calls_to(demo_servers, "everything", mode) as client:
        result = await client.call_tool("call_tool", request, progress_callback=note)

    assert "completed" in words(result)
    assert seen == [1, 2, 3, 4]


@needs_node
@pytest.mark.node
async def test_everything_sends_pictures_links_and_structured_content(demo_servers: Path) -> None:
    async with calls_to(demo_servers, "everything") as client:
        picture = await client.call_tool("call_tool", {"tool_name": "get-tiny-image"})
        links = await client.call_tool("call_tool", {"tool_name": "get-resource-links", "args": {"count": 2}})
        request = {"tool_name": "get-structured-content", "parameters": {"location": "New York"}}
        structured = await client.call_tool("call_tool", request)

    assert any(isinstance(block, ImageContent) and block.mime_type == "image/png" for block in picture.content)
    assert sum(isinstance(block, ResourceLink) for block in links.content) == 2
    assert set(structured.structured_content) == {"temperature", "conditions", "humidity"}


FIRST_GENERATION = """
import anyio, json, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main():
    seen = []
    async def note(progress, total, message):
        seen.append(progress)
    async with streamablehttp_client(sys.argv[1]) as (read, write, _), ClientSession(read, write) as session:
        initialized = await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool("call_tool", json.loads(sys.argv[2]), progress_callback=note)
        print(json.dumps([initialized.protocolVersion, names, result.model_dump(mode="json"), seen]))

anyio.run(main)
"""


def test_a_client_of_the_first_sdk_lists_and_calls(demo_servers: Path) -> None:
    parameters = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    request = {"tool_name": "time:convert_time", "parameters": parameters}
    target, tools = listed(demo_servers, "time")
    python = str(LEGACY.programs(demo_servers) / "python")

    with service({"time": target}, tools) as url:
        command = [python, "-c", FIRST_GENERATION, url, json.dumps(request)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    version, names, result, _ = json.loads(ended.stdout)
    assert version == "2025-11-25"
    assert {"find_tool", "describe_tool", "call_tool", "list_available_tools"} <= set(names)
    assert "T21:00:00+09:00" in result["content"][0]["text"]
    assert result["structuredContent"]["target"]["timezone"] == "Asia/Tokyo"


@contextmanager
def service(targets: dict[str, Any], tools: list[IndexedTool]) -> Generator[str]:
    """Serve these tools over HTTP on a free port of loopback."""
    catalogue = catalogue_of(tools)
    upstreams = upstreams_to(targets)
    server = build_server(builtin_tools(catalogue, upstreams), upstreams=upstreams)
    http = HttpServer(server, open_listener(load_settings(port=0)), index=catalogue.index)
    running = threading.Thread(target=http.run)
    running.start()
    try:
        yield http.url
    finally:
        http.stop()
        running.join(timeout=20)
