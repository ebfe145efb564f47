"""`call_tool` on real servers: over every transport, in both eras, with what may happen in between."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import structlog
from mcp import Client
from mcp.types import CallToolResult, ImageContent, ResourceLink, TextContent

from query.calling.limits import CallLimits
from shared.catalog import IndexedTool
from shared.upstream.target import Target
from tests.support.calling import calling, catalogue_of, started, text_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_stdio, callable_target, good_http, http_target
from tests.support.http_callers import app_of, http_client, mcp_client
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

ECHO = tool_of("s", "echo", words={"type": "string"})


@pytest.fixture(scope="module", params=["stdio", "http", "legacy", "sse"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with callable_target(request.param) as target:
        yield target


def tools(*names: str) -> list[IndexedTool]:
    return [tool_of("s", name) for name in names]


async def call(client: Client, tool: str, **parameters: Any) -> CallToolResult:
    return await client.call_tool("call_tool", {"tool_name": f"s:{tool}", "parameters": parameters})


def pid_of(result: CallToolResult) -> int:
    return int(text_of(result).rpartition(" ")[2])


@both_eras
async def test_a_call_goes_to_the_server_of_the_tool_over_every_transport(target: Target, mode: str) -> None:
    async with calling({"s": target}, ECHO, mode=mode) as client:
        result = await call(client, "echo", words="hello")

    assert not result.is_error
    assert text_of(result).startswith("hello from ")


TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=b",
    "baggage": "c=d",
}


@both_eras
async def test_a_server_hears_what_the_caller_says_beside_the_arguments(target: Target, mode: str) -> None:
    async def ignore(progress: float, total: float | None, message: str | None) -> None: ...

    ours = {"io.modelcontextprotocol/logLevel": "debug"}
    async with calling({"s": target}, *tools("hears"), mode=mode) as client:
        request = {"tool_name": "s:hears"}
        meta: Any = {**TRACE, "example.org/session": {"id": 7}, **ours}
        result = await client.call_tool("call_tool", request, meta=meta, progress_callback=ignore)

    heard = json.loads(text_of(result))
    assert heard.items() >= {**TRACE, "example.org/session": {"id": 7}}.items()
    assert heard.keys().isdisjoint(ours)


@pytest.mark.parametrize(
    ("revision", "kinds"),
    [
        ("2024-11-05", ["text", "text"]),
        ("2025-03-26", ["audio", "text"]),
        ("2025-06-18", ["audio", "resource_link"]),
    ],
)
async def test_a_client_of_an_old_revision_gets_text_for_content_that_it_cannot_read(
    revision: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.client.session.LATEST_HANDSHAKE_VERSION", revision)
    target = callable_stdio()
    async with calling({"s": target}, *tools("heard"), mode="legacy") as client:
        result = await call(client, "heard")

        assert client.session.protocol_version == revision
    assert [block.type for block in result.content] == kinds


@both_eras
async def test_a_result_comes_back_with_all_that_the_tool_put_into_it(target: Target, mode: str) -> None:
    async with calling({"s": target}, *tools("rich"), mode=mode) as client:
        result = await call(client, "rich")

    words, picture, link = result.content
    assert isinstance(words, TextContent)
    assert isinstance(picture, ImageContent)
    assert isinstance(link, ResourceLink)
    assert picture.data == "iVBORw0KGgo="
    assert result.structured_content == {"answer": 42}
    assert (result.meta or {})["example.org/trace"] == "abc"


@both_eras
async def test_an_error_of_the_tool_is_passed_on_as_it_is(target: Target, mode: str) -> None:
    async with calling({"s": target}, *tools("refuses"), mode=mode) as client:
        result = await call(client, "refuses")

    assert result.is_error
    assert text_of(result) == "no such record"


@both_eras
async def test_progress_reaches_the_caller_in_order_before_the_result(target: Target, mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with calling({"s": target}, *tools("steps"), mode=mode) as client:
        request = {"tool_name": "steps", "parameters": {"count": 3}}
        result = await client.call_tool("call_tool", request, progress_callback=note)

    assert text_of(result) == "done"
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@both_eras
async def test_a_caller_who_gives_up_ends_the_call_at_the_server(target: Target, mode: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    async with calling({"s": target}, *tools("waits"), mode=mode) as client:
        with structlog.testing.capture_logs() as lines:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(functools.partial(call, client, "waits", file=str(told)))
                await says(told, "began")
                tasks.cancel_scope.cancel()
            await says(told, "cancelled")

    assert [line["outcome"] for line in lines if line["event"] == "tool_called"] == ["cancelled"]


async def test_a_call_that_takes_too_long_is_ended_here_and_at_the_server(target: Target, tmp_path: Path) -> None:
    told = tmp_path / "told"
    limits = CallLimits(timeout_s=8, start_timeout_s=60)
    async with calling({"s": target}, ECHO, *tools("waits"), limits=limits) as client:
        await started(client, "s:echo", words="connected")
        result = await call(client, "waits", file=str(told))
        await says(told, "cancelled")

        after = await call(client, "echo", words="still here")

    assert re.fullmatch(r"s: no answer within [\d.]+ s in all, and no progress in the last 8(\.\d)? s", text_of(result))
    assert text_of(after).startswith("still here")


async def test_progress_lets_a_call_last_longer_than_its_timeout(target: Target) -> None:
    limits = CallLimits(timeout_s=2, start_timeout_s=60)
    async with calling({"s": target}, ECHO, *tools("steps"), limits=limits) as client:
        await started(client, "s:echo", words="connected")
        result = await call(client, "steps", count=6, pause_s=0.8)

    assert text_of(result) == "done"


async def test_progress_does_not_let_a_call_last_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query.calling.connection.PROGRESS_EXTENDS", 2)
    limits = CallLimits(timeout_s=1, start_timeout_s=60)
    async with calling({"s": callable_stdio()}, ECHO, *tools("steps"), limits=limits) as client:
        await started(client, "s:echo", words="connected")
        result = await call(client, "steps", count=600, pause_s=0.1)

    found = re.fullmatch(
        r"s: no answer within ([\d.]+) s in all, and no progress in the last ([\d.]+) s", text_of(result)
    )
    assert found
    total_s, silent_s = map(float, found.groups())
    assert 2 <= total_s < 3
    assert silent_s < 1


async def says(file: Path, words: str) -> None:
    await anyio.to_thread.run_sync(eventually, lambda: file.exists() and file.read_text() == words)


async def test_fifty_calls_at_a_time_share_one_connection(target: Target) -> None:
    pids: list[int] = []

    async def echo(client: Client, number: int) -> None:
        result = await call(client, "echo", words=f"call {number}")
        assert text_of(result).startswith(f"call {number} from ")
        pids.append(pid_of(result))

    async with calling({"s": target}, ECHO) as client, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(echo, client, number)

    assert len(pids) == 50
    assert len(set(pids)) == 1


@both_eras
async def test_structured_content_that_is_no_object_is_text_where_it_must_be(mode: str) -> None:
    async with calling({"s": callable_stdio()}, *tools("listed"), mode=mode) as client:
        result = await call(client, "listed")

    if mode == "legacy":
        assert (text_of(result), result.structured_content) == ("[1, 2]", None)
    else:
        assert result.structured_content == [1, 2]


async def test_a_child_that_was_killed_between_two_calls_is_started_again() -> None:
    async with calling({"s": callable_stdio()}, ECHO) as client:
        first = await call(client, "echo", words="one")
        psutil.Process(pid_of(first)).kill()
        await anyio.to_thread.run_sync(eventually, lambda: not psutil.pid_exists(pid_of(first)))

        second = await call(client, "echo", words="two")

    assert text_of(second).startswith("two")
    assert pid_of(second) != pid_of(first)


@pytest.mark.parametrize("kind", ["http", "legacy", "sse"])
async def test_a_server_that_was_restarted_between_two_calls_is_called_again(kind: Any) -> None:
    port = free_port()
    async with calling({"s": http_target(kind, port)}, ECHO) as client:
        with good_http(kind, port, "callable"):
            first = await call(client, "echo", words="one")
        with good_http(kind, port, "callable"):
            second = await call(client, "echo", words="two")
            if kind == "sse" and second.is_error:  # its stream may break while the call is on its way
                assert text_of(second).startswith("s: ")
                second = await call(client, "echo", words="two")

    assert text_of(second).startswith("two")
    assert pid_of(second) != pid_of(first)


async def test_a_connection_that_nobody_uses_is_ended_with_its_child() -> None:
    async with calling({"s": callable_stdio()}, ECHO, limits=CallLimits(timeout_s=30, idle_s=0.3)) as client:
        first = pid_of(await call(client, "echo", words="one"))

        await anyio.to_thread.run_sync(eventually, lambda: not psutil.pid_exists(first))
        second = await call(client, "echo", words="two")

    assert pid_of(second) != first


@both_eras
async def test_over_http_a_connection_outlives_its_request_and_ends_with_the_service(mode: str) -> None:
    app = app_of(catalogue_of([ECHO]).index, upstreams=upstreams_to({"s": callable_stdio()}))
    pids: list[int] = []
    async with http_client(app) as http:
        for _ in range(2):
            async with mcp_client(http, mode) as client:
                pids.append(pid_of(await call(client, "echo", words="hi")))
        assert psutil.pid_exists(pids[0])

    assert pids[0] == pids[1]
    assert not psutil.pid_exists(pids[0])


async def test_beyond_the_limit_the_connection_used_longest_ago_is_closed() -> None:
    two = CallLimits(timeout_s=30, max_connections=2)
    names = ("a", "b", "c")
    targets: dict[str, Target] = {name: callable_stdio() for name in names}
    echoes = [tool_of(name, "echo") for name in names]
    async with calling(targets, *echoes, limits=two) as client:
        pids = {
            name: pid_of(await client.call_tool("call_tool", {"tool_name": f"{name}:echo", "args": {"words": "hi"}}))
            for name in names
        }
        await anyio.to_thread.run_sync(eventually, lambda: not psutil.pid_exists(pids["a"]))

        assert all(psutil.pid_exists(pids[name]) for name in ("b", "c"))


async def test_a_changed_command_is_used_by_the_next_call(tmp_path: Path) -> None:
    targets: dict[str, Target] = {"s": callable_stdio()}
    async with calling(targets, ECHO) as client:
        first = await call(client, "echo", words="one")
        targets["s"] = callable_stdio("env", "CHANGED=yes")
        second = await call(client, "echo", words="two")

    assert pid_of(second) != pid_of(first)
