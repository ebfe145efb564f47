"""Find, describe and call the tools of real third-party servers through one `toolscale serve`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.transcripts.serving import called, serving_demo
from toolscale.demo.servers import LEGACY

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.index]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
needs_node = (
    pytest.mark.skipif(not shutil.which("npm"), reason="Node.js and npm are not installed"),
    pytest.mark.node,
)

# A query, the tool that answers it, its arguments, and a part of its result; {scratch} is the demo's directory.
TASKS = [
    pytest.param(
        "convert a time between two timezones",
        "time:convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        "T21:00:00+09:00",
        id="time",
    ),
    pytest.param(
        "show the status of the working tree of a repository",
        "git:git_status",
        {"repo_path": "{scratch}/repository"},
        "On branch",
        id="git",
    ),
    pytest.param(
        "execute a SELECT query on the SQLite database",
        "sqlite:read_query",
        {"query": "SELECT 6 * 7 AS answer"},
        "42",
        id="sqlite",
    ),
    pytest.param(
        "echo a message back",
        "everything:echo",
        {"message": "hear, hear"},
        "hear, hear",
        id="everything",
        marks=needs_node,
    ),
    pytest.param(
        "create a new directory",
        "filesystem:create_directory",
        {"path": "{scratch}/files/made"},
        "Successfully created",
        id="filesystem",
        marks=needs_node,
    ),
    pytest.param("read the whole knowledge graph", "memory:read_graph", {}, "entities", id="memory", marks=needs_node),
]


@pytest.fixture(scope="module")
def url(demo_servers: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving_demo(demo_servers, tmp_path_factory.mktemp("data")) as address:
        yield address


@both_eras
@pytest.mark.parametrize(("task", "name", "parameters", "expected"), TASKS)
def test_a_task_is_found_described_and_done(
    url: str, demo_servers: Path, mode: str, task: str, name: str, parameters: dict[str, str], expected: str
) -> None:
    given = {key: value.replace("{scratch}", str(demo_servers / "scratch")) for key, value in parameters.items()}

    found = anyio.run(lambda: called(url, "find_tool", mode, tool_description=task))["structuredContent"]
    described = anyio.run(lambda: called(url, "describe_tool", mode, names=name))["structuredContent"]
    done = anyio.run(lambda: called(url, "call_tool", mode, tool_name=name, parameters=given))

    assert name in [tool["name"] for tool in found["tools"]]
    required = described["tools"][0]["inputSchema"].get("required", [])
    assert set(required) <= given.keys()
    assert not done.get("isError")
    assert expected in words(done)


FIRST_GENERATION = """
import anyio, json, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main():
    async with streamablehttp_client(sys.argv[1]) as (read, write, _), ClientSession(read, write) as session:
        version = (await session.initialize()).protocolVersion
        results = [await session.call_tool(name, arguments) for name, arguments in json.loads(sys.argv[2])]
        print(json.dumps([version, [each.model_dump(mode="json", exclude_none=True) for each in results]]))

anyio.run(main)
"""


def test_a_client_of_the_first_sdk_finds_describes_and_calls(url: str, demo_servers: Path) -> None:
    name = "sqlite:read_query"
    calls = [
        ("find_tool", {"tool_description": "execute a SELECT query on the SQLite database"}),
        ("describe_tool", {"names": name}),
        ("call_tool", {"tool_name": name, "parameters": {"query": "SELECT 6 * 7 AS answer"}}),
    ]

    command = [str(LEGACY.programs(demo_servers) / "python"), "-c", FIRST_GENERATION, url, json.dumps(calls)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    version, (found, described, done) = json.loads(ended.stdout)
    assert version == "2025-11-25"
    assert name in [tool["name"] for tool in found["structuredContent"]["tools"]]
    assert described["structuredContent"]["tools"][0]["name"] == name
    assert "42" in words(done)


def words(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")
