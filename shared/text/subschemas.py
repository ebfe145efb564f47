"""Schemas within a JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

Schema = dict[str, Any]
Edit = Callable[[Schema, str], Schema]
"""Returns a schema in place of another one; the second argument is its name in `properties` or `$defs`, or empty."""

DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset((*DEFINITIONS, "properties", "patternProperties", "dependentSchemas"))
_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_SINGLE = frozenset(
    ("items", "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "not",
     "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")
)  # fmt: skip


def edited(schema: Any, edit: Edit, name: str = "") -> Any:
    """Return the schema after `edit` of it and of every schema within; data such as `enum` and `default` stay."""
    if not isinstance(schema, dict):
        return schema
    inner = {key: _within(key, value, edit) for key, value in cast("Schema", schema).items()}
    return edit(inner, name)


def _within(key: str, value: Any, edit: Edit) -> Any:
    if key in _NAMED and isinstance(value, dict):
        return {name: edited(schema, edit, name) for name, schema in cast("Schema", value).items()}
    if key in _LISTED and isinstance(value, list):
        return [edited(schema, edit) for schema in cast("list[object]", value)]
    return edited(value, edit) if key in _SINGLE else value


def schemas_of(schema: Any) -> list[Schema]:
    """Return the schema and every schema within."""
    found: list[Schema] = []

    def keep(each: Schema, _name: str) -> Schema:
        found.append(each)
        return each

    edited(schema, keep)
    return found


def keywords_anywhere(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of every object with its value, in schemas and in data."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield key, inner
            yield from keywords_anywhere(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from keywords_anywhere(inner)
