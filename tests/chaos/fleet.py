"""Scripted MCP servers whose tools change under load, and what is true of them: one HTTP listener plays all."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from shared.events import ServerEvent
from tests.chaos.history import History, Offer
from tests.support.builders import changed, down, up
from tests.support.hostile.messages import Message, one_page, tool
from tests.support.hostile.scripted_http import Exchange, ScriptedServer, scripted_http
from tests.support.hostile.scripts import drips_json

Mood = Literal["good", "hangs", "drips", "fails"]
SICK: tuple[Mood, ...] = ("hangs", "drips", "fails")

VERBS = ("read", "write", "list", "delete", "rename", "watch")
NOUNS = ("file", "issue", "table", "message", "calendar", "image", "branch", "invoice")
# Of servers that nothing ever happens to: no other has a tool like theirs.
PAINTED = ("bridge", "castle", "comet", "harbour", "lighthouse", "orchid", "pyramid", "violin", "volcano", "windmill")

# Longer than a worker waits for a listing, and not for ever: a thread hangs with each.
HANG_S = 10.0


@dataclass
class Scripted:
    """One server: its current tools, its last answer, and its last announcement.

    `is_kept` until the index is lost while the server does not answer: then its tools are unknown.
    `is_steady`: no fault ever affects it.
    """

    server_id: str
    tools: dict[str, str]
    mood: Mood = "good"
    is_up: bool = True
    is_kept: bool = True
    is_steady: bool = False
    shown: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def definitions(self) -> list[Message]:
        """Return the tools as they are on the wire."""
        return [tool(name, text) for name, text in sorted(self.tools.items())]

    @property
    def offers(self) -> set[Offer]:
        """Return what should be found of it now."""
        return {(self.server_id, name, text) for name, text in self.tools.items()} if self.is_up else set()


class Fleet:
    """All servers, the truth that a catalogue is compared with; `rng` decides what changes.

    To a tenth of them, two at least, nothing ever happens; what they offer is `always` there.
    """

    def __init__(self, size: int, rng: random.Random) -> None:
        steady = min(max(2, size // 10), len(PAINTED))
        made = [Scripted(f"s{number}", _some_tools(rng)) for number in range(size - steady)]
        made += [_steady(f"s{size - 1 - number}", PAINTED[number]) for number in range(steady)]
        self.servers = {server.server_id: server for server in made}
        self.history = History()
        for server in made:
            self.note(server)
        self.always = [offer for server in made if server.is_steady for offer in server.offers]
        self.listings = 0
        self.url = ""
        self._rng = rng
        self._listed = threading.Condition()

    def respond(self, exchange: Exchange) -> None:
        """Play the server that the path names."""
        server = self.servers[exchange.path.rpartition("/")[2]]
        if exchange.method != "tools/list":
            exchange.play(one_page())
            return
        with self._listed:
            self.listings += 1
            self._listed.notify_all()
        match server.mood:
            case "good":
                offered = dict(server.tools)
                exchange.play(one_page(*(tool(name, text) for name, text in sorted(offered.items()))))
                server.shown = offered
            case "hangs":
                exchange.server.stopping.wait(HANG_S)
                exchange.close_connection = True
            case "drips":
                drips_json(exchange)
            case "fails":
                exchange.send(500)

    def wait_for_listings(self, more: int, within_s: float) -> None:
        """Return when so many more listings were asked for, or the time is over."""
        goal = self.listings + more
        with self._listed:
            self._listed.wait_for(lambda: self.listings >= goal, within_s)

    def sicken(self, share: float) -> None:
        """Let this share of the servers hang, drip or fail from now on."""
        restless = [server for server in self.all if not server.is_steady]
        for number, server in enumerate(self._rng.sample(restless, round(len(self.servers) * share))):
            server.mood = SICK[number % len(SICK)]

    def lose_index(self) -> None:
        """Note that the tools of servers that do not answer now cannot be had any more."""
        for server in self.all:
            server.is_kept = server.mood == "good"

    def churn(self, changes: int) -> list[ServerEvent]:
        """Change some healthy servers; return their events: two, one or none each."""
        events: list[ServerEvent] = []
        for server in self._rng.sample(self.restless, min(changes, len(self.restless))):
            events += [self._change(server)] * self._rng.choice((0, 1, 2))
        return events

    def flip(self, flips: int) -> list[ServerEvent]:
        """Take some healthy servers down and up; the last event is the true state."""
        events: list[ServerEvent] = []
        for server in self._rng.sample(self.restless, min(flips, len(self.restless))):
            for _ in range(self._rng.choice((1, 2, 3))):
                server.is_up = not server.is_up
                self.note(server)
                events.append(self.announcement(server) if server.is_up else down(server.server_id))
        return events

    def note(self, server: Scripted) -> None:
        """Write down what the server offers from now on."""
        self.history.note(server.server_id, server.offers)

    def announcement(self, server: Scripted) -> ServerEvent:
        """Return the event with the URL of the server."""
        return up(server.server_id, ["chaos"], f"{self.url}/{server.server_id}")

    @property
    def all(self) -> list[Scripted]:
        """Return all servers."""
        return list(self.servers.values())

    @property
    def healthy(self) -> list[Scripted]:
        """Return the servers that answer."""
        return [server for server in self.all if server.mood == "good"]

    @property
    def restless(self) -> list[Scripted]:
        """Return the servers that answer, and to which something happens."""
        return [server for server in self.healthy if not server.is_steady]

    def _change(self, server: Scripted) -> ServerEvent:
        server.tools = _some_tools(self._rng)
        self.note(server)
        return changed(server.server_id)


@contextmanager
def serve(fleet: Fleet) -> Generator[ScriptedServer]:
    """Serve the whole fleet on one port of loopback."""
    with scripted_http(fleet.respond) as server:
        fleet.url = server.url
        yield server


def a_text(rng: random.Random) -> str:
    """Return the description of a tool that some server may offer now, or did before."""
    return _text(f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}", rng)


def _some_tools(rng: random.Random) -> dict[str, str]:
    """Return one to eight tools; few texts, so that many changes are small."""
    names = rng.sample([f"{verb}_{noun}" for verb in VERBS for noun in NOUNS], rng.randint(1, 8))
    return {name: _text(name, rng) for name in names}


def _text(name: str, rng: random.Random) -> str:
    return f"Can {name.replace('_', ' a ')}, in {rng.randint(1, 3)} steps."


def _steady(server_id: str, subject: str) -> Scripted:
    return Scripted(server_id, {f"paint_{subject}": f"Paints a {subject} in oil."}, is_steady=True)
