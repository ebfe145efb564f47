"""The signature of a tool: types of Python for a script, whatever a server declares."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.answers.signature import MAX_NAME_CHARACTERS, MAX_PARAMETERS, MAX_RESULT_CHARACTERS, signature
from shared.catalog import ToolDefinition

_WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "anyOf",
        "enum",
        "$ref",
        "$defs",
        "required",
        "object",
        "array",
        "string",
        "null",
        "a",
    ]
)
_schemas = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS | st.just("#/$defs/a"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)


def of(**declared: Any) -> str:
    return signature(ToolDefinition.from_wire(json.dumps({"name": "t", **declared})))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"a": str}'),
        ({"type": "object"}, "dict"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}},
            '{"a": int}',
        ),
        ({"type": "object", "properties": {"a": {"type": ["null", "boolean"]}}}, '{"a": bool | None}'),
        ({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}}, '{"a": Literal["x", "y"]}'),
    ],
)  # fmt: skip
def test_a_result_has_the_types_of_its_schema(output: dict[str, Any], expected: str) -> None:
    assert of(outputSchema=output) == f"t() -> {expected}"


def test_a_large_result_is_shown_with_fewer_levels() -> None:
    inner = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(8)}}
    schema = {"type": "object", "properties": {name: inner for name in "abcd"}}

    assert of(outputSchema=schema) == 't() -> {"a": dict, "b": dict, "c": dict, "d": dict}'


def test_a_schema_that_leads_back_to_itself_has_an_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}, "all": {"$ref": "#/$defs/L"}}}
    circular = {"N": node, "L": {"type": "array", "items": {"$ref": "#/$defs/L"}}, "S": {"$ref": "#/$defs/S"}}

    for name in circular:
        assert len(of(outputSchema={"$ref": f"#/$defs/{name}", "$defs": circular})) < MAX_RESULT_CHARACTERS + 20


@given(inputs=_schemas, outputs=_schemas, names=st.lists(st.text(max_size=100), max_size=20))
def test_a_signature_is_bounded_whatever_a_server_declares(inputs: Any, outputs: Any, names: list[str]) -> None:
    properties = {name: inputs for name in names}

    shown = of(
        inputSchema={"properties": properties, "required": names[:15], "$defs": {"a": inputs}}, outputSchema=outputs
    )

    assert shown.startswith("t(")
    assert len(shown) <= 20 + MAX_RESULT_CHARACTERS + (MAX_PARAMETERS + 1) * (MAX_NAME_CHARACTERS + 80)
