"""A real HTTP server on loopback that follows a script, also against the protocol."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support.hostile.messages import Message, Pages, answer
from tests.support.http_thread import SilentHandler, served

Respond = Callable[["Exchange"], None]


class Exchange(SilentHandler):
    """One request, parsed, and the ways to answer it."""

    protocol_version = "HTTP/1.1"
    server: ScriptedServer  # pyright: ignore[reportIncompatibleVariableOverride]  # it never changes
    request_json: Message

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        self.request_json = json.loads(self.rfile.read(size) or b"{}")
        self._respond()

    def do_GET(self) -> None:
        self.request_json = {}
        self._respond()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _respond(self) -> None:
        self.server.seen.append(copy(self))  # the next request of this connection changes it
        with suppress(OSError):  # the client has every right to hang up on such a server
            self.server.respond(self)

    @property
    def method(self) -> str:
        return str(self.request_json.get("method", self.command))

    def send(self, status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> None:
        self.begin(status, content_type, **{"content-length": str(len(body))}, **headers)
        self.wfile.write(body)

    def begin(self, status: int, content_type: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_json(self, message: Any) -> None:
        self.send(200, json.dumps(message).encode())

    def send_events(self, *messages: Any) -> None:
        body = b"".join(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n" for message in messages)
        self.send(200, body, "text/event-stream")

    def play(self, pages: Pages) -> None:
        """Answer as a plain server with these pages would."""
        reply = answer(self.request_json, pages) if self.command == "POST" else None
        if reply is not None:
            self.send_json(reply)
        else:
            self.send(202 if self.command == "POST" else 405)

    def hang(self) -> None:
        """Say nothing until the server is stopped."""
        self.server.stopping.wait()
        self.close_connection = True

    def drip(self, chunks: Iterator[bytes]) -> None:
        """Write a chunk every 100 ms, until there are no more or the server is stopped."""
        for chunk in chunks:
            self.wfile.write(chunk)
            self.wfile.flush()
            if self.server.stopping.wait(0.1):
                break
        self.close_connection = True


class ScriptedServer(ThreadingHTTPServer):
    """Listens on a port of loopback, by default a free one; `seen` holds the exchanges in their order of arrival."""

    daemon_threads = True
    request_queue_size = 1024  # a fleet's workers connect at the same time; one that is turned away waits a second
    block_on_close = False

    def __init__(self, respond: Respond, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", port), Exchange)
        self.respond = respond
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.stopping = threading.Event()
        self.seen: list[Exchange] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}/mcp"

    @property
    def methods(self) -> list[str]:
        return [exchange.method for exchange in self.seen]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet: clients hang up here."""


@contextmanager
def scripted_http(respond: Respond, port: int = 0, tls: ssl.SSLContext | None = None) -> Generator[ScriptedServer]:
    """Serve the script while the context lasts, at this port or a free one, over TLS with this context."""
    with served(ScriptedServer(respond, port, tls)) as server:
        try:
            yield server
        finally:
            server.stopping.set()
