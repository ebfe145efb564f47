"""Each way in which a server can spoil a call ends in an error that names it, in time, and harms no later call."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.types import CallToolResult, TextContent

from query.calling.limits import CallLimits
from shared.upstream.messages import MAX_MESSAGE_NODES
from shared.upstream.target import HttpTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile import scripts
from tests.support.hostile.messages import failure, initialized, result
from tests.support.hostile.processes import scripted_stdio
from tests.support.hostile.scripted_http import Exchange, Respond, scripted_http
from tests.support.hostile.scripts import GOOD, MEGABYTE, answers, hangs_up, status
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

LIMITS = CallLimits(timeout_s=60, max_message_bytes=MEGABYTE)
ROOMY = CallLimits(timeout_s=60)
IMPATIENT = CallLimits(timeout_s=2, max_message_bytes=MEGABYTE)
# A busy machine may be late; what must not happen is waiting for ever.
SLACK_S = 60
ONE = tool_of("srv", "one")
FINE = {"content": [{"type": "text", "text": "fine"}]}


def on_nth_call(number: int, act: Callable[[Exchange], None], methods: list[str]) -> Respond:
    """Behave well, but for this call, the first is 1; note the methods of all requests."""

    def respond(exchange: Exchange) -> None:
        methods.append(exchange.method)
        if exchange.method != "tools/call":
            exchange.play(GOOD)
        elif methods.count("tools/call") == number:
            act(exchange)
        else:
            exchange.send_json(result(exchange.request_json, FINE))

    return respond


async def results(respond: Respond, times: int = 1, limits: CallLimits = LIMITS) -> list[CallToolResult]:
    """Return the results of calls, one after the other, of a server that responds so."""
    with scripted_http(respond) as server:
        async with calling({"srv": HttpTarget(server.url)}, ONE, limits=limits) as client:
            return [await client.call_tool("call_tool", {"tool_name": "one"}) for _ in range(times)]


def breaks_off(exchange: Exchange) -> None:
    exchange.begin(200, content_length="5000")
    exchange.wfile.write(b'{"jsonrpc":"2.0",')
    exchange.close_connection = True


def fails_after_progress(exchange: Exchange) -> None:
    token = exchange.request_json["params"]["_meta"]["progressToken"]
    progress = {"progressToken": token, "progress": 1, "total": 2}
    told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
    exchange.send_events(told, failure(exchange.request_json, -32050, "gave up half way"))


def floods_with_progress(exchange: Exchange, every_s: float = 0) -> None:
    token = exchange.request_json["params"]["_meta"]["progressToken"]
    exchange.begin(200, "text/event-stream")
    for number in itertools.count():
        params = {"progressToken": token, "progress": number, "message": "x" * 1000}
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()
        exchange.wfile.write(b"event: message\ndata: " + told + b"\n\n")
        if exchange.server.stopping.wait(every_s):
            return


FLOODS = "sends more than 500 messages for a call, or 100 a second, so its connection was ended"

HTTP: dict[str, tuple[Callable[[Exchange], None], str]] = {
    "401": (status(401), "HTTP 401"),
    "500": (status(500), "HTTP 500"),
    "429": (status(429), "HTTP 429"),
    "hang": (scripts.hangs, "no answer within 2 s"),
    "drip-fed headers": (scripts.drips_headers, "no answer within 2 s"),
    "drip-fed body": (scripts.drips_json, "no answer within 2 s"),
    "drip-fed events": (scripts.drips_events, "no answer within 2 s"),
    "chatter": (scripts.chatters, FLOODS),
    "flood of progress": (floods_with_progress, FLOODS),
    "wrong id": (scripts.wrong_id, "the id of another request"),
    "broken off": (breaks_off, "broke"),
    "hung up": (hangs_up, "broke"),
    "invalid JSON": (scripts.invalid_json, "-32700"),
    "HTML": (scripts.html, "text/html"),
    "huge": (scripts.huge_json, "larger than 1048576 bytes"),
    "huge event": (scripts.huge_event, "larger than 1048576 bytes"),
    "declared size": (scripts.declares_huge, "larger than 1048576 bytes"),
    "compressed": (scripts.zip_bomb, "compressed"),
    "redirect": (scripts.redirects("http://169.254.169.254/latest"), "redirects to"),
    "error": (lambda exchange: exchange.send_json(failure(exchange.request_json, -32603, "out of cheese")), "-32603"),
    "error after progress": (fails_after_progress, 'answers with an error: "gave up half way" (-32050)'),
    "no result": (answers("nothing"), "-32700"),
    "content of no kind": (answers({"content": [{"type": "smell"}]}), "invalid result"),
    "no content": (answers({}), "invalid result"),
}


@pytest.mark.parametrize("name", HTTP)
async def test_a_spoilt_call_over_http_is_said_to_be_and_the_next_one_is_answered(name: str) -> None:
    act, words = HTTP[name]
    limits = IMPATIENT if "2 s" in words else LIMITS

    methods: list[str] = []

    with anyio.fail_after(limits.timeout_s + SLACK_S):
        spoilt, fine = await results(on_nth_call(1, act, methods), 2, limits)

    assert spoilt.is_error
    assert text_of(spoilt).startswith("srv: ")
    assert words in text_of(spoilt)
    assert text_of(fine) == "fine"
    assert methods.count("tools/call") == 2


COMMAS = "1," * (2 * MAX_MESSAGE_NODES)
"""A table as text: more commas than a result may have values."""

WAYS: dict[str, Callable[[Exchange, object], None]] = {
    "JSON": lambda exchange, message: exchange.send_json(message),
    "events": lambda exchange, message: exchange.send_events(message),
}


@pytest.mark.parametrize("over", WAYS)
async def test_a_text_full_of_commas_is_one_value(over: str) -> None:
    table = {"content": [{"type": "text", "text": COMMAS}]}

    def act(exchange: Exchange) -> None:
        WAYS[over](exchange, result(exchange.request_json, table))

    (told,) = await results(on_nth_call(1, act, []), limits=ROOMY)

    assert not told.is_error
    assert isinstance(told.content[0], TextContent)
    assert told.content[0].text.startswith("1,1,1,")


@pytest.mark.parametrize("over", WAYS)
async def test_a_result_of_very_many_values_is_refused(over: str) -> None:
    dense: dict[str, Any] = {"content": [], "structuredContent": {"all": [1] * (MAX_MESSAGE_NODES + 100)}}

    def act(exchange: Exchange) -> None:
        WAYS[over](exchange, result(exchange.request_json, dense))

    (told,) = await results(on_nth_call(1, act, []), limits=ROOMY)

    assert told.is_error
    assert f"more than {MAX_MESSAGE_NODES} values" in text_of(told)


async def test_an_event_stream_is_read_in_utf8_whatever_it_says_it_is_in() -> None:
    def act(exchange: Exchange) -> None:
        event = b"data: " + json.dumps(result(exchange.request_json, FINE)).encode() + b"\n\n"
        exchange.send(200, event, "text/event-stream; charset=cp500")

    (told,) = await results(on_nth_call(1, act, []))

    assert text_of(told) == "fine"


STDIO: dict[str, str] = {
    "silent": "no ",
    "babbles": "no ",
    "dies_at_start": 'exit code 3; its last words: "panic: out of cheese"',
    "dies_in_mid_call": "the connection broke during the call, which may have been carried out or not",
    "huge_result": "larger than 1048576 bytes",
    "fails_to_call": 'password *** rejected" (-32603)',
}


@pytest.mark.parametrize("mode", STDIO)
async def test_a_broken_child_is_named_with_the_reason_in_time(mode: str) -> None:
    target = scripted_stdio(mode, PASSWORD="hunter2-hunter2")
    limits = IMPATIENT if STDIO[mode] == "no " else LIMITS

    async with calling({"srv": target}, ONE, limits=limits) as client:
        with anyio.fail_after(limits.timeout_s + SLACK_S):
            result = await client.call_tool("call_tool", {"tool_name": "one"})

    assert result.is_error
    assert text_of(result).startswith("srv: ")
    assert STDIO[mode] in text_of(result)


async def test_a_session_that_the_server_has_forgotten_is_opened_anew_and_the_call_sent_once_more() -> None:
    methods: list[str] = []

    first, second = await results(on_nth_call(2, status(404), methods), 2)

    assert text_of(first) == text_of(second) == "fine"
    assert methods.count("initialize") == 2


class Shared:
    """A server of the handshake era that holds the call `slow` until it is released; `sent` has what each call says."""

    def __init__(self, on_quick: Callable[[Exchange], None], on_release: Callable[[Exchange], None]) -> None:
        self.sent: list[str] = []
        self.began, self.released = threading.Event(), threading.Event()
        self._on_quick = on_quick
        self._on_release = on_release

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "initialize":
            body = json.dumps(initialized(exchange.request_json)).encode()
            exchange.send(200, body, mcp_session_id="of-all-callers")
        elif exchange.method == "tools/call":
            self._answer(exchange, exchange.request_json["params"]["arguments"]["who"])
        elif exchange.method == "notifications/cancelled":
            self._on_quick(exchange)
        elif exchange.method == "DELETE":
            exchange.hang()
        else:
            exchange.play(GOOD)

    def _answer(self, exchange: Exchange, who: str) -> None:
        self.sent.append(who)
        if who == "slow":
            self._hold(exchange)
        elif who == "quick" and self.sent.count("quick") == 1:
            self._on_quick(exchange)
        elif who == "waits":
            exchange.hang()
        else:
            exchange.send_json(result(exchange.request_json, FINE))

    def _hold(self, exchange: Exchange) -> None:
        exchange.begin(200, "text/event-stream", connection="close")
        exchange.wfile.flush()
        self.began.set()
        self.released.wait(60)
        self._on_release(exchange)
        exchange.close_connection = True


def as_event(exchange: Exchange, message: object) -> None:
    exchange.wfile.write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")


def fine(exchange: Exchange) -> None:
    as_event(exchange, result(exchange.request_json, FINE))


def out_of_cheese(exchange: Exchange) -> None:
    as_event(exchange, failure(exchange.request_json, -32603, "out of cheese"))


async def outcomes(shared: Shared, *beside: str, release: bool = True) -> dict[str, str]:
    """Return what each call is told: `slow`, and those that are made while it is being carried out."""
    told: dict[str, str] = {}

    async def call(who: str) -> None:
        told[who] = text_of(await client.call_tool("call_tool", {"tool_name": "one", "parameters": {"who": who}}))

    with scripted_http(shared) as server:
        async with calling({"srv": HttpTarget(server.url)}, ONE, limits=LIMITS, mode="legacy") as client:
            await call("first")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, "slow")
                await anyio.to_thread.run_sync(shared.began.wait, 10)
                for who in beside:
                    await (call(who) if who != "waits" else _given_up(call, shared))
                if release:
                    shared.released.set()
        shared.released.set()
    return told


async def _given_up(call: Callable[[str], Coroutine[Any, Any, None]], shared: Shared) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "waits")
        await anyio.to_thread.run_sync(eventually, lambda: "waits" in shared.sent)
        tasks.cancel_scope.cancel()


async def test_a_session_forgotten_for_one_call_does_not_have_another_sent_twice() -> None:
    shared = Shared(on_quick=status(404), on_release=fine)

    told = await outcomes(shared, "quick")

    assert told == {"first": "fine", "slow": "fine", "quick": "fine"}
    assert sorted(shared.sent) == ["first", "quick", "quick", "slow"]


@pytest.mark.parametrize("code", [401, 404, 503])
async def test_the_status_of_one_call_is_not_told_to_another(code: int) -> None:
    shared = Shared(on_quick=status(code), on_release=out_of_cheese)

    told = await outcomes(shared, "quick")

    assert told["slow"] == 'srv: answers with an error: "out of cheese" (-32603)'
    assert shared.sent.count("slow") == 1


async def test_a_call_that_may_have_been_carried_out_is_said_to_be_however_long_the_session_takes_to_end() -> None:
    shared = Shared(on_quick=hangs_up, on_release=fine)

    told = await outcomes(shared, "waits", release=False)

    assert told["slow"] == "srv: the connection broke during the call, which may have been carried out or not"
    assert shared.sent.count("slow") == 1


async def test_a_notification_that_is_not_answered_holds_up_no_other_call() -> None:
    shared = Shared(on_quick=scripts.hangs, on_release=fine)

    told = await outcomes(shared, "waits", "after")

    assert told["after"] == "fine"


def reports_steadily(exchange: Exchange) -> None:
    floods_with_progress(exchange, every_s=0.1)


@pytest.mark.parametrize(("act", "sessions"), [(scripts.hangs, 2), (reports_steadily, 1)])
async def test_a_session_on_which_nothing_came_while_a_call_waited_is_not_used_again(
    act: Callable[[Exchange], None], sessions: int
) -> None:
    methods: list[str] = []

    first, _, third = await results(on_nth_call(2, act, methods), 3, IMPATIENT)

    assert (text_of(first), text_of(third)) == ("fine", "fine")
    assert methods.count("initialize") == sessions
