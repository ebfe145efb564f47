"""Commands in a terminal are no agents: their lists and answers are not in the history, and their calls are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import Implementation

from query.catalogue import recorded
from query.mcp import service_of
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import TOOLS_LIST, today
from shared.service.command_line import COMMAND_LINE
from tests.support.calling import catalogue_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_stdio

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ECHO = tool_of("s", "echo", words={"type": "string"})


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("name", "own"), [(COMMAND_LINE, set[str]()), ("agent", {TOOLS_LIST, "find_tool", "call_tool", "run_script"})]
)
async def test_only_the_calls_of_commands_are_recorded(tmp_path: Path, mode: str, name: str, own: set[str]) -> None:
    with closing(SqliteUsage(tmp_path / "history.sqlite3", 30)) as usage:
        upstreams = upstreams_to({"s": callable_stdio()})
        with recorded(catalogue_of([ECHO]), usage) as catalogue:
            server = service_of(catalogue, upstreams)
            async with Client(server, mode=mode, client_info=Implementation(name=name, version="1")) as client:
                await client.list_tools()
                await client.call_tool("find_tool", {"query": "no words in common"})
                await client.call_tool("call_tool", {"tool_name": "s:echo", "parameters": {"words": "hello"}})
                await client.call_tool("run_script", {"source": 'await call("s:echo", {"words": "hello"})'})
        rows = usage.rows(today(), today())

    assert {key.tool for key in rows if not key.server} == own
    assert [counts["calls"] for key, counts in rows.items() if key.server == "s" and key.tool == "echo"] == [2]
