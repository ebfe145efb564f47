from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import Tool

from query.catalogue import Catalogue
from query.find import FIND_TOOL
from query.mcp import build_server
from query.records import Ledger
from query.tool import ALWAYS_LOADED, CATALOGUE_UNREACHABLE
from query.tools.describe_tool import DESCRIBE_TOOL
from query.tools.get_savings_report import GET_SAVINGS_REPORT
from query.tools.registry import builtin_tools
from shared.text.tokens import counter
from tests.support.calling import text_of
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@asynccontextmanager
async def client_of(index: FakeIndex, mode: str = "auto") -> AsyncGenerator[Client]:
    server = build_server(builtin_tools(Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)))
    async with Client(server, mode=mode) as client:
        yield client


def catalogue() -> FakeIndex:
    """Return two tools of 10 tokens each on one running server."""
    return index_of(
        make_tool("time", "get_current_time", "Tell the current time in a timezone", model_tokens=7),
        make_tool("time", "convert_time", "Convert a time between two timezones", model_tokens=7),
    )


@both_eras
async def test_the_closest_tool_comes_first_with_what_it_saved(mode: str) -> None:
    async with client_of(catalogue(), mode) as client:
        result = await client.call_tool("find_tool", {"tool_description": "current time in a timezone", "limit": 1})

    answer: dict[str, Any] = result.structured_content
    (tool,) = answer["tools"]
    tokens = counter("cl100k_base")(text_of(result))
    assert tool["name"] == "time:get_current_time"
    assert tool["inputSchema"] == {"type": "object"}
    assert answer["token_metrics"] == {
        "baseline_tokens": 20,
        "returned_tokens": 10,
        "tokens_saved": 10,
        "savings_percentage": 50.0,
        "answer_tokens": tokens,
        "net_tokens_saved": 14 - tokens,
    }


@both_eras
async def test_the_listed_tool_describes_each_parameter_and_its_answer(mode: str) -> None:
    async with client_of(catalogue(), mode) as client:
        tool = {tool.name: tool for tool in (await client.list_tools()).tools}["find_tool"]

    properties = tool.input_schema["properties"]
    assert list(properties) == [
        "tool_description",
        "tool_keywords",
        "limit",
        "servers",
        "groups",
        "read_only",
        "exclude",
        "detail",
        "cursor",
    ]
    assert all(field["description"] for field in properties.values())
    assert tool.input_schema["required"] == ["tool_description"]
    assert tool.output_schema is not None
    assert set(tool.output_schema["properties"]) == {
        "tools",
        "no_match",
        "nearest",
        "keywords_only",
        "token_metrics",
        "warnings",
        "nextCursor",
    }
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is True


async def test_the_output_schema_declares_the_bounds_of_the_metrics() -> None:
    async with client_of(catalogue()) as client:
        tool = {tool.name: tool for tool in (await client.list_tools()).tools}["find_tool"]

    assert tool.output_schema is not None
    metrics = tool.output_schema["$defs"]["TokenMetrics"]["properties"]
    bounds = {name: (field.get("minimum"), field.get("maximum")) for name, field in metrics.items()}
    assert bounds.pop("savings_percentage") == (0, 100)
    assert bounds.pop("net_tokens_saved") == (None, None)
    assert {name for name, found in bounds.items() if found == (0, None)} == {
        "baseline_tokens",
        "returned_tokens",
        "tokens_saved",
        "answer_tokens",
        "uncounted_total",
    }


@both_eras
async def test_every_tool_says_what_it_does_to_the_world_and_the_search_is_never_deferred(mode: str) -> None:
    async with client_of(catalogue(), mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert all(tool.annotations and tool.annotations.title for tool in tools.values())
    assert all(tool.annotations and tool.annotations.read_only_hint is not None for tool in tools.values())
    assert {name for name, tool in tools.items() if tool.meta == ALWAYS_LOADED} == {"find_tool", "describe_tool"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_instructions_name_the_tools_to_search_describe_and_call(mode: str) -> None:
    async with client_of(catalogue(), mode) as client:
        sentences = (client.instructions or "").split(". ")

    named = zip(sentences, ("find_tool", "describe_tool", "call_tool"), strict=True)
    assert all(name in sentence for sentence, name in named)


@pytest.mark.parametrize(("tool", "most"), [(FIND_TOOL, 370), (DESCRIBE_TOOL, 145), (GET_SAVINGS_REPORT, 200)])
def test_a_tool_costs_an_agent_few_tokens(tool: Tool, most: int) -> None:
    seen_by_a_model = tool.model_dump_json(by_alias=True, include={"name", "description", "input_schema"})

    assert counter("cl100k_base")(seen_by_a_model) < most


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "tool_description"),
        ({"tool_description": " "}, "tool_description"),
        ({"tool_description": "", "tool_keywords": [" "]}, "tool_description"),
        ({"tool_description": 7}, "tool_description"),
        ({"tool_description": "x" * 4_001}, "tool_description"),
        ({"tool_description": "time", "tool_keywords": [7]}, "tool_keywords"),
        ({"tool_description": "time", "limit": 0}, "limit"),
        ({"tool_description": "time", "limit": 51}, "limit"),
        ({"tool_description": "time", "keywords": "clock"}, "keywords"),
    ],
)
async def test_a_wrong_argument_is_refused_by_name_without_repeating_its_value(
    arguments: dict[str, Any], field: str
) -> None:
    async with client_of(catalogue()) as client:
        result = await client.call_tool("find_tool", arguments)

    assert result.is_error
    assert text_of(result).startswith(f"{field}: ")
    assert "xxx" not in text_of(result)


async def test_an_unreachable_catalogue_is_said_and_the_next_request_is_answered() -> None:
    index = catalogue()
    async with client_of(index) as client:
        index.is_down = True
        refused = await client.call_tool("find_tool", {"tool_description": "time"})
        index.is_down = False
        answered = await client.call_tool("find_tool", {"tool_description": "time"})

    assert refused.is_error
    assert text_of(refused) == CATALOGUE_UNREACHABLE
    assert not answered.is_error


async def test_another_tool_name_is_a_protocol_error() -> None:
    async with client_of(catalogue()) as client:
        with pytest.raises(MCPError, match="expected the tool find_tool"):
            await client.call_tool("find_tools", {})


async def test_one_log_line_tells_the_story_of_a_request_without_its_words() -> None:
    async with client_of(catalogue()) as client:
        with structlog.testing.capture_logs() as lines:
            await client.call_tool("find_tool", {"tool_description": "secret wish"})

    (line,) = lines
    assert (line["event"], line["hits"], line["baseline_tokens"], line["tokens_saved"]) == ("tools_found", 2, 20, 0)
    assert {"embed_ms", "search_ms", "sum_ms", "total_ms"} <= line.keys()
    assert "secret" not in repr(line)
