"""`toolscale serve` as a process over the demo's third-party servers, after all of them are listed."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp import Client

from tests.support.processes import Composition
from toolscale.demo.servers import LaunchableServer, install, write_servers


@contextmanager
def serving_demo(demo: Path, directory: Path) -> Generator[str]:
    """Yield the URL of the service; the servers are installed in `demo` where they are not yet."""
    with serving_servers(install(demo, lambda _line: None), directory) as url:
        yield url


@contextmanager
def serving_servers(servers: Sequence[LaunchableServer], directory: Path) -> Generator[str]:
    """Yield the URL of a service over these servers, whose files are in `directory`, after all are listed."""
    with serving(directory, write_servers(servers, directory), len(servers)) as url:
        yield url


@contextmanager
def serving(directory: Path, config: Path, indexed: int = 0) -> Generator[str]:
    """Yield the URL of a service over the servers of a file, after so many are listed."""
    composition = Composition("", directory, {"REDIS_URL": "", "QDRANT_URL": ""})
    command = ("-m", "toolscale", "serve", "--config", str(config), "--port", "0")
    with composition.run("serve", *command) as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url, running.output()
        running.wait_for("server_indexed", within_s=120, times=indexed)
        yield url.group()


async def called(url: str, tool: str, mode: str = "auto", /, **arguments: Any) -> dict[str, Any]:
    """Return the result of a call, as it is on the wire."""
    async with Client(url, mode=mode) as client:
        return (await client.call_tool(tool, arguments)).model_dump(mode="json", by_alias=True, exclude_none=True)
