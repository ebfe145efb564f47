"""A fleet of scripted MCP servers over HTTP, all played by one process, which counts how often it was listed.

As a program, `python -m benchmarks.fleet_servers FLEET` takes a `Fleet` as JSON, prints where it listens, and serves
until its stdin is closed. Every server is there twice: at `/modern/<id>` it speaks the protocol of 2026-07-28, at
`/handshake/<id>` the one before it, which takes two more requests a listing. Each call of a tool takes `WORK_MS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.generated import definitions, server_id
from shared.events import ServerAnnouncement, ServerUp
from tests.support.hostile.messages import Message, cursor_of, failure, initialized, result
from tests.support.hostile.scripted_http import Exchange, scripted_http

Era = Literal["modern", "handshake"]
MODERN = "2026-07-28"
PROTOCOLS: Mapping[Era, str] = {"handshake": "2025-11-25", "modern": MODERN}
# The page size of the SDK's examples and many public servers.
PAGE = 100
WORK_MS = 5.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The kind of the servers.

    `generated`: each with different tools; `changing`: the first tool differs at each listing;
    `replicas`: all with the same tools; `corpus`: every `share`th server of the file at `corpus`.
    """

    kind: Literal["generated", "changing", "replicas", "corpus"]
    servers: int = 0
    tools: int = 0
    seed: int = 0
    corpus: str = ""
    share: int = 1

    def offers(self) -> dict[str, Offer]:
        """Return what each server offers, by its id."""
        if self.kind == "corpus":
            return _corpus_offers(Path(self.corpus), self.share)
        ids = [server_id(number) for number in range(self.servers)]
        if self.kind == "replicas":
            return dict.fromkeys(ids, Offer(ids[0], definitions(ids[0], self.tools, self.seed)))
        is_changing = self.kind == "changing"
        return {name: Offer(name, definitions(name, self.tools, self.seed), is_changing=is_changing) for name in ids}


@dataclass(frozen=True, slots=True)
class Offer:
    """A server's declared name and its tools as `tools/list` gives them."""

    name: str
    tools: Sequence[Message]
    is_changing: bool = False


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A server of the fleet and where it listens."""

    server_id: str
    url: str

    @property
    def up(self) -> ServerUp:
        """Return the event that announces it."""
        return ServerUp(data=ServerAnnouncement(server_id=self.server_id, url=self.url))


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet that serves, its servers' ids, and the number of all tools."""

    origin: str
    ids: tuple[str, ...]
    tools: int

    def servers(self, era: Era = "modern") -> list[FleetServer]:
        """Return all servers, where they speak this protocol."""
        return [FleetServer(name, f"{self.origin}/{era}/{name}") for name in self.ids]

    def listings(self) -> int:
        """Return how many times servers were asked for their list, a list of several pages counted once."""
        with urllib.request.urlopen(f"{self.origin}/listings", timeout=30) as response:
            return int(response.read())


@contextmanager
def running_fleet(fleet: Fleet) -> Generator[RunningFleet]:
    """Run the fleet in a process until the block ends."""
    command = [sys.executable, "-m", "benchmarks.fleet_servers", json.dumps(asdict(fleet))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        origin, ids, tools = json.loads(process.stdout.readline())
        try:
            yield RunningFleet(origin, tuple(ids), tools)
        finally:
            process.kill()


class Scripts:
    """Plays the servers that paths name."""

    def __init__(self, offers: Mapping[str, Offer]) -> None:
        self._offers = offers
        self._listings = 0
        self._counting = threading.Lock()

    def respond(self, exchange: Exchange) -> None:
        """Answer as the server would, or, at `/listings`, with the number of listings so far."""
        _, *era, server = exchange.path.split("/")
        if server == "listings":
            exchange.send_json(self._listings)
        elif exchange.command != "POST":
            exchange.send(405)  # no stream of notifications
        elif "id" not in exchange.request_json:
            exchange.send(202)
        else:
            exchange.send_json(self._answer(exchange.request_json, self._offers[server], is_modern=era == ["modern"]))

    def _answer(self, request: Message, offer: Offer, *, is_modern: bool) -> Message:
        # the fields with which the MCP SDK completes each result of a modern server
        about = {"io.modelcontextprotocol/serverInfo": {"name": offer.name, "version": "1"}}
        modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": about}
        envelope = modern if is_modern else {}
        match request["method"]:
            case "tools/list":
                return result(request, {**envelope, **self._page(request, offer)})
            case "tools/call":
                return result(request, {**envelope, **_called()})
            case "server/discover" if is_modern:
                offered: Message = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
                return result(request, {**envelope, **offered})
            case "initialize" if not is_modern:
                return initialized(request, name=offer.name)
            case method:
                return failure(request, -32601, f"unknown method {method}")

    def _page(self, request: Message, offer: Offer) -> Message:
        start = int(cursor_of(request) or 0)
        following = {"nextCursor": str(start + PAGE)} if start + PAGE < len(offer.tools) else {}
        tools = list(offer.tools[start : start + PAGE])
        if start == 0:
            with self._counting:
                self._listings += 1
                number = self._listings
            if offer.is_changing:
                tools[0] = {**tools[0], "description": f"{tools[0]['description']} Edition {number}."}
        return {"tools": tools, **following}


def _called() -> Message:
    """Return the result of a call, with its duration at the server."""
    started = time.perf_counter()
    time.sleep(WORK_MS / 1000)
    took_ms = (time.perf_counter() - started) * 1000
    return {"content": [{"type": "text", "text": "done"}], "structuredContent": {"took_ms": took_ms}}


def _corpus_offers(path: Path, share: int) -> dict[str, Offer]:
    """Return every `share`th server of a file of tools, one JSON object a line, each with the server's name."""
    tools: dict[str, list[Message]] = {}
    with path.open(encoding="utf-8") as lines:
        for tool in map(json.loads, lines):
            declared = {key: tool[key] for key in ("name", "description", "inputSchema") if tool.get(key) is not None}
            tools.setdefault(tool["server"], []).append(declared)
    # names of servers are no ids
    return {f"server-{number}": Offer(name, tools[name]) for number, name in enumerate(tools) if number % share == 0}


def main() -> None:
    """Serve until stdin is closed."""
    offers = Fleet(**json.loads(sys.argv[1])).offers()
    with scripted_http(Scripts(offers).respond) as server:
        origin = server.url.removesuffix("/mcp")
        print(json.dumps([origin, list(offers), sum(len(offer.tools) for offer in offers.values())]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
