"""The proxy of `toolscale serve --stdio` before a scripted service."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote

import pytest
from typing_extensions import override

from tests.support.stdio_client import MODERN
from tests.support.waiting import eventually
from toolscale.client.background import Place
from toolscale.client.instance import published
from toolscale.stdio import LISTEN_AGAIN, MAY_HAVE_RUN, Proxy

Message = dict[str, Any]
Answer = Callable[["Handler", Message], None]

ELICITING: Message = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "c"}}


class Handler(BaseHTTPRequestHandler):
    """A request to the scripted service."""

    protocol_version = "HTTP/1.1"
    server: ScriptedServer  # pyright: ignore[reportIncompatibleVariableOverride]  # no other server has this handler

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"instance_id": self.server.instance_id}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.path == "/mcp":
            message = json.loads(body)
            self.server.received.append((message, dict(self.headers)))
            self.server.answer(self, message)
        else:
            self.server.attended += 1
            self.server.is_ending.wait(30)
            self.reply(204, "")

    def reply(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def result(self, message: Message, **result: Any) -> None:
        self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


class ScriptedServer(ThreadingHTTPServer):
    """A service that answers MCP by a function."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.instance_id = ""
        self.received: list[tuple[Message, dict[str, str]]] = []
        self.attended = 0
        self.is_ending = threading.Event()


class Session:
    """A client's session with the proxy."""

    def __init__(self, server: ScriptedServer, place: Place, **limits: str | None) -> None:
        self.server = server
        self._lines, self._written = SimpleQueue[bytes | None](), io.BytesIO()
        proxy = Proxy(place, limits.get("groups"), limits.get("toolset"), self._written)
        self._thread = threading.Thread(target=proxy.run, args=(self._sent(),))
        self._thread.start()

    def send(self, message: Message | str) -> None:
        text = message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})
        self._lines.put(text.encode() + b"\n")

    def messages(self) -> list[Message]:
        return [json.loads(line) for line in self._written.getvalue().splitlines()]

    def answer(self, number: int, method: str, **params: Any) -> Message:
        self.send({"id": number, "method": method, "params": params})
        return self.answered(number)

    def answered(self, number: object) -> Message:
        eventually(lambda: any(each.get("id") == number for each in self.messages()), what=f"an answer to {number}")
        return next(each for each in self.messages() if each.get("id") == number)

    def end(self) -> None:
        self._lines.put(None)
        self._thread.join(10)

    def _sent(self) -> Iterator[bytes]:
        while (line := self._lines.get()) is not None:
            yield line


