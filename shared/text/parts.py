"""The tokens of a definition by field: name, description, each parameter, and the other fields of its form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shared.text.forms import json_text
from shared.text.tokens import count_parts

if TYPE_CHECKING:
    from shared.catalog import Encoding, ToolDefinition


class Field(NamedTuple):
    """A field of a definition, or a parameter; `inputSchema` is the schema without its parameters."""

    name: str
    is_parameter: bool = False

    @property
    def key(self) -> str:
        """Return the field's key in JSON: its name, `parameter:NAME`, or `rest`."""
        return f"parameter:{self.name}" if self.is_parameter else self.name or "rest"


NAME, DESCRIPTION, SCHEMA = Field("name"), Field("description"), Field("inputSchema")
REST = Field("")
"""The braces and commas around the fields."""


def tokens_by_field(tool: Mapping[str, Any], encoding: Encoding) -> Mapping[Field, int]:
    """Return the tokens of each field and of the REST, in the order of the fields; `tool` is one of the forms.

    A token counts for the field in which it begins, so the sum is exactly the count of the form's JSON.

    Raises:
        AssetInvalid: the vocabulary is missing or is not the file that tiktoken expects.
        CountFailed: tiktoken failed.
    """
    pieces = list(_pieces(tool))
    tokens: Counter[Field] = Counter()
    for (field, _), count in zip(pieces, count_parts([text for _, text in pieces], encoding), strict=True):
        tokens[field] += count
    return tokens


def parameters_of(definition: ToolDefinition) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name; a schema may be a value of any type."""
    schema = definition.for_model().get("inputSchema")
    properties = cast("dict[str, Any]", schema).get("properties") if isinstance(schema, dict) else None
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def _pieces(tool: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    """Yield the compact JSON of a tool in pieces, each with its field."""
    yield REST, "{"
    for number, (key, value) in enumerate(tool.items()):
        yield REST, "," if number else ""
        if key == SCHEMA.name and isinstance(value, dict):
            yield from _schema_pieces(cast("dict[str, Any]", value))
        else:
            yield Field(key), _member(key, value)
    yield REST, "}"


def _schema_pieces(schema: Mapping[str, Any]) -> Iterator[tuple[Field, str]]:
    yield SCHEMA, f'"{SCHEMA.name}":{{'
    for number, (key, value) in enumerate(schema.items()):
        yield SCHEMA, "," if number else ""
        if key == "properties" and isinstance(value, dict):
            yield SCHEMA, '"properties":{'
            for at, (name, parameter) in enumerate(cast("dict[str, Any]", value).items()):
                yield SCHEMA, "," if at else ""
                yield Field(name, is_parameter=True), _member(name, parameter)
            yield SCHEMA, "}"
        else:
            yield SCHEMA, _member(key, value)
    yield SCHEMA, "}"


def _member(key: str, value: object) -> str:
    return f"{json_text(key)}:{json_text(value)}"
