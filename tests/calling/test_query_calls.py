"""Calls through the query service as a process: over HTTP, in both eras, ended early or not."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ResourceLink

from shared.catalog import Endpoint, ServerRecord
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from tests.query.test_query_process import query_process, url_of
from tests.support.calling import text_of, tool_of
from tests.support.fakes import ingested
from tests.support.hostile.processes import callable_stdio
from tests.support.indexes import open_index
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.usefixtures("patient_probe")]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a service whose catalogue holds a stdio server of the operator's own file."""
    directory = tmp_path_factory.mktemp("calls")
    target = callable_stdio()
    entry = {"command": target.command, "args": list(target.args)}
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")
    embedder = FastEmbedder()
    tools = [tool_of("s", name) for name in ("echo", "steps", "waits", "links")]
    with closing(open_index(load_settings(data_dir=directory), embedder.model, embedder.dimension)) as index:
        index.upsert([ingested(tool, embedder) for tool in tools])
        index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(transport="stdio"), tool_count=4, revision=1))
    with query_process(directory, TOOLSCALE_MCP_CONFIG=str(config)) as process:
        yield url_of(process)


@both_eras
async def test_a_call_over_http_reports_progress_and_returns_the_result(url: str, mode: str) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(url, mode=mode) as client:
        request = {"tool_name": "s:steps", "parameters": {"count": 3}}
        result = await client.call_tool("call_tool", request, progress_callback=note)

    assert text_of(result) == "done"
    assert seen == [1, 2, 3]


async def link_to(client: Client, tool: str, **arguments: Any) -> str:
    """Return a link whose resource is the text that this tool returns."""
    request = {"tool_name": "s:links", "parameters": {"tool": tool, "arguments": arguments}}
    (link,) = (await client.call_tool("call_tool", request)).content
    assert isinstance(link, ResourceLink)
    return link.uri


@both_eras
@pytest.mark.parametrize("what", ["call", "read"])
async def test_a_client_that_goes_away_ends_its_request_at_the_server(
    url: str, what: str, mode: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    request = {"tool_name": "s:waits", "parameters": {"file": str(told)}}

    async with httpx2.AsyncClient() as http, anyio.create_task_group() as tasks:
        # a client that is cut off says no word: its connection ends
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            if what == "call":
                tasks.start_soon(functools.partial(_ignoring_the_end, client.call_tool, "call_tool", request))
            else:
                link = await link_to(client, "waits", file=str(told))
                tasks.start_soon(functools.partial(_ignoring_the_end, client.read_resource, link))
            await anyio.to_thread.run_sync(eventually, lambda: told.exists() and told.read_text() == "began")
        tasks.cancel_scope.cancel()

    await anyio.to_thread.run_sync(eventually, lambda: told.read_text() == "cancelled")


@pytest.mark.slow
async def test_a_number_that_any_client_may_count_to_cancels_nobodys_call(url: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    request = {"tool_name": "s:waits", "parameters": {"file": str(told), "for_s": 1}}

    async with (
        Client(url, mode="legacy") as client,
        httpx2.AsyncClient() as another,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "call_tool", request)
        await anyio.to_thread.run_sync(eventually, lambda: told.exists() and told.read_text() == "began")
        for number in range(10):
            answer = await another.post(url, json=cancelled(number), headers=LEGACY)
            assert answer.status_code == 202

    assert told.read_text() == "ended"


LEGACY = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


def cancelled(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}


async def _ignoring_the_end(send: Callable[..., Awaitable[object]], *arguments: object) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # however it is cut off
        await send(*arguments)


def test_a_search_is_answered_in_plain_json_and_a_call_as_a_stream(url: str) -> None:
    def answered(name: str, accept: str) -> str:
        arguments = {"tool_description": "echo"} if name == "find_tool" else {"tool_name": "none"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        if name == "resources/read":
            call |= {"method": name, "params": {"uri": "none"}}
        headers = {"accept": accept, "mcp-protocol-version": "2025-11-25"}
        return httpx2.post(url, json=call, headers=headers).headers["content-type"]

    both = "application/json, text/event-stream"
    assert answered("find_tool", both) == "application/json"
    assert answered("call_tool", both).startswith("text/event-stream")
    assert answered("resources/read", both).startswith("text/event-stream")
    assert answered("call_tool", "application/json") == "application/json"


def test_a_request_of_very_many_values_is_refused(url: str) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"call_tool","arguments":{"x":[%s]}}}'
    dense = body % b",".join([b"[]"] * 1_300_000)
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    refused = httpx2.post(url, content=dense, headers=headers, timeout=60)

    assert refused.status_code == 413
    assert "50000 values" in refused.text


def test_a_long_text_is_one_value_however_many_commas_it_has(url: str) -> None:
    arguments = {"tool_name": "s:echo", "parameters": {"words": 'a, "b", [c]\n' * 100_000}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "call_tool", "arguments": arguments}}
    headers = {"accept": "application/json", "mcp-protocol-version": "2025-11-25"}

    answer = httpx2.post(url, json=call, headers=headers, timeout=60).json()

    assert answer["result"]["content"][0]["text"].startswith('a, "b", [c]')
