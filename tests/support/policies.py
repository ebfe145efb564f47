"""Policies for tests, and real servers that record the calls which they receive."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from query.caller import Caller
from query.policy import Policy
from shared.upstream.target import HttpTarget, Target
from tests.support.hostile.messages import failure, initialized, result
from tests.support.hostile.scripted_http import Exchange, scripted_http

NOTES = "file:///notes.txt"


def rule(action: str = "deny", **conditions: Iterable[str]) -> str:
    """Return a rule as a table of a policy file."""
    lines = [f"{name} = {json.dumps(list(values))}" for name, values in conditions.items()]
    return "\n".join(["[[rules]]", *lines, f'action = "{action}"\n'])


def policy(rules: str) -> Policy:
    """Return the policy of a file with this content."""
    return Policy.model_validate(tomllib.loads(rules))


def always(caller: Caller) -> Callable[[object], Caller]:
    """Return the authentication of a service with one caller."""
    return lambda _: caller


@dataclass
class RecordingServers:
    """Real servers whose every tool returns a link to NOTES and `text`.

    `received` has the server and the tool of each call, and the server and `resources/read` of each read; `arguments`
    has those of each call.
    """

    text: str = "done"
    received: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    arguments: list[object] = field(default_factory=list[object])
    targets: dict[str, Target] = field(default_factory=dict[str, Target])
    on_call: Mapping[str, Callable[[Exchange], None]] = field(default_factory=dict[str, Callable[[Exchange], None]])
    """The reply to calls by server, in place of the result."""

    def respond(self, server_id: str, exchange: Exchange) -> None:
        """Answer a request to this server."""
        request = exchange.request_json
        match exchange.method:
            case "initialize":
                exchange.send_json(initialized(request))
            case "tools/call":
                self.received.append((server_id, request["params"]["name"]))
                self.arguments.append(request["params"].get("arguments"))
                self.on_call.get(server_id, self._answer)(exchange)
            case "resources/read":
                self.received.append((server_id, "resources/read"))
                exchange.send_json(result(request, {"contents": [{"uri": NOTES, "text": self.text}]}))
            case _ if "id" in request:
                exchange.send_json(failure(request, -32601, "unknown method"))
            case _:
                exchange.send(202)

    def _answer(self, exchange: Exchange) -> None:
        link = {"type": "resource_link", "name": "notes", "uri": NOTES}
        content = [link, {"type": "text", "text": self.text}]
        exchange.send_json(result(exchange.request_json, {"content": content}))


@contextmanager
def recording_servers(server_ids: Iterable[str], text: str = "done") -> Generator[RecordingServers]:
    """Run a server for each id."""
    servers = RecordingServers(text)
    with ExitStack() as stack:
        for server_id in server_ids:
            running = stack.enter_context(scripted_http(partial(servers.respond, server_id)))
            servers.targets[server_id] = HttpTarget(running.url)
        yield servers
