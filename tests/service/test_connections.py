"""The connections of an HTTP server: which one is closed for a new one, and that every server counts them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import httpx2
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from shared.service.http import REQUEST_WITHIN_S, Connections, HttpConfig, address_of
from tests.support.http_limits import ScriptedTransport

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.anyio


def opened(connections: Connections, *hosts: str) -> list[ScriptedTransport]:
    """Open a connection from each of these hosts."""
    made = [ScriptedTransport(host) for host in hosts]
    for each in made:
        each.connection = connections.add(each)
    return made


def closed(transports: list[ScriptedTransport]) -> list[int]:
    """Return the positions of those that were closed."""
    return [position for position, each in enumerate(transports) if each.is_aborted]


async def test_the_address_with_the_most_connections_loses_the_one_that_was_idle_for_longest() -> None:
    connections = Connections(4)
    made = opened(connections, "192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.2")
    connections.begin_request(made[1].connection)
    connections.end_request(made[1].connection)

    made += opened(connections, "192.0.2.3")

    assert closed(made) == [2]
    assert len(connections) == 4


async def test_a_connection_with_a_pipelined_request_in_flight_is_not_idle() -> None:
    connections = Connections(2)
    made = opened(connections, "192.0.2.1", "192.0.2.1")
    connections.begin_request(made[0].connection)
    connections.begin_request(made[0].connection)
    connections.end_request(made[0].connection)

    made += opened(connections, "192.0.2.1")

    assert closed(made) == [1]


async def test_a_connection_that_ended_makes_room() -> None:
    connections = Connections(1)
    made = opened(connections, "192.0.2.1")
    connections.begin_request(made[0].connection)
    connections.remove(made[0].connection)
    connections.remove(made[0].connection)

    made += opened(connections, "192.0.2.1")
    connections.end_request(made[0].connection)  # its last request may end later

    assert closed(made) == []
    assert len(connections) == 1


async def test_a_silent_connection_is_closed_once_its_client_has_read_what_is_left() -> None:
    connections = Connections(1, request_within_s=0)

    (silent,) = opened(connections, "192.0.2.1")

    with anyio.fail_after(60):
        await silent.closed.wait()
    assert not silent.is_aborted


async def test_a_storm_of_connections_is_one_line() -> None:
    connections = Connections(2)

    with structlog.testing.capture_logs() as lines:
        opened(connections, *["192.0.2.1"] * 1_000)

    (line,) = lines
    assert (line["event"], line["limit"], line["client"]) == ("connection_limit_reached", 2, "192.0.2.1")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
async def test_a_host_with_a_network_of_ipv6_counts_as_one_client(host: str, address: str) -> None:
    assert address_of(host) == address


async def test_no_server_is_configured_without_the_limits() -> None:
    packages = ("query", "shared", "toolscale", "workers")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]

    configured = [path for path in modules if "uvicorn.Config" in path.read_text(encoding="utf-8")]

    # query/service.py has it as the type of an argument
    assert {path.name for path in configured} == {"http.py", "service.py"}
    assert not [path for path in modules if "uvicorn.Config(" in path.read_text(encoding="utf-8")]


# --- for every order of connections, the address with the most loses one ---

HOSTS = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")

# each opens a connection; then requests begin and end on some that are open
arrivals = st.lists(
    st.tuples(st.sampled_from(HOSTS), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39))), max_size=40
)


@given(limit=st.integers(1, 8), arrivals=arrivals, ended=st.sets(st.integers(0, 39)))
def test_only_the_address_with_the_most_connections_loses_one_and_an_idle_one_first(
    limit: int, arrivals: list[tuple[str, set[int], set[int]]], ended: set[int]
) -> None:
    asyncio.run(play(limit, arrivals, ended))


async def play(limit: int, arrivals: list[tuple[str, set[int], set[int]]], ended: set[int]) -> None:
    connections = Connections(limit)
    made: list[ScriptedTransport] = []
    for number, (host, begun, done) in enumerate(arrivals):
        before = [each for each in made if each.connection in connections]
        new = ScriptedTransport(host)
        new.connection = connections.add(new)
        made.append(new)

        present = [*before, new]
        lost = [each for each in present if each.connection not in connections]
        assert len(connections) <= limit
        assert len(lost) == max(0, len(present) - limit)
        assert lost == [each for each in present if each.is_aborted]
        for each in lost:
            assert_fair(each, new, present)

        for position, each in enumerate(made):
            if position in begun:
                connections.begin_request(each.connection)
            if position in done and each.connection.requests:
                connections.end_request(each.connection)
        if number in ended:
            connections.remove(new.connection)


def assert_fair(lost: ScriptedTransport, new: ScriptedTransport, present: list[ScriptedTransport]) -> None:
    """Requests in flight are cut off only where an address has more than the new one, and no idle connection."""
    sizes = Counter(each.host for each in present)
    assert sizes[lost.host] == max(sizes.values())
    if lost.connection.requests:
        assert sizes[lost.host] > sizes[new.host]
        assert all(each.connection.requests for each in present if each.host == lost.host)


def test_an_idle_connection_lives_longer_than_the_pools_of_clients_keep_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    kept_s = httpx2.Limits().keepalive_expiry

    assert kept_s is not None
    assert HttpConfig(app).timeout_keep_alive > kept_s
    assert kept_s < REQUEST_WITHIN_S
