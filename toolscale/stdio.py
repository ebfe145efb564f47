"""`toolscale serve --stdio`: the session of an MCP client on stdin and stdout, forwarded to the service over HTTP.

client ─ lines ─▶ proxy ─ POST /mcp ─▶ the service of the data directory, which starts where none runs

A request of the client passes these steps:

1. `_receive` reads its line, and gives it a thread.
2. `_forward` repeats the next steps until the service has received it, and once more if it only reads.
3. `_reach` finds or starts the service, and attends: the service stays while a client does.
4. `_post` sends it, on a connection of its own, which ends when the client cancels.
5. `_deliver` writes the answer. If the service asks the client something instead, `_with_answers` does that, and the
   request goes to the service again, with the answers.

The service keeps no sessions. It can ask a client only by a result of the revision 2026-07-28, so the proxy translates
the requests of older clients that can be asked: for input of the user, an answer of their model, or their roots. For
older clients with a toolset, it listens to changes of their tools. This module imports little: it is loaded for each
session of a client.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote, urlsplit

from shared.errors import ClientNotAsked, ConfigInvalid, ServiceRejected, ServiceUnreachable, ToolscaleError
from shared.json_rpc import RequestRefused, read_request
from toolscale.client.background import START_WITHIN_S, Background, Place
from toolscale.client.instance import ATTEND_PATH, TIMEOUT_S, Instance, requested

if TYPE_CHECKING:
    from types import FrameType

    from shared.settings import Settings

GROUPS_HEADER, TOOLSET_HEADER = "Toolscale-Groups", "Toolscale-Toolset"
SESSION_HEADER, DIRECTORY_HEADER = "Toolscale-Session", "Toolscale-Directory"

STARTING = "Toolscale is still starting, or its data directory is in use. Try again in a few seconds."
MAY_HAVE_RUN = (
    "The Toolscale process that made this call has ended, so the call may have run. "
    "Check its effect before you call the tool again."
)
LISTEN_AGAIN = "The Toolscale process that sent notifications has ended. Listen again, and list the tools again."
READING = frozenset({"find_tool", "describe_tool", "list_available_tools", "get_active_toolset", "get_savings_report"})
"""The built-in tools that only read: their calls are repeated."""

# The first answers of a client that closes its stdin at once.
_LAST_ANSWERS_S = 1.0
_POLL_S = 0.1
_LISTEN_AGAIN_S = 5.0

# A service that is starting answers these; a client with a toolset waits for its list.
_EARLY = ("initialize", "server/discover", "tools/list")

LISTEN = "subscriptions/listen"
_CHANGED, _ACKNOWLEDGED = "notifications/tools/list_changed", "notifications/subscriptions/acknowledged"

_MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"
# The parameter that newer revisions repeat in a header.
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_OF_NEWER_RESULTS = ("resultType", "ttlMs", "cacheScope")
# Clients before it cannot read all that a translated result may have.
_TRANSLATED_SINCE = "2025-06-18"
_CAN_BE_ASKED = ("elicitation", "sampling", "roots")
# The code of an unknown resource, in the newest revision and before.
_NO_RESOURCE, _NO_RESOURCE_BEFORE = -32602, -32002

Message = dict[str, Any]


def stdio_command(settings: Settings) -> list[str]:
    """Return the command that serves this data directory over stdio, with absolute paths."""
    program = Path(sys.argv[0]).resolve()  # it is often missing in the PATH of a client
    own = [sys.executable, "-m", "toolscale"] if program.name == "__main__.py" else [str(program)]
    config = ["--config", str(settings.mcp_config.resolve())] if settings.mcp_config else []
    return [*own, "serve", "--stdio", *config, "--data-dir", str(settings.data_dir.resolve())]


def serve_stdio(place: Place) -> NoReturn:
    """Answer the client of this process until it closes stdin, or a signal comes; then end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    groups, toolset = (os.environ.get(f"TOOLSCALE_STDIO_{name}") or None for name in ("GROUPS", "TOOLSET"))
    Proxy(place, groups, toolset, sys.stdout.buffer).run(iter(sys.stdin.buffer.readline, b""))
    os._exit(0)  # the threads of open requests end with their connections


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


