from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.answers.answer import FindResponse
from query.catalogue import Catalogue
from query.find import (
    KEYWORDS_ONLY,
    NOTHING_FITS,
    NOTHING_HAS_WORDS,
    NOTHING_PASSES,
    NOTHING_VISIBLE,
    find_tool,
)
from query.records import Ledger
from query.search.request import FindRequest
from shared.catalog import Scope, ToolDefinition
from shared.text.embedding import Embedder
from tests.support.fakes import FakeEmbedder, FakeIndex, WithoutModel, make_tool
from tests.support.filled import index_of


def find(
    index: FakeIndex,
    description: str | list[str] = "read a file",
    scope: Scope | None = None,
    embedder: Embedder | None = None,
    no_match_threshold: float = -1,
    **more: Any,
) -> FindResponse:
    catalogue = Catalogue(index, embedder or FakeEmbedder(), Ledger(index), no_match_threshold=no_match_threshold)
    return find_tool(FindRequest(tool_description=description, **more), scope or Scope(), catalogue)[0]


def names(answer: FindResponse) -> list[str]:
    return [tool.first_server[1] for tool in answer.tools]


def test_the_closest_tools_come_first() -> None:
    index = index_of(make_tool("fs", "write", "write a file"), make_tool("fs", "read_file", "read a file"))

    answer = find(index, detail="full")

    assert names(answer) == ["read_file", "write"]
    first, second = (tool.score for tool in answer.tools)
    assert first is not None
    assert second is not None
    assert first > second
    assert [round(score, 2) for score in (first, second)] == [first, second]


@pytest.mark.parametrize(("asked", "limit"), [({}, 8), ({"limit": 3}, 3), ({"limit": 50}, 50)])
def test_eight_tools_unless_the_caller_says_otherwise_are_read_in_one_request(
    asked: dict[str, Any], limit: int
) -> None:
    index = index_of(*(make_tool("fs", f"t{i}") for i in range(60)))

    with patch.object(index, "get", wraps=index.get) as get:
        assert len(find(index, **asked).tools) == limit

    assert [len(call.args[0]) for call in get.call_args_list] == [max(limit, 8) + 1]


def test_keywords_join_the_query() -> None:
    index = index_of(make_tool("fs", "read"), make_tool("fs", "convert", "convert currencies"))

    assert names(find(index, "do it", tool_keywords=["convert", "currencies"], limit=1)) == ["convert"]
    assert names(find(index, "do it", tool_keywords="convert currencies", limit=1)) == ["convert"]


def test_a_search_that_its_filters_leave_empty_is_not_said_to_see_nothing() -> None:
    index = index_of(make_tool("fs", "read"), make_tool("git", "log", status="stopped"))

    assert find(index, read_only=True).warnings == [NOTHING_PASSES]
    assert find(index, exclude=["fs:read"], servers=["fs"]).warnings == [NOTHING_PASSES]
    assert find(index, "zzz", embedder=WithoutModel()).warnings == [KEYWORDS_ONLY, NOTHING_HAS_WORDS]


def test_unknown_servers_and_groups_of_a_filter_are_named_with_the_nearest() -> None:
    index = index_of(make_tool("time", "now", groups=["dev"]), make_tool("git", "log", groups=["secret"]))
    dev = Scope(groups=frozenset({"dev"}))

    assert find(index, servers=["tme", "time"], scope=dev).warnings == [
        "There is no server 'tme' that you may see; the nearest: time."
    ]
    assert find(index, servers=["git"], scope=dev).warnings[0] == "There is no server 'git' that you may see."
    assert find(index, groups=["devv"], scope=dev).warnings == [
        "There is no running server in the group 'devv' that you may see; the nearest: dev.",
        NOTHING_PASSES,
    ]
    assert find(index, groups=["secret"], scope=dev).warnings[0] == (
        "There is no running server in the group 'secret' that you may see."
    )
    assert find(index, servers=[f"x{number}" for number in range(9)], limit=1).warnings[3:] == [
        "Further names without tools: 6.",
        NOTHING_PASSES,
    ]


def test_a_server_of_a_filter_that_does_not_run_is_named() -> None:
    index = index_of(make_tool("fs", "read", status="stopped"))

    assert find(index, servers=["fs"]).warnings == [
        NOTHING_VISIBLE,
        "fs is stopped, so its tools cannot be called now.",
    ]


