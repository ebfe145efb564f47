"""A scripted Docker: the few requests that a watcher makes, over real HTTP, with streams that can be cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_thread import SilentHandler, served


class ScriptedDocker(ThreadingHTTPServer):
    """Runs containers by decree. `listings` counts how often they were listed; while `is_down`, requests fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_down = False
        self.listings = 0
        self.streams: list[_Handler] = []
        self._containers: dict[str, dict[str, Any]] = {}

    @property
    def environ(self) -> dict[str, str]:
        return {"DOCKER_HOST": f"tcp://127.0.0.1:{self.server_port}"}

    @property
    def containers(self) -> list[dict[str, Any]]:
        return list(reversed(self._containers.values()))  # as Docker lists them, the newest first

    def start(self, name: str, *, tells: bool = True, address: str = "172.18.0.2", **labels: str) -> None:
        """Run a container; `toolscale.` is put in front of its labels."""
        self._containers[name] = {
            "Id": name * 12,
            "Names": [f"/{name}"],
            "Labels": {f"toolscale.{key.replace('_', '-')}": value for key, value in labels.items()},
            "State": "running",
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": address}}},
        }
        if tells:
            self.tell("start", name)

    def stop(self, name: str, *, tells: bool = True) -> None:
        """End a container; without `tells` its event is lost."""
        del self._containers[name]
        if tells:
            self.tell("die", name)

    def tell(self, action: str, name: str) -> None:
        """Send an event to all who listen."""
        event = {"Type": "container", "Action": action, "Actor": {"ID": name * 12}, "timeNano": self.listings}
        for stream in self.streams:
            with suppress(OSError):
                stream.write_chunk(json.dumps(event).encode() + b"\n")

    def cut_streams(self) -> None:
        """Drop every connection that an event could come over."""
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.ended.set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that hang up are part of the script."""


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedDocker  # pyright: ignore[reportIncompatibleVariableOverride]  # it never changes

    def setup(self) -> None:
        super().setup()
        self.ended = threading.Event()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if self.server.is_down:
            self._send(500, {"message": "no such luck"})
        elif path.endswith("/version"):
            self._send(200, {"ApiVersion": "1.44", "Version": "27.0"})
        elif path.endswith("/containers/json"):
            self.server.listings += 1
            self._send(200, self.server.containers)
        elif path.endswith("/events"):
            self._stream()

    def write_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.server.streams.append(self)
        self.ended.wait(60)
        self.close_connection = True

    def _send(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def scripted_docker() -> Generator[ScriptedDocker]:
    """Serve until the block ends."""
    with served(ScriptedDocker()) as docker:
        try:
            yield docker
        finally:
            docker.cut_streams()
