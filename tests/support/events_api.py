"""The events API on a free loopback port, and a producer."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from shared.service.http import HttpConfig, bind
from shared.service.routes import registry_with
from tests.support.waiting import eventually
from workers.events_api.api import STRUCTURED, EventRecorder, events_api_app
from workers.events_api.producers import Producers

TOKEN = "a-token-for-tests"
LIMIT = 16_384


@dataclass(frozen=True)
class Answer:
    """A response of the events API."""

    status: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Producer:
    """Sends requests to an events API at `url`."""

    url: str
    token: str | None = TOKEN

    def post(self, body: object, content_type: str | None = STRUCTURED, **headers: str) -> Answer:
        """Send a body, JSON unless it is bytes already; `ce_id=` becomes the header `ce-id`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if content_type:
            sent["content-type"] = content_type
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._send(urllib.request.Request(f"{self.url}/events", data, sent, method="POST"))

    def get(self, path: str) -> int:
        """Return the status of a GET."""
        return self._send(urllib.request.Request(f"{self.url}{path}")).status

    def _send(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answer(response.status, json.loads(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.loads(error.read()))


@contextmanager
def open_events_api(recorder: EventRecorder, producers: Producers | None = None) -> Generator[Producer]:
    """Serve the events API until the block ends, for these producers."""
    app = events_api_app(recorder, producers or Producers(TOKEN), registry_with(), max_body_bytes=LIMIT)
    listener = bind("127.0.0.1", 0, "of the test")
    server = uvicorn.Server(HttpConfig(app))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield Producer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(60)