NAME = st.sampled_from(["fs", "git", "f", "log"])


@given(st.lists(NAME), st.lists(NAME), st.sets(NAME), st.booleans())
def test_the_catalogue_is_called_empty_only_if_it_is(
    servers: list[str], groups: list[str], visible: set[str], is_read_only: bool
) -> None:
    index = index_of(*(make_tool(server, "read", groups=[server]) for server in ("fs", "git")))
    scope = Scope(groups=frozenset(visible))

    warnings = find(index, scope=scope, servers=servers, groups=groups, read_only=is_read_only).warnings

    assert (NOTHING_VISIBLE in warnings) == visible.isdisjoint({"fs", "git"})


# in the server's own order
DECLARED = {
    "title": "Read",
    "inputSchema": {"properties": {"path": {"title": "Path", "default": None}}, "type": "object"},
    "annotations": {"readOnlyHint": True},
    "name": "read",
    "outputSchema": {"type": "object"},
    "description": "Read a file.",
    "_meta": {"example.com/since": None},
}


def test_a_tool_has_the_fields_of_its_detail_level_as_the_server_declared_them() -> None:
    tool = replace(make_tool("fs", "read"), definition=ToolDefinition.from_wire(json.dumps(DECLARED)))

    (full,) = find(index_of(tool), detail="full").as_object()["tools"]
    shown = [find(index_of(tool), detail=detail).as_object()["tools"][0] for detail in ("detailed", "auto")]

    assert json.dumps(full["definition"]) == json.dumps(DECLARED)
    for found in shown:
        assert list(found) == ["name", "description", "inputSchema"]
        assert json.dumps(found["inputSchema"]) == json.dumps(DECLARED["inputSchema"])


def test_an_uncounted_tool_has_no_count_in_the_answer() -> None:
    answer = find(index_of(make_tool("fs", "read", tokens={}))).as_object()

    assert "token_count" not in answer["tools"][0]
    assert answer["token_metrics"]["uncounted"] == ["fs:read"]


def test_a_stale_server_s_tools_say_since_when_and_a_warning_names_it() -> None:
    answer = find(index_of(make_tool("fs", "read"), stale_since=1_700_000_000.7)).as_object()

    assert answer["tools"][0]["stale_since"] == "2023-11-14T22:13:20Z"
    assert answer["warnings"] == ["Tools of fs may be out of date: their servers did not answer."]
    assert "stale_since" not in find(index_of(make_tool("fs", "read"))).as_object()["tools"][0]


def test_a_lone_surrogate_in_a_definition_does_not_make_the_answer_unsendable() -> None:
    tool = make_tool("fs", "read")
    tool = replace(tool, definition=ToolDefinition.from_wire(r'{"name": "read", "description": "a \ud800 b"}'))

    answer = find(index_of(tool))

    assert json.loads(answer.model_dump_json())["tools"][0]["description"] == "a ? b"


def test_each_step_of_a_task_finds_its_tool() -> None:
    index = index_of(
        *(make_tool("fs", f"read_file_{i}", "read a file from disk") for i in range(5)),
        make_tool("mail", "send", "send a letter"),
    )

    answer = find(index, ["read a file", "send a letter", ""], limit=2)

    assert [tool.name.split("_")[0] for tool in answer.tools] == ["fs:read", "mail:send"]


@pytest.mark.parametrize("query", ["zap", "b:zap"])
def test_a_tool_asked_for_by_its_name_comes_first(query: str) -> None:
    index = index_of(make_tool("a", "zip", "zap zap b zap"), make_tool("b", "zap", "nothing alike"))

    answer = find(index, query, no_match_threshold=1)

    assert answer.tools[0].name == "b:zap"
    assert answer.no_match is None


def test_where_nothing_fits_no_tool_is_returned_and_the_nearest_are_named() -> None:
    index = index_of(make_tool("fs", "read_file", "read a file", tokens=10))

    answer = find(index, "bake bread", no_match_threshold=0.9)

    assert answer.tools == []
    assert answer.no_match is True
    assert answer.nearest == ["fs:read_file: read a file"]
    assert answer.token_metrics.tokens_saved == 10
    assert answer.warnings == [NOTHING_FITS]


def test_a_tool_that_holds_most_words_of_the_query_fits_whatever_the_model_thinks() -> None:
    index = index_of(make_tool("fs", "tool", "прочитать файл"))

    answer = find(index, "прочитать файлы", no_match_threshold=1)

    assert names(answer) == ["tool"]
    assert answer.no_match is None