@contextmanager
def session(data_dir: Path, answer: Answer, **limits: str | None) -> Generator[Session]:
    """Yield a session with a service that answers so."""
    with ScriptedServer(answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with published(data_dir, f"http://127.0.0.1:{server.server_port}") as instance:
                server.instance_id = instance.instance_id
                running = Session(server, Place(data_dir), **limits)
                yield running
                running.end()
        finally:
            server.is_ending.set()
            server.shutdown()


def test_requests_carry_the_secret_the_limits_and_the_revision_of_the_client(tmp_path: Path) -> None:
    def answer(handler: Handler, message: Message) -> None:
        handler.result(message, protocolVersion="2025-11-25")

    with session(tmp_path, answer, groups="dev,é", toolset="small") as client:
        client.answer(1, "initialize", protocolVersion="2025-11-25")
        client.answer(2, "tools/list")
        client.answer(3, "tools/call", name="é", _meta=MODERN)

    first, second, third = [headers for _, headers in client.server.received]
    assert first["Authorization"].startswith("Bearer ")
    assert (first["Toolscale-Groups"], first["Toolscale-Toolset"]) == ("dev,%C3%A9", "small")
    assert len(first["Toolscale-Session"]) == 32
    assert {each["Toolscale-Session"] for each in (second, third)} == {first["Toolscale-Session"]}
    assert unquote(third["Toolscale-Directory"]) == str(Path.cwd())
    assert "MCP-Protocol-Version" not in first
    assert second["MCP-Protocol-Version"] == "2025-11-25"
    assert third["MCP-Protocol-Version"] == "2026-07-28"
    assert (third["Mcp-Method"], third["Mcp-Name"]) == ("tools/call", "=?base64?w6k=?=")


def test_a_service_elsewhere_does_not_learn_the_directory_of_the_client(tmp_path: Path) -> None:
    received: list[dict[str, str]] = []

    def answer(handler: Handler, message: Message) -> None:
        received.append(dict(handler.headers.items()))
        handler.result(message)

    with ScriptedServer(answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        elsewhere = Place(tmp_path, own_url=f"http://127.0.0.1:{server.server_port}", has_servers=True)
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        Proxy(elsewhere, None, None, io.BytesIO()).run([request + b"\n"], last_answers_s=30)
        server.shutdown()

    assert received
    assert not {"Toolscale-Session", "Toolscale-Directory"} & received[-1].keys()


@pytest.mark.parametrize("limits", [{"groups": "dev"}, {"toolset": "small"}])
def test_a_service_that_does_not_know_the_limits_is_not_used_with_them(limits: dict[str, str]) -> None:
    written = io.BytesIO()
    elsewhere = Place(Path("/nowhere"), own_url="http://127.0.0.1:9", has_servers=True)
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()

    Proxy(elsewhere, limits.get("groups"), limits.get("toolset"), written).run([request + b"\n"], last_answers_s=30)

    assert "do not limit clients of http://127.0.0.1:9" in json.loads(written.getvalue())["error"]["message"]


def test_a_request_waits_while_the_service_starts(tmp_path: Path) -> None:
    starts = iter(range(3))

    def answer(handler: Handler, message: Message) -> None:
        if next(starts, None) is None:
            handler.result(message, tools=[])
        else:
            handler.reply(503, json.dumps({"status": "starting", "doing": "loading the program"}))

    with session(tmp_path, answer) as client:
        assert client.answer(1, "tools/list")["result"] == {"tools": []}


def test_the_messages_of_an_event_stream_come_in_their_order_and_unchanged(tmp_path: Path) -> None:
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}'
    result = '{"jsonrpc":"2.0","id":"one","result":{"text":"é","isError":false}}'

    def answer(handler: Handler, _: Message) -> None:
        events = f": ping\r\n\r\nevent: message\r\ndata: {progress}\r\n\r\nevent: message\r\ndata: {result}\r\n\r\n"
        handler.reply(200, events, "text/event-stream")

    with session(tmp_path, answer) as client:
        client.send({"id": "one", "method": "tools/call", "params": {"name": "call_tool"}})
        client.answered("one")

        assert client.messages() == [json.loads(progress), json.loads(result)]


def test_what_the_service_did_not_answer_is_repeated_if_it_only_reads(tmp_path: Path) -> None:
    seen = list[str]()

    def answer(handler: Handler, message: Message) -> None:
        name = message["params"].get("name") or message["method"]
        seen.append(name)
        if seen.count(name) == 1:
            handler.close_connection = True  # without an answer
        else:
            handler.result(message, isError=False)

    with session(tmp_path, answer) as client:
        found = client.answer(1, "tools/call", name="find_tool")
        read = client.answer(2, "resources/read", uri="toolscale://x")
        called = client.answer(3, "tools/call", name="call_tool")
        modern = client.answer(4, "tools/call", name="a_tool_of_a_toolset", _meta=MODERN)

    assert found["result"] == read["result"] == {"isError": False}
    assert called["result"] == {"content": [{"type": "text", "text": MAY_HAVE_RUN}], "isError": True}
    assert modern["result"] == {**called["result"], "resultType": "complete"}
    assert seen == ["find_tool"] * 2 + ["resources/read"] * 2 + ["call_tool", "a_tool_of_a_toolset"]


FORM: Message = {"method": "elicitation/create", "params": {"message": "Call it?", "requestedSchema": {}}}
URL: Message = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in", "url": "https://a.example"},
}
SAMPLING: Message = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
ROOTS: Message = {"method": "roots/list"}


def asks(question: Message, **result: Any) -> Answer:
    """Return a service that asks this, and returns the answers, the state and `result` of the repeated request."""

    def answer(handler: Handler, message: Message) -> None:
        params = message["params"]
        if message["method"] == "initialize":
            handler.result(message, protocolVersion=params["protocolVersion"])
        elif answers := params.get("inputResponses"):
            handler.result(message, resultType="complete", said=[answers, params["requestState"]], **result)
        else:
            handler.result(message, resultType="input_required", inputRequests={"key": question}, requestState="state")

    return answer


