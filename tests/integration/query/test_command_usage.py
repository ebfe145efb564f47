"""Commands in a terminal are no agents: their lists and answers are not in the history, and their calls are."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import Implementation

from query.caller import COMMAND_LINE
from query.history.events import TOOLS_LIST
from query.history.periods import today
from query.history.recorder import UsageRecorder
from query.history.sqlite_store import SqliteHistory
from query.server.mcp import service_of
from tests.support.calling import catalogue_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_stdio

pytestmark = pytest.mark.anyio

ECHO = tool_of("s", "echo", words={"type": "string"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("name", "own"), [(COMMAND_LINE, set[str]()), ("agent", {TOOLS_LIST, "find_tool", "call_tool"})]
)
async def test_only_the_calls_of_commands_are_recorded(tmp_path: Path, mode: str, name: str, own: set[str]) -> None:
    with closing(SqliteHistory(tmp_path / "history.sqlite3", 30)) as history:
        with closing(UsageRecorder(history)) as recorder, closing(upstreams_to({"s": callable_stdio()})) as upstreams:
            server = service_of(replace(catalogue_of([ECHO]), recorder=recorder), upstreams)
            async with Client(server, mode=mode, client_info=Implementation(name=name, version="1")) as client:
                await client.list_tools()
                await client.call_tool("find_tool", {"query": "no words in common"})
                await client.call_tool("call_tool", {"tool_name": "s:echo", "parameters": {"words": "hello"}})
        rows = history.rows(today(), today())

    assert {key.tool for key in rows if not key.server} == own
    assert [counts["calls"] for key, counts in rows.items() if key.server == "s" and key.tool == "echo"] == [1]
