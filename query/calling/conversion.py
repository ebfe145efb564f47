"""Arguments that violate an input schema, and that a server may accept: it fills in defaults and converts values.

Frameworks convert in different ways, so these values are sent, and the server decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

# Longer texts are not parsed.
MAX_TEXT_CHARACTERS = 10_000
_BOOLEAN_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"])


def may_be_accepted(error: Any) -> bool:
    """Return whether a server may accept the value of this `ValidationError`."""
    match error.validator:
        case "type":
            return _is_convertible(error.instance, _names(error.validator_value))
        case "enum":
            return _text(error.instance) in map(_text, error.validator_value)
        case "const":
            return _text(error.instance) == _text(error.validator_value)
        case "required":
            return not missing(error)
        case _:
            return _is_a_branch_accepted(error.context or ())


def missing(error: Any) -> list[str]:
    """Return the required properties that are absent and have no default."""
    properties = error.schema.get("properties", {})
    absent = (name for name in error.validator_value if name not in error.instance)
    return [str(name) for name in absent if not _has_default(properties.get(name))]


def _has_default(schema: object) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _is_a_branch_accepted(errors: Sequence[Any]) -> bool:
    """Return whether all errors of some branch of `anyOf` or `oneOf` are of values that may be accepted."""
    # the error of a branch `false`, which accepts nothing, has no path
    of_schemas = (error for error in errors if error.relative_schema_path)
    branches = groupby(of_schemas, key=lambda error: error.relative_schema_path[0])
    return any(all(map(may_be_accepted, list(branch))) for _, branch in branches)


def _names(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def _is_convertible(value: object, types: Sequence[str]) -> bool:
    if isinstance(value, str):
        return any(_reads_as(value, name) for name in types)
    is_scalar_expected = not {"array", "object"}.issuperset(types)
    return value is None or (isinstance(value, bool | int | float) and is_scalar_expected)


def _reads_as(text: str, name: str) -> bool:
    """Return whether a text reads as a value of this type."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return True
    match name:
        case "boolean":
            return text.strip().lower() in _BOOLEAN_WORDS
        case "integer" | "number":
            return _is_number(text)
        case "null":
            return text in ("", "null")
        case _:
            return isinstance(_parsed(text), list if name == "array" else dict)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
