"""Calls on real replicas that die, break, hang and come back."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
import structlog
from mcp import Client
from mcp.types import CallToolResult

from query.calling.limits import CallLimits
from query.catalogue import Catalogue
from query.tools.revisions import SERVER_KEY
from shared.catalog import IndexedTool
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import PATIENT, calling, replicated, text_of, tool_of
from tests.support.hostile.messages import failure, initialized, result
from tests.support.hostile.processes import callable_stdio, good_http, http_target
from tests.support.hostile.scripted_http import Exchange, Respond, ScriptedServer, scripted_http
from tests.support.hostile.scripts import GOOD, answers, hangs, hangs_up, on_call, status
from tests.support.hostile.sse_server import SseServer
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
READ = tool_of("s", "read", "readOnlyHint")
REPEAT = tool_of("s", "repeat", "idempotentHint")
WRITE = tool_of("s", "write")
FINE = {"content": [{"type": "text", "text": "fine"}], "resultType": "complete"}
MAYBE = "the call may have been carried out or not"
NOT_DONE = "the call was not carried out"

repeatable = pytest.mark.parametrize("tool", [READ, REPEAT], ids=["read-only", "idempotent"])
every_tool = pytest.mark.parametrize("tool", [READ, REPEAT, WRITE], ids=["read-only", "idempotent", "neither"])


Act = Callable[[Exchange], None]
fine = answers(FINE)


def fine_after(released: threading.Event) -> Act:
    def act(exchange: Exchange) -> None:
        released.wait(60)
        fine(exchange)

    return act


@contextmanager
def replicas(*behaviours: Respond) -> Generator[list[ScriptedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(scripted_http(behaviour)) for behaviour in behaviours]


def targets_of(*servers: ScriptedServer) -> dict[str, Target]:
    return {f"r{number}": HttpTarget(server.url) for number, server in enumerate(servers)}


def first(targets: Mapping[str, Target], *tools: IndexedTool, **fields: Any) -> Catalogue:
    """Return a catalogue of these replicas, of which calls try `r0` first."""
    return replicated(targets, *tools, first="r0", **fields)


@asynccontextmanager
async def first_of(
    behaviours: Sequence[Respond], *tools: IndexedTool, limits: CallLimits = PATIENT, **fields: Any
) -> AsyncGenerator[tuple[Client, list[ScriptedServer]]]:
    """Yield a client, and replicas with these behaviours, of which calls try the first before the others."""
    with replicas(*behaviours) as servers:
        targets = targets_of(*servers)
        async with calling(targets, limits=limits, catalogue=first(targets, *tools, **fields)) as client:
            yield client, servers


async def call(client: Client, tool: IndexedTool, **parameters: Any) -> CallToolResult:
    return await client.call_tool("call_tool", {"tool_name": tool.definition.name, "parameters": parameters})


def server_of(called: CallToolResult) -> object:
    return (called.meta or {}).get(SERVER_KEY)


def calls_of(server: ScriptedServer) -> int:
    return server.methods.count("tools/call")


@every_tool
@pytest.mark.parametrize(
    "act", [None, status(503), hangs_up, status(401)], ids=["no connection", "503", "hangs up", "401"]
)
async def test_a_call_goes_on_to_another_replica_where_the_first_does_not_open_a_session(
    act: Act | None, tool: IndexedTool
) -> None:
    with replicas(act or fine, on_call(fine)) as servers, structlog.testing.capture_logs() as lines:
        targets = targets_of(*servers) | ({} if act else {"r0": http_target("http", free_port())})
        async with calling(targets, catalogue=first(targets, tool, protocol_version=HANDSHAKE)) as client:
            called = await call(client, tool)

    assert (text_of(called), server_of(called)) == ("fine", "r1")
    assert [line["server"] for line in lines if line["event"] == "call_failed_over"] == ["r0"]
    assert [line["server"] for line in lines if line["event"] == "tool_called"] == ["r1"]


@repeatable
@pytest.mark.parametrize("act", [hangs_up, status(502)], ids=["hangs up", "502"])
async def test_a_repeatable_call_goes_on_where_the_first_replica_breaks_after_reading_it(
    act: Act, tool: IndexedTool
) -> None:
    async with first_of([on_call(act), on_call(fine)], tool) as (client, servers):
        called = await call(client, tool)

    assert (text_of(called), server_of(called)) == ("fine", "r1")
    assert [calls_of(server) for server in servers] == [1, 1]


both_eras = pytest.mark.parametrize("era", [HANDSHAKE, "2026-07-28"])


DISCOVERED: dict[str, Any] = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
    "ttlMs": 0,
    "cacheScope": "private",
    "resultType": "complete",
}


def of_era(era: str, act: Act) -> Respond:
    """Behave well, as a server with this protocol version, until a tool is called."""

    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            act(exchange)
        elif exchange.method == "server/discover" and era != HANDSHAKE:
            exchange.send_json(result(exchange.request_json, DISCOVERED))
        else:
            exchange.play(GOOD)

    return respond


def noted(received: list[Exchange], act: Act) -> Act:
    """Note each call: `ScriptedServer.methods` has the last request of a connection in place of its earlier ones."""

    def note(exchange: Exchange) -> None:
        received.append(exchange)
        act(exchange)

    return note


@both_eras
@pytest.mark.parametrize("code", [401, 403, 404, 405, 410, 429])
async def test_any_call_goes_on_and_the_replica_is_avoided_where_a_status_shows_that_it_was_not_carried_out(
    code: int, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query.calling.choice.FIRST_WAIT_S", 60.0)
    received: list[Exchange] = []
    behaviours = [of_era(era, noted(received, status(code))), of_era(era, fine)]
    async with first_of(behaviours, WRITE, protocol_version=era) as (client, _):
        called = await call(client, WRITE)
        refused = len(received)
        again = await call(client, WRITE)

    assert [server_of(called), server_of(again)] == ["r1", "r1"]
    assert text_of(called) == "fine"
    assert len(received) == refused


@both_eras
@pytest.mark.parametrize("code", [400, 409, 422, 502])
async def test_another_status_without_a_jsonrpc_body_is_no_answer(
    code: int, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query.calling.choice.FIRST_WAIT_S", 60.0)
    received: list[Exchange] = []
    behaviours = [of_era(era, noted(received, status(code))), of_era(era, fine)]
    async with first_of(behaviours, WRITE, READ, protocol_version=era) as (client, _):
        written = await call(client, WRITE)
        read = await call(client, READ)

    assert text_of(written) == f'r0: HTTP {code}: "go away"; {MAYBE}; 1 other replica was not tried, {NO_HINT}'
    assert server_of(read) == "r1"
    assert len(received) == 1


def error(code: int, message: str, http_status: int = 200) -> Act:
    return lambda exchange: exchange.send(
        http_status, json.dumps(failure(exchange.request_json, code, message)).encode()
    )


ANSWERS: dict[str, tuple[Act, str]] = {
    "error": (error(-32603, "no"), 'r0: answers with an error: "no" (-32603)'),
    "error with a status": (error(-32601, "no such tool", 404), 'r0: answers with an error: "no such tool" (-32601)'),
    "error with the code of a closed connection": (
        error(-32000, "the quota is used up"),
        'r0: answers with an error: "the quota is used up" (-32000)',
    ),
    "tool error": (answers(FINE | {"isError": True}), "fine"),
    "redirect": (lambda exchange: exchange.send(302, location="http://127.0.0.1:1/"), "r0: redirects"),
}


@both_eras
@pytest.mark.parametrize(("act", "words"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_answer_is_returned_and_no_other_replica_is_called(act: Act, words: str, era: str) -> None:
    received: list[Exchange] = []
    behaviours = [of_era(era, act), of_era(era, noted(received, fine))]
    async with first_of(behaviours, READ, protocol_version=era) as (client, _):
        called = await call(client, READ)

    assert called.is_error
    assert text_of(called).startswith(words)
    assert not received


@pytest.mark.parametrize("code", [404, 429])
async def test_a_status_of_the_sse_transport_shows_that_a_call_was_not_carried_out(code: int) -> None:
    def refuse(exchange: Exchange) -> Iterable[bytes]:
        exchange.send(code)
        return ()

    with replicas(SseServer(refuse), on_call(fine)) as servers:
        targets = targets_of(*servers) | {"r0": HttpTarget(servers[0].url, "sse")}
        async with calling(targets, catalogue=first(targets, WRITE, protocol_version=HANDSHAKE)) as client:
            called = await call(client, WRITE)

    assert (text_of(called), server_of(called)) == ("fine", "r1")


NO_HINT = "since the tool declares neither readOnlyHint nor idempotentHint"
BROKE = "r0: the connection broke during the call"


async def test_the_error_counts_the_replicas_that_were_not_tried_beside_those_that_were() -> None:
    with replicas(on_call(hangs_up), on_call(hangs_up)) as servers:
        targets: dict[str, Target] = {"r9": http_target("http", free_port()), **targets_of(*servers)}
        async with calling(targets, catalogue=replicated(targets, WRITE, READ, first="r9")) as client:
            written = await call(client, WRITE)
            read = await call(client, READ)

    assert text_of(written).startswith("r9: no connection: ")
    assert text_of(written).endswith(
        f", which may have been carried out or not; 1 other replica was not tried, {NO_HINT}"
    )
    assert text_of(read).startswith(f"{MAYBE}; no replica answered: ")
    assert text_of(read).count("carried out") == 1
    assert all(f"r{number}: " in text_of(read) for number in (0, 1, 9))


async def test_the_error_of_a_call_whose_time_is_over_states_so() -> None:
    async with first_of([on_call(hangs), on_call(fine)], READ, limits=CallLimits(timeout_s=2)) as (client, _):
        called = await call(client, READ)

    late = "no answer within 2 s in all, and no progress in the last 2 s"
    expected = f"r0: {late}; {MAYBE}; 1 other replica was not tried, since no time was left"
    assert text_of(called) == expected


async def test_the_error_names_each_replica_that_was_tried_and_states_that_nothing_was_sent() -> None:
    targets: dict[str, Target] = {"r0": http_target("http", free_port()), "r1": StdioTarget("no-such-program-anywhere")}
    async with calling(targets, catalogue=first(targets, WRITE)) as client:
        called = await call(client, WRITE)

    assert text_of(called).startswith(f"{NOT_DONE}; no replica answered: r0: no connection")
    assert "; r1: cannot be started" in text_of(called)


@pytest.mark.parametrize("name", ["r0:read", "read"])
async def test_a_result_names_its_server_and_no_server_can_forge_that(name: str) -> None:
    forged = FINE | {"_meta": {SERVER_KEY: "bank", "dev.toolscale/other": 1, "example.org/kept": 2}}
    async with first_of([on_call(answers(forged))], READ) as (client, _):
        called = await client.call_tool("call_tool", {"tool_name": name})

    meta = called.meta or {}
    assert server_of(called) == "r0"
    assert meta["example.org/kept"] == 2
    assert "dev.toolscale/other" not in meta


async def test_a_call_with_its_server_stays_there() -> None:
    with replicas(on_call(fine), on_call(fine)) as servers:
        targets: dict[str, Target] = targets_of(*servers) | {"dead": http_target("http", free_port())}
        async with calling(targets, catalogue=first(targets, READ)) as client:
            alive = [await client.call_tool("call_tool", {"tool_name": "r1:read"}) for _ in range(10)]
            dead = await client.call_tool("call_tool", {"tool_name": "dead:read"})

    assert {text_of(called) for called in alive} == {"fine"}
    assert {server_of(called) for called in alive} == {"r1"}
    assert [calls_of(server) for server in servers] == [0, 10]
    assert dead.is_error


async def test_a_replica_that_accepts_connections_and_never_answers_leaves_time_for_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole, replicas(on_call(fine)) as (alive,):
        hole = HttpTarget(f"http://127.0.0.1:{black_hole.getsockname()[1]}/mcp")
        targets: dict[str, Target] = {"r0": hole, "r1": HttpTarget(alive.url)}
        async with calling(targets, limits=CallLimits(timeout_s=20), catalogue=first(targets, WRITE)) as client:
            called = await call(client, WRITE)

    assert (text_of(called), server_of(called)) == ("fine", "r1")


async def test_all_attempts_share_the_time_of_one_call() -> None:
    with ExitStack() as stack:
        holes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        targets: dict[str, Target] = {
            f"r{number}": HttpTarget(f"http://127.0.0.1:{hole.getsockname()[1]}/mcp")
            for number, hole in enumerate(holes)
        }
        async with calling(targets, limits=CallLimits(timeout_s=3), catalogue=first(targets, WRITE)) as client:
            called = await call(client, WRITE)

    assert text_of(called).startswith(f"{NOT_DONE}; no replica answered: r0: no connection within ")
    assert all(f"{server_id}: " in text_of(called) for server_id in targets)
    waits_s = [float(wait_s) for wait_s in re.findall(r"no connection within (\S+) s", text_of(called))]
    assert 0.5 < waits_s[0] <= 1
    assert sum(waits_s) <= 3


async def test_a_call_that_its_caller_cancels_is_not_tried_again() -> None:
    async with first_of([on_call(hangs), on_call(fine)], READ) as (client, servers):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client, READ)
            await anyio.to_thread.run_sync(eventually, lambda: calls_of(servers[0]))
            tasks.cancel_scope.cancel()
        again = await client.call_tool("call_tool", {"tool_name": "r1:read"})

    assert server_of(again) == "r1"
    assert [calls_of(server) for server in servers] == [1, 1]


async def test_an_avoided_replica_is_called_again_after_a_probe_has_opened_a_connection() -> None:
    port = free_port()
    with replicas(on_call(fine)) as (alive,):
        targets: dict[str, Target] = {"r0": HttpTarget(f"http://127.0.0.1:{port}/mcp"), "r1": HttpTarget(alive.url)}
        async with calling(targets, catalogue=first(targets, WRITE)) as client:
            assert server_of(await call(client, WRITE)) == "r1"
            with scripted_http(on_call(fine), port) as back:
                served = [server_of(await call(client, WRITE))]
                with anyio.fail_after(60):
                    while served[-1] != "r0":
                        served.append(server_of(await call(client, WRITE)))
                assert back.methods.index("tools/call") > 0  # the probe came first

    assert set(served[:-1]) == {"r1"}


READ_ECHO = tool_of("s", "echo", "readOnlyHint", words={"type": "string"})
COUNTS = tool_of("s", "counts")


def pid_of(called: CallToolResult) -> int:
    return int(text_of(called).rpartition(" ")[2])


@pytest.mark.parametrize("kind", ["http", "legacy"])
async def test_calls_go_on_while_one_of_three_processes_is_killed(kind: Any) -> None:
    with ExitStack() as stack:
        targets: dict[str, Target] = {
            f"r{number}": stack.enter_context(good_http(kind, program="callable")) for number in range(3)
        }
        async with calling(targets, catalogue=first(targets, READ_ECHO)) as client:
            called: list[CallToolResult] = []

            async def call_often() -> None:
                while len(called) < 120:
                    called.append(await call(client, READ_ECHO, words="now"))

            victim = pid_of(await call(client, READ_ECHO, words="?"))
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(call_often)
                await anyio.to_thread.run_sync(eventually, lambda: len(called) > 20)
                os.kill(victim, signal.SIGKILL)

    assert not any(one.is_error for one in called)
    assert {server_of(one) for one in called[-10:]} <= {"r1", "r2"}


async def test_a_stdio_replica_that_dies_is_replaced_by_another() -> None:
    dies = tool_of("s", "dies")
    targets: dict[str, Target] = {"r0": callable_stdio(), "r1": callable_stdio()}
    async with calling(targets, catalogue=first(targets, READ_ECHO, dies)) as client:
        before = await call(client, READ_ECHO, words="before")
        died = await call(client, dies)
        after = await call(client, READ_ECHO, words="after")

    assert server_of(before) == "r0"
    assert text_of(died).startswith(f"{BROKE}, which may have been carried out or not; 1 other replica")
    assert server_of(after) == "r1"


async def test_a_caller_keeps_its_session_and_prefers_it_to_an_idle_replica() -> None:
    targets: dict[str, Target] = {f"r{number}": callable_stdio() for number in range(3)}
    catalogue = replicated(targets, COUNTS, protocol_version=HANDSHAKE)
    async with calling(targets, catalogue=catalogue) as client:
        counted = [text_of(await client.call_tool("call_tool", {"tool_name": "counts"})) for _ in range(6)]

    assert [int(text.partition(" ")[0]) for text in counted] == [1, 2, 3, 4, 5, 6]


def with_session(exchange: Exchange) -> None:
    if exchange.method == "initialize":
        exchange.send(200, json.dumps(initialized(exchange.request_json)).encode(), mcp_session_id="one")
    else:
        on_call(fine)(exchange)


@pytest.mark.parametrize(("behaviour", "used"), [(with_session, 1), (on_call(fine), 2)], ids=["with id", "without"])
async def test_a_caller_keeps_a_replica_over_http_only_where_a_session_id_was_assigned(
    behaviour: Respond, used: int
) -> None:
    with replicas(behaviour, behaviour) as servers:
        targets = targets_of(*servers)
        async with calling(targets, catalogue=replicated(targets, WRITE, protocol_version=HANDSHAKE)) as client:
            called = [await client.call_tool("call_tool", {"tool_name": "write"}) for _ in range(40)]

    assert {text_of(one) for one in called} == {"fine"}
    assert len({server_of(one) for one in called}) == used


async def test_more_replicas_than_connections_take_calls_on_the_open_ones() -> None:
    released = threading.Event()
    received: list[Exchange] = []
    with replicas(*[on_call(noted(received, fine_after(released)))] * 4) as servers:
        targets = targets_of(*servers)
        limits = CallLimits(timeout_s=30, max_connections=2)
        async with calling(targets, limits=limits, catalogue=replicated(targets, WRITE)) as client:
            called: list[CallToolResult] = []

            async def call_once() -> None:
                called.append(await client.call_tool("call_tool", {"tool_name": "write"}))

            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(call_once)
                await anyio.to_thread.run_sync(eventually, lambda: len(received) + len(called) == 8)
                released.set()

    assert [text_of(one) for one in called] == ["fine"] * 8
    assert len({exchange.server.server_port for exchange in received}) == 2
