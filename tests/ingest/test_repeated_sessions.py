"""Listings of unchanged servers, for which a recorded session is repeated, and all that makes a full listing decide."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.catalog import Listing, digest
from shared.errors import ListingTooLarge, ProtocolViolation, ServerAuthRequired
from shared.intents.intent import Intent
from shared.settings import Settings
from shared.upstream.http import tls_context
from shared.upstream.replay import Recorder, Recording, Repetition
from shared.upstream.target import HttpTarget
from tests.support.builders import up, write_path
from tests.support.certificates import server_context, write_certificate
from tests.support.hostile.listed_server import HANDSHAKE, MODERN, PROBE, SESSION, ListedServer
from tests.support.hostile.messages import result, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import declares_huge, drips_events, drips_headers, drips_json, hangs, huge_json
from tests.support.ports import free_port
from tests.support.profiles import examples
from tests.support.waiting import eventually
from workers.fetch import lister as lister_module
from workers.fetch.definitions import Limits
from workers.fetch.lister import Lister
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.turns import FetchInterrupted, LargePayloadSlots, StartTurns, interrupt_fetches
from workers.ingest import reconcile

pytestmark = pytest.mark.process


@dataclass
class Listings:
    """Lists one server, at `url`; `sessions` counts the sessions of the SDK's client."""

    server: ListedServer
    lister: Lister
    url: str
    sessions: int = 0

    def next(self) -> tuple[Listing, list[str]]:
        """Return the list, and the methods of its requests."""
        self.server.methods.clear()
        listing = self.lister.list_server(up(url=self.url).data, 1.0)
        return listing, list(self.server.methods)

    def full(self) -> Listing:
        """Return the list by a session of its own."""
        return fetch_tools_blocking("s", HttpTarget(self.url), Limits())


def lister(directory: Path) -> Lister:
    return Lister(Settings(data_dir=directory), LargePayloadSlots(1), StartTurns(1))


@pytest.fixture
def server() -> ListedServer:
    return ListedServer()


@pytest.fixture
def listings(server: ListedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Listings]:
    def fetch(*args: Any, **options: Any) -> Listing:
        lists.sessions += 1
        return fetch_tools_blocking(*args, **options)

    monkeypatch.setattr(lister_module, "fetch_tools_blocking", fetch)
    with scripted_http(server.respond) as scripted:
        lists = Listings(server, lister(tmp_path), scripted.url)
        yield lists


def names(listing: Listing) -> list[str]:
    return [definition.name for definition in listing.tools]


@pytest.mark.parametrize("sends_events", [False, True])
@pytest.mark.parametrize("protocol", [HANDSHAKE, MODERN])
def test_an_unchanged_server_is_asked_the_same_again_and_nothing_is_parsed(
    protocol: str, sends_events: bool, server: ListedServer, listings: Listings
) -> None:
    server.protocol, server.sends_events = protocol, sends_events
    server.pages = [[tool("one")], [tool("two")]]
    first, asked = listings.next()

    for _ in range(3):
        again, asked_again = listings.next()
        assert (again, listings.sessions) == (first, 1)
        assert asked_again == [*SESSION[protocol], "tools/list"]

    assert asked == [*PROBE, *SESSION[protocol], "tools/list"]
    assert first == listings.full()


@pytest.mark.parametrize("sends_events", [False, True])
def test_each_repetition_has_a_session_of_its_own_and_ends_it(
    sends_events: bool, server: ListedServer, listings: Listings
) -> None:
    server.has_sessions, server.sends_events = True, sends_events
    first, _ = listings.next()

    for _ in range(2):
        again, asked = listings.next()
        assert (again, listings.sessions) == (first, 1)
        assert asked == [*SESSION[HANDSHAKE], "DELETE"]
        assert server.sessions == []


def test_the_session_of_a_repetition_that_differs_is_ended_too(server: ListedServer, listings: Listings) -> None:
    server.has_sessions = True
    listings.next()

    server.pages = [[tool("two")]]

    assert names(listings.next()[0]) == ["two"]
    assert server.sessions == []


def test_a_server_that_puts_random_text_into_its_list_is_repeated_once_only(
    server: ListedServer, listings: Listings
) -> None:
    server.salt = lambda: str(next(server.numbers))
    first, _ = listings.next()

    requests = [listings.next() for _ in range(3)]

    assert [listing for listing, _ in requests] == [first] * 3
    assert [asked for _, asked in requests] == [SESSION[HANDSHAKE] * 2, SESSION[HANDSHAKE], SESSION[HANDSHAKE]]


def test_a_server_that_wants_other_credentials_is_not_the_same(server: ListedServer, listings: Listings) -> None:
    first, _ = listings.next()

    server.act = lambda exchange: exchange.send(401)
    with pytest.raises(ServerAuthRequired):
        listings.next()
    server.act = None

    assert listings.next() == (first, [*PROBE, *SESSION[HANDSHAKE]])


