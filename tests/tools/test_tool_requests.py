"""Requests of clients that fill in every argument, or write a list's only element without the list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from pydantic import ValidationError

from query.answers.budget import PagedRequest, ToolRequest
from query.calling.call import CallRequest
from query.digest import MAX_TOKENS
from query.mcp import service_of
from query.search.request import FindRequest
from query.tools.describe_tool import DescribeRequest
from query.tools.get_active_toolset import ToolsetRequest
from query.tools.get_savings_report import SavingsRequest
from query.tools.list_available_tools import ListRequest
from query.tools.registry import builtin_definitions
from shared.catalog import DEFAULT_ENCODING
from shared.quoting import quoted_name
from shared.text.tokens import counter, json_text
from shared.validation import first_invalid_argument
from tests.support.calling import catalogue_of, text_of, upstreams_to
from tests.support.fakes import make_tool

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

EMPTY: st.SearchStrategy[Any] = st.sampled_from([None, "", [], {}])
NAMES = st.lists(st.sampled_from(["time", "git"]), min_size=1, max_size=2)
GIVEN: dict[str, st.SearchStrategy[Any]] = {
    "limit": st.integers(1, 50),
    "servers": NAMES,
    "groups": NAMES,
    "exclude": NAMES,
    "encoding": st.just("o200k_base"),
    "max_tokens": st.integers(200, 900),
    "cursor": st.text("ab", min_size=1),
    "period": st.just("7d"),
    "server_name": st.just("time"),
    "parameters": st.just({"at": None}),
}
REQUIRED: dict[type[ToolRequest], dict[str, Any]] = {
    FindRequest: {"tool_description": "tell the time"},
    DescribeRequest: {"names": ["time:now"]},
    CallRequest: {"tool_name": "now"},
    ListRequest: {},
    ToolsetRequest: {},
    SavingsRequest: {},
    PagedRequest: {},
}
SMALLEST = {
    "find_tool": {"tool_description": "tell the time"},
    "describe_tool": {"names": "time:now"},
    "call_tool": {"tool_name": "time:later"},
    "list_available_tools": {},
    "get_active_toolset": {},
}


@given(st.sampled_from(list(REQUIRED)), st.data())
def test_an_empty_optional_argument_counts_as_absent(model: type[ToolRequest], data: st.DataObject) -> None:
    optional = sorted(model.model_fields.keys() - REQUIRED[model].keys())
    given_names = data.draw(st.sets(st.sampled_from(optional))) & GIVEN.keys()
    arguments = REQUIRED[model] | {name: data.draw(GIVEN[name]) for name in sorted(given_names)}
    filled = {name: data.draw(EMPTY) for name in optional if name not in given_names}

    assert model.model_validate(arguments | filled) == model.model_validate(arguments)


@both_eras
@pytest.mark.parametrize("empty", [None, "", [], {}], ids=repr)
@pytest.mark.parametrize("name", SMALLEST)
async def test_a_client_that_fills_in_every_argument_gets_the_same_answer(name: str, empty: object, mode: str) -> None:
    upstreams = upstreams_to({})
    async with Client(service_of(catalogue_of([make_tool("time", "now")]), upstreams), mode=mode) as client:
        tool = {tool.name: tool for tool in (await client.list_tools()).tools}[name]
        optional = tool.input_schema["properties"].keys() - SMALLEST[name].keys()
        absent = await client.call_tool(name, SMALLEST[name])
        filled = await client.call_tool(name, SMALLEST[name] | dict.fromkeys(optional, empty))

    assert filled == absent


@pytest.mark.parametrize("model", [FindRequest, ListRequest])
def test_a_text_is_a_list_of_one_name(model: type[ToolRequest]) -> None:
    listed = model.model_validate(REQUIRED[model] | {"servers": ["time"], "groups": ["a"]})

    assert model.model_validate(REQUIRED[model] | {"servers": "time", "groups": "a"}) == listed


def test_empty_aliases_of_a_call_count_as_absent() -> None:
    request = CallRequest.model_validate({"tool_name": "now", "name": "", "args": None, "arguments": {"at": 1}})

    assert (request.tool_name, request.parameters) == ("now", {"at": 1})


@both_eras
@pytest.mark.parametrize(
    ("name", "arguments", "limit"),
    [
        ("find_tool", {"tool_description": ["step"] * 21}, "tool_description: expected 20 or fewer elements"),
        (
            "find_tool",
            {"tool_description": "x", "tool_keywords": ["word"] * 51},
            "tool_keywords: expected 50 or fewer elements",
        ),
        ("list_available_tools", {"servers": ["s"] * 201}, "servers: expected 200 or fewer elements"),
    ],
)
async def test_a_list_that_is_too_long_is_rejected_with_its_limit(
    name: str, arguments: dict[str, Any], limit: str, mode: str
) -> None:
    async with Client(service_of(catalogue_of([make_tool("time", "now")])), mode=mode) as client:
        result = await client.call_tool(name, arguments)

    assert result.is_error
    assert text_of(result).startswith(limit)


def test_the_schemas_name_no_limits_and_nothing_that_few_agents_need() -> None:
    text = json_text([tool.for_model() for tool in builtin_definitions()])

    assert not [word for word in ("maxItems", "minimum", "encoding", "max_tokens") if word in text]
    assert counter(DEFAULT_ENCODING)(text) + MAX_TOKENS <= 970


def refusal(model: type[ToolRequest], **arguments: object) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(REQUIRED[model] | arguments)
    return first_invalid_argument(caught.value)


@pytest.mark.parametrize(
    ("model", "given_name", "meant"),
    [
        (FindRequest, "colour", None),
        (FindRequest, "querry", "query"),
        (FindRequest, "taks", "task"),
        (FindRequest, "max_result", "max_results"),
        (FindRequest, "server", "servers"),
        (FindRequest, "readOnly", "read_only"),
        (FindRequest, "keywords", "tool_keywords"),
        (DescribeRequest, "name", "names"),
        (ListRequest, "details", "detail"),
        (SavingsRequest, "Period", "period"),
        (CallRequest, "server", "server_name"),
        (CallRequest, "sever_name", "server_name"),
        (CallRequest, "params", "parameters"),
    ],
)
def test_an_unknown_argument_is_named_with_the_one_that_was_meant(
    model: type[ToolRequest], given_name: str, meant: str | None
) -> None:
    reason = refusal(model, **{given_name: "x"})

    assert reason.startswith(f"{given_name}: ")
    assert (f"did you mean {meant}?" in reason) == bool(meant)
    assert meant or all(name in reason for name in ("tool_description", "limit"))
    assert not [name for name in ("encoding", "max_tokens") if name in reason]


@pytest.mark.parametrize(
    "name", ["timezone", "path", "q", "\u5730\u65b9", "name", "names", "tool_args", "tool", "username", "server_id"]
)
def test_an_argument_of_the_called_tool_beside_parameters_belongs_into_them(name: str) -> None:
    reason = refusal(CallRequest, **{name: "UTC"})

    assert reason.startswith(quoted_name(name))
    assert "`parameters`" in reason
    assert "?" not in reason


def test_a_call_without_a_tool_names_the_argument_that_was_meant() -> None:
    with pytest.raises(ValidationError) as caught:
        CallRequest.model_validate({"tool": "time:now"})

    assert "did you mean tool_name?" in first_invalid_argument(caught.value)


@pytest.mark.parametrize("name", ["query", "task", "description"])
def test_a_search_may_be_called_otherwise(name: str) -> None:
    assert FindRequest.model_validate({name: "tell the time"}).steps == ["tell the time"]
    assert FindRequest.model_validate({name: ["a", "b"], "limit": 3}).steps == ["a", "b"]


@pytest.mark.parametrize("name", ["max_results", "top_k"])
def test_the_most_tools_of_a_search_may_be_called_otherwise(name: str) -> None:
    assert FindRequest.model_validate({"query": "tell the time", name: 3}).limit == 3


@given(st.sampled_from([FindRequest, CallRequest]), EMPTY, st.booleans())
def test_an_empty_argument_gives_way_to_another_name_of_it(
    model: type[ToolRequest], empty: object, comes_first: bool
) -> None:
    for alias, name in model.aliases.items():
        value = (REQUIRED[model] | {"limit": 3, "parameters": {"at": 1}})[name]
        others = {key: each for key, each in REQUIRED[model].items() if key != name}
        for full, filled in ((alias, name), (name, alias)):
            pair = [(full, value), (filled, empty)]
            arguments = others | dict(reversed(pair) if comes_first else pair)

            assert model.model_validate(arguments) == model.model_validate(others | {name: value})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": 1', "line 1, column 8"),
        ('{"a": 1,}', "line 1, column 9"),
        ("{a: 1}", "line 1, column 2"),
        ('{"a":\n\n tru}', "line 3, column 2"),
        ("Berlin", "line 1, column 1"),
    ],
)
def test_broken_json_of_parameters_is_refused_with_the_place_where_it_breaks(text: str, where: str) -> None:
    reason = refusal(CallRequest, parameters=text)

    assert reason.startswith("parameters: ")
    assert where in reason
