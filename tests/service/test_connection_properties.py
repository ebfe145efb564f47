"""No address keeps another out: for every order of connections, the address with the most loses one."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.service.http import Connections
from tests.support.http_limits import ScriptedTransport

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