class Proxy:
    """One client's session. `groups` and `toolset` limit what it sees; None for all."""

    def __init__(self, place: Place, groups: str | None, toolset: str | None, to_client: IO[bytes]) -> None:
        self._background = Background(place)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        # with the secret, these headers limit what the operator sees
        limits = {GROUPS_HEADER: groups, TOOLSET_HEADER: toolset}
        self._headers |= {name: quote(value, safe=",") for name, value in limits.items() if value is not None}
        # for a service of this machine, which separates its sessions with servers by client and by project
        self._client = {SESSION_HEADER: os.urandom(16).hex()}
        with suppress(OSError):  # the directory is gone
            self._client[DIRECTORY_HEADER] = quote(os.fsencode(Path.cwd()))
        self._is_limited = groups is not None or toolset is not None
        self._may_change = toolset is not None
        self._to_client = to_client
        self._handshake: Message = {}
        self._version: str | None = None
        self._instance: Instance | None = None
        self._attended = ""
        self._open: dict[object, _Exchange] = {}
        self._asked: dict[object, _Exchange] = {}
        self._sending, self._reaching = threading.Lock(), threading.Lock()
        self._reached = threading.Event()

    def run(self, lines: Iterable[bytes], last_answers_s: float = _LAST_ANSWERS_S) -> None:
        """Answer these lines until they end."""
        for line in lines:
            if line.strip():
                self._receive(line)
        deadline_s = time.monotonic() + last_answers_s
        while self._open and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _receive(self, line: bytes) -> None:
        try:
            message = read_request(line)
        except RequestRefused as error:
            self._send(error.answer)
            return
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": int() | str() as number}}:
                if exchange := self._open.get(number):
                    exchange.cancel()
            case {"method": "ping", "id": int() | str() as number}:
                self._send({"jsonrpc": "2.0", "id": number, "result": {}})
            case {"method": str(), "id": int() | str() as number} as request:
                exchange = self._open[number] = _Exchange(request)
                threading.Thread(target=self._answer, args=(exchange,), daemon=True).start()
            case {"id": int() | str() as number} as answer:
                if asked := self._asked.get(number):
                    asked.answers.put(answer)
            case _:
                self._note(str(message.get("method")))

    def _note(self, notification: str) -> None:
        """Listen after the handshake of an older client; the service keeps no session that others could change."""
        if notification == "notifications/initialized" and self._may_change:
            threading.Thread(target=self._listen, daemon=True).start()

    def _answer(self, exchange: _Exchange) -> None:
        """Send the client the service's answer to a request, or the reason why there is none."""
        if exchange.method == "initialize":
            self._handshake = exchange.params
        try:
            self._forward(exchange)
        except (ToolscaleError, ValueError, RecursionError) as error:  # what HTTP or JSON cannot transport, too
            print(f"toolscale: {error}", file=sys.stderr, flush=True)  # noqa: T201  # for the log of a client
            self._fail(exchange, str(error))
        finally:
            self._open.pop(exchange.request["id"], None)

    def _forward(self, exchange: _Exchange) -> None:
        """Send the request to the service, and again if it was not received, or once if it only reads.

        Raises: the errors of `Background.reach`.
        """
        body: Message | None = exchange.request
        deadline_s, is_repeatable = time.monotonic() + START_WITHIN_S, exchange.only_reads
        while body and not exchange.cancelled.is_set():
            instance, is_ready = self._reach(deadline_s)
            try:
                if not is_ready and exchange.method not in _EARLY:
                    raise _NotReceived  # a starting service would lose a request as it becomes ready
                question = self._post(instance, exchange, body)
                body = self._with_answers(exchange, question) if question else None
            except _NotReceived:
                if time.monotonic() > deadline_s:
                    raise ServiceUnreachable(STARTING) from None
                time.sleep(_POLL_S)
            except _Lost:
                if exchange.cancelled.is_set():
                    return
                self._forget(instance)
                if not is_repeatable:
                    self._fail(exchange, LISTEN_AGAIN if exchange.method == LISTEN else MAY_HAVE_RUN)
                    return
                is_repeatable = False

    def _reach(self, deadline_s: float) -> tuple[Instance, bool]:
        """Return the service, and whether it is ready."""
        with self._reaching:  # two requests start one service
            if self._instance is None:
                instance, step = self._background.reach(max(0.0, deadline_s - time.monotonic()))
                if self._is_limited and not instance.instance_id:
                    raise ConfigInvalid(
                        f"TOOLSCALE_STDIO_GROUPS and TOOLSCALE_STDIO_TOOLSET do not limit clients of {instance.url}; "
                        "unset them, and give TOOLSCALE_TOKEN a token with these limits"
                    )
                if step:
                    return instance, False
                self._instance = instance
                self._may_change |= not instance.instance_id  # the token of a remote service may have a toolset
                self._reached.set()
                if instance.instance_id not in ("", self._attended):
                    self._attended = instance.instance_id
                    threading.Thread(target=self._attend, args=(instance,), daemon=True).start()
            return self._instance, True

    def _attend(self, instance: Instance) -> None:
        """Let the service know this client, so that it stays, until either of them ends."""
        with suppress(OSError):
            requested(instance, "POST", ATTEND_PATH, timeout_s=None)
        self._attended = ""
        self._forget(instance)

    def _forget(self, instance: Instance) -> None:
        with self._reaching:
            if self._instance is instance:
                self._instance = None
                self._reached.clear()

    def _listen(self) -> None:
        """Notify an older client when its tools change, and after each interruption, since they may have changed then.

        While no service is known, wait for the client's next request: listening starts none.
        """
        params = {"notifications": {"toolsListChanged": True}}
        body = self._in_newest_revision(
            {"jsonrpc": "2.0", "id": "toolscale-listen", "method": LISTEN, "params": params}
        )
        news, is_refused = [_CHANGED], False
        while not is_refused and self._reached.wait():
            instance = self._instance
            if instance is None:
                continue
            with suppress(OSError, http.client.HTTPException, _NotReceived):
                is_refused = self._hear(instance, body, news)
            news = [_CHANGED, _ACKNOWLEDGED]
            if instance.instance_id:
                self._forget(instance)  # another process has another address, and the next request starts it
            else:
                time.sleep(_LISTEN_AGAIN_S)

    def _hear(self, instance: Instance, body: Message, news: Sequence[str]) -> bool:
        """Notify the client of each of the news until the stream ends; return whether the service refuses to listen."""
        with closing(_connection(instance)) as connection, suppress(ServiceRejected):
            self._request(connection, instance, body)
            for message, _ in _messages(connection.getresponse()):
                if message.get("method") in news:
                    self._send({"jsonrpc": "2.0", "method": _CHANGED})
                elif "error" in message:
                    return True  # it is older, or the caller listens too often
            return False
        return True

    def _post(self, instance: Instance, exchange: _Exchange, body: Message) -> Message | None:
        """Forward what the service sends; return its question to the client, which ends the request, or None.

        Raises:
            _NotReceived, _Lost: the service does not answer.
        """
        is_translated = self._is_translated(exchange)
        if is_translated:
            body = self._in_newest_revision(body)
        try:
            connection = _connection(instance)
        except OSError as error:
            self._forget(instance)
            raise _NotReceived from error
        try:
            exchange.connection = connection.sock
            if exchange.cancelled.is_set():
                return None
            self._request(connection, instance, body)
            for message, text in _messages(connection.getresponse()):
                question = self._deliver(exchange, message, text, is_translated=is_translated)
                if question or exchange.request["id"] not in self._open:
                    return question
            raise _Lost
        except (OSError, http.client.HTTPException) as error:
            raise _Lost from error
        finally:
            connection.close()

    def _request(self, connection: http.client.HTTPConnection, instance: Instance, body: Message) -> None:
        client = self._client if instance.instance_id else {}
        headers = {**self._headers, **client, **self._headers_of(body), **instance.authorization}
        connection.request("POST", "/mcp", json.dumps(body).encode(), headers)

    def _is_translated(self, exchange: _Exchange) -> bool:
        can_be_asked = not _object(self._handshake.get("capabilities")).keys().isdisjoint(_CAN_BE_ASKED)
        is_of_age = (self._version or "") >= _TRANSLATED_SINCE
        return can_be_asked and is_of_age and exchange.method in _NAMED and not exchange.is_modern

    def _in_newest_revision(self, body: Message) -> Message:
        """Return a request of an older client with what it said in its handshake, as the newest revision has it."""
        params = _object(body.get("params"))
        meta = {
            **_object(params.get("_meta")),
            f"{_META}protocolVersion": _MODERN,
            f"{_META}clientInfo": self._handshake.get("clientInfo") or {"name": "client", "version": "0"},
            f"{_META}clientCapabilities": self._handshake.get("capabilities") or {},
        }
        return {**body, "params": {**params, "_meta": meta}}

    def _headers_of(self, body: Message) -> dict[str, str]:
        """Return the headers by which this revision repeats parts of the request."""
        params = _object(body.get("params"))
        version = _object(params.get("_meta")).get(f"{_META}protocolVersion")
        if not version:
            return {"MCP-Protocol-Version": self._version} if self._version else {}
        headers = {"MCP-Protocol-Version": str(version), "Mcp-Method": str(body["method"])}
        name = params.get(_NAMED.get(body["method"], ""))
        return {**headers, "Mcp-Name": _header(name)} if isinstance(name, str) else headers

    def _deliver(self, exchange: _Exchange, message: Message, text: bytes, *, is_translated: bool) -> Message | None:
        """Send a message of the service to the client; return a question instead."""
        if "method" in message:
            self._send(message, text)
            return None
        result = _object(message.get("result"))
        if is_translated:
            if result.get("resultType") == "input_required":
                return result
            _make_older(message)
            text = b""
        if exchange.method == "initialize" and "protocolVersion" in result:
            self._version = str(result["protocolVersion"])
            if self._may_change:
                _object(_object(result.get("capabilities")).get("tools"))["listChanged"], text = True, b""
        if message.get("id") != exchange.request["id"]:  # an error before the service read the id
            message, text = {**message, "id": exchange.request["id"]}, b""
        self._finish(exchange, message, text)
        return None

    def _with_answers(self, exchange: _Exchange, asked: Message) -> Message:
        """Return the request with the client's answers to the questions of the service.

        Raises:
            ClientNotAsked: it has no answer, and none stands for that.
        """
        answers: Message = {}
        for key, question in _object(asked.get("inputRequests")).items():
            number = f"toolscale-{os.urandom(8).hex()}"
            if _object(question.get("params")).get("mode") == "url":
                question["params"].setdefault("elicitationId", number)  # a part of the older revision alone
            self._asked[number] = exchange
            self._send({"jsonrpc": "2.0", "id": number, **question})
            answer = exchange.answers.get()
            del self._asked[number]
            if "error" in answer and question["method"] != "elicitation/create":
                reason = _object(answer["error"]).get("message")
                raise ClientNotAsked("toolscale", f"your client did not answer {question['method']}: {reason}")
            answers[key] = answer.get("result", {"action": "cancel"})
        if not answers:
            time.sleep(_POLL_S)  # the server wants the request again, without an answer
        state = {"requestState": asked["requestState"]} if "requestState" in asked else {}
        return {**exchange.request, "params": {**exchange.params, "inputResponses": answers, **state}}

    def _fail(self, exchange: _Exchange, reason: str) -> None:
        """Answer with the reason: as the result of a call, which a model reads, or as the error of another request."""
        if exchange.method == "tools/call":
            kind = {"resultType": "complete"} if exchange.is_modern else {}
            answer: Message = {"result": {"content": [{"type": "text", "text": reason}], "isError": True, **kind}}
        else:
            answer = {"error": {"code": -32603, "message": reason}}
        self._finish(exchange, {"jsonrpc": "2.0", "id": exchange.request["id"], **answer})

    def _finish(self, exchange: _Exchange, answer: Message, text: bytes = b"") -> None:
        if self._open.pop(exchange.request["id"], None) and not exchange.cancelled.is_set():
            self._send(answer, text)

    def _send(self, message: Message, text: bytes = b"") -> None:
        """Write a message as a line, in the bytes `text` if they are one."""
        line = text if text and b"\n" not in text else json.dumps(message).encode()
        with self._sending:
            try:
                self._to_client.write(line + b"\n")
                self._to_client.flush()
            except (OSError, ValueError):
                os._exit(0)  # the client has left


