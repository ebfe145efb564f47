"""A client of version 1 of the MCP SDK, in the environment of the demo's servers that still use it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_callers import entry, token_file
from tests.support.processes import query_service
from toolscale.demo.servers import LEGACY

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLIENT = """
import asyncio, importlib.metadata, json, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main(url, call):
    async with streamablehttp_client(url, headers={"Authorization": "Bearer good"}) as (received, sent, _):
        async with ClientSession(received, sent) as session:
            hello = await session.initialize()
            tools = await session.list_tools()
            result = await session.call_tool("find_tool", json.loads(call))
    print(json.dumps({
        "sdk": importlib.metadata.version("mcp"),
        "revision": hello.protocolVersion,
        "tools": [tool.name for tool in tools.tools],
        "always_loaded": [tool.name for tool in tools.tools if (tool.meta or {}).get("anthropic/alwaysLoad")],
        "answer": result.structuredContent,
    }))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.index
def test_a_client_of_the_sdks_first_version_shows_its_token_and_finds_tools(tmp_path: Path, demo_servers: Path) -> None:
    tokens = token_file(tmp_path / "tokens.toml", ann=entry("good", ["a"]))

    with query_service(tmp_path, "-m", "query", TOOLSCALE_TOKENS_FILE=str(tokens)) as (running, address):
        said = run_old_client(LEGACY.programs(demo_servers) / "python", f"{address}/mcp")

    assert said["sdk"].startswith("1.")
    assert said["revision"] == "2025-11-25"
    assert "find_tool" in said["tools"]
    assert said["always_loaded"] == ["find_tool", "describe_tool", "call_tool", "run_script"]
    assert said["answer"]["token_metrics"]["baseline_tokens"] == 0
    assert '"caller": "ann"' in running.output()


def run_old_client(python: Path, url: str) -> dict[str, Any]:
    """Run the client and return what it printed."""
    command = [str(python), "-c", CLIENT, url, json.dumps({"tool_description": "what time is it?"})]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found
