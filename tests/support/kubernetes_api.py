"""A scripted Kubernetes API server that lists the objects of one path in pages.

Label selectors are those of the API server with `key` and `key=value`.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_thread import SilentHandler, served

SERVICES = "/api/v1/services"


class ScriptedKubernetes(ThreadingHTTPServer):
    """Holds objects of one path; `sent` counts the objects of all responses.

    While `is_down`, requests fail; pages after `fails_after` objects do.
    """

    daemon_threads = True

    def __init__(self, path: str = SERVICES, page: int = 2) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path = path
        self.page = page
        self.is_down = False
        self.fails_after = 1_000_000
        self.objects: dict[str, dict[str, Any]] = {}
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(
        self,
        name: str,
        document: dict[str, Any] | None = None,
        *,
        labels: dict[str, str] | None = None,
        generation: int = 1,
        **annotations: str,
    ) -> None:
        """Create or change an object; `toolscale.dev/` is put in front of its annotations."""
        annotated = {f"toolscale.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        metadata = {"name": name, "namespace": "prod", "uid": f"uid-{name}", "annotations": annotated}
        body = document or {"spec": {"ports": [{"name": "http", "port": 80}, {"name": "mcp", "port": 9000}]}}
        self.objects[name] = {"metadata": metadata | {"labels": labels or {}, "generation": generation}, **body}

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that hang up are part of the script."""


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedKubernetes  # pyright: ignore[reportIncompatibleVariableOverride]  # it never changes

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        start = int(query.get("continue", 0))
        if self.server.is_down or start >= self.server.fails_after:
            self._send(500, {"message": "no such luck"})
        elif parts.path != self.server.path:
            self._send(404, {"code": 404})
        else:
            self._list(start, query.get("labelSelector", ""))

    def _list(self, start: int, selector: str) -> None:
        names = sorted(name for name, found in self.server.objects.items() if _matches(found, selector))
        items = [self.server.objects[name] for name in names[start : start + self.server.page]]
        end = start + self.server.page
        self.server.sent += len(items)
        self._send(200, {"metadata": {"continue": str(end)} if end < len(names) else {}, "items": items})

    def _send(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _matches(document: dict[str, Any], selector: str) -> bool:
    name, _, value = selector.partition("=")
    labels = document["metadata"]["labels"]
    return not selector or (name in labels and value in ("", labels[name]))


@contextmanager
def scripted_kubernetes(path: str = SERVICES) -> Generator[ScriptedKubernetes]:
    """Serve until the block ends."""
    with served(ScriptedKubernetes(path)) as kubernetes:
        yield kubernetes


def kubeconfig(url: str) -> dict[str, object]:
    """Return a kubeconfig of a cluster at this address that asks for no login."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
