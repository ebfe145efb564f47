"""`toolscale advice` as a process, from a running service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.e2e.test_serve import ask, serving
from tests.support.hostile.processes import callable_stdio
from tests.support.waiting import eventually
from tests.support.warm import run

pytestmark = pytest.mark.process


def advice(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `toolscale advice` on the catalogue in this directory."""
    command = [sys.executable, "-m", "toolscale", "advice", "--data-dir", str(directory), *arguments]
    return run(command)


def configured(directory: Path) -> Path:
    target = callable_stdio()
    path = directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": target.command, "args": list(target.args)}}}))
    return path


def call_echo(url: str, times: int) -> None:
    async def call() -> None:
        async with Client(url) as client:
            for number in range(times):
                request = {"tool_name": "s:echo", "parameters": {"words": str(number)}}
                assert not (await client.call_tool("call_tool", request)).is_error

    anyio.run(call)


def test_the_advice_is_that_of_the_service(tmp_path: Path) -> None:
    def as_json(*arguments: str) -> dict[str, Any]:
        ran = advice(tmp_path, "--toolset", "dev", "--json", *arguments)
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    with serving(configured(tmp_path)) as (running, url):
        ask(url, "echo the words")
        dev = {"name": "dev", "tools": ["s"]}
        httpx2.put(url.replace("/mcp", "/toolsets/dev"), json=dev, trust_env=False).raise_for_status()
        call_echo(url, 3)
        eventually(lambda: as_json()["calls"] == 3, what="the calls to be recorded")
        beside = as_json()
        unknown = advice(tmp_path, "--toolset", "none")
        shown = advice(tmp_path, "--toolset", "dev", "--budget", "5000")
        assert running.stop() == 0

    verdicts = {tool["name"]: (tool["calls"], tool["verdict"]) for tool in beside["tools"]}
    assert verdicts.pop("s:echo") == (3, "keep")
    assert set(verdicts.values()) == {(0, "drop")}
    assert unknown.returncode == 2
    assert "There is no toolset none for you." in unknown.stderr
    assert "had 3 of 3 calls" in shown.stdout
    assert "Budget: 5,000 tokens" in shown.stdout
    assert "drop" in shown.stdout
