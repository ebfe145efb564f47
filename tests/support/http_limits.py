"""An HTTP server with small limits in this process, and clients that are slow on purpose."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

import uvicorn
from starlette.applications import Starlette
from typing_extensions import override

from shared.service.http import Connection, HttpConfig, HttpLimits, bind
from tests.support.waiting import eventually

Address = tuple[str, int]
FRIEND: Final = "127.0.0.2"
"""Another loopback address, for a client that is not the attacker."""


class ScriptedTransport(asyncio.Transport):
    """A connection from a host without a socket, and how it was ended."""

    connection: Connection

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 50_000)})
        self.host = host
        self.closed = asyncio.Event()
        self.is_aborted = False

    @override
    def close(self) -> None:
        self.closed.set()

    @override
    def abort(self) -> None:
        self.is_aborted = True


@contextmanager
def limited_server(app: Starlette, limits: HttpLimits) -> Generator[Address]:
    """Serve the application until the block ends."""
    listener = bind("127.0.0.1", 0, "of the test")
    server = uvicorn.Server(HttpConfig(app, limits, grace_s=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield listener.getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join(60)


def request(path: str = "/healthz", body: bytes = b"", *headers: str, size: int | None = None) -> bytes:
    """Return a request for one connection: a POST if it has a body, of which the rest up to `size` follows later."""
    size = len(body) if size is None else size
    length = [f"content-length: {size}"] if size else []
    head = [f"{'POST' if size else 'GET'} {path} HTTP/1.1", "host: 127.0.0.1", *length, *headers, "", ""]
    return "\r\n".join(head).encode() + body


def connected(address: Address, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection from this loopback address."""
    return socket.create_connection(address, timeout=60, source_address=(source, 0))


def status_of(address: Address, sent: bytes, source: str = "127.0.0.1") -> int:
    """Send a request on a new connection and return the status; 0 if the connection is closed without a response."""
    with closing(connected(address, source)) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        return read_status(connection)
    return 0


def read_status(connection: socket.socket) -> int:
    """Return the status of the next response; 0 if the connection ends first."""
    received = b""
    while b"\r\n" not in received:
        with suppress(ConnectionError):
            if chunk := connection.recv(1):
                received += chunk
                continue
        return 0
    return int(received.split()[1])


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection; unread bytes are discarded."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def drips(connection: socket.socket) -> bool:
    """Send a byte, which resets uvicorn's own limit on silence; return whether the other side has closed it."""
    if is_closed(connection):
        return True
    with suppress(ConnectionError):
        connection.send(b"x")
    return False


@contextmanager
def held_open(address: Address, number: int, sent: bytes = b"", source: str = "127.0.0.1") -> Generator[None]:
    """Hold this many connections, each of which sent these bytes; open again those that are closed, until the end."""
    is_over = threading.Event()
    with ExitStack() as opened:
        held = [opened.enter_context(_Held(address, source)) for _ in range(number)]
        for each in held:
            each.begin(sent)

        def hold() -> None:
            while not is_over.wait(0.2):
                for each in held:
                    if each.has_ended():
                        each.begin(sent)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(60)


class _Held:
    """A connection that is opened again."""

    def __init__(self, address: Address, source: str) -> None:
        self._address, self._source = address, source
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket:
            self._socket.close()

    def begin(self, sent: bytes) -> None:
        """Open the connection and send these bytes."""
        self.__exit__()
        with suppress(OSError):  # a full queue: the next attempt follows
            self._socket = socket.create_connection(self._address, timeout=1, source_address=(self._source, 0))
            self._socket.sendall(sent)

    def has_ended(self) -> bool:
        """Return whether the server has closed it."""
        return self._socket is None or is_closed(self._socket)


def request_bytes(
    method: bytes, target: bytes, given_headers: list[tuple[str, bytes]], body: bytes, *, is_last: bool = False
) -> bytes:
    """Return the bytes of a request, with the headers that it needs where they are not given."""
    needed = {
        "Host": b"127.0.0.1",
        "Content-Length": str(len(body)).encode(),
        "Content-Type": b"application/json",
        "Accept": b"application/json, text/event-stream",
        **({"Connection": b"close"} if is_last else {}),
    }
    names = {name for name, _ in given_headers}
    sent = [*given_headers, *((name, value) for name, value in needed.items() if name not in names)]
    lines = [b" ".join((method, target, b"HTTP/1.1")), *(name.encode() + b": " + value for name, value in sent)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
