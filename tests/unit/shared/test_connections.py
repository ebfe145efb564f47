"""The connection that is closed for a new one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import structlog

from shared.service.connections import Connections, address_of


@dataclass(eq=False)
class Scripted:
    """A connection in a state that the test chooses."""

    name: str = ""
    is_idle: bool = True
    awaits_client: bool = True
    is_aborted: bool = False

    def abort(self) -> None:
        self.is_aborted = True


def opened(connections: Connections, host: str, number: int) -> list[Scripted]:
    """Open idle connections from a host."""
    made = [Scripted(f"{host}#{i}") for i in range(number)]
    for each in made:
        connections.add(each, host)
    return made


def works(connection: Scripted) -> None:
    connection.is_idle = connection.awaits_client = False


def closed(*groups: list[Scripted]) -> list[str]:
    return [each.name for group in groups for each in group if each.is_aborted]


def test_the_address_with_the_most_connections_loses_its_oldest() -> None:
    connections = Connections(4)
    many, few = opened(connections, "192.0.2.1", 3), opened(connections, "192.0.2.2", 1)

    new = opened(connections, "192.0.2.3", 1)

    assert closed(many, few, new) == ["192.0.2.1#0"]
    assert len(connections) == 4


def test_one_address_alone_has_all_connections_and_replaces_its_own() -> None:
    connections = Connections(3)

    made = opened(connections, "192.0.2.1", 5)

    assert closed(made) == ["192.0.2.1#0", "192.0.2.1#1"]


def test_a_connection_that_was_idle_for_longer_is_closed_first() -> None:
    connections = Connections(2)
    made = opened(connections, "192.0.2.1", 2)
    connections.renew(made[0])

    opened(connections, "192.0.2.2", 1)

    assert closed(made) == ["192.0.2.1#1"]


def test_a_request_in_flight_is_not_cut_off_while_another_connection_is_idle() -> None:
    connections = Connections(3)
    made = opened(connections, "192.0.2.1", 3)
    works(made[0])
    made[1].is_idle = False  # its body is on the way

    opened(connections, "192.0.2.2", 2)

    assert closed(made) == ["192.0.2.1#1", "192.0.2.1#2"]


def test_a_slow_client_cannot_keep_others_out_with_requests_in_flight() -> None:
    connections = Connections(2)
    made = opened(connections, "192.0.2.1", 2)
    for each in made:
        each.is_idle = False

    new = opened(connections, "192.0.2.2", 1)

    assert closed(made, new) == ["192.0.2.1#0"]


def test_the_largest_address_loses_its_newest_request_to_another_address() -> None:
    connections = Connections(2)
    made = opened(connections, "192.0.2.1", 2)
    for each in made:
        works(each)

    new = opened(connections, "192.0.2.2", 1)

    assert closed(made, new) == ["192.0.2.1#1"]


def test_the_new_connection_is_closed_if_no_address_has_more_and_the_service_works_for_all() -> None:
    connections = Connections(2)
    made = [*opened(connections, "192.0.2.1", 1), *opened(connections, "192.0.2.2", 1)]
    for each in made:
        works(each)

    new = opened(connections, "192.0.2.3", 1)

    assert closed(made, new) == ["192.0.2.3#0"]


def test_a_connection_that_ended_makes_room() -> None:
    connections = Connections(1)
    (first,) = opened(connections, "192.0.2.1", 1)
    connections.remove(first)
    connections.remove(first)

    new = opened(connections, "192.0.2.1", 1)

    assert closed([first], new) == []
    connections.renew(first)  # its last response may end later
    assert first not in connections


def test_a_storm_of_connections_is_one_line() -> None:
    connections = Connections(2)

    with structlog.testing.capture_logs() as lines:
        opened(connections, "192.0.2.1", 1_000)

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
        (None, "local"),
    ],
)
def test_a_host_with_a_network_of_ipv6_counts_as_one_client(host: str | None, address: str) -> None:
    assert address_of(host) == address
