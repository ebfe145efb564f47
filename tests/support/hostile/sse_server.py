"""A server of the older sse transport, all of whose messages come in one stream."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterable
from contextlib import suppress

from tests.support.hostile.messages import answer
from tests.support.hostile.scripted_http import Exchange
from tests.support.hostile.scripts import GOOD


class SseServer:
    """Behaves well until a tool is called: `on_call` answers that request, and returns what the stream has then."""

    def __init__(self, on_call: Callable[[Exchange], Iterable[bytes]]) -> None:
        self._on_call = on_call
        self._batches: queue.Queue[Iterable[bytes]] = queue.Queue()

    def __call__(self, exchange: Exchange) -> None:
        if exchange.command == "GET":
            self._stream(exchange)
        elif exchange.method == "tools/call":
            self._batches.put(self._on_call(exchange))
        else:
            exchange.send(202)
            if reply := answer(exchange.request_json, GOOD):
                self._batches.put([json.dumps(reply).encode()])

    def _stream(self, exchange: Exchange) -> None:
        exchange.begin(200, "text/event-stream", connection="close")
        exchange.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while not exchange.server.stopping.is_set():
            with suppress(queue.Empty):
                for message in self._batches.get(timeout=0.05):
                    exchange.wfile.write(b"event: message\ndata: " + message + b"\n\n")
        exchange.close_connection = True
