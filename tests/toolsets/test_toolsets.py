"""Toolsets and budgets as callers see them, over HTTP and in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from query.caller import Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from query.tools.revisions import WARNINGS_KEY
from query.toolsets.offers import apply_budget
from shared.catalog import Encoding
from shared.text.tokens import estimate_tool
from shared.toolset import Toolset
from tests.support.calling import replicated, text_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of
from tests.support.http_callers import URL, app_of, entry, http_client, mcp_client, static

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

OURS = {"find_tool", "describe_tool", "call_tool", "run_script", "list_available_tools", "get_active_toolset"}
DEV = Toolset(name="dev", tools=("git", "time:now", "time:gone", "secret:read"))


# The estimate fits a budget that the counts exceed.
NOW: dict[Encoding, int] = {"cl100k_base": 40, "o200k_base": 40, "heuristic": 1}


TOOLS = (
    make_tool("git", "log", "Show the log of commits", 100, ("dev",), model_tokens=10),
    make_tool("git", "now", "Show what is staged now", 100, ("dev",), model_tokens=20),
    make_tool("time", "now", "Show what time it is now", 100, ("dev",), model_tokens=NOW),
    make_tool("time", "zones", "List the time zones", 100, ("dev",), model_tokens=40),
    make_tool("secret", "read", "Show what is secret now", 100, ("ops",), model_tokens=10),
)


def with_toolsets(*toolsets: Toolset) -> FakeIndex:
    """Return the index of three servers, of which `secret` has another group."""
    index = index_of(*TOOLS)
    for toolset in toolsets:
        index.put_toolset(toolset)
    return index


def client_of(caller: Caller, *toolsets: Toolset, mode: str = "auto") -> Client:
    index = with_toolsets(*toolsets)
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)
    return Client(service_of(catalogue, upstreams_to({}), lambda _: caller), mode=mode)


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


def meta(tokens: int, possible: int) -> dict[str, Any]:
    context, total = ({"tokens": counted} for counted in (tokens, possible))
    return {"context": context, "totalPossibleContext": total}


ANN = Caller("ann", frozenset({"dev"}), toolset="dev")


@both_eras
async def test_the_visible_tools_of_a_toolset_are_listed_beside_ours_under_distinct_names(mode: str) -> None:
    async with client_of(ANN, DEV, mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}

    assert listed - OURS == {"git__log", "git__now", "time__now"}


async def test_a_toolset_bounds_what_is_found_listed_described_and_counted() -> None:
    async with client_of(ANN, DEV) as client:
        found = await answer(client, "find_tool", tool_description=["what time is it", "show the log"], limit=20)
        listed = await answer(client, "list_available_tools")
        described = await answer(client, "describe_tool", names=["time:zones", "secret:read", "git:log"])

    assert {tool["name"] for tool in found["tools"]} == {"git:log", "git:now", "time:now"}
    assert found["token_metrics"]["baseline_tokens"] == 300
    assert listed["meta"] == meta(70, 70)
    assert [tool["name"] for tool in described["tools"]] == ["git:log"]


@both_eras
async def test_a_toolset_that_does_not_exist_shows_nothing(mode: str) -> None:
    async with client_of(ANN, mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        found = await answer(client, "find_tool", tool_description="now")
        shown = await answer(client, "get_active_toolset")

    assert listed == OURS
    assert found["tools"] == []
    assert shown["warnings"] == ["There is no toolset dev for you."]


@both_eras
async def test_a_tool_outside_the_toolset_is_as_unknown_to_a_call_as_one_that_does_not_exist(mode: str) -> None:
    async with client_of(ANN, DEV, mode=mode) as client:
        outside = await client.call_tool("call_tool", {"tool_name": "time:zones"})
        nowhere = await client.call_tool("call_tool", {"tool_name": "time:zebra"})
        inside = await client.call_tool("call_tool", {"tool_name": "time:now"})

    assert outside.is_error
    assert nowhere.is_error
    assert text_of(outside).replace("zones", "zebra") == text_of(nowhere)
    assert "There is no tool" not in text_of(inside)


@pytest.mark.parametrize("asked", ["zones", "time_zones", "time:zones"])
async def test_a_tool_outside_the_toolset_cannot_be_called_directly_under_any_name(asked: str) -> None:
    async with client_of(ANN, DEV) as client:
        with pytest.raises(MCPError, match="expected the tool"):
            await client.call_tool(asked, {})


async def test_get_active_toolset_says_what_tools_cost_and_how_many_entries_are_not_there() -> None:
    async with client_of(ANN, DEV) as client:
        shown = await answer(client, "get_active_toolset")

    assert shown["tools"] == [
        {
            "namespacedName": f"{server}:{name}",
            "serverName": server,
            "name": name,
            "description": description,
            "context": {"tokens": tokens, "percentTotal": share},
        }
        for server, name, description, tokens, share in (
            ("git", "log", "Show the log of commits", 10, 0.1429),
            ("git", "now", "Show what is staged now", 20, 0.2857),
            ("time", "now", "Show what time it is now", 40, 0.5714),
        )
    ]
    assert shown["meta"] == meta(70, 110)
    assert shown["profile"] == "generic"
    assert "missing" in shown  # this caller may manage toolsets
    assert any("without a tool that you may use now: 2" in warning for warning in shown["warnings"])


@pytest.mark.parametrize("tool", ["get_active_toolset", "list_available_tools"])
async def test_estimated_costs_are_labelled(tool: str) -> None:
    async with client_of(ANN, DEV) as client:
        counted = await answer(client, tool)
        estimated = await answer(client, tool, encoding="heuristic")

    assert "estimated" not in counted
    assert (estimated["encoding"], estimated["estimated"]) == ("heuristic", True)


async def test_names_of_missing_entries_are_only_for_those_who_manage_toolsets() -> None:
    user = Caller("ann", frozenset({"dev"}), frozenset({"catalog:read"}), toolset="dev")

    async with client_of(user, DEV) as client:
        result = await client.call_tool("get_active_toolset", {})

    assert "secret" not in result.model_dump_json()


async def test_a_caller_without_a_toolset_may_look_at_any_and_one_of_a_toolset_at_no_other() -> None:
    async with client_of(Caller("ann"), DEV) as client:
        none = await answer(client, "get_active_toolset")
        other = await answer(client, "get_active_toolset", name="dev")
    async with client_of(ANN, DEV, Toolset(name="all", tools=("time", "git"))) as client:
        foreign = await answer(client, "get_active_toolset", name="all")

    assert "toolset" not in none
    assert none["meta"] == meta(0, 120)
    assert len(other["tools"]) == 4
    assert foreign["tools"] == []


async def test_the_report_has_the_tools_and_the_budget_of_the_list_where_servers_are_replicas() -> None:
    names = ("add", "log", "now", "zones")
    catalogue = replicated(["one", "three", "two"], *(make_tool("", name, tokens=10) for name in names))
    toolset = Toolset(name="dev", tools=("one", "two", "three"), budget_tokens=40, enforce=True)
    catalogue.index.put_toolset(toolset)

    async with Client(service_of(catalogue, upstreams_to({}), lambda _: Caller("ann", toolset="dev"))) as client:
        listed = await client.list_tools()
        shown = await answer(client, "get_active_toolset")

    assert {tool.name for tool in listed.tools} - OURS == {f"one__{name}" for name in names}
    assert [tool["namespacedName"] for tool in shown["tools"]] == [f"one:{name}" for name in names]
    assert "leftOut" not in shown
    assert "warnings" not in shown
    assert WARNINGS_KEY not in (listed.meta or {})
    assert (shown["budget"]["used"], shown["budget"]["exceededBy"]) == (40, 0)
    assert "missing" not in shown


async def test_a_budget_that_is_exceeded_is_warned_of() -> None:
    async with client_of(ANN, DEV.model_copy(update={"budget_tokens": 50})) as client:
        listed = await client.list_tools()
        shown = await answer(client, "get_active_toolset")
        found = await answer(client, "find_tool", tool_description=["now", "log"])

    assert len(listed.tools) == len(OURS) + 3
    assert listed.meta is not None
    assert "more than the budget of 50" in listed.meta[WARNINGS_KEY][0]
    assert shown["budget"] == {
        "tokens": 50, "enforcedTokens": None, "used": 70, "exceededBy": 20
    }  # fmt: skip
    assert len(found["tools"]) == 3
    assert "The definitions cost 70 tokens, more than the budget of 50." in found["warnings"]


@both_eras
async def test_an_enforced_budget_leaves_out_what_exceeds_it_and_says_what_and_its_cost(mode: str) -> None:
    async with client_of(ANN, DEV.model_copy(update={"budget_tokens": 35, "enforce": True}), mode=mode) as client:
        listed = await client.list_tools()
        shown = await answer(client, "get_active_toolset")
        estimated = await answer(client, "get_active_toolset", encoding="heuristic")
        found = await answer(client, "find_tool", tool_description="now")

    said = "Left out for the budget of 35 tokens: time:now (40); together 40 tokens."
    assert {tool.name for tool in listed.tools} - OURS == {"git__log", "git__now"}
    assert listed.meta is not None
    assert listed.meta[WARNINGS_KEY] == [said]
    assert shown["leftOut"] == estimated["leftOut"] == [{"name": "time:now", "tokens": 40}]
    assert {tool["name"] for tool in found["tools"]} <= {"git:log", "git:now"}
    assert said in found["warnings"]


async def test_where_every_hit_exceeds_the_enforced_budget_further_ones_are_a_cursor_away() -> None:
    caller = Caller("ann", frozenset({"dev"}), limit_tokens=15, budget_tokens=15)

    async with client_of(caller) as client:
        names: list[str] = []
        page = await answer(client, "find_tool", tool_description="what time is it now", limit=1)
        while True:
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                break
            cursor = page["nextCursor"]
            page = await answer(client, "find_tool", tool_description="what time is it now", limit=1, cursor=cursor)

    assert names == ["git:log"]


def test_an_uncounted_tool_takes_its_estimate_from_a_budget() -> None:
    odd = make_tool("git", "odd", "Show what cannot be counted " * 9, 1, model_tokens={})
    even = make_tool("git", "even", tokens=1_000, model_tokens=7)
    estimated = estimate_tool("git", odd.definition)
    caller = Caller("ann", limit_tokens=estimated + 7, budget_tokens=estimated + 7)

    fitting = apply_budget([odd, even], caller, "cl100k_base")
    exceeding = apply_budget([odd, even], replace(caller, limit_tokens=estimated + 6), "cl100k_base")

    assert (fitting.tokens, list(fitting.excluded)) == (estimated + 7, [])
    assert list(exceeding.kept) == [odd]


@both_eras
async def test_the_path_chooses_a_toolset_and_never_another_than_the_tokens_own(tmp_path: Path, mode: str) -> None:
    authentication = static(tmp_path / "t.toml", free=entry("free"), bound=entry("bound", toolset="dev"))
    app = app_of(with_toolsets(DEV, Toolset(name="clock", tools=("time",))), authentication)

    async with http_client(app, "free") as http, mcp_client(http, mode, f"{URL}/clock") as client:
        listed = await answer(client, "list_available_tools")
        http.headers["authorization"] = "Bearer bound"
        with pytest.raises(MCPError, match="for the toolset dev alone"):
            await client.call_tool("list_available_tools", {})

    assert [server["serverName"] for server in listed["toolsByServer"]] == ["time"]


async def test_the_path_of_a_toolset_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    index = with_toolsets(DEV)
    app = app_of(index, static(tmp_path / "t.toml", free=entry("free"), bound=entry("bound", toolset="dev")))
    async with http_client(app, "free") as http:
        for path, token, status in [
            ("none", "free", 404),
            ("none", "wrong", 401),
            # as for one that exists
            ("none", "bound", 400),
            ("dev", "free", 400),
        ]:
            response = await http.post(f"{URL}/{path}", json={}, headers={"authorization": f"Bearer {token}"})
            assert response.status_code == status, response.text
        at_other_host = await http.post(f"{URL}/none", json={}, headers={"host": "attacker.example"})
        index.is_down = True
        while_down = await http.post(f"{URL}/none", json={})

    assert at_other_host.status_code == 421
    assert while_down.status_code == 400


@both_eras
async def test_filters_that_name_nothing_are_listed_as_warnings(mode: str) -> None:
    async with client_of(Caller("ann"), mode=mode) as client:
        listed = await answer(client, "list_available_tools", servers="tme")
        found = await answer(client, "find_tool", tool_description="now", servers="tme")

    for response in (listed, found):
        assert response["warnings"][0] == "There is no server 'tme' that you may see; the nearest: time."


async def test_toolsets_are_written_shown_listed_and_deleted_over_http(tmp_path: Path) -> None:
    app = app_of(with_toolsets(), static(tmp_path / "t.toml", boss=entry("boss")))
    wanted = {"name": "dev", "tools": ["git"], "description": "", "budget_tokens": 9, "enforce": False}

    async with http_client(app, "boss") as http:
        written = await http.put("/toolsets/dev", json={"name": "dev", "tools": ["git"], "budget_tokens": 9})
        shown = await http.get("/toolsets/dev")
        listed = await http.get("/toolsets")
        deleted = await http.delete("/toolsets/dev")
        gone = await http.get("/toolsets/dev")

    assert (written.status_code, written.json(), shown.json()) == (200, wanted, wanted)
    assert listed.json() == {"toolsets": [wanted]}
    assert (deleted.status_code, gone.status_code) == (204, 404)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"name": "other", "tools": []}, "name:"),
        ({"name": "dev"}, "tools:"),
        ({"name": "dev", "tools": ["not a server"]}, "tools:"),
        ({"name": "dev", "tools": [], "budget_tokens": 0}, "budget_tokens:"),
    ],
)
async def test_a_toolset_that_is_wrong_is_refused_with_the_field(
    tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    app = app_of(with_toolsets(), static(tmp_path / "t.toml", boss=entry("boss")))

    async with http_client(app, "boss") as http:
        refused = await http.put("/toolsets/dev", json=document)

    assert refused.status_code == 400
    assert refused.json()["error"].startswith(said)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_toolsets_are_only_for_callers_with_their_permission(tmp_path: Path, method: str) -> None:
    users = static(tmp_path / "t.toml", user=entry("user", permissions=["catalog:read", "tools:call"]))
    app = app_of(with_toolsets(DEV), users)

    async with http_client(app, "user") as http:
        refused = await http.request(method, "/toolsets/dev")
        del http.headers["authorization"]
        unknown = await http.request(method, "/toolsets/dev")

    assert (refused.status_code, unknown.status_code) == (403, 401)
