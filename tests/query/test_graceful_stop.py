"""The end of the query service as a process, while a call of a slow server is in flight."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult

from query.service import CUT_OFF, INTERRUPT_GRACE_S
from shared.catalog import Endpoint, ServerRecord
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from tests.query.test_query_process import beside, query_process, url_of
from tests.support.calling import text_of, tool_of
from tests.support.fakes import ingested
from tests.support.hostile.processes import callable_stdio
from tests.support.indexes import open_index
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

both_eras = pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.slow), "2026-07-28"])
# Less than the grace of a service, and enough for the end of a process on a busy machine.
AT_ONCE_S = 30.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the file of a stdio server that is in the catalogue of `tmp_path`."""
    target = callable_stdio()
    path = tmp_path / "mcp.json"
    entry = {"command": target.command, "args": list(target.args)}
    path.write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    embedder = FastEmbedder()
    with closing(open_index(load_settings(data_dir=tmp_path), embedder.model, embedder.dimension)) as index:
        index.upsert([ingested(tool_of("s", "waits"), embedder)])
        index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(transport="stdio"), tool_count=1, revision=1))
    return path


async def until(condition: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(eventually, condition)


def has_begun(told: Path) -> bool:
    return told.exists() and told.read_text() == "began"


async def ended(process: subprocess.Popen[str]) -> str:
    """Return the log of a process that ends by itself."""
    _, log = await anyio.to_thread.run_sync(functools.partial(process.communicate, timeout=AT_ONCE_S))
    assert process.returncode == 0, log
    return log


def refuses(url: str) -> bool:
    """Return whether the service takes no connection."""
    try:
        httpx2.get(beside(url, "/healthz"))
    except httpx2.ConnectError:
        return True
    return False


def waited_for_nothing(log: str) -> bool:
    return not any(wait in log for wait in ("calls_cut_off", "timeout graceful shutdown exceeded"))


@both_eras
async def test_after_sigterm_no_connection_is_taken_and_a_call_in_flight_is_answered(
    config: Path, tmp_path: Path, mode: str
) -> None:
    told, end, results = tmp_path / "told", tmp_path / "end", list[CallToolResult]()
    request = {"tool_name": "s:waits", "parameters": {"file": str(told), "until": str(end)}}

    async def call(client: Client) -> None:
        results.append(await client.call_tool("call_tool", request))

    with query_process(tmp_path, TOOLSCALE_MCP_CONFIG=str(config)) as process:
        url = url_of(process)
        async with Client(url, mode=mode) as client, anyio.create_task_group() as tasks:
            await client.list_tools()  # else the client asks for the list after the call, to check the result
            tasks.start_soon(call, client)
            await until(lambda: has_begun(told))
            process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(url))
            assert results == []
            end.touch()
        log = await ended(process)

    assert text_of(results[0]) == "waited"
    assert told.read_text() == "ended"
    assert waited_for_nothing(log)


async def cut_off(client: Client, request: dict[str, Any], errors: list[MCPError]) -> None:
    with pytest.raises(MCPError) as raised:
        await client.call_tool("call_tool", request)
    errors.append(raised.value)


@both_eras
async def test_a_call_that_outlasts_an_interrupt_gets_an_error_and_its_server_a_cancellation(
    config: Path, tmp_path: Path, mode: str
) -> None:
    told, errors = tmp_path / "told", list[MCPError]()
    request = {"tool_name": "s:waits", "parameters": {"file": str(told), "for_s": 600}}

    with query_process(tmp_path, TOOLSCALE_MCP_CONFIG=str(config)) as process:
        async with Client(url_of(process), mode=mode) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(cut_off, client, request, errors)
            await until(lambda: has_begun(told))
            process.send_signal(signal.SIGINT)
        log = await ended(process)

    assert [error.message for error in errors] == [CUT_OFF]
    assert told.read_text() == "cancelled"
    (line,) = [line for line in map(json.loads, log.splitlines()) if line["event"] == "calls_cut_off"]
    assert (line["requests"], line["grace_s"]) == (1, INTERRUPT_GRACE_S)


@pytest.mark.slow
async def test_a_second_interrupt_ends_the_service_at_once(config: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    request = {"tool_name": "s:waits", "parameters": {"file": str(told), "for_s": 600}}

    async def call(client: Client) -> None:
        with pytest.raises(Exception):  # noqa: B017, PT011  # the connection is cut off
            await client.call_tool("call_tool", request)

    with query_process(tmp_path, TOOLSCALE_MCP_CONFIG=str(config)) as process:
        url = url_of(process)
        async with Client(url, mode="legacy") as client, anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            await until(lambda: has_begun(told))
            process.send_signal(signal.SIGINT)
            await until(lambda: refuses(url))
            process.send_signal(signal.SIGINT)
            assert waited_for_nothing(await ended(process))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_service_without_calls_ends_at_once_despite_an_idle_connection(
    tmp_path: Path, number: signal.Signals
) -> None:
    with query_process(tmp_path) as process:
        url = url_of(process)
        async with httpx2.AsyncClient() as idle:
            await idle.get(beside(url, "/healthz"))
            process.send_signal(number)
            assert waited_for_nothing(await ended(process))
