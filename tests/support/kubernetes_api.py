"""A scripted Kubernetes API server: lists in pages, watches that can be cut, ended, or marked as expired.

Label selectors are those of the API server with `key` and `key=value`. In a watch, an object that begins or ceases to
match is ADDED or DELETED.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_thread import SilentHandler, served

Event = dict[str, Any]
SERVICES = "/api/v1/services"


class ScriptedKubernetes(ThreadingHTTPServer):
    """Holds objects of one path, remembers changes, and forgets those up to `expired`.

    `lists` counts complete lists, `watched_from` the versions that watches began at, `sent` the objects of all
    responses. While `is_down`, requests fail, and `refused` counts them.
    """

    daemon_threads = True

    def __init__(self, path: str = SERVICES, page: int = 2) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path = path
        self.page = page
        self.is_down = False
        self.lists = 0
        self.refused = 0
        self.watched_from: list[int] = []
        self.version = 100
        self.expired = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, Event, Event | None]] = []
        self.sent = 0
        self.changed = threading.Condition()
        self.ending = 0
        self.is_cutting = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(
        self,
        name: str,
        document: dict[str, Any] | None = None,
        *,
        labels: dict[str, str] | None = None,
        **annotations: str,
    ) -> None:
        """Create or change an object; `toolscale.dev/` is put in front of its annotations."""
        with self.changed:
            before = self.objects.get(name)
            annotated = {f"toolscale.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
            metadata = {"name": name, "namespace": "prod", "uid": f"uid-{name}", "annotations": annotated}
            metadata["labels"] = labels or {}
            kind = "MODIFIED" if before else "ADDED"
            body = document or {"spec": {"ports": [{"name": "http", "port": 80}, {"name": "mcp", "port": 9000}]}}
            self.objects[name] = {"metadata": metadata, **body}
            self._happened(kind, self.objects[name], before)

    def remove(self, name: str) -> None:
        with self.changed:
            removed = self.objects.pop(name)
            self._happened("DELETED", removed, removed)

    def bookmark(self) -> None:
        """Send a new version to all watches without a change."""
        with self.changed:
            self._happened("BOOKMARK", {"metadata": {}})

    def expire(self) -> None:
        """Forget all changes so far: a watch from before them is gone."""
        with self.changed:
            self.version += 1
            self.expired = self.version

    def end_watches(self, *, cut: bool = False) -> None:
        """End all watches, as Kubernetes does in due time, or cut their connections in the middle."""
        with self.changed:
            self.is_cutting = cut
            self.ending += 1
            self.changed.notify_all()

    def _happened(self, kind: str, document: dict[str, Any], before: dict[str, Any] | None = None) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, {"type": kind, "object": json.loads(json.dumps(document))}, before))
        self.changed.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients that hang up are part of the script."""


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedKubernetes  # pyright: ignore[reportIncompatibleVariableOverride]  # it never changes

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if self.server.is_down:
            self.server.refused += 1
            self._send(500, {"message": "no such luck"})
        elif parts.path != self.server.path:
            self._send(404, {"code": 404})
        elif query.get("watch"):
            self._watch(int(query["resourceVersion"]), query.get("labelSelector", ""))
        else:
            self._list(int(query.get("continue", 0)), query.get("labelSelector", ""))

    def _list(self, start: int, selector: str) -> None:
        with self.server.changed:
            names = sorted(name for name, found in self.server.objects.items() if _matches(found, selector))
            items = [self.server.objects[name] for name in names[start : start + self.server.page]]
            metadata = {"resourceVersion": str(self.server.version)}
            if start + self.server.page < len(names):
                metadata["continue"] = str(start + self.server.page)
            else:
                self.server.lists += 1
            self.server.sent += len(items)
        self._send(200, {"metadata": metadata, "items": items})

    def _watch(self, version: int, selector: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        server = self.server
        server.watched_from.append(version)
        with server.changed:
            ending = server.ending
        while True:
            with server.changed:
                if version < server.expired:
                    self._chunk({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
                    break
                if server.ending > ending:
                    break
                fresh = [change for change in server.history if change[0] > version]
                if not fresh:
                    server.changed.wait(5)
            for number, event, before in fresh:
                if selected := _selected(event, before, selector):
                    server.sent += 1
                    self._chunk(selected)
                version = number
        if not server.is_cutting:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _chunk(self, event: Event) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _matches(document: Event | None, selector: str) -> bool:
    if document is None:
        return False
    name, _, value = selector.partition("=")
    labels = document["metadata"].get("labels", {})
    return not selector or (name in labels and value in ("", labels[name]))


def _selected(event: Event, before: Event | None, selector: str) -> Event | None:
    """Return the event as a watch with this selector shows it, None if the watch does not."""
    if event["type"] == "BOOKMARK":
        return event
    is_match = event["type"] != "DELETED" and _matches(event["object"], selector)
    was_match = _matches(before, selector)
    kinds = {(True, True): "MODIFIED", (True, False): "ADDED", (False, True): "DELETED"}
    kind = kinds.get((is_match, was_match))
    return event | {"type": kind} if kind else None


@contextmanager
def scripted_kubernetes(path: str = SERVICES) -> Generator[ScriptedKubernetes]:
    """Serve until the block ends."""
    with served(ScriptedKubernetes(path)) as kubernetes:
        try:
            yield kubernetes
        finally:
            kubernetes.is_down = True
            kubernetes.end_watches()


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
