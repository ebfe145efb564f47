"""The requests to a server that is listed again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shared.catalog import Listing
from shared.errors import ProtocolViolation, ServerFailed
from shared.settings import Settings
from tests.support.builders import up
from tests.support.hostile.messages import Message, cursor_of, failure, initialized, result, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from workers.fetch.lister import PROBE_AFTER_S, REJECTED_WITHIN_S, Lister
from workers.fetch.turns import LargePayloadSlots, StartTurns

pytestmark = pytest.mark.process

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PROBE = ["server/discover"]
BY_HANDSHAKE = ["initialize", "notifications/initialized", "tools/list"]

Listed = Callable[..., tuple[Listing, list[str]]]


@dataclass
class Clock:
    """A clock that only tests move."""

    now_s: float = 0.0


@dataclass
class Behaviour:
    """The behaviour of a server, which may change.

    `second_page` is the error at the second page, which the first one refers to: an HTTP status, or a JSON-RPC code.
    `error` is the code of a rejected `tools/list`, and each response takes `takes_s` seconds by the clock.
    `methods` are those of the requests.
    """

    clock: Clock
    protocol: str = HANDSHAKE
    name: str = "first"
    pages_are_named: bool = True
    has_tools: bool = True
    declares_tools: bool = True
    needs_a_probe: bool = False
    second_page: int = 0
    error: int = -32601
    takes_s: float = 0.0
    fails: bool = False
    methods: list[str] = field(default_factory=list[str])

    def respond(self, exchange: Exchange) -> None:
        if exchange.command != "POST":
            exchange.send(405)
            return
        self.methods.append(exchange.method)
        self.clock.now_s += self.takes_s
        if self.fails:
            exchange.send(503)
        elif "id" not in exchange.request_json:
            exchange.send(202)
        elif cursor_of(exchange.request_json) and self.second_page > 0:
            exchange.send(self.second_page)
        else:
            exchange.send_json(self._answer(exchange.request_json, exchange.headers.get("mcp-protocol-version")))

    def _answer(self, request: Message, version: str | None) -> Message:
        capabilities: Message = {"tools": {}} if self.has_tools and self.declares_tools else {}
        match request["method"]:
            case "initialize" if self.protocol == HANDSHAKE:
                return initialized(request, name=self.name)
            case "server/discover" if self.protocol == MODERN:
                offered: Message = {"supportedVersions": [MODERN], "capabilities": capabilities}
                return result(request, offered | self._envelope(is_named=True))
            case "tools/list" if self._has_page(request, version):
                following = {"nextCursor": "2"} if self.second_page else {}
                envelope = self._envelope(is_named=self.pages_are_named) if self.protocol == MODERN else {}
                return result(request, {"tools": [tool("one")]} | following | envelope)
            case method:
                return failure(request, self.error if method == "tools/list" else -32601, f"no {method}")

    def _has_page(self, request: Message, version: str | None) -> bool:
        is_probed = self.methods[-2:-1] == PROBE or not self.needs_a_probe
        return version == self.protocol and self.has_tools and is_probed and not cursor_of(request)

    def _envelope(self, *, is_named: bool) -> Message:
        about = {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "1"}}
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | ({"_meta": about} if is_named else {})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def behaviour(clock: Clock) -> Behaviour:
    return Behaviour(clock)


@pytest.fixture
def listed(behaviour: Behaviour, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Listed]:
    """Return a function that lists the server, announced at this time, and returns the methods of its requests too."""
    monkeypatch.setattr("workers.fetch.lister.MOST_RECORDED_BYTES", 0)  # no session is repeated
    lister = Lister(Settings(data_dir=tmp_path), LargePayloadSlots(1), StartTurns(1), lambda: clock.now_s)
    with scripted_http(behaviour.respond) as server:

        def list_server(announced_at: float = 1.0, server_id: str = "s") -> tuple[Listing, list[str]]:
            behaviour.methods.clear()
            listing = lister.list_server(up(server_id, url=server.url).data, announced_at)
            return listing, list(behaviour.methods)

        yield list_server


@pytest.mark.parametrize(("protocol", "again"), [(HANDSHAKE, BY_HANDSHAKE), (MODERN, ["tools/list"])])
def test_a_server_is_probed_once_after_its_announcement(
    protocol: str, again: list[str], behaviour: Behaviour, listed: Listed
) -> None:
    behaviour.protocol = protocol

    first, second, announced_again = listed(), listed(), listed(announced_at=2.0)

    assert first == announced_again == (second[0], PROBE + again)
    assert second[1] == again
    assert (first[0].declared_name, first[0].protocol_version) == ("first", protocol)


def test_a_server_is_probed_again_after_some_time(behaviour: Behaviour, clock: Clock, listed: Listed) -> None:
    listed()
    clock.now_s = PROBE_AFTER_S - 1
    assert listed()[1] == BY_HANDSHAKE

    clock.now_s = PROBE_AFTER_S

    assert listed()[1] == PROBE + BY_HANDSHAKE
    assert listed()[1] == BY_HANDSHAKE


@pytest.mark.parametrize(("protocol", "again"), [(HANDSHAKE, BY_HANDSHAKE), (MODERN, ["tools/list"])])
def test_a_new_name_is_noticed_without_a_probe(
    protocol: str, again: list[str], behaviour: Behaviour, listed: Listed
) -> None:
    behaviour.protocol = protocol
    listed()

    behaviour.name = "second"

    listing, methods = listed()
    assert (listing.declared_name, methods) == ("second", again)


@pytest.mark.parametrize("name_in_pages", [None, ""])
def test_a_server_whose_pages_do_not_name_it_is_probed_each_time(
    name_in_pages: str | None, behaviour: Behaviour, listed: Listed
) -> None:
    behaviour.protocol = MODERN
    behaviour.pages_are_named, behaviour.name = name_in_pages is not None, "first" if name_in_pages is None else ""

    for _ in range(2):
        listing, methods = listed()
        assert (listing.declared_name, methods) == (behaviour.name, [*PROBE, "tools/list"])


def test_a_server_whose_pages_no_longer_name_it_is_probed(behaviour: Behaviour, listed: Listed) -> None:
    behaviour.protocol = MODERN
    listed()

    behaviour.pages_are_named = False

    listing, methods = listed()
    assert (listing.declared_name, methods) == ("first", ["tools/list", *PROBE, "tools/list"])
    assert listed()[1] == [*PROBE, "tools/list"]


@pytest.mark.parametrize(
    ("before", "after", "rejected", "again"),
    [(HANDSHAKE, MODERN, ["initialize"], ["tools/list"]), (MODERN, HANDSHAKE, ["tools/list"], BY_HANDSHAKE)],
)
def test_a_server_that_changed_its_protocol_is_probed_at_once(
    before: str, after: str, rejected: list[str], again: list[str], behaviour: Behaviour, listed: Listed
) -> None:
    behaviour.protocol = before
    listed()

    behaviour.protocol = after

    listing, methods = listed()
    assert (listing.protocol_version, methods) == (after, rejected + PROBE + again)
    assert listed()[1] == again


def test_a_server_that_answers_only_after_a_probe_rejects_one_request(behaviour: Behaviour, listed: Listed) -> None:
    behaviour.protocol, behaviour.needs_a_probe = MODERN, True

    assert [listed()[1] for _ in range(4)] == [
        [*PROBE, "tools/list"],
        ["tools/list", *PROBE, "tools/list"],
        [*PROBE, "tools/list"],
        [*PROBE, "tools/list"],
    ]


def test_a_server_that_fails_without_a_probe_fails_once(behaviour: Behaviour, listed: Listed) -> None:
    behaviour.protocol, behaviour.needs_a_probe, behaviour.error = MODERN, True, -32603
    listed()

    with pytest.raises(ServerFailed):
        listed()

    assert behaviour.methods == ["tools/list"]
    assert [listed()[1] for _ in range(2)] == [[*PROBE, "tools/list"]] * 2


def test_a_slow_error_is_no_rejection(behaviour: Behaviour, listed: Listed) -> None:
    behaviour.protocol = MODERN
    listed()

    behaviour.pages_are_named, behaviour.takes_s = False, REJECTED_WITHIN_S + 1
    with pytest.raises(ProtocolViolation, match="no longer names itself"):
        listed()

    assert behaviour.methods == ["tools/list"]
    assert listed()[1] == [*PROBE, "tools/list"]


def test_all_servers_are_forgotten_when_they_are_too_many(listed: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.fetch.lister.MOST_REMEMBERED", 1)
    listed()

    assert listed(server_id="other")[1] == PROBE + BY_HANDSHAKE
    assert listed(server_id="other")[1] == BY_HANDSHAKE
    assert listed()[1] == PROBE + BY_HANDSHAKE


def test_a_server_that_lost_its_tools_is_empty_only_by_its_capabilities(behaviour: Behaviour, listed: Listed) -> None:
    behaviour.protocol = MODERN
    listed()

    behaviour.has_tools = False

    listing, methods = listed()
    assert (listing.tools, listing.declared_name) == ((), "first")
    assert methods == ["tools/list", *PROBE, "tools/list"]


@pytest.mark.parametrize("error", [404, -32601], ids=["HTTP 404", "unknown method"])
@pytest.mark.parametrize("has_listed", [False, True])
@pytest.mark.parametrize("declares_tools", [False, True])
def test_a_missing_second_page_is_never_the_end_of_a_list(
    error: int, has_listed: bool, declares_tools: bool, behaviour: Behaviour, listed: Listed
) -> None:
    behaviour.protocol, behaviour.declares_tools = MODERN, declares_tools
    if has_listed:
        listed()

    behaviour.second_page = error

    with pytest.raises(ProtocolViolation):
        listed()


def test_a_server_that_fails_is_probed_by_its_next_listing_only(behaviour: Behaviour, listed: Listed) -> None:
    listed()

    behaviour.fails = True
    with pytest.raises(ServerFailed, match="503"):
        listed()

    assert behaviour.methods == ["initialize"]
    behaviour.fails = False
    assert listed()[1] == PROBE + BY_HANDSHAKE
