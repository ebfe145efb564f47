"""The MCP Inspector, as it is published, finds and calls tools through `toolscale serve`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_serve import ask, serving
from tests.support.hostile.processes import callable_stdio
from toolscale.demo.servers import NodeEnvironment

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not shutil.which("npm"), reason="Node.js and npm are not installed"),
    pytest.mark.node,
    pytest.mark.index,
]

PACKAGE = Path(__file__).parents[1] / "support" / "inspector"
INSPECTOR = NodeEnvironment("inspector", PACKAGE / "package.json", PACKAGE / "package-lock.json")
REVISIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}

Inspect = Callable[..., dict[str, Any]]
"""Ask for a method with these options; the result is what the Inspector prints."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    INSPECTOR.install(directory)
    return INSPECTOR.programs(directory) / "mcp-inspector"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    config, target = tmp_path_factory.mktemp("serve") / "mcp.json", callable_stdio()
    config.write_text(json.dumps({"mcpServers": {"office": {"command": target.command, "args": list(target.args)}}}))
    with serving(config) as (_, address):
        ask(address)
        yield address


@pytest.fixture(params=REVISIONS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def inspect(program: Path, url: str, era: str, tmp_path: Path) -> Inspect:
    config = tmp_path / "inspected.json"
    entry = {"type": "streamable-http", "url": url, "protocolEra": era}
    config.write_text(json.dumps({"mcpServers": {"toolscale": entry}}))
    # it keeps what it remembers below HOME
    environment = {**os.environ, "HOME": str(tmp_path), "MCP_INSPECTOR_SECRET_STORE": "memory"}

    def run(method: str, *options: str) -> dict[str, Any]:
        command = [str(program), "--cli", "--config", str(config), "--server", "toolscale", "--method", method]
        ended = subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        printed: dict[str, Any] = json.loads(ended.stdout)
        return printed

    return run


@pytest.mark.slow
def test_it_uses_the_requested_revision(inspect: Inspect, era: str) -> None:
    assert inspect("initialize")["protocolVersion"] == REVISIONS[era]


def test_it_lists_our_tools_and_finds_no_fault_with_their_schemas(inspect: Inspect) -> None:
    tools = inspect("tools/list", "--strict")["tools"]

    assert {"find_tool", "describe_tool", "call_tool", "list_available_tools"} <= {tool["name"] for tool in tools}


@pytest.mark.slow
def test_it_finds_describes_and_calls_a_tool(inspect: Inspect) -> None:
    def called(tool: str, **arguments: Any) -> dict[str, Any]:
        return inspect("tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))

    found = called("find_tool", tool_description="echo the words", detail="detailed")["structuredContent"]
    described = called("describe_tool", names="office:echo")["structuredContent"]
    done = called("call_tool", tool_name="office:echo", parameters={"words": "hear, hear"})

    assert "office:echo" in [tool["name"] for tool in found["tools"]]
    assert described["tools"][0]["inputSchema"] == {"type": "object"}
    assert done["content"][0]["text"].startswith("hear, hear from ")
