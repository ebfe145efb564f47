"""A leaner definition accepts the same arguments as the original, and takes no more tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from shared.catalog import ToolDefinition
from shared.text.tokens import counter, json_text, model_text
from tests.support.profiles import examples
from toolscale.lint.leaner import leaner, shared_sentences

COUNT = counter("cl100k_base")
DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
NAMES = st.sampled_from(["a", "b", "title", "examples", "$defs", "$ref", "file_path", "enum"])
DEFINED = ("A", "B", "Unused")
REFERENCES = st.sampled_from(["#", *(f"#/{key}/{name}" for key in ("$defs", "definitions") for name in DEFINED)])
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "title", "File Path"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TITLES = st.sampled_from(["A", "File Path", "Title", "Something else", "fooArguments"])
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])


def schemas_within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas with every keyword that a removal touches, or that means different things in two dialects."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "title": TITLES,
            "examples": st.lists(VALUES, max_size=2),
            "example": VALUES,
            "default": VALUES,
            "enum": st.lists(VALUES, min_size=1, max_size=30),
            "const": VALUES,
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner | st.lists(inner, min_size=1, max_size=2),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "dependencies": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=1),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=1),
            "minimum": st.integers(-1, 1),
            "minLength": st.integers(0, 3),
            "contains": inner,
            "minContains": st.integers(0, 1),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "$ref": REFERENCES,
        },
    )


INNER = st.recursive(st.booleans() | schemas_within(st.booleans()), schemas_within, max_leaves=8)
ROOTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"properties": st.dictionaries(NAMES, INNER, max_size=4)},
    optional={
        "title": TITLES,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": INNER,
        "$schema": st.sampled_from([DRAFT_7, DRAFT_2020, "http://json-schema.org/draft-04/schema#"]),
        **dict.fromkeys(("$defs", "definitions"), st.fixed_dictionaries({}, optional=dict.fromkeys(DEFINED, INNER))),
    },
)


def defined(schema: object, description: str = "Reads a file") -> ToolDefinition:
    return ToolDefinition.from_wire(
        json_text({"name": "foo", "description": description, "inputSchema": schema, "outputSchema": {"title": "Out"}})
    )


def verdict(schema: Any, value: Any) -> bool | str:
    """Return whether a schema accepts a value, or the class of the error of a reference that leads nowhere."""
    try:
        return bool(validator_for(schema, default=Draft202012Validator)(schema).is_valid(value))
    except (Unresolvable, RecursionError) as error:
        return type(error).__name__


@settings(max_examples=examples(150))
@given(ROOTS, st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=12))
@example({"$schema": DRAFT_7, "properties": {"a": {"items": [{"type": "null"}]}}}, [{"a": [1]}])
@example({"$schema": DRAFT_7, "properties": {"a": {"$ref": "#/$defs/A", "enum": [1]}}, "$defs": {"A": {}}}, [{"a": 2}])
@example({"$schema": DRAFT_7, "properties": {"a": {"dependencies": {"a": ["b"]}}}}, [{"a": {"a": 1}}])
@example({"$schema": DRAFT_7, "properties": {"a": {"prefixItems": [False]}}}, [{"a": [1]}])
@example({"properties": {"a": {"enum": [{"examples": [1]}]}}}, [{"a": {"examples": [1]}}, {"a": {}}])
@example({"properties": {"a": {"const": {"examples": [1]}}}}, [{"a": {"examples": [1]}}, {"a": {}}])
@example(
    {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"type": "null"}},
    },
    [{"a": [1]}, {"a": [None]}],
)
def test_every_value_is_valid_against_both_or_neither(schema: dict[str, Any], values: list[dict[str, Any]]) -> None:
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError:
        assume(False)

    shorter = leaner(defined(schema), (), COUNT).definition.as_object()["inputSchema"]

    assert [verdict(shorter, value) for value in values] == [verdict(schema, value) for value in values]


@settings(max_examples=examples(50))
@given(ROOTS)
def test_the_savings_are_exact_and_a_second_time_saves_nothing(schema: dict[str, Any]) -> None:
    original = defined(schema)

    found = leaner(original, (), COUNT)

    after = COUNT(model_text(found.definition))
    assert (found.before, found.before - found.saved) == (COUNT(model_text(original)), after)
    assert all(tokens > 0 for tokens in found.removed.values())
    assert leaner(found.definition, (), COUNT).saved == 0
    kept = [{k: v for k, v in tool.as_object().items() if k != "inputSchema"} for tool in (original, found.definition)]
    assert kept[0] == kept[1]


SHARED = "Only works within allowed directories."


def shortened(*descriptions: str) -> list[str]:
    """Return the descriptions of a server's tools without the sentences that they share."""
    tools = [defined({"type": "object"}, description) for description in descriptions]
    shorter = [leaner(tool, shared_sentences(tools), COUNT).definition for tool in tools]
    assert [tool.description for tool in shorter] == [tool.as_object()["description"] for tool in shorter]
    return [tool.description for tool in shorter]