def begin(client: Session, capability: str, version: str = "2025-11-25") -> None:
    client.answer(1, "initialize", **{**ELICITING, "capabilities": {capability: {}}, "protocolVersion": version})


def question_to(client: Session, method: str, **params: Any) -> Message:
    """Send a request and return the question that comes in place of its result."""
    client.send({"id": 2, "method": method, "params": params})
    eventually(lambda: len(client.messages()) == 2, what="a question")
    return client.messages()[-1]


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
@pytest.mark.parametrize(
    ("capability", "question", "answer"),
    [
        ("elicitation", FORM, {"action": "accept"}),
        ("elicitation", FORM, {"action": "decline"}),
        ("elicitation", URL, {"action": "accept"}),
        ("sampling", SAMPLING, {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"}),
        ("roots", ROOTS, {"roots": [{"uri": "file:///home"}]}),
    ],
)
def test_an_older_client_is_asked_the_question_of_a_request_by_a_request_of_its_revision(
    tmp_path: Path, method: str, capability: str, question: Message, answer: Message
) -> None:
    with session(tmp_path, asks(question)) as client:
        begin(client, capability)
        asked = question_to(client, method, name="call_tool", uri="toolscale://link/x")
        client.send({"id": asked["id"], "result": answer})
        result = client.answered(2)["result"]

    assert asked["method"] == question["method"]
    assert question.get("params", {}).items() <= asked.get("params", {}).items()
    assert ("elicitationId" in asked.get("params", {})) == (question is URL)
    assert result == {"said": [{"key": answer}, "state"]}
    meta = client.server.received[-1][0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {capability: {}}


def test_a_client_that_cannot_open_a_window_cancels_and_one_without_an_answer_of_its_model_gets_the_reason(
    tmp_path: Path,
) -> None:
    error = {"code": -1, "message": "no window"}
    for capability, question, expected in [("elicitation", FORM, "cancel"), ("sampling", SAMPLING, "no window")]:
        with session(tmp_path, asks(question)) as client:
            begin(client, capability)
            asked = question_to(client, "tools/call", name="call_tool")
            client.send({"id": asked["id"], "error": error})
            assert expected in json.dumps(client.answered(2)["result"])


@pytest.mark.parametrize(("capability", "version"), [("experimental", "2025-11-25"), ("roots", "2025-03-26")])
def test_a_client_that_cannot_be_asked_keeps_its_revision(tmp_path: Path, capability: str, version: str) -> None:
    with session(tmp_path, asks(ROOTS)) as client:
        begin(client, capability, version)
        client.answer(2, "tools/call", name="call_tool")

    assert "_meta" not in client.server.received[-1][0]["params"]


def test_what_the_newest_revision_alone_has_reaches_no_older_client(tmp_path: Path) -> None:
    def answer(handler: Handler, message: Message) -> None:
        if message["method"] == "initialize":
            handler.result(message, protocolVersion="2025-11-25")
        elif message["method"] == "resources/read":
            error = {"code": -32602, "message": "unknown", "data": {"uri": "x"}}
            handler.reply(400, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))
        else:
            handler.result(message, resultType="complete", content=[], structuredContent=[1])

    with session(tmp_path, answer) as client:
        begin(client, "elicitation")
        called = client.answer(2, "tools/call", name="call_tool")["result"]
        read = client.answer(3, "resources/read", uri="x")["error"]

    assert called == {"content": [{"type": "text", "text": "[1]"}]}
    assert read["code"] == -32002


CHANGED: Message = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def test_an_older_client_with_a_toolset_hears_of_changes_and_of_an_interruption_in_which_there_may_be_some(
    tmp_path: Path,
) -> None:
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": "s"}}
    acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": meta}
    listens, changes = list[Message](), SimpleQueue[bool]()

    def answer(handler: Handler, message: Message) -> None:
        if message["method"] != "subscriptions/listen":
            handler.result(message, protocolVersion="2025-11-25", capabilities={"tools": {"listChanged": False}})
            return
        listens.append(message)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.close_connection = True
        handler.wfile.write(f"event: message\r\ndata: {json.dumps(acknowledged)}\r\n\r\n".encode())
        while changes.get():
            handler.wfile.write(f"event: message\r\ndata: {json.dumps({**CHANGED, 'params': meta})}\r\n\r\n".encode())

    with session(tmp_path, answer, toolset="dev") as client:
        handshake = client.answer(1, "initialize", **ELICITING)
        assert listens == []
        client.send({"method": "notifications/initialized"})
        eventually(lambda: listens, what="a request to listen")
        assert client.messages() == [handshake]
        changes.put(True)
        eventually(lambda: client.messages() == [handshake, CHANGED], what="a notification")
        changes.put(False)
        numbers = count(2)
        eventually(
            lambda: client.answer(next(numbers), "tools/list") and client.messages().count(CHANGED) == 2,
            what="a notification after the interruption",
        )
        changes.put(False)

    assert handshake["result"]["capabilities"]["tools"]["listChanged"] is True
    params = listens[0]["params"]
    assert params["notifications"] == {"toolsListChanged": True}
    assert params["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_a_client_whose_tools_never_change_does_not_listen(tmp_path: Path) -> None:
    def answer(handler: Handler, message: Message) -> None:
        handler.result(message, protocolVersion="2025-11-25", capabilities={"tools": {"listChanged": False}})

    with session(tmp_path, answer) as client:
        handshake = client.answer(1, "initialize", **ELICITING)
        client.send({"method": "notifications/initialized"})
        client.answer(2, "tools/list")

    assert handshake["result"]["capabilities"]["tools"]["listChanged"] is False
    assert [message["method"] for message, _ in client.server.received] == ["initialize", "tools/list"]


def test_a_client_of_the_newest_revision_that_listens_listens_again_itself_after_an_interruption(
    tmp_path: Path,
) -> None:
    def answer(handler: Handler, _: Message) -> None:
        handler.close_connection = True

    with session(tmp_path, answer) as client:
        answered = client.answer(1, "subscriptions/listen", notifications={}, _meta=MODERN)

    assert answered["error"]["message"] == LISTEN_AGAIN
    assert len(client.server.received) == 1


def test_a_cancelled_request_ends_in_the_service_which_stays_known_and_has_no_answer(tmp_path: Path) -> None:
    ended = threading.Event()

    def answer(handler: Handler, message: Message) -> None:
        if message["method"] == "tools/list":
            handler.result(message)
        elif not handler.connection.recv(1):
            ended.set()

    with session(tmp_path, answer) as client:
        client.send({"id": 1, "method": "tools/call", "params": {"name": "call_tool"}})
        eventually(lambda: bool(client.server.received))
        client.send({"method": "notifications/cancelled", "params": {"requestId": 1}})

        assert ended.wait(10)
        client.answer(2, "tools/list")
        eventually(lambda: client.server.attended)
    assert [message["id"] for message in client.messages()] == [2]
    assert client.server.attended == 1


def test_pings_and_what_is_no_request_are_answered_without_the_service(tmp_path: Path) -> None:
    with session(tmp_path, lambda handler, message: handler.result(message)) as client:
        client.send("{")
        client.send("[]")
        client.send({"id": {}, "method": "tools/list"})
        client.send({"method": "notifications/cancelled", "params": {"requestId": []}})
        client.send({"method": "notifications/initialized"})
        client.send({"id": 7, "result": {}})
        assert client.answer(8, "ping")["result"] == {}

    assert [message.get("error", {}).get("code") for message in client.messages()] == [-32700, -32600, -32600, None]
    assert client.server.received == []


@pytest.mark.parametrize("version", ["2026\n07", "é", "\ud800"])
def test_a_request_that_http_cannot_transport_is_answered_with_an_error(tmp_path: Path, version: str) -> None:
    meta = {**MODERN, "io.modelcontextprotocol/protocolVersion": version}
    with session(tmp_path, lambda handler, message: handler.result(message)) as client:
        answer = client.answer(1, "tools/list", _meta=meta)
        assert client.answer(2, "tools/call", name="\ud800", _meta=MODERN)["result"] == {}

    assert "error" in answer or version == "é"  # a header may have Latin-1


def test_an_error_of_http_reaches_the_client(tmp_path: Path) -> None:
    def answer(handler: Handler, message: Message) -> None:
        if message["method"] == "tools/list":
            error = {"code": -32600, "message": "a request may hold 50000 values at most"}
            handler.reply(413, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}))
        else:
            handler.reply(401, "no")

    with session(tmp_path, answer) as client:
        assert client.answer(1, "tools/list")["error"]["code"] == -32600
        assert client.answer(2, "resources/read")["error"]["message"] == "the service answered 401: no"
