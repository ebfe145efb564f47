from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent, Tool

from query.answers.answer import summary
from query.answers.budget import ResponsePolicy, counting
from query.caller import Caller
from query.calling.call import CALL_TOOL_NAME
from query.catalogue import Catalogue
from query.find import FURTHER_LOST
from query.kept import Kept
from query.mcp import build_server
from query.records import Ledger
from query.tool import CURSOR_STORE_UNAVAILABLE, Paging, ToolCallContext, ToolHandler
from query.tools.registry import builtin_tools
from shared.catalog import IndexedTool, ToolDefinition
from shared.text.tokens import json_text
from tests.support.fakes import FakeEmbedder, make_tool
from tests.support.filled import index_of
from tests.support.silent_entries import SilentEntries

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
COUNT = counting("cl100k_base")
LONG = " ".join(f"word{number}" for number in range(3_000))
INTEGERS = {"type": "array", "items": {"type": "integer"}}
QUESTION = {"tool_description": "read a file"}


def catalogue_of(*tools: IndexedTool, policy: ResponsePolicy | None = None) -> Catalogue:
    index, policy = index_of(*tools), policy or ResponsePolicy()
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1, response_policy=policy)


def fleet(size: int = 20, words: int = 5, tokens: int = 60) -> list[IndexedTool]:
    return [make_tool("files", f"read_{number}", "Read a file. " + "Well. " * words, tokens) for number in range(size)]


