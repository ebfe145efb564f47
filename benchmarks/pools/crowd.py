"""How much memory looks take when every server offers as much as it may, with turns for large lists and without.

As a program, `python -m benchmarks.pools.crowd FD` is such a server, on an open socket.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.pools.load import look
from benchmarks.throughput.embedded import embedded_settings, up
from benchmarks.throughput.fleet import FleetServer
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.memory import Footprint
from shared.intents.intents import open_intents
from workers import dependencies
from workers.dependencies import open_dependencies

# near the limits of a response: 4 MiB, 150,000 values
TOOLS, VALUES, DESCRIPTION = 8, 9_000, 400_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """Memory of parallel reconciliations of the largest servers: resident MiB after one of them, and the maximum.

    `arenas` is what MALLOC_ARENA_MAX was, None: unset.
    """

    looks: int
    turns: int
    arenas: int | None
    mib_before: float
    mib_peak: float


def measure_crowds(looks: int, turns: int) -> list[Crowd]:
    """Return what that many looks at a time take, with so many turns and with one for each; with all arenas and two."""
    with dense_servers(looks) as servers:
        return [_crowd(servers, limit, arenas) for arenas in (None, 2) for limit in (looks, turns)]


def _crowd(servers: Sequence[FleetServer], turns: int, arenas: int | None) -> Crowd:
    # malloc reads it when a process starts
    os.environ.pop("MALLOC_ARENA_MAX", None)
    if arenas is not None:
        os.environ["MALLOC_ARENA_MAX"] = str(arenas)
    try:
        return in_fresh_process(_look_at_all, servers, turns, arenas)
    finally:
        os.environ.pop("MALLOC_ARENA_MAX", None)


@contextmanager
def dense_servers(count: int) -> Generator[list[FleetServer]]:
    """Run a server with a list of the largest size; the same under as many names."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        command = [sys.executable, "-m", "benchmarks.pools.crowd", str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            try:
                yield [FleetServer(f"dense-{number:04}", url) for number in range(count)]
            finally:
                process.kill()


def _look_at_all(directory: Path, servers: Sequence[FleetServer], turns: int, arenas: int | None) -> Crowd:
    settings = embedded_settings(directory).model_copy(update={"listing_timeout_s": 300.0})
    dependencies.LARGE_LISTS = turns  # of this process
    footprint = Footprint()
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as deps:
        intents.record(up(FleetServer("first", servers[0].url)), due_in_s=600)
        look(FleetServer("first", servers[0].url), deps)  # loads the model and the vocabularies
        footprint.note("before")
        for server in servers:
            intents.record(up(server), due_in_s=600)
        with ThreadPoolExecutor(len(servers)) as pool:
            for done in [pool.submit(look, server, deps) for server in servers]:
                done.result()
    footprint.note_peak()
    before, peak = footprint.mib.values()
    return Crowd(len(servers), turns, arenas, before, peak)


class _Dense(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tools: tuple[dict[str, Any], ...] = tuple(
        {
            "name": f"tool_{number}",
            "description": "x" * DESCRIPTION,
            "inputSchema": {"type": "object", "x": [list[Any]()] * VALUES},
        }
        for number in range(TOOLS)
    )

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if "id" not in request:
            self._send(202, b"")
        else:
            self._send(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], **self._answer(request)}).encode())

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["method"]:
            case "initialize":
                about = {"name": "dense", "version": "1"}
                capabilities: dict[str, Any] = {"tools": {}}
                return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": about}}
            case "tools/list":
                return {"result": {"tools": self.tools}}
            case method:
                return {"error": {"code": -32601, "message": f"unknown method {method}"}}

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._send(405, b"")

    do_DELETE = do_GET  # the names http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name http.server gives it
        pass


def main() -> None:
    """Serve until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dense, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(sys.argv[1]))
    server.serve_forever()


if __name__ == "__main__":
    main()
