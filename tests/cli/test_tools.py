from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ToolNotFound
from toolscale.commands.tools import arguments_of, description, lines

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=8,
)


def tool(**properties: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": properties}}


@given(json_values)
def test_a_value_as_json_arrives_unchanged_where_the_parameter_is_no_text(value: object) -> None:
    assert arguments_of(tool(x={"type": "object"}), [("x", json.dumps(value))]) == {"x": value}


@given(st.text() | json_values.map(json.dumps))
def test_a_text_arrives_unchanged_where_the_parameter_may_be_a_text(text: str) -> None:
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    for schema in ({"type": "string"}, {"type": ["null", "string"]}, either):
        assert arguments_of(tool(x=schema), [("x", text)]) == {"x": text}


@pytest.mark.parametrize("schema", [None, [], "?", {"properties": 3}, {"properties": {"x": {"type": 7, "anyOf": 1}}}])
def test_a_broken_schema_does_not_prevent_a_call(schema: object) -> None:
    assert arguments_of({"inputSchema": schema}, [("x", "1"), ("y", "one")]) == {"x": 1, "y": "one"}


def test_an_unknown_tool_is_an_error_with_the_near_names() -> None:
    missing = {"tools": [], "not_found": [{"name": "now", "reason": "names several tools", "candidates": ["a:now"]}]}

    with pytest.raises(ToolNotFound, match="'now' names several tools: a:now"):
        description(missing, "now")


def test_each_kind_of_content_has_its_lines() -> None:
    result = {
        "content": [
            {"type": "text", "text": "one\ntwo"},
            {"type": "image", "data": "abcd", "mimeType": "image/png"},
            {"type": "audio", "data": "ab", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "a"}},
            {"type": "resource_link", "uri": "file:///b.txt", "name": "b"},
        ]
    }

    assert list(lines(result)) == [
        "one",
        "two",
        "[image image/png, 4 characters of base64]",
        "[audio audio/wav, 2 characters of base64]",
        "[resource file:///a.txt]",
        "[resource file:///b.txt]",
    ]
    assert list(lines({"content": [], "structuredContent": {"a": 1}})) == ["{", '  "a": 1', "}"]