@dataclass(eq=False, slots=True)
class _Exchange:
    """A request that has no answer yet."""

    request: Message
    connection: socket.socket | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    answers: SimpleQueue[Message] = field(default_factory=SimpleQueue[Message])
    """The client's answers to questions of the service."""

    @property
    def method(self) -> str:
        return str(self.request["method"])

    @property
    def params(self) -> Message:
        return _object(self.request.get("params"))

    @property
    def is_modern(self) -> bool:
        return f"{_META}protocolVersion" in _object(self.params.get("_meta"))

    @property
    def only_reads(self) -> bool:
        # a client that listens again has to list again
        return self.method not in ("tools/call", LISTEN) or self.params.get("name") in READING

    def cancel(self) -> None:
        """Close the connection, which ends the request in the service."""
        self.cancelled.set()
        self.answers.put({})
        if self.connection:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


class _NotReceived(Exception):
    """The service has ended, or is starting, and did not receive the request."""


class _Lost(Exception):
    """The service ended after it had received the request."""


def _connection(instance: Instance) -> http.client.HTTPConnection:
    """Return a connection to the service on which an answer may take long."""
    address = urlsplit(instance.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    connection.connect()
    connection.sock.settimeout(None)
    return connection


def _messages(response: http.client.HTTPResponse) -> Iterator[tuple[Message, bytes]]:
    """Yield the messages of a response, of an event stream or its body, each with its bytes.

    Raises:
        _NotReceived: the service is starting.
        ServiceRejected: it answered in another way.
    """
    if "text/event-stream" in (response.getheader("Content-Type") or ""):
        # the service writes a message as one line
        data = (line[len(b"data:") :].strip() for line in response if line.startswith(b"data:"))
        texts: Iterable[bytes] = filter(None, data)
    else:
        texts = (response.read(),)
    for text in texts:
        message = _parsed(text)
        if "jsonrpc" in message:
            yield message, text
        elif response.status == HTTPStatus.SERVICE_UNAVAILABLE and "doing" in message:
            raise _NotReceived
        else:
            raise ServiceRejected(f"the service answered {response.status}: {text[:500].decode(errors='replace')}")


def _make_older(answer: Message) -> None:
    """Change an answer of the newest revision into one of those before."""
    result, error = _object(answer.get("result")), _object(answer.get("error"))
    for name in _OF_NEWER_RESULTS:
        result.pop(name, None)
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        del result["structuredContent"]
        result["content"] = result.get("content") or [{"type": "text", "text": json.dumps(structured)}]
    if error.get("code") == _NO_RESOURCE and "uri" in _object(error.get("data")):
        error["code"] = _NO_RESOURCE_BEFORE


def _header(value: str) -> str:
    """Return the text as MCP encodes it in a header."""
    if re.fullmatch(r"[\x20-\x7E]*", value) and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='surrogatepass')).decode()}?="


def _object(value: object) -> Message:
    return cast("Message", value) if isinstance(value, dict) else {}


def _parsed(line: bytes) -> Message:
    try:
        return _object(json.loads(line))
    except (ValueError, RecursionError):
        return {}
