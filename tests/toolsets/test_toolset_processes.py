"""Toolsets end to end: written by the command line to a running service, and called directly on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
import structlog
from mcp import Client

from query.api import api_routes
from query.catalogue import Catalogue
from query.listener import open_listener
from query.mcp import caller_of_request, service_of
from query.records import Ledger
from query.service import HttpServer
from shared.catalog import Endpoint, ServerRecord
from shared.settings import load_settings
from tests.support.calling import text_of, tool_of, upstreams_to
from tests.support.fakes import DIMENSION, FakeEmbedder, ingested
from tests.support.hostile.processes import callable_stdio
from tests.support.indexes import open_index
from tests.support.warm import run

pytestmark = [pytest.mark.process, pytest.mark.anyio]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@contextmanager
def serving(directory: Path) -> Generator[str]:
    """Serve a tool of a real server from an index on disk; yield the service's address."""
    settings = load_settings(data_dir=directory, port=0)
    embedder = FakeEmbedder()
    upstreams = upstreams_to({"s": callable_stdio()})
    with (
        closing(open_listener(settings)) as entrance,
        closing(open_index(settings, embedder.model, DIMENSION)) as index,
    ):
        index.upsert([ingested(tool_of("s", "echo", words={"type": "string"}), embedder)])
        index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), revision=1))
        catalogue = Catalogue(index, embedder, Ledger(index))
        server = service_of(catalogue, upstreams, caller_of_request)
        http = HttpServer(server, entrance, index=index, routes=api_routes(catalogue, entrance))
        running = threading.Thread(target=http.run)
        running.start()
        try:
            yield entrance.address
        finally:
            http.stop()
            running.join()


@both_eras
async def test_a_tool_of_a_toolset_is_called_directly_by_the_path_of_call_tool(tmp_path: Path, mode: str) -> None:
    with serving(tmp_path) as address, structlog.testing.capture_logs() as logs:
        created = await anyio.to_thread.run_sync(toolset, "create", "dev", "s:echo", "--url", address)
        async with Client(f"{address}/mcp/dev", mode=mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("s__echo", {"words": "hello"})

    assert created.returncode == 0, created.stderr
    assert "s__echo" in names
    assert "hello" in text_of(result)
    assert [(line["server"], line["tool"], line["outcome"]) for line in logs if line["event"] == "tool_called"] == [
        ("s", "echo", "ok")
    ]


def toolset(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `toolscale toolset` with these arguments."""
    command = [sys.executable, "-m", "toolscale", "toolset", *arguments]
    return run(command)


def test_toolsets_are_managed_by_the_command_line_and_outlive_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        at = ["--url", address]
        created = toolset("create", "dev", "s", "--budget-tokens", "500", "--enforce", "--json", *at)
        refused = toolset("show", "other", *at)

    with serving(tmp_path) as address:
        at = ["--url", address]
        shown = toolset("show", "dev", "--json", *at)
        told = toolset("show", "dev", *at)
        listed = toolset("list", *at)
        deleted = toolset("delete", "dev", "--json", *at)
        left = toolset("list", "--json", *at)

    wanted = {"name": "dev", "tools": ["s"], "description": "", "budget_tokens": 500, "enforce": True}
    assert refused.returncode == 2
    assert "there is no toolset other" in refused.stderr
    assert json.loads(created.stdout) == json.loads(shown.stdout) == wanted
    assert told.stdout == "s\nBudget, in tokens: 500 enforced\n"
    assert "500 enforced" in listed.stdout
    assert json.loads(deleted.stdout) == {"deleted": "dev"}
    assert json.loads(left.stdout) == []