def test_a_sentence_of_three_tools_is_removed_and_all_else_stays() -> None:
    third = f"Is  it there?\n{SHARED}\n\nArgs:\n {SHARED}"

    shorter = shortened(f"Reads  it. {SHARED}", f"{SHARED} Writes  it.", third)

    assert shorter == ["Reads  it.", "Writes  it.", f"Is  it there?\n\nArgs:\n {SHARED}"]


@pytest.mark.parametrize(
    "descriptions",
    [
        [f"Reads. {SHARED}", f"Writes. {SHARED}", "Lists."],
        [SHARED, SHARED, SHARED],
        ["Reads. Try it now.", "Writes. Try it now.", "Lists. Try it now."],
        ["Reads. Only works within", "Writes. Only works within", "Lists. Only works within"],
        [f"Args:\n{SHARED}", f"Args:\n{SHARED}", f"Returns:\n{SHARED}"],
        [f"- `path` (str): {SHARED}", f"path: {SHARED}", f"* path: {SHARED}"],
        [f"Here {SHARED}", f"Here {SHARED}", SHARED],
        [f"{text}\n- one item e.g. this and no other thing." for text in ("Reads.", "Writes.")]
        + ["Lists.\n- two items e.g. this and no other thing."],
        [f"{text}, e.g. Only the files of this root." for text in ("Reads", "Writes", "Lists")],
        [f"{text}, i.e. Only the files of this root." for text in ("Reads", "Writes", "Lists")],
        [f"{text}, etc. Only the files of this root." for text in ("Reads", "Writes", "Lists")],
        [f"Takes {text} vs. only the files of this root." for text in ("files", "names", "sizes")],
    ],
)
def test_rare_sole_short_and_documenting_sentences_stay(descriptions: list[str]) -> None:
    assert shortened(*descriptions) == descriptions


@pytest.mark.parametrize(
    ("title", "is_removed"),
    [
        ("foo", True),
        ("Foo", True),
        ("fooArguments", True),
        ("Foo Args", True),
        ("FooInputSchema", True),
        ("foo_request", True),
        ("Arguments of the search of flights", False),
        ("Food", False),
        ("Foo of the bar", False),
        ("Arguments", False),
    ],
)
def test_a_title_of_all_arguments_is_removed_only_if_it_repeats_the_name_of_the_tool(
    title: str, *, is_removed: bool
) -> None:
    shorter = leaner(defined({"title": title, "type": "object"}), (), COUNT).definition.as_object()["inputSchema"]

    assert shorter == {"type": "object"} | ({} if is_removed else {"title": title})


def test_each_kind_of_removal_is_counted() -> None:
    schema: dict[str, Any] = {
        "$schema": DRAFT_7,
        "title": "fooArguments",
        "type": "object",
        "properties": {
            "file_path": {"title": "File Path", "type": "string", "examples": ["/tmp/a", "/tmp/b"]},
            "zone": {"enum": [f"zone-{number}" for number in range(21)]},
            "mode": {"title": "How to open", "$ref": "#/definitions/Mode"},
        },
        "definitions": {"Mode": {"type": "string"}, "Other": {"type": "object", "properties": {"x": {}}}},
    }
    texts = ["Reads a file", "Writes a file", "Lists files"]
    tools = [defined(schema, f"{text}. Only works within allowed directories.") for text in texts]

    found = leaner(tools[0], shared_sentences(tools), COUNT)

    assert found.removed.keys() == {"dialect", "titles", "definitions", "examples", "sentences"}
    assert found.enums > 40
    shorter = found.definition.as_object()
    assert shorter["description"] == "Reads a file."
    assert shorter["inputSchema"] == {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "zone": schema["properties"]["zone"],
            "mode": {"title": "How to open", "$ref": "#/definitions/Mode"},
        },
        "definitions": {"Mode": {"type": "string"}},
    }


def test_a_schema_with_addresses_of_its_own_stays_as_it_is() -> None:
    for extra in ({"$id": "urn:x"}, {"properties": {"b": {"$ref": "#/properties/a/examples/0"}}}, {"$anchor": "a"}):
        schema: dict[str, Any] = {"title": "T", "$defs": {"Unused": {"title": "Unused"}}, **extra}

        assert leaner(defined(schema), (), COUNT).saved == 0
