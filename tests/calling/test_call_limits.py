"""What one caller, one server or one name server may take of the service, and that the others go on meanwhile."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import anyio.to_thread
import httpx2
import pytest
import structlog
from mcp import Client
from mcp.types import TextContent

from query.calling.connection import TargetMatch
from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.mcp import build_server
from query.tools.registry import builtin_tools
from shared.catalog import Endpoint, IndexedTool
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import calling, catalogue_of, started, tool_of
from tests.support.hostile.messages import result
from tests.support.hostile.processes import callable_stdio, callable_target
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD, answers, on_call
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

LARGE_BYTES = 400_000
FINE = {"content": [{"type": "text", "text": "fine"}]}


async def text_of_call(client: Client, name: str, **parameters: Any) -> str:
    """Return the beginning of what a call answers."""
    answer = await client.call_tool("call_tool", {"tool_name": name, "parameters": parameters})
    return cast("TextContent", answer.content[0]).text


@asynccontextmanager
async def client_of(upstreams: Upstreams, *tools: IndexedTool) -> AsyncGenerator[Client]:
    server = build_server(builtin_tools(catalogue_of(tools), upstreams), upstreams=upstreams)
    async with Client(server) as client:
        yield client


@contextmanager
def served(kind: Literal["stdio", "http", "legacy", "sse"]) -> Generator[Target]:
    with callable_target(kind) as target:
        if isinstance(target, HttpTarget):
            with httpx2.stream("GET", target.url, timeout=60, trust_env=False):
                pass  # it answers now: its start is not part of the time that a call has
        yield target


async def together(*calls: Callable[[], Any]) -> list[str]:
    said: list[str] = []

    async def note(call: Callable[[], Any]) -> None:
        said.append(await call())

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(note, call)
    return said


quick = on_call(answers(FINE))


class Holding:
    """A server that holds its calls until they are released."""

    def __init__(self) -> None:
        self.held = 0
        self.released = threading.Event()

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method != "tools/call":
            exchange.play(GOOD)
            return
        self.held += 1
        self.released.wait(60)
        exchange.send_json(result(exchange.request_json, FINE))


async def test_a_caller_with_as_many_calls_as_it_may_have_is_told_to_wait() -> None:
    server = Holding()

    with scripted_http(server) as running:
        target = HttpTarget(running.url)
        async with calling({"s": target}, tool_of("s", "one"), limits=CallLimits(per_caller=2)) as client:
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(text_of_call, client, "s:one")
                await anyio.to_thread.run_sync(eventually, lambda: server.held == 2)
                refused = await text_of_call(client, "s:one")
                server.released.set()
                assert refused.startswith("anyone has 2 calls in flight, as many as the limit per caller allows")
            answered = await text_of_call(client, "s:one")

    assert answered == "fine"
    assert server.held == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stdio", "http", "legacy", "sse"])
async def test_a_large_result_waits_while_as_many_are_in_hand_as_may_be(kind: Any) -> None:
    limits = CallLimits(timeout_s=8, start_timeout_s=60, large_at_once=1)
    tools = [tool_of("s", "huge"), tool_of("other", "huge")]

    def dial(_server_id: str, _endpoint: Endpoint) -> Target:
        return target

    upstreams = Upstreams(dial, limits)
    with served(kind) as target:
        async with client_of(upstreams, *tools) as client:
            for name in ("s", "other"):
                await started(client, f"{name}:huge", size_bytes=1)
            with upstreams.admission.admitted("someone") as slot:
                assert slot.try_acquire()
                slot.settle()
                small = await text_of_call(client, "other:huge", size_bytes=1_000)
                waited = await text_of_call(client, "s:huge", size_bytes=LARGE_BYTES)
            answered = [await text_of_call(client, f"{name}:huge", size_bytes=LARGE_BYTES) for name in ("s", "other")]

    assert small.startswith("aaa")
    assert waited.startswith("1 large results are being processed, as many as the limit allows")
    assert [text[:3] for text in answered] == ["aaa", "aaa"]


class Dripping:
    """A server whose large results come without an end; `dripping` counts those that have begun."""

    def __init__(self) -> None:
        self.dripping = 0

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method != "tools/call":
            exchange.play(GOOD)
            return
        exchange.begin(200)
        exchange.wfile.write(b'{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"' + b"a" * LARGE_BYTES)
        self.dripping += 1
        while not exchange.server.stopping.wait(0.05):
            exchange.wfile.write(b"a")


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_dripping_results_do_not_keep_the_turns_of_others(kind: Any) -> None:
    server, limits = Dripping(), CallLimits(timeout_s=60, large_at_once=2)
    ended: list[str] = []

    answers: list[str] = []

    async def drip(client: Client) -> None:
        ended.append(await text_of_call(client, "evil:one"))

    with scripted_http(server) as evil, served(kind) as good:
        targets = {"evil": HttpTarget(evil.url), "s": good}
        tools = [tool_of("evil", "one"), tool_of("s", "huge")]
        async with calling(targets, *tools, limits=limits) as client, anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(drip, client)
            await anyio.to_thread.run_sync(eventually, lambda: server.dripping == 6)
            answers.append(await text_of_call(client, "s:huge", size_bytes=LARGE_BYTES))
            tasks.cancel_scope.cancel()

    assert [text[:3] for text in answers] == ["aaa"]
    assert not ended


async def test_a_server_that_ends_in_a_large_message_leaves_room_for_the_results_of_others() -> None:
    noisy = StdioTarget(sys.executable, ("-c", f"print('x' * {LARGE_BYTES})"))
    targets: dict[str, Target] = {"noisy": noisy, "s": callable_stdio()}
    limits = CallLimits(timeout_s=30, large_at_once=1)

    async with calling(targets, tool_of("noisy", "one"), tool_of("s", "huge"), limits=limits) as client:
        failed = await text_of_call(client, "noisy:one")
        answered = await text_of_call(client, "s:huge", size_bytes=LARGE_BYTES)

    assert failed.startswith("noisy: ")
    assert answered.startswith("aaa")


async def test_a_name_server_that_does_not_answer_holds_up_calls_of_its_server_alone() -> None:
    answered = threading.Event()

    def dial(server_id: str, _endpoint: Endpoint) -> Target:
        if server_id == "lost":
            answered.wait(60)
        return fast

    tools = [tool_of("lost", "one"), tool_of("s", "one")]
    with scripted_http(quick) as running:
        fast = HttpTarget(running.url)
        upstreams = Upstreams(dial, CallLimits(timeout_s=6))
        async with client_of(upstreams, *tools) as client:
            lost = [functools.partial(text_of_call, client, "lost:one")] * 50
            said = await together(*lost, functools.partial(text_of_call, client, "s:one"))
            answered.set()  # no thread is left behind

    assert said[0] == "fine"
    # a call that begins late on a busy machine has a little less time
    assert all(text.startswith("lost: its host name was not looked up within ") for text in said[1:])


async def test_a_host_that_is_named_by_other_addresses_each_time_keeps_its_connection() -> None:
    methods: list[str] = []

    def respond(exchange: Exchange) -> None:
        methods.append(exchange.method)
        quick(exchange)

    with scripted_http(respond) as running:
        targets: dict[str, Target] = {}
        async with calling(targets, tool_of("s", "one")) as client:
            for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
                targets["s"] = HttpTarget(running.url, addresses=(address,))
                await text_of_call(client, "s:one")

    assert methods.count("initialize") == 1
    assert methods.count("tools/call") == 3


async def test_a_host_has_moved_once_none_of_its_addresses_was_named_for_a_while() -> None:
    here = HttpTarget("http://srv/mcp", addresses=("10.0.0.1", "10.0.0.2"))
    near = HttpTarget("http://srv/mcp", addresses=("10.0.0.2", "10.0.0.3"))
    there = HttpTarget("http://srv/mcp", addresses=("10.0.0.3",))

    assert TargetMatch(here, moved_after_s=60).matches(there)
    assert not TargetMatch(here, moved_after_s=0).matches(there)
    assert TargetMatch(here, moved_after_s=0.001).matches(near)
    assert not TargetMatch(here).matches(HttpTarget("http://srv/mcp", headers={"a": "b"}, addresses=here.addresses))


async def test_a_connection_that_ends_with_its_last_call_counts_until_then(tmp_path: Path) -> None:
    file = tmp_path / "told"
    targets: dict[str, Target] = {"s": callable_stdio()}
    tools = [tool_of("s", "waits"), tool_of("s", "echo")]

    async with calling(targets, *tools, limits=CallLimits(timeout_s=30, max_connections=1)) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(functools.partial(text_of_call, client, "s:waits", file=str(file)))
            await anyio.to_thread.run_sync(eventually, lambda: file.exists() and file.read_text() == "began")
            targets["s"] = callable_stdio("env", "CHANGED=yes")
            refused = await text_of_call(client, "s:echo", words="hi")
            assert refused.startswith("all 1 connections to servers are in use")
            tasks.cancel_scope.cancel()
        answered = await text_of_call(client, "s:echo", words="hi")

    assert answered.startswith("hi from ")


async def test_a_connection_that_fails_for_an_unforeseen_reason_takes_no_other_with_it() -> None:
    unforeseen = StdioTarget(sys.executable, cwd=cast("str", object()))
    targets: dict[str, Target] = {"bad": unforeseen, "s": callable_stdio()}

    async with calling(targets, tool_of("bad", "one"), tool_of("s", "echo")) as client:
        with structlog.testing.capture_logs() as lines:
            failed = await text_of_call(client, "bad:one")
        answered = await text_of_call(client, "s:echo", words="hi")

    assert failed.startswith("bad: the connection broke")
    assert {"connection_failed"} == {line["event"] for line in lines if line["log_level"] == "error"}
    assert answered.startswith("hi from ")
    assert json.dumps(lines, default=str).count("connection_failed") == 2
