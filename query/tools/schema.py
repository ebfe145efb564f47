"""Small JSON schemas: every conversation of a client pays for a tool's schema in tokens."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a tool's arguments."""
    return _schema(model, "validation")


def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a tool's response, which omits fields that are None."""
    return _schema(model, "serialization")


def _schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    schema = model.model_json_schema(mode=mode, schema_generator=_SmallSchema)
    # pydantic adds the class docstring as a description, which is for readers of the code
    for definition in (schema, *cast("dict[str, dict[str, Any]]", schema.get("$defs", {})).values()):
        definition.pop("title", None)
        definition.pop("description", None)
    return schema


class _SmallSchema(GenerateJsonSchema):
    """Omits titles, which repeat the names, null for optional fields, and limits on the lengths of texts.

    Validation still enforces these limits, which only guard against abuse.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # the overridden signature
        return False

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return {key: value for key, value in super().str_schema(schema).items() if key != "maxLength"}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        with_default = super().default_schema(schema)
        return {key: value for key, value in with_default.items() if (key, value) != ("default", None)}
