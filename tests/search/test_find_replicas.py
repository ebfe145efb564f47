"""find_tool where many servers offer the same tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from query.answers.answer import FindResponse
from query.answers.budget import ResponsePolicy
from query.calling.tool_lookup import resolve_tool_name
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.ranking import DEPTH
from query.search.request import FindRequest
from shared.catalog import Endpoint, IndexedTool, Scope
from shared.errors import ToolNotFound
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.replicated import put_server, tool

SUM, ECHO = tool("get-sum", "adds two numbers", 30), tool("echo", "repeats a text", 20)
WEB = (SUM, ECHO)
IN_NEXT = tool("get-sum", "adds two numbers, or more")
POLICY = ResponsePolicy()
OTHERS = (tool("read", "reads a file"), tool("write", "writes two files"), tool("list", "lists numbers"))


def fleet(replicas: int, tools: Sequence[IndexedTool] = WEB) -> FakeIndex:
    """Return an index of one other server, and replicas web0, web1 and so on."""
    index = FakeIndex()
    put_server(index, "files", OTHERS, "files")
    for number in range(replicas):
        put_server(index, f"web{number}", tools, groups=frozenset({"even" if number % 2 == 0 else "odd"}))
    return index


def catalogue_of(index: FakeIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1, response_policy=POLICY)


def find(index: FakeIndex, scope: Scope | None = None, **more: Any) -> FindResponse:
    request = {"tool_description": "add two numbers", "detail": "full", **more}
    return find_tool(FindRequest.model_validate(request), scope or Scope(), catalogue_of(index))[0]


def names(answer: FindResponse) -> list[str]:
    return [found.name for found in answer.tools]


def test_an_answer_has_each_definition_once_with_its_servers() -> None:
    answer = find(fleet(11))

    assert sorted(names(answer)) == ["echo", "files:list", "files:read", "files:write", "get-sum"]
    assert answer.tools[0].name == "get-sum"
    assert answer.tools[0].served_by is not None
    assert answer.tools[0].served_by.model_dump() == {"count": 11, "servers": ["web0", "web1", "web10"]}
    assert answer.next_cursor is None
    assert answer.token_metrics.baseline_tokens == 30 + 11 * 50


def test_replicas_do_not_change_ranking_and_scores() -> None:
    alone, many = find(fleet(1)), find(fleet(60))

    assert [(found.first_server[1], found.score) for found in many.tools] == [
        (found.first_server[1], found.score) for found in alone.tools
    ]


def test_a_caller_is_given_only_the_replicas_that_it_may_use() -> None:
    (found,) = find(fleet(5), Scope(groups=frozenset({"odd"})), limit=1).tools

    assert found.served_by is not None
    assert found.served_by.servers == ["web1", "web3"]


def test_stale_replicas_are_shown_after_fresh_ones() -> None:
    index = fleet(4)
    for server_id in ("web0", "web1"):
        put_server(index, server_id, WEB, stale_since=2.0, revision=2)

    (found,) = find(index, limit=1).tools

    assert found.served_by is not None
    assert found.served_by.servers == ["web2", "web3", "web0"]


def at(path: str) -> Endpoint:
    return Endpoint(url=f"http://data.example{path}")


def test_equal_tools_over_other_data_are_found_once_and_named_with_their_server() -> None:
    index = fleet(0)
    put_server(index, "prod", WEB, endpoint=at("/prod/mcp"))
    put_server(index, "staging", WEB, endpoint=at("/staging/mcp"))

    found, *_ = find(index).tools

    server, _, tool_name = found.name.partition(":")
    assert (tool_name, found.served_by) == ("get-sum", None)
    assert found.also_on is not None
    # their scores are equal
    assert found.also_on.model_dump() == {"count": 1, "servers": [{"prod": "staging", "staging": "prod"}[server]]}
    assert "get-sum" not in {name.partition(":")[2] for name in names(find(index))[1:]}


@pytest.mark.parametrize(
    "endpoints",
    [
        (at("/mcp"), at("/mcp?db=staging")),
        (at("/mcp"), at("/mcp").model_copy(update={"credential_ref": "staging"})),
        (Endpoint(transport="stdio"), Endpoint(transport="stdio")),
    ],
)
def test_servers_that_may_hold_other_data_are_no_replicas(endpoints: tuple[Endpoint, Endpoint]) -> None:
    index = fleet(0)
    for server_id, endpoint in zip("ab", endpoints, strict=True):
        put_server(index, server_id, WEB, endpoint=endpoint)

    with pytest.raises(ToolNotFound, match="several servers") as caught:
        resolve_tool_name("get-sum", Scope(), catalogue_of(index))

    assert caught.value.candidates == ("a:get-sum", "b:get-sum")


def test_a_tool_excluded_on_one_replica_is_excluded_on_all() -> None:
    assert "get-sum" not in names(find(fleet(5), exclude=["web3:get-sum"]))


def test_a_tool_excluded_on_one_server_is_excluded_on_relatives_with_other_tools() -> None:
    index = fleet(3)
    put_server(index, "next", [IN_NEXT, ECHO])

    assert "echo" not in names(find(index, exclude=["next:echo"]))
    assert "echo" not in names(find(index, exclude=["web2:echo"]))


def test_a_definition_is_excluded_by_its_digest() -> None:
    index = fleet(3)
    put_server(index, "next", [IN_NEXT, ECHO])

    found = names(find(index, exclude=[f"get-sum@{IN_WEB.digest[:8]}"]))

    assert {name for name in found if "get-sum" in name} == {"next:get-sum"}


def test_an_ambiguous_name_comes_with_the_digest_of_the_definition() -> None:
    index = fleet(3)
    put_server(index, "ledger", [tool("get-sum", "sums an account")], "ledger")

    found = [name for name in names(find(index)) if "get-sum" in name]

    assert found == [f"get-sum@{IN_WEB.digest[:8]}", "ledger:get-sum"]


def test_a_filter_does_not_make_an_ambiguous_name_unambiguous() -> None:
    index = fleet(3)
    put_server(index, "ledger", [tool("get-sum", "sums an account")], "ledger")

    assert f"get-sum@{IN_WEB.digest[:8]}" in names(find(index, exclude=["ledger:get-sum"]))
    assert "echo" in names(find(index, exclude=["ledger:get-sum"]))


def test_another_version_of_a_server_stays_separate_and_both_are_counted() -> None:
    index = fleet(3)
    put_server(index, "next", [IN_NEXT, ECHO])

    answer = find(index)

    versions = {found.name: found.versions for found in answer.tools}
    assert versions[f"get-sum@{IN_WEB.digest[:8]}"] == versions["next:get-sum"] == 2
    assert versions["echo"] is None
    (echo,) = (found for found in answer.tools if found.name == "echo")
    assert echo.served_by is not None
    assert echo.served_by.servers == ["next", "web0", "web1"]


def test_servers_with_one_tool_in_common_do_not_fill_the_answer_with_it() -> None:
    index = FakeIndex()
    for number in range(DEPTH + 10):
        put_server(index, f"tenant{number}", [SUM, tool(f"of_{number}", f"unlike {number}")])

    answer = find(index, limit=8)

    assert len(set(names(answer))) == 8
    served = {found.name: found.served_by.count for found in answer.tools if found.served_by}
    assert served == {"get-sum": DEPTH + 10}


def test_a_further_page_does_not_repeat_a_definition_whose_first_server_stopped() -> None:
    index = fleet(4)
    first = find(index, limit=2)
    index.set_status_and_groups("web0", status="stopped", groups=frozenset())
    put_server(index, "web0", [], status="stopped", revision=2)

    second = find(index, limit=8, cursor=first.next_cursor)

    shown = names(first) + names(second)
    assert sorted(shown) == ["echo", "files:list", "files:read", "files:write", "get-sum"]


def test_a_tool_whose_digest_was_cleared_is_a_definition_of_its_own() -> None:
    index = fleet(2)
    put_server(index, "web1", WEB, catalog_digest="", revision=2)
    index.clear_digests({IN_WEB.digest})

    assert {name for name in names(find(index)) if "get-sum" in name} == {"web0:get-sum", "web1:get-sum"}


def test_equal_tools_of_servers_without_a_name_are_merged() -> None:
    index = FakeIndex()
    put_server(index, "a", [SUM, ECHO], "")
    put_server(index, "b", [SUM, tool("echo", "repeats a word", 20)], "")

    versions = {found.name: found.versions for found in find(index).tools}

    assert versions == {"get-sum": None, "a:echo": None, "b:echo": None}


IN_WEB = fleet(1).points()["web0:get-sum"].tool
