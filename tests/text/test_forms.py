"""The model form of a definition, and the tokens of its fields, which add up to those of the form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import ToolDefinition, ToolFeatures
from shared.errors import CountFailed
from shared.text.tokens import (
    DESCRIPTION,
    NAME,
    Counter,
    Field,
    Profile,
    count_forms,
    counter,
    counters,
    estimate,
    estimate_tool,
    indexed_tool,
    json_text,
    model_text,
    parameters_of,
    tokens_by_field,
)

WIRE = {
    "title": "Read",
    "name": "read_file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "description": "Reads a file",
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "_meta": {"vendor": 1},
}
DEFINITION = ToolDefinition.from_wire(json_text(WIRE))


def test_a_model_receives_name_schema_and_description_in_the_servers_order() -> None:
    assert list(json.loads(model_text(DEFINITION))) == ["name", "inputSchema", "description"]


@pytest.mark.parametrize(
    ("profile", "shape"),
    [
        ("generic", {"name": 1, "description": 2, "inputSchema": 3}),
        ("anthropic", {"name": 1, "description": 2, "input_schema": 3}),
        ("openai", {"type": "function", "function": {"name": 1, "description": 2, "parameters": 3}}),
    ],
)
def test_a_profile_has_the_shape_of_its_api(profile: Profile, shape: dict[str, object]) -> None:
    definition = ToolDefinition.from_wire('{"name":"t","description":2,"inputSchema":3}')

    assert json.loads(model_text(definition, profile)) == json.loads(
        json.dumps(shape).replace('"name": 1', '"name": "t"')
    )


def test_the_estimate_reads_the_qualified_name_the_description_and_the_schema() -> None:
    schema = json_text(WIRE["inputSchema"])

    assert estimate_tool("files", DEFINITION) == estimate(f"files:read_file Reads a file {schema}")


def test_an_encoding_that_fails_for_one_form_counts_neither() -> None:
    def fails_on_the_model_form(text: str) -> int:
        if "outputSchema" not in text:
            raise CountFailed("no count")
        return 1

    broken: dict[str, Counter] = {"cl100k_base": fails_on_the_model_form, "o200k_base": estimate}

    wire, model = count_forms(DEFINITION, broken)  # type: ignore[arg-type]

    assert wire.keys() == model.keys() == {"o200k_base"}


@given(st.dictionaries(st.sampled_from(sorted(WIRE)), st.text(max_size=20)))
def test_the_model_form_costs_no_more_than_the_wire_form(fields: dict[str, str]) -> None:
    definition = ToolDefinition.from_wire(json_text({**fields, "name": "t"}))

    wire, model = count_forms(definition, counters())

    assert all(model[encoding] <= wire[encoding] for encoding in wire)


def test_an_indexed_tool_has_one_estimate_for_both_forms() -> None:
    features = ToolFeatures({"cl100k_base": 9}, {"cl100k_base": 5}, None, DEFINITION.wire)  # type: ignore[arg-type]

    tool = indexed_tool("files", DEFINITION, "0" * 32, features)

    estimated = estimate_tool("files", DEFINITION)
    assert tool.token_counts == {"cl100k_base": 9, "heuristic": estimated}
    assert tool.model_counts == {"cl100k_base": 5, "heuristic": estimated}


# --- the tokens of each field ---

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
