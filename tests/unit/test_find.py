from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from query.find import FindAnswer, FindRequest, find_tool
from query.ledger import Ledger
from shared.catalog import Endpoint, IndexedTool, Scope, ServerRecord, Status, ToolDefinition
from shared.embedding import passage
from shared.errors import IndexUnavailable
from tests.fakes import FakeEmbedder, FakeIndex, embedded, make_tool


def index_of(*tools: IndexedTool, status: Status = "running", stale_since: float | None = None) -> FakeIndex:
    """Return an index of these tools, each server with the record that a finished ingestion leaves."""
    index, embedder = FakeIndex(), FakeEmbedder()
    vectors = embedder.passages([passage(tool.definition, tool.server_id) for tool in tools])
    index.upsert([embedded(tool, vector=vector) for tool, vector in zip(tools, vectors, strict=True)])
    for revision, server_id in enumerate(sorted({tool.server_id for tool in tools}), start=1):
        own = [tool for tool in tools if tool.server_id == server_id]
        tokens = sum(tool.token_counts.get("cl100k_base", 0) for tool in own)
        index.put_server(
            ServerRecord(
                server_id=server_id,
                endpoint=Endpoint(),
                groups=own[0].groups,
                status=status,
                tool_count=len(own),
                tokens={"cl100k_base": tokens},
                revision=revision,
                stale_since=stale_since,
            )
        )
    return index


def find(index: FakeIndex, description: str = "read a file", scope: Scope | None = None, **more: Any) -> FindAnswer:
    return find_tool(
        FindRequest(tool_description=description, **more),
        scope=scope or Scope(),
        index=index,
        embedder=FakeEmbedder(),
        ledger=Ledger(index),
        encoding="cl100k_base",
    )


def names(answer: FindAnswer) -> list[str]:
    return [tool.name for tool in answer.tools]


def test_the_closest_tools_come_first() -> None:
    index = index_of(make_tool("fs", "write", "write a file"), make_tool("fs", "read_file", "read a file"))

    answer = find(index)

    assert names(answer) == ["read_file", "write"]
    assert answer.tools[0].score > answer.tools[1].score


def test_eight_tools_are_returned_unless_the_caller_says_otherwise() -> None:
    index = index_of(*(make_tool("fs", f"t{i}") for i in range(20)))

    assert len(find(index).tools) == 8
    assert len(find(index, limit=3).tools) == 3


def test_keywords_join_the_query() -> None:
    index = index_of(make_tool("fs", "read"), make_tool("fs", "convert", "convert currencies"))

    assert names(find(index, "do it", tool_keywords=["convert", "currencies"], limit=1)) == ["convert"]
    assert names(find(index, "do it", tool_keywords="convert currencies", limit=1)) == ["convert"]


def test_search_and_baseline_see_the_same_scope() -> None:
    index = index_of(
        make_tool("fs", "read", tokens=10, groups=["dev"]),
        make_tool("fs", "write", tokens=10, groups=["dev"]),
        make_tool("mail", "send", tokens=1_000, groups=["office"]),
    )

    answer = find(index, scope=Scope(groups=frozenset({"dev"})), limit=1)

    assert answer.tools[0].server == "fs"
    assert answer.token_metrics.baseline_tokens == 20


def test_a_stopped_server_s_tools_are_neither_found_nor_counted() -> None:
    answer = find(index_of(make_tool(status="stopped", tokens=10), status="stopped"))

    assert answer.tools == []
    assert answer.token_metrics.baseline_tokens == 0
    assert answer.warnings == ["The catalogue holds no tools that you may see."]


def test_the_definition_is_what_the_server_declared_null_values_included() -> None:
    tool = make_tool("fs", "read")
    declared = {"name": "read", "inputSchema": {"properties": {"path": {"default": None}}}}
    tool = replace(tool, definition=ToolDefinition.from_wire(json.dumps(declared)))

    answer = find(index_of(tool)).as_object()

    assert answer["tools"][0]["definition"] == declared


def test_an_uncounted_tool_has_no_count_in_the_answer() -> None:
    answer = find(index_of(make_tool("fs", "read", tokens={}))).as_object()

    assert "token_count" not in answer["tools"][0]
    assert answer["token_metrics"]["uncounted"] == ["fs:read"]


def test_a_stale_server_s_tools_say_since_when_and_a_warning_names_it() -> None:
    answer = find(index_of(make_tool("fs", "read"), stale_since=1_700_000_000.7)).as_object()

    assert answer["tools"][0]["stale_since"] == "2023-11-14T22:13:20Z"
    assert answer["warnings"] == ["Tools of fs may be out of date: their servers did not answer."]


def test_a_fresh_server_s_tools_carry_no_staleness() -> None:
    answer = find(index_of(make_tool("fs", "read"))).as_object()

    assert "stale_since" not in answer["tools"][0]
    assert answer["warnings"] == []


def test_a_lone_surrogate_in_a_definition_does_not_make_the_answer_unsendable() -> None:
    tool = make_tool("fs", "read")
    tool = replace(tool, definition=ToolDefinition.from_wire(r'{"name": "read", "description": "a \ud800 b"}'))

    answer = find(index_of(tool))

    assert json.loads(answer.model_dump_json())["tools"][0]["definition"]["description"] == "a ? b"


def test_the_parts_of_the_time_are_known_to_the_caller_and_not_sent() -> None:
    answer = find(index_of(make_tool()))

    assert min(answer.timings.embed_ms, answer.timings.search_ms, answer.timings.sum_ms) > 0
    assert answer.as_object().keys() == {"tools", "token_metrics", "warnings"}


def test_an_unreachable_index_is_an_error_and_not_an_empty_answer() -> None:
    index = index_of(make_tool())
    index.is_down = True

    with pytest.raises(IndexUnavailable):
        find(index)
