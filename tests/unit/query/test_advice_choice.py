"""The choice of tools within a budget, and the types that make two tools rivals."""

from __future__ import annotations

from typing import Any

import pytest

from query.advice.choice import best_within, needed_tokens
from query.advice.rivals import takes_the_same
from query.advice.use import ToolUse


def use(name: str, tokens: int, calls: int) -> ToolUse:
    return ToolUse(name=name, tokens=tokens, calls=calls)


def test_two_cheap_tools_are_chosen_before_a_dear_one_with_fewer_calls() -> None:
    tools = [use("s:dear", 100, 5), use("s:one", 50, 4), use("s:two", 50, 3)]

    assert [tool.name for tool in best_within(tools, 100)] == ["s:one", "s:two"]


def test_a_dear_tool_is_chosen_where_it_has_more_calls_than_the_cheap_ones_together() -> None:
    tools = [use("s:dear", 100, 9), use("s:one", 1, 1)]

    assert [tool.name for tool in best_within(tools, 100)] == ["s:dear"]


def test_a_tool_without_calls_is_never_chosen() -> None:
    assert best_within([use("s:idle", 1, 0)], 100) == []


def test_the_needed_tokens_are_those_of_the_cheaper_order() -> None:
    tools = [use("s:dear", 100, 6), use("s:one", 10, 5), use("s:two", 10, 5), use("s:idle", 5, 0)]

    assert needed_tokens(tools, 0.6) == 20
    assert needed_tokens(tools, 0.95) == 120
    assert needed_tokens([], 0.95) == 0


def schema(required: list[str], **types: Any) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"name": "t", "inputSchema": {"type": "object", "properties": properties, "required": required}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (schema(["url"], url="string"), schema(["address"], address="string", length="integer"), True),
        (schema(["path"], path="string"), schema(["path", "text"], path="string", text="string"), False),
        (schema(["id"], id="integer"), schema(["id"], id="string"), False),
        (schema(["a", "b"], a="string", b="string"), schema(["c"], c="string", d="string"), True),
        (schema(["n"], n="integer"), schema(["n"], n="number"), True),
        (schema([]), schema([]), True),
        # a server may send anything
        ({"inputSchema": None}, {"inputSchema": {"properties": 7, "required": "path"}}, True),
        ({"inputSchema": {"properties": {"x": True}, "required": ["x", 3]}}, schema([]), False),
    ],
)
def test_rivals_have_parameters_of_the_types_that_the_other_requires(first: Any, second: Any, expected: bool) -> None:
    assert takes_the_same(first, second) is expected
    assert takes_the_same(second, first) is expected
