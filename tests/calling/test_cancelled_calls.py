"""A call that its caller cancels shows that a real replica hangs, unless the server sent a message."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import pytest

from query.calling.call import tool_call
from query.calling.limits import CallLimits
from query.calling.sessions import CallResources, Progress
from query.calling.upstreams import Upstreams
from shared.upstream.target import HttpTarget
from tests.support.calling import replica_record, upstreams_to
from tests.support.fakes import make_tool
from tests.support.hostile.messages import initialized, result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
FINE = {"content": [{"type": "text", "text": "fine"}]}


class Server:
    """A server with sessions, which notes each request; `hangs` and `reports` say how it treats a call."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.hangs = self.reports = False
        self.received: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        self.received.append(exchange.method)
        if exchange.method == "initialize":
            exchange.send(200, json.dumps(initialized(exchange.request_json)).encode(), mcp_session_id="one")
        elif exchange.method != "tools/call":
            exchange.play(GOOD)
        elif self.hangs:
            self._hang(exchange)
        else:
            exchange.send_json(result(exchange.request_json, FINE))

    def _hang(self, exchange: Exchange) -> None:
        if self.reports:
            token = exchange.request_json["params"]["_meta"]["progressToken"]
            params = {"progressToken": token, "progress": 1}
            report = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            exchange.begin(200, "text/event-stream")
            exchange.wfile.write(b"event: message\ndata: " + json.dumps(report).encode() + b"\n\n")
        exchange.hang()


class Fleet:
    """Two replicas, of which every call tries the first before the other."""

    def __init__(self, upstreams: Upstreams, servers: list[Server]) -> None:
        self.servers = servers
        self._upstreams = upstreams
        self._reported = anyio.Event()

    async def call(self, caller: str = "ann") -> str:
        """Return the server that served a call."""
        first = replica_record("r0", protocol_version=HANDSHAKE)
        second = replica_record("r1", protocol_version=HANDSHAKE, stale_since=1.0)
        with self._upstreams.admission.admitted(caller) as slot:
            resources = CallResources(Progress(self._report), slot)
            _, server_id = await self._upstreams.call(
                tool_call(make_tool("r0", "one").definition, {}), (first, second), resources
            )
        return server_id

    async def cancel_a_call(self) -> None:
        """Cancel a call that the first server has received, after its report if there is one."""
        first = self.servers[0]
        calls = first.received.count("tools/call")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.call)
            await anyio.to_thread.run_sync(eventually, lambda: first.received.count("tools/call") > calls)
            if first.reports:
                await self._reported.wait()
            tasks.cancel_scope.cancel()

    async def _report(self, _progress: float, _total: float | None, _message: str | None) -> None:
        self._reported.set()


@contextmanager
def running() -> Generator[list[Server]]:
    with ExitStack() as stack:
        servers = [Server(), Server()]
        for server in servers:
            server.url = stack.enter_context(scripted_http(server)).url
        yield servers


@asynccontextmanager
async def fleet_of(servers: list[Server]) -> AsyncGenerator[Fleet]:
    targets = {f"r{number}": HttpTarget(server.url) for number, server in enumerate(servers)}
    upstreams = upstreams_to(targets, CallLimits(timeout_s=60))
    async with upstreams.running():
        yield Fleet(upstreams, servers)


async def test_a_caller_leaves_a_replica_that_sent_nothing_before_it_cancelled_its_call() -> None:
    with running() as servers:
        async with fleet_of(servers) as fleet:
            before = await fleet.call()
            servers[0].hangs = True
            await fleet.cancel_a_call()
            after = [await fleet.call(), await fleet.call()]
            servers[0].hangs = False
            other = await fleet.call("bob")

    assert (before, after, other) == ("r0", ["r1", "r1"], "r0")


async def test_a_caller_stays_with_a_replica_that_sent_a_message_before_it_cancelled_its_call() -> None:
    with running() as servers:
        async with fleet_of(servers) as fleet:
            servers[0].hangs = servers[0].reports = True
            await fleet.cancel_a_call()
            servers[0].hangs = False
            after = await fleet.call()

    assert after == "r0"


@pytest.mark.parametrize(("long_silence_s", "sessions"), [(0.0, 2), (60.0, 1)])
async def test_a_cancelled_call_ends_the_session_only_after_a_long_silence(
    long_silence_s: float, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query.calling.sessions.LONG_SILENCE_S", long_silence_s)
    with running() as servers:
        async with fleet_of(servers) as fleet:
            await fleet.call()
            servers[0].hangs = True
            await fleet.cancel_a_call()
            servers[0].hangs = False
            after = await fleet.call("bob")

    assert after == "r0"
    assert servers[0].received.count("initialize") == sessions


async def test_a_caller_leaves_a_replica_that_did_not_answer_the_handshake_before_the_cancellation() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole, running() as servers:
        servers[0].url = f"http://127.0.0.1:{hole.getsockname()[1]}/mcp"
        async with fleet_of(servers) as fleet:
            accepted: list[socket.socket] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fleet.call)
                accepted.append((await anyio.to_thread.run_sync(hole.accept))[0])
                tasks.cancel_scope.cancel()
            with anyio.fail_after(20):  # half of the time of a call is for its first connection
                after = await fleet.call()
            accepted[0].close()

    assert after == "r1"
