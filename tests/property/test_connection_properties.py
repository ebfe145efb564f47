"""No address keeps another out: for every order of connections, a crowded address loses before a less crowded one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shared.service.connections import Connections

HOSTS = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")


@dataclass(eq=False)
class Peer:
    host: str
    state: str
    is_aborted: bool = False

    @property
    def is_idle(self) -> bool:
        return self.state == "idle"

    @property
    def awaits_client(self) -> bool:
        return self.state in {"idle", "awaited"}

    def abort(self) -> None:
        self.is_aborted = True


peers = st.builds(Peer, st.sampled_from(HOSTS), st.sampled_from(["idle", "awaited", "worked for"]))


@given(limit=st.integers(1, 8), arrivals=st.lists(peers, max_size=40), ended=st.sets(st.integers(0, 39)))
def test_the_address_with_the_fewest_connections_is_never_the_one_that_loses(
    limit: int, arrivals: list[Peer], ended: set[int]
) -> None:
    connections = Connections(limit)
    for number, new in enumerate(arrivals):
        before = [peer for peer in arrivals[:number] if peer in connections]
        state, new.state = new.state, "idle"  # each connection begins without a request

        connections.add(new, new.host)

        lost = [peer for peer in [*before, new] if peer not in connections]
        assert len(connections) <= limit
        assert len(lost) == max(0, len(before) + 1 - limit)
        for peer in lost:
            assert peer.is_aborted
            assert_fair(peer, new, [*before, new])
        new.state = state
        if number in ended:
            connections.remove(new)


def assert_fair(lost: Peer, new: Peer, present: list[Peer]) -> None:
    """Each address above the loser's has only connections that the service works for."""
    counts = Counter(peer.host for peer in present)
    crowded = [peer for peer in present if counts[peer.host] > counts[lost.host]]
    assert counts[lost.host] >= counts[new.host]
    assert all(not peer.awaits_client for peer in crowded)
    # within an address, a request is cut off only if no connection is idle
    own = [peer for peer in present if peer.host == lost.host]
    assert lost.is_idle or not any(peer.is_idle for peer in own)
    # a request that the service works for is cut off only where its address has more than the new one's
    is_larger = counts[lost.host] > counts[new.host]
    assert lost.awaits_client or (is_larger and not any(peer.awaits_client for peer in own))