def test_a_redirect_to_another_host_is_not_followed(server: ListedServer, listings: Listings) -> None:
    listings.next()

    with scripted_http(ListedServer().respond) as foreign:
        server.act = lambda exchange: exchange.send(307, location=foreign.url)
        with pytest.raises(ProtocolViolation, match="redirects"):
            listings.next()

        assert foreign.seen == []


@pytest.mark.parametrize("act", [hangs, drips_headers, drips_json, drips_events])
def test_a_repetition_that_takes_too_long_gives_way_to_a_full_listing(
    act: Callable[[Exchange], None], server: ListedServer, listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = listings.next()
    monkeypatch.setattr("workers.fetch.session.REPEATED_WITHIN_S", 0.5)

    def slow_once(exchange: Exchange) -> None:
        server.act = None
        act(exchange)

    server.act = slow_once
    began = time.monotonic()

    assert listings.next()[0] == first
    assert time.monotonic() - began < 25.0  # the listing alone may take 30


@pytest.mark.parametrize("act", [huge_json, declares_huge])
def test_no_more_of_a_body_is_read_than_was_recorded(
    act: Callable[[Exchange], None], server: ListedServer, listings: Listings
) -> None:
    listings.next()

    server.act = act

    with pytest.raises(ListingTooLarge):
        listings.next()
    assert listings.server.methods == SESSION[HANDSHAKE] * 2


def test_another_address_in_an_announcement_is_listed_in_full(server: ListedServer, listings: Listings) -> None:
    listings.next()

    other = ListedServer(pages=[[tool("of another server")]])
    with scripted_http(other.respond) as elsewhere:
        listings.url = elsewhere.url
        assert names(listings.next()[0]) == ["of another server"]

    assert server.methods == []


def test_an_event_stream_that_goes_on_after_the_list_is_not_read_on(server: ListedServer, listings: Listings) -> None:
    def list_and_go_on(exchange: Exchange) -> None:
        message = json.dumps(result(exchange.request_json, {"tools": [tool("one")]})).encode()
        exchange.begin(200, "text/event-stream")
        exchange.wfile.write(b"event: message\ndata: " + message + b"\n\n")
        exchange.wfile.flush()
        exchange.hang()

    server.act = list_and_go_on
    first, _ = listings.next()

    assert listings.next() == (first, SESSION[HANDSHAKE])


def test_a_session_in_which_the_server_asks_is_not_repeated(server: ListedServer, listings: Listings) -> None:
    answered = threading.Event()

    def ask_first(exchange: Exchange) -> None:
        if exchange.method != "tools/list":  # the answer to the server's request
            answered.set()
            exchange.send(202)
            return
        ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
        message = result(exchange.request_json, {"tools": [tool("one")]})
        exchange.begin(200, "text/event-stream")
        exchange.wfile.write(b"event: message\ndata: " + json.dumps(ping).encode() + b"\n\n")
        exchange.wfile.flush()
        assert answered.wait(10)
        exchange.wfile.write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")
        exchange.close_connection = True

    respond = server.respond

    def respond_to_answers(exchange: Exchange) -> None:
        if exchange.command == "POST" and "method" not in exchange.request_json:
            ask_first(exchange)
        else:
            respond(exchange)

    server.act = ask_first
    with scripted_http(respond_to_answers) as scripted:
        listings.url = scripted.url
        listings.next()
        answered.clear()

        assert listings.next()[1] == SESSION[HANDSHAKE]  # and not twice
        assert answered.is_set()


def test_an_interruption_ends_a_repetition_and_blames_nobody(server: ListedServer, listings: Listings) -> None:
    listings.next()
    server.act = hangs
    server.methods.clear()
    interrupted: list[FetchInterrupted] = []

    def list_again() -> None:
        try:
            listings.next()
        except FetchInterrupted as error:
            interrupted.append(error)

    thread = threading.Thread(target=list_again)
    thread.start()
    eventually(lambda: "tools/list" in server.methods)
    interrupt_fetches()
    thread.join(10)

    assert len(interrupted) == 1


def test_as_many_sessions_are_kept_as_have_room(
    server: ListedServer, listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lister_module, "MOST_RECORDED_BYTES", lister_module.SESSION_BYTES + 1_000)
    for pages, sessions in (([tool("one")], 1), ([tool("one", token_hex(1_000))], 3), ([tool("one")], 4)):
        server.pages = [pages]
        for _ in range(2):
            listings.next()
        assert listings.sessions == sessions


def recorded(target: HttpTarget) -> Recording:
    recorder = Recorder(target)
    fetch_tools_blocking("s", target, Limits(), recorder=recorder)
    session = recorder.recording(without_probe=True)
    assert session
    return session


def is_answered_alike(session: Recording, target: HttpTarget) -> bool:
    return Repetition(session, target, 5.0).is_answered_alike()


def test_a_session_is_of_one_url_and_one_set_of_credentials_which_it_does_not_contain(server: ListedServer) -> None:
    secret = "the-secret-of-the-server"
    with scripted_http(server.respond) as scripted:
        target = HttpTarget(scripted.url, headers={"Authorization": secret})
        server.cookie = "sticky=secret"
        session = recorded(target)
        scripted.seen.clear()

        assert is_answered_alike(session, target)

    assert {exchange.headers["authorization"] for exchange in scripted.seen} == {secret}
    assert "secret" not in repr(session)
    assert session.is_of(replace(target, addresses=("127.0.0.1",)))
    assert not session.is_of(replace(target, headers={"Authorization": "another"}))
    assert not session.is_of(replace(target, url=f"{target.url}/other"))


def test_only_the_addresses_of_the_target_are_connected(server: ListedServer) -> None:
    with scripted_http(server.respond) as scripted:
        target = HttpTarget(f"http://mcp.example:{scripted.server_port}/mcp", addresses=("127.0.0.1",))
        session = recorded(target)
        scripted.seen.clear()

        # an address where nothing listens is passed over
        assert is_answered_alike(session, replace(target, addresses=("127.0.0.3", "127.0.0.1")))
        assert {exchange.headers["host"] for exchange in scripted.seen} == {f"mcp.example:{scripted.server_port}"}
        assert not is_answered_alike(session, replace(target, addresses=("127.0.0.3",)))
        # neither name nor URL is looked up
        assert not is_answered_alike(session, replace(target, url=scripted.url, addresses=("127.0.0.3",)))


def test_a_certificate_is_checked_for_the_name_of_the_server(
    server: ListedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path, "mcp.example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    tls_context.cache_clear()
    try:
        with scripted_http(server.respond, tls=server_context(*certificate)) as scripted:
            target = HttpTarget(f"https://mcp.example.org:{scripted.server_port}/mcp", addresses=("127.0.0.1",))
            session = recorded(target)

            assert is_answered_alike(session, target)
            named = replace(target, url=target.url.replace("mcp.example.org", "other.example.org"))
            assert not is_answered_alike(session, named)
    finally:
        tls_context.cache_clear()


def test_a_session_through_a_proxy_is_not_recorded(server: ListedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_http(server.respond) as scripted:
        target = HttpTarget(scripted.url)
        recorder = Recorder(target)
        fetch_tools_blocking("s", target, Limits(), recorder=recorder)

        def proxy_for(_: HttpTarget) -> str:
            return f"http://127.0.0.1:{free_port()}"

        monkeypatch.setattr("shared.upstream.replay.proxy_for", proxy_for)

        assert recorder.recording(without_probe=True) is None


STEPS: dict[str, Callable[[ListedServer], object]] = {
    "nothing": lambda _: None,
    "a tool changes": lambda server: server.pages[0].__setitem__(0, tool("first", f"Version {next(server.numbers)}.")),
    "a tool is added": lambda server: server.pages[-1].append(tool(f"tool_{next(server.numbers)}")),
    "the last tool goes": lambda server: server.pages[-1].pop() if server.pages[-1][1:] else None,
    "a page is added": lambda server: server.pages.append([tool(f"tool_{next(server.numbers)}")]),
    "the last page goes": lambda server: server.pages.pop() if server.pages[1:] else None,
    "the pages are turned": lambda server: server.pages.reverse(),
    "its text is random": lambda server: setattr(server, "salt", lambda: str(next(server.numbers))),
    "its text is steady": lambda server: setattr(server, "salt", str),
    "it has events": lambda server: setattr(server, "sends_events", not server.sends_events),
    "it has sessions": lambda server: setattr(server, "has_sessions", server.protocol == HANDSHAKE),
    "it has another name": lambda server: setattr(server, "name", f"name {next(server.numbers)}"),
    "it has another protocol": lambda server: vars(server).update(protocol=MODERN, has_sessions=False),
}


@settings(max_examples=examples(15))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=10))
@example(["nothing", "its text is random", "a tool changes", "its text is steady", "a tool changes", "nothing"])
def test_after_any_changes_the_index_is_that_of_full_listings(steps: list[str]) -> None:
    server = ListedServer(pages=[[tool("first")]])
    with TemporaryDirectory() as directory, scripted_http(server.respond) as scripted:
        path, listings = write_path(Path(directory)), Listings(server, lister(Path(directory)), scripted.url)

        def list_server(_: Intent) -> Listing:
            return listings.next()[0]

        deps = replace(path.deps, list_server=list_server)
        with closing(deps.intents):
            for step in ["nothing", *steps]:
                STEPS[step](server)
                deps.intents.record(up(url=scripted.url), due_in_s=60)
                assert reconcile("s", deps)

                full, record = listings.full(), path.index.server("s")
                assert record
                assert (record.declared_name, record.protocol_version) == (full.declared_name, full.protocol_version)
                assert {name: state.digest for name, state in path.index.tool_states("s").items()} == {
                    definition.name: digest(definition, full.declared_name) for definition in full.tools
                }
