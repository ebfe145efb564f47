"""Servers without tools now, in the answers to requests that concern them."""

from __future__ import annotations

import time
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
    "hanging": NEVER | {"revision": 1_700_000_000_000_000},
    "stopped": {"status": "stopped"},
    "listed": {},
}
SAYS = {
    "failing": ("cannot be listed", "cannot resolve mcp.linear.example", "toolscale show linear"),
    "sign-in": ("needs a sign-in", "toolscale login linear"),
    "quarantined": ("quarantined", "cannot resolve x", "toolscale show linear"),
    "waiting": ("being listed", "few seconds"),
    "hanging": ("since", "2023-11-14 22:13 UTC", "toolscale show linear"),
    "stopped": ("stopped",),
}
each_state = pytest.mark.parametrize("state", SAYS)


def catalogue_beside(state: str, threshold: float = -1.0, **fields: Any) -> Catalogue:
    """Return a catalogue of one listed server, and of Linear in this state, both in the group `dev`."""
    index = FakeIndex()
    fill(index, make_tool("time", "now", "tell the time", groups=["dev"]))
    revision = int(time.time() * 1e6)
    told = {"groups": frozenset({"dev"}), "declared_name": "Linear MCP", "revision": revision} | STATES[state] | fields
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
        ("describe_tool", {"names": ["linear"]}),
        ("call_tool", {"tool_name": "create_issue", "server_name": "linear"}),
        ("call_tool", {"tool_name": "linear_create_issue"}),
        ("call_tool", {"tool_name": "linear.create_issue"}),
        ("call_tool", {"tool_name": "linear/create_issue"}),
        ("call_tool", {"tool_name": "linear__create_issue"}),
        ("call_tool", {"tool_name": "LinearMcp:createIssue"}),
        ("list_available_tools", {"servers": ["linear", "time"]}),
        ("list_available_tools", {"servers": ["linar"]}),
        ("find_tool", {"tool_description": "tell the time", "servers": ["linar", "time"]}),
    ],
)
async def test_a_request_that_names_a_server_without_tools_is_told_why_and_what_helps(
    tool: str, arguments: dict[str, Any], state: str
) -> None:
    text = await answer(catalogue_beside(state), tool, **arguments)

    assert "linear" in text
    assert [word for word in SAYS[state] if word not in text] == []
    assert state == "waiting" or "few seconds" not in text


@pytest.mark.parametrize("state", ["failing", "sign-in", "quarantined", "hanging"])
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
@pytest.mark.parametrize("name", ["linear:create_issue", "linear_create_issue"])
async def test_a_caller_who_may_not_see_the_server_hears_the_same_as_if_it_did_not_exist(
    name: str, tool: str, state: str
) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "find_tool": {"tool_description": "create an issue in Linear", "servers": ["linear"]},
        "describe_tool": {"names": ["linear:create_issue", "linear_create_issue"]},
        "call_tool": {"tool_name": name},
        "list_available_tools": {"servers": ["linear", "linar"]},
    }
    hidden = catalogue_beside(state, groups=frozenset({"ops"}))
    without = Catalogue(other := FakeIndex(), FakeEmbedder(), Ledger(other), no_match_threshold=-1.0)
    fill(other, make_tool("time", "now", "tell the time", groups=["dev"]))
    dev = Caller("ann", groups=frozenset({"dev"}))

    assert await answer(hidden, tool, dev, **arguments[tool]) == await answer(without, tool, dev, **arguments[tool])


STALE: dict[str, Any] = {"stale_since": 1.0, "last_error": "linear: cannot resolve x"}


@pytest.mark.parametrize("name", ["linear:delete_issue", "linear_delete_issue"])
@pytest.mark.parametrize("tool", ["describe_tool", "call_tool"])
async def test_an_unknown_tool_of_a_server_with_an_old_list_is_answered_with_its_age(tool: str, name: str) -> None:
    stale, fresh = catalogue_beside("listed", **STALE), catalogue_beside("listed")
    arguments: dict[str, Any] = {"names": [name]} if tool == "describe_tool" else {"tool_name": name}

    assert "of linear may be out of date" in await answer(stale, tool, **arguments)
    assert "out of date" not in await answer(fresh, tool, **arguments)


async def test_a_listing_names_the_servers_whose_lists_are_old() -> None:
    stale = catalogue_beside("listed", **STALE)

    assert "of linear may be out of date" in await answer(stale, "list_available_tools")
    assert "out of date" not in await answer(stale, "list_available_tools", servers=["time"])


@given(st.integers(0, 40))
def test_of_many_servers_without_tools_a_few_are_named_and_the_others_counted(number: int) -> None:
    absent = [record_of(f"s{each}", **STATES["failing"]) for each in range(number)]

    said = absences(absent, [], all_unreached=True)

    assert len(said) == min(number, SHOWN) + (number > 0) + (number > SHOWN)
    assert number <= SHOWN or said[-1].startswith(f"{number - SHOWN} ")
    assert " ".join(said).count("toolscale show") == (number > 0)
