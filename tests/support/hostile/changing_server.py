"""A real server over HTTP whose tools a test changes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.hostile.messages import Message, result
from tests.support.hostile.scripted_http import Exchange, scripted_http


@dataclass
class ChangingServer:
    """A server that lists `tools`, and the names that were called."""

    tools: list[Message]
    url: str = ""
    called: list[str] = field(default_factory=list[str])

    def respond(self, exchange: Exchange) -> None:
        """Answer a request."""
        if exchange.method == "tools/call":
            self.called.append(exchange.request_json["params"]["name"])
            exchange.send_json(result(exchange.request_json, {"content": [{"type": "text", "text": "done"}]}))
        else:
            exchange.play(lambda _cursor: {"tools": self.tools})


@contextmanager
def changing_server(*tools: Message) -> Generator[ChangingServer]:
    """Run a server with these tools."""
    server = ChangingServer(list(tools))
    with scripted_http(server.respond) as running:
        server.url = running.url
        yield server