def test_without_a_model_keywords_find_the_tool_and_the_answer_says_so() -> None:
    index = index_of(make_tool("fs", "read_file", "read a file"), make_tool("mail", "send", "send a letter"))

    answer = find(index, "reading files", embedder=WithoutModel())

    assert names(answer) == ["read_file"]
    assert answer.keywords_only is True
    assert answer.warnings == [KEYWORDS_ONLY]


def test_servers_groups_read_only_and_exclude_narrow_the_search_and_not_the_baseline() -> None:
    index = index_of(
        make_tool("fs", "read", groups=["dev"], tokens=1, read_only=True),
        make_tool("fs", "write", groups=["dev"], tokens=2),
        make_tool("git", "log", groups=["dev"], tokens=4, read_only=True),
        make_tool("mail", "send", groups=["office"], tokens=8),
    )

    narrowed = {
        (): find(index),
        ("fs",): find(index, servers=["fs"]),
        ("dev",): find(index, groups=["dev"]),
        ("read only",): find(index, read_only=True),
        ("without",): find(index, exclude=["send", "fs:write"]),
        ("all of it",): find(index, servers=["fs", "mail"], read_only=True, exclude=["mail:send"]),
    }

    assert {answer.token_metrics.baseline_tokens for answer in narrowed.values()} == {15}
    returned = [sorted(names(answer)) for answer in narrowed.values()]
    assert returned[1:] == [["read", "write"], ["log", "read", "write"], ["log", "read"], ["log", "read"], ["read"]]


@pytest.mark.parametrize(("index_is_embedded", "corpus"), [(True, Scope()), (False, Scope(status=None))])
def test_a_server_counts_the_words_of_all_tools_without_a_condition(*, index_is_embedded: bool, corpus: Scope) -> None:
    index = index_of(make_tool("files", "read", "Read a file"))
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), index_is_embedded=index_is_embedded)

    with patch.object(index, "search", wraps=index.search) as search:
        found, _ = find_tool(FindRequest(tool_description="read a file"), Scope(), catalogue)

    assert names(found) == ["read"]
    assert search.call_args.args[3] == corpus


def clear_index() -> FakeIndex:
    near = [make_tool("fs", f"read_text_{number}", "read a text file") for number in range(3)]
    return index_of(*near, *(make_tool("fs", f"other{number}", f"paint wall {number}") for number in range(12)))


def test_a_clear_answer_ends_where_the_scores_fall_and_the_next_page_has_the_rest() -> None:
    index = clear_index()

    first = find(index, "read text file")
    assert {name.rpartition("_")[0] for name in names(first)} == {"read_text"}
    assert len(first.tools) == 3
    assert first.next_cursor is not None


@pytest.mark.parametrize(
    "unclear",
    [
        "read text file " + "and then paint the red wall that stands in front of my house with it " * 2,
        ["read text file", "paint wall 3"],
        "something like a document",
    ],
    ids=["long", "of steps", "nothing similar"],
)
def test_an_unclear_request_gets_as_many_tools_as_it_may(unclear: str | list[str]) -> None:
    assert len(find(clear_index(), unclear).tools) == 8


@pytest.mark.parametrize("limit", [1, 2, 8, 20])
def test_all_tools_of_the_requested_name_come_first_and_the_best_of_them_first_of_all(limit: int) -> None:
    draw = random.Random(1)
    words = ["mail", "list", "issue", "branch", "commit", "zone", "slide", "row", "page", "store"]
    far = [make_tool(f"far{number}", "search", " ".join(draw.choices(words, k=20))) for number in range(60)]
    near = [make_tool(f"near{number}", "search", "search " * (number + 1)) for number in range(3)]

    found = find(index_of(*far, *near), "search", limit=limit)

    assert len(found.tools) == limit
    assert {tool.first_server[0][:4] for tool in found.tools[:3]} == {"near"}


def test_a_limit_below_the_clear_tools_holds() -> None:
    assert len(find(clear_index(), "read text file", limit=1).tools) == 1


def test_an_answer_without_a_model_ends_at_its_limit() -> None:
    words_everywhere = index_of(*(make_tool("fs", f"read{number}", f"read file {number}") for number in range(12)))

    assert len(find(words_everywhere, "read file 3", embedder=WithoutModel()).tools) == 8
