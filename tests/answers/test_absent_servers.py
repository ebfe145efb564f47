"""Servers without tools now, in the answers to requests that concern them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from query.absent import SHOWN, absences
from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from tests.support.calling import text_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import fill, record_of

pytestmark = pytest.mark.anyio

NEVER = {"last_listed_at": None, "tool_count": 0}
STATES: dict[str, dict[str, Any]] = {
    "failing": NEVER | {"stale_since": 1.0, "last_error": "linear: cannot resolve mcp.linear.example"},
    "sign-in": NEVER
    | {
        "stale_since": 1.0,
        "needs_sign_in": True,
        "last_error": "linear: needs a sign-in; run `toolscale login linear`",
    },
    "quarantined": {"status": "quarantined", "stale_since": 1.0, "last_error": "linear: cannot resolve x"},
    "waiting": NEVER,
    "stopped": {"status": "stopped"},
}
SAYS = {
    "failing": ("cannot be listed", "cannot resolve mcp.linear.example", "toolscale show linear"),
    "sign-in": ("needs a sign-in", "toolscale login linear"),
    "quarantined": ("quarantined", "cannot resolve x", "toolscale show linear"),
    "waiting": ("being listed",),
    "stopped": ("stopped",),
}
each_state = pytest.mark.parametrize("state", STATES)


def catalogue_beside(state: str, threshold: float = -1.0, **fields: Any) -> Catalogue:
    """Return a catalogue of one listed server, and of Linear in this state, both in the group `dev`."""
    index = FakeIndex()
    fill(index, make_tool("time", "now", "tell the time", groups=["dev"]))
    told = {"groups": frozenset({"dev"}), "declared_name": "Linear MCP", "revision": 9} | STATES[state] | fields
    index.put_server(record_of("linear", (), **told))
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=threshold)


async def answer(catalogue: Catalogue, tool: str, caller: Caller = ANYONE, **arguments: Any) -> str:
    service = service_of(catalogue, upstreams_to({}), lambda _: caller)
    async with Client(service) as client:
        return text_of(await client.call_tool(tool, arguments))


@each_state
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_tool", {"tool_description": "create an issue", "servers": ["linear"]}),
        ("find_tool", {"tool_description": "create an issue in Linear"}),
        ("find_tool", {"tool_description": ["tell the time", "post it with linear mcp"]}),
        ("describe_tool", {"names": ["linear:create_issue", "time:now"]}),
        ("call_tool", {"tool_name": "linear:create_issue"}),
        ("call_tool", {"tool_name": "create_issue", "server_name": "linear"}),
        ("list_available_tools", {"servers": ["linear", "time"]}),
    ],
)
async def test_a_request_that_names_a_server_without_tools_is_told_why_and_what_helps(
    tool: str, arguments: dict[str, Any], state: str
) -> None:
    text = await answer(catalogue_beside(state), tool, **arguments)

    assert "linear" in text
    assert [word for word in SAYS[state] if word not in text] == []


@pytest.mark.parametrize("state", ["failing", "sign-in", "quarantined"])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_tool", {"tool_description": "bake bread"}),
        ("find_tool", {"tool_description": "tell the time", "groups": ["dev"]}),
        ("list_available_tools", {}),
        ("list_available_tools", {"groups": ["dev"]}),
    ],
)
async def test_where_nothing_fits_or_all_is_listed_each_server_that_is_not_reached_is_named(
    tool: str, arguments: dict[str, Any], state: str
) -> None:
    text = await answer(catalogue_beside(state, threshold=0.9), tool, **arguments)

    assert [word for word in SAYS[state] if word not in text] == []


@each_state
async def test_an_answer_that_does_not_concern_the_server_does_not_name_it(state: str) -> None:
    text = await answer(catalogue_beside(state), "find_tool", tool_description="tell the time")

    assert "linear" not in text


@each_state
@pytest.mark.parametrize("tool", ["find_tool", "describe_tool", "call_tool", "list_available_tools"])
async def test_a_caller_who_may_not_see_the_server_hears_the_same_as_if_it_did_not_exist(tool: str, state: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "find_tool": {"tool_description": "create an issue in Linear", "servers": ["linear"]},
        "describe_tool": {"names": ["linear:create_issue"]},
        "call_tool": {"tool_name": "linear:create_issue"},
        "list_available_tools": {"servers": ["linear"]},
    }
    hidden = catalogue_beside(state, groups=frozenset({"ops"}))
    without = Catalogue(other := FakeIndex(), FakeEmbedder(), Ledger(other), no_match_threshold=-1.0)
    fill(other, make_tool("time", "now", "tell the time", groups=["dev"]))
    dev = Caller("ann", groups=frozenset({"dev"}))

    assert await answer(hidden, tool, dev, **arguments[tool]) == await answer(without, tool, dev, **arguments[tool])


@given(st.integers(0, 40))
def test_of_many_servers_without_tools_a_few_are_named_and_the_others_counted(number: int) -> None:
    absent = [record_of(f"s{each}", **STATES["failing"]) for each in range(number)]

    said = absences(absent, [], all_unreached=True)

    assert len(said) == min(number, SHOWN) + (number > SHOWN)
    assert number <= SHOWN or said[-1].startswith(f"{number - SHOWN} ")
