"""Servers are divided among processes: each has one owner, and a member that leaves moves only its own servers."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from workers.notifications.rendezvous import owner

server_ids = st.lists(st.text(max_size=20), unique=True, max_size=50)
member_sets = st.frozensets(st.text(max_size=40), min_size=1, max_size=6)


@given(server_ids, member_sets, st.randoms())
def test_every_server_has_one_owner_in_any_order_of_the_members(
    servers: list[str], members: frozenset[str], random: Random
) -> None:
    shuffled = random.sample(sorted(members), len(members))

    for server_id in servers:
        assert owner(server_id, shuffled) == owner(server_id, members) in members


@given(server_ids, member_sets, st.text(max_size=40))
def test_a_member_that_joins_or_leaves_moves_only_its_own_servers(
    servers: list[str], members: frozenset[str], other: str
) -> None:
    before = {server_id: owner(server_id, members - {other} or members) for server_id in servers}
    after = {server_id: owner(server_id, members | {other}) for server_id in servers}

    assert all(after[server_id] in (before[server_id], other) for server_id in servers)


def test_members_have_about_equal_shares() -> None:
    members = [f"member-{number}" for number in range(4)]

    shares = Counter(owner(f"server-{number}", members) for number in range(10_000))

    assert set(shares) == set(members)
    assert all(2_300 < share < 2_700 for share in shares.values())
