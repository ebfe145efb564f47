"""`toolscale serve` as a real process, for servers of a test's own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client

from tests.support.processes import BRISK, Composition, Running

HERE = Path(__file__).parent


def program(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a program of this directory."""
    return {"command": sys.executable, "args": [str(HERE / f"{name}.py"), *arguments], **more}


@contextmanager
def serving(
    directory: Path, servers: Mapping[str, Any], constants: Mapping[str, float] = BRISK, **environment: str
) -> Generator[tuple[Running, str]]:
    """Run `toolscale serve` with these entries; yield the process and its URL."""
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    composition = Composition("", directory, {"REDIS_URL": "", "QDRANT_URL": "", **environment}, constants)
    with composition.run("serve", "-m", "toolscale", "serve", "--config", str(config), "--port", "0") as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url, running.output()
        yield running, url.group()


def call(url: str, tool: str, **parameters: Any) -> str:
    """Return the text of a result or an error of one call of a server's tool."""

    async def ask() -> str:
        async with Client(url) as client:
            result = await client.call_tool("call_tool", {"tool_name": tool, "parameters": parameters})
            return " ".join(getattr(block, "text", "") for block in result.content)

    return anyio.run(ask)


def alive(directory: Path) -> set[int]:
    """Return the processes that have left their id in this directory and live."""
    return {int(file.name) for file in directory.iterdir() if file.name.isdecimal() and _is_alive(int(file.name))}


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
