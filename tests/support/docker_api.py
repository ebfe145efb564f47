"""A scripted Docker: the few requests that a watcher makes, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_thread import SilentHandler, served


class ScriptedDocker(ThreadingHTTPServer):
    """Runs containers by decree; while `is_down`, requests fail.

    `vanishing` names containers that are listed and have ended when they are inspected.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_down = False
        self.vanishing: set[str] = set()
        self.containers: dict[str, dict[str, Any]] = {}
        self.states: dict[str, dict[str, Any]] = {}

    @property
    def environ(self) -> dict[str, str]:
        return {"DOCKER_HOST": f"tcp://127.0.0.1:{self.server_port}"}

    def start(self, name: str, *, address: str = "172.18.0.2", **labels: str) -> None:
        """Run a container; `toolscale.` is put in front of its labels."""
        self.containers[name] = {
            "Id": name * 12,
            "Names": [f"/{name}"],
            "Labels": {f"toolscale.{key.replace('_', '-')}": value for key, value in labels.items()},
            "State": "running",
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": address}}},
        }
        self.states[name * 12] = {"StartedAt": "2026-01-01T00:00:00Z"}

    def stop(self, name: str) -> None:
        """End a container."""
        del self.containers[name]

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that hang up are part of the script."""


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedDocker  # pyright: ignore[reportIncompatibleVariableOverride]  # it never changes

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        container = path.split("/")[-2]
        if self.server.is_down:
            self._send(500, {"message": "no such luck"})
        elif path.endswith("/version"):
            self._send(200, {"ApiVersion": "1.44", "Version": "27.0"})
        elif path.endswith("/containers/json"):
            # as Docker lists them, the newest first
            self._send(200, list(reversed(self.server.containers.values())))
        elif container[0] in self.server.vanishing:
            self._send(404, {"message": "no such container"})
        else:
            self._send(200, {"State": self.server.states[container]})

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
        yield docker
