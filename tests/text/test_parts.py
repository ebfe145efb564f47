"""The tokens of a definition's fields add up to those of its form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import ToolDefinition
from shared.text.tokens import DESCRIPTION, NAME, Field, counter, json_text, model_text, parameters_of, tokens_by_field

COUNT = counter("cl100k_base")
TEXT = st.text(max_size=30) | st.sampled_from(['"', "a" * 300, " " * 260, '.","', "{}", "<|endoftext|>", "日本", "🙂"])
VALUES = st.none() | st.booleans() | TEXT | st.dictionaries(TEXT, TEXT, max_size=2)
SCHEMAS = VALUES | st.fixed_dictionaries(
    {}, optional={"type": st.just("object"), "properties": VALUES | st.dictionaries(TEXT, VALUES, max_size=5),
                  "required": st.lists(TEXT, max_size=2), "$defs": VALUES}
)  # fmt: skip
TOOLS = st.fixed_dictionaries(
    {"name": TEXT}, optional={"description": TEXT, "inputSchema": SCHEMAS, "title": TEXT, "outputSchema": VALUES}
)


def defined(tool: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition.from_wire(json_text(tool))


@given(TOOLS)
def test_the_fields_add_up_to_the_form(tool: dict[str, Any]) -> None:
    definition = defined(tool)

    tokens = tokens_by_field(definition.for_model(), "cl100k_base")

    assert sum(tokens.values()) == COUNT(model_text(definition))
    assert sum(tokens_by_field(definition.as_object(), "cl100k_base").values()) == COUNT(definition.wire)
    assert {field.name for field in tokens if field.is_parameter} == parameters_of(definition).keys()


def test_a_field_has_about_the_tokens_of_its_text_alone() -> None:
    path = {"type": "string", "description": "The file to read, below the root"}
    schema = {"type": "object", "properties": {"path": path, "limit": {"type": "integer"}}, "required": ["path"]}
    tool = {"name": "read_file", "description": "Reads a file", "inputSchema": schema}

    tokens = tokens_by_field(tool, "cl100k_base")

    alone = {
        NAME: '"name":"read_file"',
        DESCRIPTION: '"description":"Reads a file"',
        Field("path", is_parameter=True): f'"path":{json_text(path)}',
    }
    assert {field: tokens[field] for field in alone} == pytest.approx(
        {field: COUNT(text) for field, text in alone.items()}, abs=2
    )


def test_the_keys_of_a_parameter_a_field_and_the_rest_differ() -> None:
    assert [field.key for field in (Field("name", is_parameter=True), NAME, Field(""))] == [
        "parameter:name",
        "name",
        "rest",
    ]
