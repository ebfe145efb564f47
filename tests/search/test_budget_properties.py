"""Invariants of an enforced budget over any costs and calls."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.caller import Caller
from query.toolsets.offers import apply_budget, by_use, cost
from shared.catalog import Encoding, IndexedTool
from tests.support.fakes import make_tool
from tests.support.profiles import examples

ENCODING: Encoding = "cl100k_base"
NAMES = [f"{server}:{name}" for server in "ab" for name in ("read", "send", "find", "move")]

# None: the tool could not be counted
costs = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 60), min_size=3)
# also of tools that are not in the toolset, or no longer
counts = st.dictionaries(st.sampled_from([*NAMES, "gone:tool"]), st.integers(1, 4)).map(
    lambda calls: frozenset(calls.items())
)


def tool_of(name: str, tokens: int | None) -> IndexedTool:
    server, _, tool = name.partition(":")
    return make_tool(server, tool, model_tokens={} if tokens is None else tokens)


@settings(max_examples=examples(200))
@given(tokens=costs, calls=counts, limit=st.none() | st.integers(0, 200), chance=st.randoms())
@example({"a:read": 1, "a:send": 9, "b:find": None}, frozenset({("a:send", 1)}), 9, Random(0))
def test_a_budget_keeps_the_most_used_tools_that_fit(
    tokens: dict[str, int | None], calls: frozenset[tuple[str, int]], limit: int | None, chance: Random
) -> None:
    tools = [tool_of(*item) for item in tokens.items()]
    shuffled = chance.sample(tools, len(tools))
    caller = Caller("ann", limit_tokens=limit, budget_tokens=limit)

    result = apply_budget(by_use(shuffled, calls, ENCODING), caller, ENCODING)

    # nothing is lost, and the order in which the index lists the tools does not matter
    assert sorted(tool.qualified_name for tool in (*result.kept, *result.excluded)) == sorted(tokens)
    assert result == apply_budget(by_use(tools, calls, ENCODING), caller, ENCODING)
    if limit is None:
        assert not result.excluded
        return
    assert result.tokens <= limit
    uses = dict(calls)

    def rank(tool: IndexedTool) -> tuple[int, int, str]:
        return -uses.get(tool.qualified_name, 0), cost(tool, ENCODING), tool.qualified_name

    for dropped in result.excluded:
        preferred = sum(cost(tool, ENCODING) for tool in result.kept if rank(tool) < rank(dropped))
        assert preferred + cost(dropped, ENCODING) > limit
