from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import ToolDefinition
from shared.errors import CountFailed
from shared.text.tokens import (
    Counter,
    Profile,
    count_forms,
    counters,
    estimate,
    estimate_tool,
    indexed_tool,
    json_text,
    model_text,
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
    from shared.catalog import ToolFeatures

    features = ToolFeatures({"cl100k_base": 9}, {"cl100k_base": 5}, None, DEFINITION.wire)  # type: ignore[arg-type]

    tool = indexed_tool("files", DEFINITION, "0" * 32, features)

    estimated = estimate_tool("files", DEFINITION)
    assert tool.token_counts == {"cl100k_base": 9, "heuristic": estimated}
    assert tool.model_counts == {"cl100k_base": 5, "heuristic": estimated}
