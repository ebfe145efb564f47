from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from query.calling.call import CallRequest
from query.tools.call_tool import CALL_TOOL
from shared.text.tokens import counter
from shared.validation import first_problem

ARGUMENTS = {"timezone": "UTC"}


@pytest.mark.parametrize(
    "given_as",
    [
        {"tool_name": "time:now", "parameters": ARGUMENTS},
        {"tool_name": "now", "server_name": "time", "parameters": ARGUMENTS},
        {"tool_name": "time:now", "server_name": "time", "parameters": ARGUMENTS},
        {"name": "time:now", "arguments": ARGUMENTS},
        {"name": "now", "server_name": "time", "args": ARGUMENTS},
        {"tool_name": "time:now", "parameters": '{"timezone": "UTC"}'},
        {"arguments": {"tool_name": "time:now", "parameters": ARGUMENTS}},
        {"parameters": '{"name": "time:now", "arguments": {"timezone": "UTC"}}'},
        {"server_name": "time", "arguments": {"tool_name": "now", "args": ARGUMENTS}},
        {"tool_name": "call_tool", "parameters": {"tool_name": "time:now", "parameters": ARGUMENTS}},
        {"args": {"args": {"name": "call_tool", "args": {"name": "time:now", "args": ARGUMENTS}}}},
    ],
)
def test_every_form_that_agents_use_means_the_same(given_as: dict[str, Any]) -> None:
    request = CallRequest.model_validate(given_as)

    assert (request.name, request.parameters) == ("time:now", ARGUMENTS)


@pytest.mark.parametrize("none", [{}, {"parameters": {}}, {"parameters": None}, {"args": ""}])
def test_a_tool_may_be_called_without_parameters(none: dict[str, Any]) -> None:
    assert CallRequest.model_validate({"tool_name": "time:now", **none}).parameters == {}


def test_parameters_that_look_like_a_request_are_left_to_a_tool_that_is_named() -> None:
    parameters = {"name": "bob", "arguments": {"tool_name": "x"}}

    request = CallRequest.model_validate({"tool_name": "people:add", "parameters": parameters})

    assert (request.name, request.parameters) == ("people:add", parameters)


def test_a_tool_named_like_ours_is_left_to_the_server_that_is_named() -> None:
    parameters: dict[str, Any] = {"tool_name": "x", "parameters": {}}

    request = CallRequest.model_validate({"tool_name": "call_tool", "server_name": "hub", "parameters": parameters})

    assert (request.name, request.parameters) == ("hub:call_tool", parameters)


@pytest.mark.parametrize(
    ("given_as", "field"),
    [
        ({}, "tool_name"),
        ({"parameters": {"timezone": "UTC"}}, "tool_name"),
        ({"tool_name": 7}, "tool_name"),
        ({"tool_name": "x" * 301}, "tool_name"),
        ({"tool_name": "t", "parameters": [1]}, "parameters"),
        ({"tool_name": "t", "parameters": "{broken"}, "parameters"),
        ({"tool_name": "t", "parameters": "[" * 100_000}, "parameters"),
        ({"tool_name": "t", "timezone": "UTC"}, "timezone"),
        ({"tool_name": "t", "name": "u"}, "name"),
        ({"tool_name": "t", "parameters": {"b": 1}, "args": {"a": 1}}, "args"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_field(given_as: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CallRequest.model_validate(given_as)

    assert first_problem(caught.value).startswith(f"{field}: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
WRAPPER = st.sampled_from(["parameters", "arguments", "args"])


@given(st.text(min_size=1, max_size=9), OBJECT, st.lists(WRAPPER, max_size=3), WRAPPER)
def test_however_it_is_wrapped_the_tool_gets_exactly_its_parameters(
    name: str, parameters: dict[str, Any], wrappers: list[str], key: str
) -> None:
    request: dict[str, Any] = {"tool_name": f"s:{name}", key: parameters}
    for wrapper in wrappers:
        request = {wrapper: request}

    assert CallRequest.model_validate(request).parameters == parameters


def test_clients_that_defer_tools_load_the_tool_always() -> None:
    assert CALL_TOOL.meta == {"anthropic/alwaysLoad": True}


def test_the_tool_costs_an_agent_few_tokens() -> None:
    seen_by_a_model = CALL_TOOL.model_dump_json(by_alias=True, include={"name", "description", "input_schema"})

    assert counter("cl100k_base")(seen_by_a_model) < 140
