"""The map of tools: areas by tokens, shades by calls, and what is drawn of a large catalogue."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.servers import servers_for
from query.usage.usage import RowKey, Usage, today
from query.web.tool_map import MOST_SERVERS, MOST_TOOLS, LargestTools, Tile, ToolMap, calls_of, tool_map
from query.web.treemap import RATIO, Area, squarified
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.replicated import put_server, tool

WEIGHTS = st.lists(st.integers(1, 10**6), min_size=1, max_size=60).map(lambda found: sorted(found, reverse=True))


@given(weights=WEIGHTS)
def test_areas_are_in_proportion_to_the_weights_and_fill_the_drawing(weights: list[int]) -> None:
    areas = squarified(weights, Area())

    scale = 100 * 100 / sum(weights)
    for weight, area in zip(weights, areas, strict=True):
        assert math.isclose(area.width * area.height, weight * scale, rel_tol=1e-6)
        assert area.x >= -1e-6
        assert area.y >= -1e-6
        assert area.x + area.width <= 100 + 1e-6
        assert area.y + area.height <= 100 + 1e-6


@given(weights=WEIGHTS)
def test_areas_do_not_overlap(weights: list[int]) -> None:
    areas = squarified(weights, Area())

    for number, one in enumerate(areas):
        for other in areas[number + 1 :]:
            beside = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            below = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert min(beside, below) <= 1e-6


def test_equal_weights_are_nearly_square() -> None:
    assert all(0.4 < area.width * RATIO / area.height < 2.5 for area in squarified([1] * 24, Area()))


def catalogue_of(*servers: tuple[str, list[int]]) -> Catalogue:
    """Return a catalogue of these servers, with the tokens of their tools."""
    index = FakeIndex()
    for name, tokens in servers:
        tools = [tool(f"{name}_{number}", "does it", each) for number, each in enumerate(tokens)]
        put_server(index, name, tools, name)
    return Catalogue(index, FakeEmbedder(), Ledger(index))


def drawn(catalogue: Catalogue, usage: Usage | None = None, caller: Caller = ANYONE) -> ToolMap:
    table = servers_for(caller.scope, catalogue)
    calls = calls_of(usage, caller, table) if usage else None
    return tool_map(LargestTools(catalogue).of(caller.scope, table), table, calls)


def named(found: ToolMap, name: str) -> Tile:
    return next(tile for tile in found.tiles if tile.name == name)


def test_a_tool_is_as_large_as_its_tokens_and_all_are_drawn_in_a_small_catalogue() -> None:
    found = drawn(catalogue_of(("git", [300, 100]), ("time", [200])))

    assert Counter({tile.name: tile.tokens for tile in found.tiles}) == {"git_0": 300, "git_1": 100, "time_0": 200}
    assert math.isclose(named(found, "git_0").area.width * named(found, "git_0").area.height, 10_000 * 300 / 600)
    assert [group.server_id for group in found.groups] == ["git", "time"]


def test_shades_tell_what_is_called_and_what_is_paid_for_alone(usage: Usage) -> None:
    calls = {("ann", "git", "git_0"): 100, ("bob", "git", "git_1"): 3, ("bob", "gone", "old"): 7}
    usage.add({RowKey(today(), *key): {"calls": count} for key, count in calls.items()})
    of = catalogue_of(("git", [300, 100, 50]))

    found = drawn(of, usage)

    assert [named(found, f"git_{number}").use for number in range(3)] == ["much", "some", "none"]
    assert [named(found, f"git_{number}").calls for number in range(3)] == [100, 3, 0]
    assert found.unused_tokens == 50
    assert {tile.use for tile in drawn(of).tiles} == {""}  # no history: nothing is called unused


def test_a_caller_with_groups_sees_its_own_calls(usage: Usage) -> None:
    usage.add({RowKey(today(), name, "git", "git_0"): {"calls": 4} for name in ("ann", "bob")})
    of, ann = catalogue_of(("git", [300])), Caller("ann", groups=frozenset({"team"}))
    table = servers_for(ANYONE.scope, of)

    assert calls_of(usage, ann, table) == {("git", "git_0"): 4}
    assert calls_of(usage, ANYONE, table) == {("git", "git_0"): 8}


def test_replicas_are_drawn_once() -> None:
    index = FakeIndex()
    for number in range(3):
        put_server(index, f"web{number}", [tool("read", "reads", 50)])

    found = drawn(Catalogue(index, FakeEmbedder(), Ledger(index)))

    assert [(tile.server_id, tile.tokens) for tile in found.tiles] == [("web0", 50)]
    assert [group.replicas for group in found.groups] == [3]


@pytest.mark.parametrize("servers", [3, MOST_SERVERS + 20])
def test_of_a_large_catalogue_the_largest_tools_are_drawn_and_the_rest_keeps_its_area(servers: int) -> None:
    of = catalogue_of(*((f"s{number:03}", [40, 30] + [1] * (MOST_TOOLS // 2)) for number in range(servers)))

    found = drawn(of)

    tools = [tile for tile in found.tiles if tile.name]
    assert len(tools) <= MOST_TOOLS
    assert min(tile.tokens for tile in tools if tile.name.endswith(("_0", "_1"))) == 30
    assert found.tokens == servers * (70 + MOST_TOOLS // 2)
    assert sum(tile.tools for tile in found.tiles) == servers * (2 + MOST_TOOLS // 2)
    assert len(found.groups) == min(servers, MOST_SERVERS)
