"""A Qdrant server of scripted responses."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support.http_thread import SilentHandler, served

Answer = Callable[[str, str], tuple[int, object]]
"""From method and path to status and result."""


@contextmanager
def scripted_qdrant(
    answer: Answer,
    asked: list[str] | None = None,
    bodies: dict[str, Any] | None = None,
    nodes: int = 1,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    version: str = "1.19.0",
) -> Generator[str]:
    """Yield the URL of a node of a cluster that answers so; it notes its requests, and the last body of each path."""
    cluster = {"status": "enabled", "peers": {str(number): {"uri": "http://node"} for number in range(nodes)}}

    class Handler(SilentHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.split("?")[0]
            try:
                status, result = (200, cluster) if path == "/cluster" else answer(self.command, path)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            if asked is not None:
                asked.append(self.path)
            if bodies is not None and body:
                bodies[path] = json.loads(body)
            told = "ok" if status < 400 else {"error": "as scripted"}
            wrapped = {"result": result, "status": told, "time": 0.0}
            self._send(status, {"title": "qdrant", "version": version} if path == "/" else wrapped)

        def _send(self, status: int, answered: object) -> None:
            body = json.dumps(answered).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = _answer  # the names http.server looks for

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with served(server):
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"


POINTS: dict[str, object] = {"points": []}
COLLECTION: dict[str, object] = {
    "status": "green",
    "optimizer_status": "ok",
    "segments_count": 1,
    "payload_schema": {},
    "config": {
        "params": {"vectors": {"dense": {"size": 4, "distance": "Cosine"}}},
        "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
        "optimizer_config": {
            "deleted_threshold": 0.2,
            "vacuum_min_vector_number": 1_000,
            "default_segment_number": 0,
            "flush_interval_sec": 5,
        },
    },
}


def creating(existing: set[str]) -> Answer:
    """Return the answers of an empty server."""

    def answer(method: str, path: str) -> tuple[int, object]:
        if path.endswith("/exists"):
            return 200, {"exists": path.removesuffix("/exists") in existing}
        if path.endswith("/index"):
            return 200, {"operation_id": 1, "status": "completed"}
        if path.endswith("/scroll"):
            return 200, POINTS
        if method == "PUT":
            existing.add(path)
            return 200, True
        return 200, COLLECTION

    return answer
