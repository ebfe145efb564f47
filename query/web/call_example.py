"""The arguments of `call_tool` for a tool, with its required parameters to be filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition

_BY_TYPE: Mapping[str, object] = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


def call_example(name: str, definition: ToolDefinition) -> str:
    """Return the arguments as JSON. Each value is one that the schema names, or the smallest one of its type.

    `name` is the tool's name for calls.
    """
    schema = _object(definition.as_object().get("inputSchema"))
    properties, required = _object(schema.get("properties")), schema.get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    parameters = {each: _value(each, _object(properties.get(each))) for each in names if isinstance(each, str)}
    return json.dumps({"tool_name": name, "parameters": parameters}, ensure_ascii=False, indent=2)


def _value(name: str, schema: Mapping[str, Any]) -> object:
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    declared = schema.get("type")
    if declared == "array" and schema.get("minItems"):
        return [_value(name, _object(schema.get("items")))]
    if declared in ("integer", "number") and isinstance(schema.get("minimum"), int | float):
        return schema["minimum"]
    return _BY_TYPE.get(declared, f"<{name}>") if isinstance(declared, str) else f"<{name}>"


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
