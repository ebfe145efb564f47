"""Answers that come where the reader does not expect them, and children that several threads start at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from mcp_types import JSONRPCRequest
from typing_extensions import override

from shared.upstream.processes import Supervisor
from shared.upstream.reader import Reader
from shared.upstream.session import SessionState
from shared.upstream.target import HttpTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.messages import answer, one_page, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http

NO_SCOPE: Any = None
FINE: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "fine"}]}}
NEWS: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
LATE: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "result": {}}


def reader() -> tuple[Reader, SessionState]:
    state = SessionState("srv", NO_SCOPE)
    return Reader(state), state


@pytest.mark.parametrize("batch", [[FINE, NEWS], [NEWS, FINE], [NEWS, FINE, NEWS], [FINE], [FINE, NEWS, NEWS]], ids=len)
def test_a_body_with_several_messages_ends_with_its_answer(batch: list[dict[str, Any]]) -> None:
    read, _ = reader()

    assert json.loads(read.rewritten(json.dumps(batch).encode(), 7)[-1]) == FINE


@pytest.mark.parametrize("late", [LATE, LATE | {"id": "5"}, LATE | {"id": 5.0}, LATE | {"error": None}])
def test_a_late_answer_is_no_violation(late: dict[str, Any]) -> None:
    read, state = reader()
    read.sent(JSONRPCRequest(jsonrpc="2.0", id=5, method="tools/call"))
    read.pending.discard(5)  # it is cancelled

    assert read.messages(json.dumps(late).encode()) == []
    assert state.protocol_violation is None


class CountedSupervisor(Supervisor):
    """Counts its starts."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    @override
    def _start(self) -> None:
        self.starts += 1
        super()._start()


def test_threads_that_start_the_first_children_at_once_share_a_supervisor() -> None:
    for _ in range(10):
        supervisor = CountedSupervisor()
        with ThreadPoolExecutor(8) as threads:
            marks = [each.result() for each in [threads.submit(supervisor.mark) for _ in range(8)]]
        supervisor.forget()

        assert (supervisor.starts, len(set(marks))) == (1, 8)


@pytest.mark.process
@pytest.mark.anyio
async def test_an_answer_on_a_resumed_stream_is_read() -> None:
    asked: list[Any] = []

    def respond(exchange: Exchange) -> None:
        if exchange.command == "GET":
            if exchange.headers.get("last-event-id"):
                said = json.dumps(FINE | {"id": asked[-1]}).encode()
                exchange.send(200, b"id: e2\ndata: " + said + b"\n\n", "text/event-stream")
            else:
                exchange.send(405)
        elif exchange.method == "tools/call":
            asked.append(exchange.request_json["id"])
            exchange.send(200, b"id: e1\nretry: 10\ndata: \n\n", "text/event-stream")
        elif reply := answer(exchange.request_json, one_page(tool("one"))):
            exchange.send(200, json.dumps(reply).encode())
        else:
            exchange.send(202)

    with scripted_http(respond) as server:
        async with calling({"srv": HttpTarget(server.url)}, tool_of("srv", "one")) as client:
            with anyio.fail_after(30):
                called = await client.call_tool("call_tool", {"tool_name": "srv:one"})

    assert (called.is_error, text_of(called)) == (False, "fine")