class Upstream(ToolHandler):
    """A tool with the result of another server; `calls` has the arguments of each call."""

    permission = "tools:call"

    def __init__(self, text: str, name: str = CALL_TOOL_NAME, paging: Paging = "kept") -> None:
        self.tool = Tool(name=name, input_schema={"type": "object"})
        self.paging, self.sort_key = paging, name
        self.calls: list[dict[str, Any]] = []
        self._text = text

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the text."""
        self.calls.append(context.arguments)
        return CallToolResult(content=[TextContent(type="text", text=self._text)])


@asynccontextmanager
async def client_of(
    offered: Sequence[ToolHandler], mode: str = "auto", policy: ResponsePolicy | None = None, caller: str = "anyone"
) -> AsyncGenerator[Client]:
    server = build_server(offered, lambda _: Caller(caller), policy)
    async with Client(server, mode=mode) as client:
        yield client


async def find(client: Client, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool("find_tool", {**QUESTION, **arguments})
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert json.loads(content.text) == answer
    return answer


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


# --- find_tool ---


@both_eras
async def test_the_cursor_leads_to_the_tools_after_the_first_eight(mode: str) -> None:
    async with client_of(builtin_tools(catalogue_of(*fleet(20))), mode) as client:
        first = await find(client)
        second = await find(client, cursor=first["nextCursor"])
        third = await find(client, cursor=second["nextCursor"])

    pages = [[tool["name"] for tool in page["tools"]] for page in (first, second, third)]
    assert [len(page) for page in pages] == [8, 8, 4]
    assert len({name for page in pages for name in page}) == 20
    assert "nextCursor" not in third


async def test_definitions_that_do_not_fit_become_summaries_and_the_answer_and_the_log_say_so() -> None:
    tools = fleet(8, words=2_000, tokens=2_000)
    async with client_of(builtin_tools(catalogue_of(*tools))) as client:
        with structlog.testing.capture_logs() as lines:
            answer = await find(client)

    assert [set(tool) for tool in answer["tools"]] == [{"name", "token_count", "summary"}] * 8
    assert answer["tools"][0]["summary"].endswith("(): Read a file.")
    assert answer["warnings"] == ["Summaries, to stay within 5000 tokens; describe_tool has the definitions."]
    assert answer["token_metrics"]["returned_tokens"] == sum(COUNT(tool["summary"]) for tool in answer["tools"])
    bounded = [line for line in lines if line["event"] == "response_truncated"]
    assert [(line["tool"], line["form"], line["max_tokens"]) for line in bounded] == [("find_tool", "summary", 5_000)]


async def test_the_caller_chooses_the_form() -> None:
    async with client_of(builtin_tools(catalogue_of(*fleet(12)))) as client:
        for detail, field in (("detailed", "inputSchema"), ("full", "definition"), ("summary", "summary")):
            answer = await find(client, detail=detail)
            assert all({"inputSchema", "definition", "summary"} & tool.keys() == {field} for tool in answer["tools"])
            assert "warnings" not in answer


async def test_detailed_answers_keep_definitions_and_give_fewer_at_a_time() -> None:
    async with client_of(builtin_tools(catalogue_of(*fleet(8, words=200, tokens=400)))) as client:
        answer = await find(client, detail="detailed", max_tokens=1_000)

    assert 0 < len(answer["tools"]) < 8
    assert all("inputSchema" in tool for tool in answer["tools"])
    assert answer["warnings"] == [f"Only {len(answer['tools'])} of 8 tools, to stay within 1000 tokens."]
    assert answer["nextCursor"]


async def test_the_operator_s_limit_holds_whatever_the_caller_asks_for() -> None:
    answers = ResponsePolicy(max_tokens=300)
    async with client_of(builtin_tools(catalogue_of(*fleet(), policy=answers)), policy=answers) as client:
        answer = await find(client, max_tokens=100_000)

    assert COUNT(json.dumps(answer, separators=(",", ":"))) <= 300


@pytest.mark.parametrize(("detail", "shown"), [("detailed", 8), ("full", 2), ("auto", 8)])
async def test_definitions_fit_by_the_tokens_of_the_form_that_is_shown(detail: str, shown: int) -> None:
    tools = [make_tool("files", f"read_{number}", "Read a file.", 2_000, model_tokens=30) for number in range(8)]
    async with client_of(builtin_tools(catalogue_of(*tools))) as client:
        answer = await find(client, detail=detail)

    assert len(answer["tools"]) == shown
    assert all(("definition" if detail == "full" else "inputSchema") in tool for tool in answer["tools"])


async def test_counts_in_the_encoding_that_the_caller_asks_for() -> None:
    tool = make_tool("files", "read", tokens={"cl100k_base": 10, "o200k_base": 20, "heuristic": 30})
    async with client_of(builtin_tools(catalogue_of(tool))) as client:
        metrics = {
            encoding: (await find(client, detail="detailed", encoding=encoding))["token_metrics"]
            for encoding in ("cl100k_base", "o200k_base", "heuristic")
        }

    assert [metric["returned_tokens"] for metric in metrics.values()] == [10, 20, 30]
    assert [metric.get("encoding") for metric in metrics.values()] == [None, "o200k_base", "heuristic"]
    assert [metric.get("estimated") for metric in metrics.values()] == [None, None, True]


async def test_a_name_that_no_budget_holds_is_an_error_that_says_what_to_do() -> None:
    tool = make_tool("s" + "\u6f22" * 100, "\u5b57" * 128)
    async with client_of(builtin_tools(catalogue_of(tool))) as client:
        result = await client.call_tool("find_tool", {**QUESTION, "max_tokens": 200})

    assert result.is_error
    assert texts(result)[0].startswith("max_tokens: 200 are too few")


async def test_where_nothing_fits_the_nearest_names_are_within_the_budget() -> None:
    tools = [make_tool("oven", f"{number}_{'x' * 60}", "bake bread") for number in range(50)]
    catalogue = catalogue_of(*tools)
    strict = Catalogue(catalogue.index, catalogue.embedder, catalogue.ledger, no_match_threshold=1.0)
    async with client_of(builtin_tools(strict)) as client:
        answer = await find(client, limit=50, max_tokens=300)

    assert answer["no_match"] is True
    assert 0 < len(answer["nearest"]) < 50
    assert COUNT(json.dumps(answer, separators=(",", ":"))) <= 300


# --- cursors ---


@both_eras
@pytest.mark.parametrize("changed", [{"tool_description": "send mail"}, {"groups": ["dev"]}, {"read_only": True}])
async def test_a_cursor_of_another_question_is_refused_by_the_protocol(mode: str, changed: dict[str, Any]) -> None:
    async with client_of(builtin_tools(catalogue_of(*fleet())), mode) as client:
        cursor = (await find(client))["nextCursor"]
        with pytest.raises(MCPError) as refused:
            await find(client, **{"cursor": cursor, **changed})

    assert refused.value.error.code == INVALID_PARAMS
    assert refused.value.error.message.startswith("cursor: expected the nextCursor")


@pytest.mark.parametrize("cursor", [" ", "x", "\u00e9", "A" * 22, "A" * 76])
async def test_what_is_no_cursor_is_refused_by_every_tool_and_listing(cursor: str) -> None:
    upstream = Upstream(LONG)
    async with client_of([*builtin_tools(catalogue_of(*fleet())), upstream]) as client:
        for tool in ("find_tool", "describe_tool", CALL_TOOL_NAME):
            with pytest.raises(MCPError, match="cursor"):
                await client.call_tool(tool, {**QUESTION, "cursor": cursor})
        with pytest.raises(MCPError, match="cursor"):
            await client.list_tools(cursor=cursor)

    assert upstream.calls == []


# --- results that are kept ---


@both_eras
async def test_a_long_result_is_read_in_pages_and_called_for_once(mode: str) -> None:
    upstream = Upstream(LONG)
    read, pages = "", 0
    async with client_of([upstream], mode) as client:
        result = await client.call_tool(CALL_TOOL_NAME, {"parameters": {"path": "x"}, "max_tokens": 500})
        while len(texts(result)) > 1:
            text, notice = texts(result)
            assert COUNT(text) + COUNT(notice) <= 500
            read, pages = read + text, pages + 1
            result = await client.call_tool(
                CALL_TOOL_NAME, {"cursor": json.loads(notice)["nextCursor"], "max_tokens": 500}
            )
        read += texts(result)[0]

    assert read == LONG
    assert pages > 10
    assert upstream.calls == [{"parameters": {"path": "x"}}]


async def test_the_rest_of_another_server_s_tool_is_read_with_call_tool() -> None:
    foreign, calling = Upstream(LONG, "files__read", "foreign"), Upstream("unused")
    async with client_of([foreign, calling]) as client:
        first = await client.call_tool("files__read", {"max_tokens": 7, "cursor": "its own"})
        cursor = json.loads(texts(first)[-1])["nextCursor"]
        second = await client.call_tool(CALL_TOOL_NAME, {"cursor": cursor})

    assert foreign.calls == [{"max_tokens": 7, "cursor": "its own"}]
    assert LONG.startswith(texts(first)[0] + texts(second)[0])
    assert calling.calls == []


async def test_where_the_rest_cannot_be_kept_the_page_says_so() -> None:
    answers = ResponsePolicy(Kept(max_bytes=100))
    async with client_of([Upstream(LONG)], policy=answers) as client:
        text, notice = texts(await client.call_tool(CALL_TOOL_NAME))

    assert LONG.startswith(text)
    assert json.loads(notice) == {
        "warnings": ["This is not all, and the rest could not be kept: ask for less at once."]
    }


async def test_while_the_store_is_down_tools_are_found_and_the_answer_says_that_there_are_more() -> None:
    entries = SilentEntries()
    policy = ResponsePolicy(Kept(entries))
    async with client_of(builtin_tools(catalogue_of(*fleet(20), policy=policy)), policy=policy) as client:
        while_down = await find(client)
        entries.is_down = False
        again = await find(client)

    assert len(while_down["tools"]) == 8
    assert (while_down.get("nextCursor"), while_down["warnings"]) == (None, [FURTHER_LOST])
    assert while_down["token_metrics"]["answer_tokens"] == COUNT(json_text(while_down))
    assert (again["tools"], bool(again["nextCursor"]), again.get("warnings")) == (while_down["tools"], True, None)


async def test_while_the_store_is_down_tools_that_need_a_cursor_are_errors_that_say_so() -> None:
    entries = SilentEntries()
    policy = ResponsePolicy(Kept(entries))
    others = [Upstream("", f"files__{number:03}", "foreign") for number in range(500)]
    offered = [*others, *builtin_tools(catalogue_of(*fleet(20), policy=policy))]
    async with client_of(offered, policy=policy) as client:
        with pytest.raises(MCPError, match=CURSOR_STORE_UNAVAILABLE):
            await client.list_tools()
        entries.is_down = False
        cursor = (await find(client))["nextCursor"]
        entries.is_down = True
        refused = await client.call_tool("find_tool", {**QUESTION, "cursor": cursor})
        entries.is_down = False
        found = await find(client, cursor=cursor)

    assert (refused.is_error, texts(refused)) == (True, [CURSOR_STORE_UNAVAILABLE])
    assert len(found["tools"]) == 8


@pytest.mark.parametrize("arguments", [{"max_tokens": 199}, {"max_tokens": "many"}, {"cursor": 7}])
async def test_a_wrong_bound_is_refused_by_name_and_nothing_is_called(arguments: dict[str, Any]) -> None:
    upstream = Upstream(LONG)
    async with client_of([upstream]) as client:
        result = await client.call_tool(CALL_TOOL_NAME, arguments)

    assert result.is_error
    assert texts(result)[0].startswith(f"{next(iter(arguments))}: ")
    assert upstream.calls == []


# --- tools/list ---


@both_eras
async def test_our_tools_are_listed_first_and_others_follow_in_pages(mode: str) -> None:
    others = [Upstream("", f"files__{number:03}", "foreign") for number in range(200)]
    names: list[str] = []
    async with client_of([*others, *builtin_tools(catalogue_of())], mode) as client:
        listed = await client.list_tools()
        while True:
            names += [tool.name for tool in listed.tools]
            if listed.next_cursor is None:
                break
            listed = await client.list_tools(cursor=listed.next_cursor)

    ours = [offer.tool.name for offer in builtin_tools(catalogue_of())]
    assert names == [*ours, *(offer.tool.name for offer in others)]


async def test_a_tool_whose_rest_is_kept_declares_how_to_read_it() -> None:
    async with client_of(builtin_tools(catalogue_of())) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert "cursor" in listed["describe_tool"].input_schema["properties"]
    assert listed["describe_tool"].output_schema is None
    assert listed["find_tool"].output_schema is not None


# --- summaries ---


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, "t()"),
        ({"description": "Do it. Then more."}, "t(): Do it."),
        ({"description": "Line one\nstill one\n\nPart two"}, "t(): Line one still one"),
        ({"description": "\u8aad\u3080\u3002\u66f8\u304f\u3002"}, "t(): \u8aad\u3080\u3002"),
        ({"inputSchema": {"properties": {"a": {"type": "string"}}}}, "t(a: str = ...)"),
        ({"inputSchema": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}, "t(a: str)"),
        ({"inputSchema": {"properties": {"a": INTEGERS, "b": {}}, "required": ["a"]}}, "t(a: list[int], b: Any = ...)"),
        ({"inputSchema": {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}}, "t(a: str | None)"),
        ({"inputSchema": {"properties": {"a": {"anyOf": []}}, "required": ["a", 7, "b"]}}, "t(a: Any, b: Any)"),
        ({"inputSchema": {"properties": [], "required": "a"}}, "t()"),
    ],
)  # fmt: skip
def test_a_summary_is_a_signature_and_a_sentence(declared: dict[str, Any], expected: str) -> None:
    assert summary(ToolDefinition.from_wire(json.dumps({"name": "t", **declared}))) == expected


def test_a_summary_stays_short_whatever_a_server_declares() -> None:
    schema: dict[str, Any] = {"properties": {}, "required": ["p" * 500 + str(number) for number in range(500)]}
    wire = json.dumps({"name": "t", "description": "word " * 100_000, "inputSchema": schema})

    assert len(summary(ToolDefinition.from_wire(wire))) < 1_200
