"""The requests to a server that is listed again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.catalog import Listing
from shared.errors import ProtocolViolation, ServerFailed
from shared.settings import Settings
from tests.support.builders import up
from tests.support.hostile.listed_server import HANDSHAKE, MODERN, PROBE, SESSION, ListedServer
from tests.support.hostile.messages import cursor_of, failure, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from workers.fetch.lister import PROBE_AFTER_S, REJECTED_WITHIN_S, Lister
from workers.fetch.turns import LargePayloadSlots, StartTurns

pytestmark = pytest.mark.process

Listed = Callable[..., tuple[Listing, list[str]]]


@dataclass
class Clock:
    """A clock that only tests move."""

    now_s: float = 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> ListedServer:
    return ListedServer()


@pytest.fixture
def listed(server: ListedServer, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Listed]:
    """Return a function that lists the server, announced at this time, and returns the methods of its requests too."""
    monkeypatch.setattr("workers.fetch.lister.MOST_RECORDED_BYTES", 0)  # no session is repeated
    lister = Lister(Settings(data_dir=tmp_path), LargePayloadSlots(1), StartTurns(1), lambda: clock.now_s)
    with scripted_http(server.respond) as scripted:

        def list_server(announced_at: float = 1.0) -> tuple[Listing, list[str]]:
            server.methods.clear()
            listing = lister.list_server(up(url=scripted.url).data, announced_at)
            return listing, list(server.methods)

        yield list_server


@pytest.mark.parametrize(("protocol", "again"), [(HANDSHAKE, SESSION[HANDSHAKE]), (MODERN, ["tools/list"])])
def test_a_server_is_probed_once_after_its_announcement(
    protocol: str, again: list[str], server: ListedServer, listed: Listed
) -> None:
    server.protocol = protocol

    first, second, announced_again = listed(), listed(), listed(announced_at=2.0)

    assert first == announced_again == (second[0], PROBE + again)
    assert second[1] == again
    assert (first[0].declared_name, first[0].protocol_version) == ("scripted", protocol)


def test_a_server_is_probed_again_after_some_time(server: ListedServer, clock: Clock, listed: Listed) -> None:
    listed()
    clock.now_s = PROBE_AFTER_S - 1
    assert listed()[1] == SESSION[HANDSHAKE]

    clock.now_s = PROBE_AFTER_S

    assert listed()[1] == PROBE + SESSION[HANDSHAKE]
    assert listed()[1] == SESSION[HANDSHAKE]


@pytest.mark.parametrize("name_in_pages", [None, ""])
def test_a_server_whose_pages_do_not_name_it_is_probed_each_time(
    name_in_pages: str | None, server: ListedServer, listed: Listed
) -> None:
    server.protocol = MODERN
    server.pages_are_named, server.name = name_in_pages is not None, "scripted" if name_in_pages is None else ""

    for _ in range(2):
        listing, methods = listed()
        assert (listing.declared_name, methods) == (server.name, [*PROBE, "tools/list"])


def test_a_server_that_answers_only_after_a_probe_rejects_one_request(server: ListedServer, listed: Listed) -> None:
    server.protocol, server.needs_a_probe = MODERN, True

    assert [listed()[1] for _ in range(4)] == [
        [*PROBE, "tools/list"],
        ["tools/list", *PROBE, "tools/list"],
        [*PROBE, "tools/list"],
        [*PROBE, "tools/list"],
    ]


def test_a_server_that_fails_without_a_probe_fails_once(server: ListedServer, listed: Listed) -> None:
    server.protocol, server.needs_a_probe, server.error = MODERN, True, -32603
    listed()

    with pytest.raises(ServerFailed):
        listed()

    assert server.methods == ["tools/list"]
    assert [listed()[1] for _ in range(2)] == [[*PROBE, "tools/list"]] * 2


def test_a_slow_error_is_no_rejection(server: ListedServer, clock: Clock, listed: Listed) -> None:
    server.protocol = MODERN
    listed()

    def answer_late(exchange: Exchange) -> None:
        clock.now_s += REJECTED_WITHIN_S + 1
        server.answer(exchange)

    server.pages_are_named, server.act = False, answer_late
    with pytest.raises(ProtocolViolation, match="no longer names itself"):
        listed()

    assert server.methods == ["tools/list"]


def test_a_server_that_lost_its_tools_is_empty_only_by_its_capabilities(server: ListedServer, listed: Listed) -> None:
    server.protocol = MODERN
    listed()

    server.pages, server.declares_tools = [], False

    listing, methods = listed()
    assert (listing.tools, listing.declared_name) == ((), "scripted")
    assert methods == ["tools/list", *PROBE, "tools/list"]


@pytest.mark.parametrize("error", [404, -32601], ids=["HTTP 404", "unknown method"])
@pytest.mark.parametrize("has_listed", [False, True])
@pytest.mark.parametrize("declares_tools", [False, True])
def test_a_missing_second_page_is_never_the_end_of_a_list(
    error: int, has_listed: bool, declares_tools: bool, server: ListedServer, listed: Listed
) -> None:
    server.protocol, server.declares_tools = MODERN, declares_tools
    if has_listed:
        listed()

    def reject_the_second(exchange: Exchange) -> None:
        if not cursor_of(exchange.request_json):
            server.answer(exchange)
        elif error > 0:
            exchange.send(error)
        else:
            exchange.send_json(failure(exchange.request_json, error, "no tools/list"))

    server.pages, server.act = [[tool("one")], [tool("two")]], reject_the_second

    with pytest.raises(ProtocolViolation):
        listed()


def test_a_server_that_fails_is_probed_by_its_next_listing_only(server: ListedServer, listed: Listed) -> None:
    listed()

    server.fails = True
    with pytest.raises(ServerFailed, match="503"):
        listed()

    assert server.methods == ["initialize"]
    server.fails = False
    assert listed()[1] == PROBE + SESSION[HANDSHAKE]
