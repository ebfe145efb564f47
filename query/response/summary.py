"""A tool in a line: its name, what it must be given, and the first sentence of its description."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, cast

from shared.catalog import ToolDefinition

# A server may declare anything; these limits keep a summary short.
MAX_PARAMETERS = 12
MAX_NAME_CHARACTERS = 60
MAX_SENTENCE_CHARACTERS = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])|\n\s*\n")


def summary(definition: ToolDefinition) -> str:
    """Return `name(required: type, …): First sentence.`; the dots stand for parameters that may be left out."""
    sentence = first_sentence(definition.description)
    return f"{definition.name}({_parameters(definition)})" + (f": {sentence}" if sentence else "")


def first_sentence(text: str) -> str:
    """Return the first sentence, on one line, cut where it is long."""
    # a longer text is cut anyway
    first = _SENTENCE_END.split(text[: 10 * MAX_SENTENCE_CHARACTERS].strip(), maxsplit=1)[0]
    return _cut(" ".join(first.split()), MAX_SENTENCE_CHARACTERS)


def _parameters(definition: ToolDefinition) -> str:
    schema = _object(definition.as_object().get("inputSchema"))
    properties, required = _object(schema.get("properties")), schema.get("required")
    names = (
        [name for name in cast("list[object]", required) if isinstance(name, str)] if isinstance(required, list) else []
    )
    named = [
        f"{_cut(name, MAX_NAME_CHARACTERS)}: {type_name(properties.get(name))}"
        for name in islice(names, MAX_PARAMETERS)
    ]
    is_all = len(named) == len(names) and properties.keys() <= set(names)
    return ", ".join(named if is_all else [*named, "…"])


def type_name(schema: object) -> str:
    """Return a schema's type as a word, `string[]` for an array of strings, `any` where it is not that simple."""
    declared = _object(schema)
    json_type = declared.get("type")
    if isinstance(json_type, list):
        types = [name for name in cast("list[object]", json_type) if name != "null"]
        json_type = types[0] if len(types) == 1 else None
    if json_type == "array":
        items = _object(declared.get("items")).get("type")
        return f"{_cut(items, 20)}[]" if isinstance(items, str) else "any[]"
    return _cut(json_type, 20) if isinstance(json_type, str) else "any"


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
